package shiva_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// classify stands in for a server with a model, so that the examples run.
func classify(c *shivatest.Conn, m *shiva.Message) {
	if m.Namespace != "digits" {
		_ = c.Send(
			shiva.ErrorMessage(&shiva.RemoteError{Type: shiva.NotFound,
				Message: `no route "` + m.Namespace + `"; there is "digits"`, Code: 404}))
		return
	}
	label, _ := tensor.FromSlice(tensor.Shape{1}, []int64{7})
	_ = c.Send(&shiva.Message{Namespace: m.Namespace, Metadata: []byte(`{"model_version":"1","__tensors__":["label"]}`),
		Tensors: []tensor.Tensor{label}})
}

func exampleServer() (addr string, opt shiva.Option, stop func()) {
	var n shivatest.Net
	l, err := n.Listen("localhost:6174")
	if err != nil {
		log.Fatal(err)
	}
	s := shivatest.Serve(l, classify)
	return "localhost", shiva.WithDialer(n.Dial), s.Close
}

// Do sends a message unchanged, and returns its answer. Any number of goroutines may use a Client.
func ExampleClient_Do() {
	addr, inMemory, stop := exampleServer()
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client, err := shiva.Dial(ctx, addr, inMemory)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	pixels := make([]byte, 8*8)
	image, err := tensor.FromSlice(tensor.Shape{1, 8, 8}, pixels)
	if err != nil {
		log.Fatal(err)
	}
	answer, err := client.Do(ctx, &shiva.Message{Namespace: "digits", Tensors: []tensor.Tensor{image}})
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Release()
	labels, err := tensor.Values[int64](answer.Tensors[0])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(labels[0], string(answer.Metadata))
	// Output: 7 {"model_version":"1","__tensors__":["label"]}
}

// Inputs and outputs have names. Inputs without names are matched by position.
func ExampleClient_Infer() {
	addr, inMemory, stop := exampleServer()
	defer stop()
	// The deadline travels with the request.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client, err := shiva.Dial(ctx, addr, inMemory)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	image, err := tensor.FromSlice(tensor.Shape{1, 8, 8}, make([]byte, 8*8))
	if err != nil {
		log.Fatal(err)
	}
	image.Name = "image"
	answer, err := client.Infer(ctx, "digits", image)
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Release()
	label, err := answer.Output("label")
	if err != nil {
		log.Fatal(err)
	}
	labels, err := tensor.Values[int64](label)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(label.Name, labels[0])
	// Output: label 7
}

// One goroutine pushes a camera's frames, another takes the answers. With the default Keep, a new
// frame supersedes the oldest one that waits for a slow model; here every frame is executed.
func ExampleClient_Stream() {
	addr, inMemory, stop := exampleServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client, err := shiva.Dial(ctx, addr, inMemory)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	stream, err := client.Stream(ctx, shiva.StreamConfig{Model: "digits", Name: "camera 3", Keep: shiva.KeepAll})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()

	go func() {
		defer stream.Finish()
		pixels := make([]byte, 8*8) // each frame may overwrite them: Push copies
		for range 3 {
			image, err := tensor.FromSlice(tensor.Shape{1, 8, 8}, pixels)
			if err != nil {
				log.Fatal(err)
			}
			if _, err := stream.Push(ctx, shiva.Frame{Tensors: []tensor.Tensor{image}}); err != nil {
				log.Print(err)
				return
			}
		}
	}()
	for answer, err := range stream.Answers(ctx) {
		if err != nil {
			log.Printf("frame %d: %v", answer.Seq, err)
			continue
		}
		labels, err := tensor.Values[int64](answer.Tensors[0])
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer.Seq, labels[0], answer.Age < time.Second, answer.Skipped)
		answer.Release()
	}
	// Output:
	// 0 7 true 0
	// 1 7 true 0
	// 2 7 true 0
}

// A server's refusal is an error with a type; the error of a lost connection tells whether the
// request may have run.
func ExampleRemoteError() {
	addr, inMemory, stop := exampleServer()
	defer stop()
	client, err := shiva.Dial(context.Background(), addr, inMemory)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	_, err = client.Do(context.Background(), &shiva.Message{Namespace: "digit"})
	if remote, ok := errors.AsType[*shiva.RemoteError](err); ok {
		fmt.Println(remote.Type, remote.Retryable, remote.Message)
	} else if call, ok := errors.AsType[*shiva.CallError](err); ok && !call.MayHaveRun {
		fmt.Println("safe to send again")
	}
	// Output: NotFound false no route "digit"; there is "digits"
}

// A Decoder takes bytes as they arrive and returns messages.
func ExampleDecoder() {
	m := &shiva.Message{Namespace: "digits", Metadata: []byte(`{"id":"a"}`)}
	wire, err := shiva.AppendMessage(nil, m)
	if err != nil {
		log.Fatal(err)
	}
	d := shiva.NewDecoder(shiva.DecoderConfig{})
	for _, piece := range [][]byte{wire[:5], wire[5:]} {
		for len(piece) > 0 {
			n, m, err := d.Push(piece)
			if err != nil {
				log.Fatal(err)
			}
			piece = piece[n:]
			if m != nil {
				fmt.Println(m.Namespace, string(jsonscan.Field(m.Metadata, "id")))
				m.Release()
			}
		}
	}
	// Output: digits "a"
}
