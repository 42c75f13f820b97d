// Command client asks the digits model of `make run` what one handwritten digit is.
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
	addr := "127.0.0.1:6174"
	if len(os.Args) > 1 {
		addr = os.Args[1]
	}
	if err := ask(addr); err != nil {
		log.Fatal(err)
	}
}

func ask(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client, err := shiva.Dial(ctx, addr) // for any number of goroutines; requests are pipelined
	if err != nil {
		return err
	}
	defer client.Close()

	pixels, err := os.ReadFile("digits/heldout.u8") // 8x8 pixels and a label, again and again
	if err != nil {
		return err
	}
	image, err := tensor.FromSlice(tensor.Shape{8, 8}, pixels[:64])
	if err != nil {
		return err
	}
	answer, err := client.Do(ctx, &shiva.Message{Namespace: "digits", Tensors: []tensor.Tensor{image}})
	if err != nil {
		return err // a *shiva.RemoteError if the server refused it
	}
	defer answer.Release()                                // its tensors are views of one buffer
	label, err := tensor.Values[int64](answer.Tensors[1]) // scores, then label
	if err != nil {
		return err
	}
	fmt.Println(label[0])
	return nil
}
