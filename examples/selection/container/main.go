// Command selection-container serves one build of a digit model: selection-container NAME VERSION.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/examples/digits"
	"github.com/shivad/shivad/examples/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

func main() {
	slog.SetLogLoggerLevel(slog.LevelWarn) // its log is mixed with the output of the run
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, os.Args[1:]); err != nil {
		slog.Error("selection-container ends", "error", err)
		os.Exit(1)
	}
}

// serve connects to the servers in $SHIVA_SERVERS, else to 127.0.0.1:7000, and returns when ctx
// ends.
func serve(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("expected a model and its version, as: selection-container sharp 1")
	}
	build, err := selection.Find(args[0], args[1])
	if err != nil {
		return err
	}
	network, err := digits.Load()
	if err != nil {
		return err
	}
	return container.Serve(ctx, container.Model{
		Name: build.Name, Version: build.Version, Platform: "go",
		Inputs: []tensor.Spec{{Name: "image", DType: tensor.Uint8,
			Shape: tensor.Shape{-1, digits.Side, digits.Side}}},
		Outputs:  []tensor.Spec{{Name: "label", DType: tensor.Int64, Shape: tensor.Shape{-1}}},
		MaxBatch: 64,
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(build.Takes)
			out, err := b.Output(0)
			if err != nil {
				return nil, err
			}
			labels, err := tensor.Values[int64](out)
			if err != nil {
				return nil, err
			}
			for row := range b.Rows {
				labels[row] = int64(build.Infer(network, b.Inputs[0].Data[row*digits.Pixels:]))
			}
			return []tensor.Tensor{out}, nil
		},
	})
}
