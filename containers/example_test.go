package containers_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A program with a listener for containers and no doors: each container that registers becomes a
// replica of its model in the scheduler.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	registered := make(chan struct{}, 1)
	s, err := scheduler.New(scheduler.Config{})
	if err != nil {
		log.Fatal(err)
	}
	l, err := containers.Listen(containers.Config{
		Addrs:      []string{"tcp://127.0.0.1:0"},
		Scheduler:  s,
		Registered: func(net.Conn, containers.SessionInfo) { registered <- struct{}{} },
	})
	if err != nil {
		log.Fatal(err)
	}
	numbers := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}}
	echo := container.Model{
		Name: "echo", Version: "1", Inputs: numbers, Outputs: numbers,
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil },
	}
	served := make(chan error, 1)
	go func() { served <- container.Serve(ctx, echo, l.Dialable()[0]) }() // usually another process
	select {
	case <-registered:
	case err := <-served:
		log.Fatal(err) // the model or the address is invalid
	}

	x, err := tensor.FromSlice(tensor.Shape{1, 2}, []float32{1, 2})
	if err != nil {
		log.Fatal(err)
	}
	model, _ := s.Model(scheduler.ModelID{Name: "echo", Version: "1"})
	r := &scheduler.Request{Model: model, Inputs: []tensor.Tensor{x}, Rows: 1}
	if err := s.Infer(ctx, r); err != nil {
		log.Fatal(err)
	}
	fmt.Println(tensor.Values[float32](r.Outputs[0]))
	r.Outputs[0].Release()

	stop()
	fmt.Println(<-served)
	fmt.Println(l.Shutdown(context.Background()))
	s.Close()
	// Output:
	// [1 2] <nil>
	// <nil>
	// <nil>
}
