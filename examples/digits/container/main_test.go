package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/examples/digits"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestServe runs the container with a listener and a scheduler, over a real socket: its
// registration equals that of the example's Python container, every held-out image gets the label
// of the network, and the container ends with its context.
func TestServe(t *testing.T) {
	s, err := scheduler.New(scheduler.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	listener, err := containers.Listen(containers.Config{Addrs: []string{"127.0.0.1:0"}, Scheduler: s})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- serve(serving, listener.Dialable()...) }()

	var model *scheduler.Model
	for model == nil {
		select {
		case err := <-served:
			t.Fatalf("serve ended before it registered: %v", err)
		case <-ctx.Done():
			t.Fatal("no registration")
		case <-time.After(5 * time.Millisecond):
			model, _ = s.Model(scheduler.ModelID{Name: "digits", Version: "1"})
		}
	}
	data, err := os.ReadFile("../heldout.u8")
	if err != nil {
		t.Fatal(err)
	}
	network, err := digits.Load()
	if err != nil {
		t.Fatal(err)
	}
	const size = digits.Pixels + 1
	rows := len(data) / size
	images, want := make([]byte, 0, rows*digits.Pixels), make([]int64, rows)
	for i := range want {
		image := data[i*size : i*size+digits.Pixels]
		images = append(images, image...)
		want[i] = int64(network.Infer(image, make([]float32, digits.Classes)))
	}
	input, err := tensor.New(tensor.Uint8, tensor.Shape{rows, digits.Side, digits.Side}, images)
	if err != nil {
		t.Fatal(err)
	}
	r := &scheduler.Request{Model: model, Inputs: []tensor.Tensor{input}, Rows: rows}
	if err := s.Infer(ctx, r); err != nil {
		t.Fatal(err)
	}
	if len(r.Outputs) != 2 || r.Outputs[0].Name != "scores" ||
		!r.Outputs[0].Shape.Equal(tensor.Shape{rows, digits.Classes}) || r.Outputs[1].Name != "label" {
		t.Fatalf("outputs %v, expected scores [%d, %d] and label [%d]", r.Outputs, rows, digits.Classes, rows)
	}
	got, err := tensor.Values[int64](r.Outputs[1])
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("image %d: label %d, expected %d", i, got[i], want[i])
		}
	}
	for _, o := range r.Outputs {
		o.Release()
	}

	stop()
	select {
	case err := <-served:
		if err != nil {
			t.Errorf("serve ended with %v", err)
		}
	case <-ctx.Done():
		t.Error("serve did not end when asked to")
	}
}
