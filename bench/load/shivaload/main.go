// Command shivaload offers load to a Shiva server and prints the results in benchstat's format.
//
//	shivaload -route digits -dtype UINT8 -shape 8,8             closed loop, one in flight
//	shivaload -route digits ... -conns 16 -inflight 16          closed loop, 256 in flight
//	shivaload -route digits ... -rate 5000                      open loop, 5,000 per second
//
// It fails if any request got no answer, or an error.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/declare"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("shivaload: ")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("shivaload", flag.ExitOnError)
	var c load.Config
	f.StringVar(&c.Addr, "addr", fmt.Sprintf("127.0.0.1:%d", shiva.DefaultPort), "the server's Shiva `address`")
	f.IntVar(&c.Conns, "conns", 1, "connections")
	f.IntVar(&c.InFlight, "inflight", 0, "most requests in flight on each connection; 0: one in a closed loop, no limit in an open one")
	f.Float64Var(&c.Rate, "rate", 0, "requests per second, all connections together; 0: closed loop, the next when one is answered")
	f.BoolVar(&c.Gather, "gather", false, "write all requests that are due on a connection at once, instead of one by one")
	f.BoolVar(&c.Poll, "poll", false, "ask for answers all the time instead of sleeping until there are some; takes a core")
	f.BoolVar(&c.Even, "even", false, "space requests evenly instead of at random (Poisson)")
	f.Uint64Var(&c.Seed, "seed", 1, "of the random arrivals")
	f.DurationVar(&c.Warmup, "warmup", time.Second, "load before the measured time")
	f.DurationVar(&c.Duration, "duration", 10*time.Second, "measured time")
	f.IntVar(&c.Loops, "threads", 1, "threads of the generator")
	route := f.String("route", "", "namespace of the requests: the model or application")
	dtype := f.String("dtype", "FP32", "element `type` of the one tensor, as the Predict Protocol V2 names it")
	shape := f.String("shape", "", "its `shape`, such as 1080,1920,3; empty: a scalar")
	name := f.String("name", "Load", "first part of the line's name")
	echo := f.Bool("echo", false, "the model answers with its input: compare a sample of the answers")
	f.Parse(args)

	if f.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	d, s, err := declare.Tensor(*dtype, *shape)
	if err != nil {
		return err
	}
	if c.Frames, err = load.Frames(max(c.Conns, 1), *route, d, s); err != nil {
		return err
	}
	if *echo {
		c.Check = load.SameTensors
	}
	r, err := load.Run(ctx, c)
	if err != nil {
		return err
	}
	loop := fmt.Sprintf("inflight=%d", max(c.InFlight, 1))
	if c.Rate > 0 {
		loop = fmt.Sprintf("rate=%g", c.Rate)
	}
	fmt.Print(r.Line(fmt.Sprintf("%s/route=%s/dtype=%s/shape=%s/conns=%d/%s", *name, *route, d, strings.ReplaceAll(*shape, ",", "x"), c.Conns, loop)))
	if r.Failed > 0 || r.Lost > 0 {
		return fmt.Errorf("%d requests answered with an error, %d not at all; the first error: %s", r.Failed, r.Lost, r.Failure)
	}
	return nil
}
