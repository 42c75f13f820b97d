// Command client classifies one handwritten digit with the model of `make run`.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client := must(shiva.Dial(ctx, "127.0.0.1:6174")) // safe for concurrent use; pipelined
	defer client.Close()
	pixels := must(os.ReadFile("digits/heldout.u8")) // images of 8x8 pixels, each with its label
	image := must(tensor.FromSlice(tensor.Shape{8, 8}, pixels[:64]))
	answer := must(client.Infer(ctx, "digits", image))
	defer answer.Release() // its tensors share one buffer
	fmt.Println(must(tensor.Values[int64](must(answer.Output("label"))))[0])
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err) // a *shiva.RemoteError if the server refused the request
	}
	return v
}
