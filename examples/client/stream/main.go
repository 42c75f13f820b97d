// Command stream shows the frames of a camera to the model of `make run`.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"slices"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client := must(shiva.Dial(ctx, "127.0.0.1:6174"))
	defer client.Close()
	// A stream has a connection of its own.
	camera := must(client.Stream(ctx, shiva.StreamConfig{Model: "digits", Name: "cam-3"}))
	defer camera.Close()
	go film(ctx, camera)
	var seq, label int64
	for answer, err := range camera.Answers(ctx) {
		if err != nil {
			log.Printf("frame %d: %v", answer.Seq, err)
			continue
		}
		// answer.Age and answer.Skipped tell how old it is and what it replaced.
		seq, label = answer.Seq, must(tensor.Values[int64](must(answer.Output("label"))))[0]
		answer.Release()
	}
	fmt.Println(seq, label)
}

// film pushes the frames, which does not wait for the model, the network or the server.
func film(ctx context.Context, camera *shiva.Stream) {
	defer camera.Finish()
	pixels := must(os.ReadFile("digits/heldout.u8")) // images of 8x8 pixels, each with its label
	for frame := range slices.Chunk(pixels[:20*65], 65) {
		image := must(tensor.FromSlice(tensor.Shape{8, 8}, frame[:64]))
		// Push has sent the image: its memory may be reused.
		must(camera.Push(ctx, shiva.Frame{Tensors: []tensor.Tensor{image}}))
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
