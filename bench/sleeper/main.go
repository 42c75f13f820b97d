// Command sleeper is a container whose model echoes a batch of n rows after a + b·n, with noise:
// a model of known speed that takes no processor time. When it is stopped it prints the number of
// rows that it received.
//
//	sleeper [-servers ADDR] [-a 5ms] [-b 500us] [-noise 0.05] [-max-batch N] NAME:DATATYPE:SHAPE
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shivad/shivad/bench/internal/declare"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva/tensor"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("sleeper: ")
	servers := flag.String("servers", "127.0.0.1:7000", "`addresses` of the servers, comma-separated")
	a := flag.Duration("a", 5*time.Millisecond, "`time` per batch")
	b := flag.Duration("b", 500*time.Microsecond, "`time` per row")
	noise := flag.Float64("noise", 0.05, "relative standard deviation of the time")
	most := flag.Int("max-batch", 0, "maximum number of `rows` in a batch; 0: the server's default")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := (sleeper{*a, *b, *noise, *most}).serve(ctx, strings.Split(*servers, ","), flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// A sleeper takes a for a batch and b for each row of it, with a relative noise.
type sleeper struct {
	a, b  time.Duration
	noise float64
	most  int // rows of a batch; 0: the server's default
}

func (s sleeper) serve(ctx context.Context, servers, declarations []string) error {
	if len(declarations) != 1 {
		return fmt.Errorf("expected one model, got %d", len(declarations))
	}
	name, x, err := declare.Model(declarations[0])
	if err != nil {
		return err
	}
	var rows, batches atomic.Int64
	defer func() { log.Printf("%d rows in %d batches", rows.Load(), batches.Load()) }()
	return container.Serve(ctx, container.Model{
		Name: name, Version: "1", Platform: "sleeper", Batched: new(true), MaxBatch: s.most, Inputs: []tensor.Spec{x},
		Outputs: []tensor.Spec{x},
		Predict: func(_ context.Context, batch *container.Batch) ([]tensor.Tensor, error) {
			began := time.Now()
			n := batch.Inputs[0].Rows()
			rows.Add(int64(n))
			batches.Add(1)
			d := float64(s.a + s.b*time.Duration(n))
			return batch.Inputs, sleepUntil(began.Add(time.Duration(d * max(0.2, 1+s.noise*rand.NormFloat64()))))
		},
	}, servers...)
}
