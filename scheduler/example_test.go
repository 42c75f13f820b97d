package scheduler_test

import (
	"context"
	"fmt"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// The scheduler as a library: a function as a replica, and a request that waits for its answer.
func Example() {
	s, err := scheduler.New(scheduler.Config{})
	if err != nil {
		panic(err)
	}
	defer s.Close()

	// A model that doubles: its rows are single float32 numbers.
	numbers := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1}}}
	double := scheduler.Func(func(_ context.Context, inputs []tensor.Tensor) ([]tensor.Tensor, error) {
		values, err := tensor.Values[float32](inputs[0])
		for i := range values {
			values[i] *= 2
		}
		return inputs, err
	})
	rep, err := s.AddReplica(scheduler.ModelID{Name: "double", Version: "1"},
		scheduler.Spec{Inputs: numbers, Outputs: numbers}, double, scheduler.ReplicaOptions{})
	if err != nil {
		panic(err)
	}

	in, err := tensor.FromSlice(tensor.Shape{3}, []float32{1, 2, 3})
	if err != nil {
		panic(err)
	}
	r := &scheduler.Request{Model: rep.Model(), Inputs: []tensor.Tensor{in}, Rows: 3}
	if err := s.Infer(context.Background(), r); err != nil {
		panic(err)
	}
	out, err := tensor.Values[float32](r.Outputs[0])
	fmt.Println(out, err)
	r.Outputs[0].Release()
	// Output: [2 4 6] <nil>
}
