package container_test

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva/tensor"
)

// A model that adds up the four numbers of each row.
func Example() {
	model := container.Model{
		Name: "sum", Version: "1",
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}},
		Outputs: []tensor.Spec{{Name: "sum", DType: tensor.Float32, Shape: tensor.Shape{-1}}},
		Predict: func(ctx context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			x, err := tensor.Values[float32](b.Inputs[0])
			if err != nil {
				return nil, err
			}
			out, err := b.Output(0)
			if err != nil {
				return nil, err
			}
			sum, err := tensor.Values[float32](out)
			if err != nil {
				return nil, err
			}
			for i := range b.Rows {
				sum[i] = x[4*i] + x[4*i+1] + x[4*i+2] + x[4*i+3]
			}
			return []tensor.Tensor{out}, nil
		},
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := container.Serve(ctx, model, "tcp://127.0.0.1:7000"); err != nil {
		log.Fatal(err)
	}
}

// Rows may fail one by one, and each request has parameters of its own.
func ExampleBatch_Fail() {
	predict := func(ctx context.Context, b *container.Batch) ([]tensor.Tensor, error) {
		for row := range b.Rows {
			if b.Inputs[0].Data[row] == 0 {
				b.Fail(row, fmt.Errorf("the image is black"))
			}
		}
		return b.Inputs, nil // sent from the memory into which they were received
	}
	_ = container.Model{Name: "echo", Version: "1", Predict: predict}
}

// A model can be a function of one row. Check runs it without a server, for its tests; the error
// of a row fails that row alone.
func ExampleCheck() {
	double := container.Model{
		Name: "double", Version: "1",
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}},
		Predict: container.PerRow(func(_ context.Context, row []tensor.Tensor) ([]tensor.Tensor, error) {
			x, err := tensor.Values[float32](row[0])
			if err != nil {
				return nil, err
			}
			y := make([]float32, len(x))
			for i := range x {
				y[i] = 2 * x[i]
			}
			out, err := tensor.FromSlice(tensor.Shape{1, 4}, y)
			return []tensor.Tensor{out}, err
		}),
	}
	fmt.Println(container.Check(context.Background(), double, 8, 1))
	double.Outputs[0].DType = tensor.Int64
	fmt.Println(container.Check(context.Background(), double, 8, 1) != nil)
	// Output:
	// <nil>
	// true
}
