// Command noop is a container whose models echo their input, to measure the transport of a batch
// alone. noop.py is the same in Python.
//
//	noop [-servers ADDR] [-max-batch N] [-wide NAME] [NAME:DATATYPE:SHAPE ...]
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/shivad/shivad/bench/internal/declare"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva/tensor"
)

func main() {
	// This program computes nothing: a second thread would only spin, on a processor that the
	// server needs.
	runtime.GOMAXPROCS(1)
	log.SetFlags(0)
	log.SetPrefix("noop: ")
	servers := flag.String("servers", "127.0.0.1:7000", "`addresses` of the servers, comma-separated")
	maxBatch := flag.Int("max-batch", 0, "maximum number of `rows` in a batch; 0: the server's default")
	wide := flag.String("wide", "", "also serve a model of this `name` that answers a number with a mebibyte")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, strings.Split(*servers, ","), *maxBatch, *wide, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// serve serves the models until ctx ends, or until one of them cannot be served.
func serve(ctx context.Context, servers []string, maxBatch int, wide string, declarations []string) error {
	models := make([]container.Model, len(declarations))
	for i, text := range declarations {
		name, x, err := declare.Model(text)
		if err != nil {
			return err
		}
		models[i] = container.Model{
			Name: name, Version: "1", Platform: "noop", Batched: new(true), MaxBatch: maxBatch,
			Inputs: []tensor.Spec{x}, Outputs: []tensor.Spec{x},
			Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil },
		}
	}
	if wide != "" {
		models = append(models, mebibytes(wide))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(models))
	var wg sync.WaitGroup
	for i, m := range models {
		wg.Go(func() {
			defer cancel()
			errs[i] = container.Serve(ctx, m, servers...)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// mebibytes is a model whose answers are much larger than its requests.
func mebibytes(name string) container.Model {
	return container.Model{
		Name: name, Version: "1", Platform: "noop", Batched: new(true),
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1 << 20}}},
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			y, err := b.Output(0)
			return []tensor.Tensor{y}, err
		},
	}
}
