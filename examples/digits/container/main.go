// Command digits-container serves the digits network of this example, in plain Go.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/examples/digits"
	"github.com/shivad/shivad/shiva/tensor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx); err != nil {
		slog.Error("digits-container ends", "error", err)
		os.Exit(1)
	}
}

// serve connects to the servers in $SHIVA_SERVERS, else to 127.0.0.1:7000, and returns when ctx
// ends.
func serve(ctx context.Context, servers ...string) error {
	network, err := digits.Load()
	if err != nil {
		return err
	}
	return container.Serve(ctx, container.Model{
		Name: "digits", Version: "1", Platform: "go",
		Inputs: []tensor.Spec{{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, digits.Side, digits.Side}}},
		Outputs: []tensor.Spec{
			{Name: "scores", DType: tensor.Float32, Shape: tensor.Shape{-1, digits.Classes}},
			{Name: "label", DType: tensor.Int64, Shape: tensor.Shape{-1}},
		},
		MaxBatch: 64,
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			return predict(network, b)
		},
	}, servers...)
}

func predict(network *digits.Network, b *container.Batch) ([]tensor.Tensor, error) {
	scores, err := b.Output(0)
	if err != nil {
		return nil, err
	}
	labels, err := b.Output(1)
	if err != nil {
		return nil, err
	}
	score, err := tensor.Values[float32](scores)
	if err != nil {
		return nil, err
	}
	label, err := tensor.Values[int64](labels)
	if err != nil {
		return nil, err
	}
	images := b.Inputs[0].Data
	for row := range b.Rows {
		label[row] = int64(network.Infer(images[row*digits.Pixels:], score[row*digits.Classes:]))
	}
	return []tensor.Tensor{scores, labels}, nil
}
