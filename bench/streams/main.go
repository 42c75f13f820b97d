// Command streams checks shivad's promise to cameras: the newest frame wins. Cameras send 30 frames
// a second of 640 x 480 over TCP to a model that executes ten a second, in a container that sleeps.
//
//	streams [-length 1m] [-short] [-markdown]
//
// It exits with 1 if a promise is broken; checks.go has the promises.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/internal/table"
)

type options struct {
	length   time.Duration // of four cameras on the slow model; the fifth comes half-way
	control  time.Duration // of the cameras with keep = all
	patience time.Duration // the deadline of their frames
	shared   time.Duration // of the cameras that share batches
	turns    int           // of the cost measurement, each as long as turn
	turn     time.Duration
	markdown bool
}

func main() {
	o := options{length: time.Minute, control: 12 * time.Second, patience: 3 * time.Second, shared: 8 * time.Second,
		turns: 40, turn: 150 * time.Millisecond}
	flag.DurationVar(&o.length, "length", o.length, "`time` for which four cameras send")
	short := flag.Bool("short", false, "fifteen seconds in all: for a quick check, not for figures")
	flag.BoolVar(&o.markdown, "markdown", false, "write the tables in Markdown")
	flag.Parse()
	if *short {
		o.length, o.control, o.patience, o.shared = 7*time.Second, 4*time.Second, 800*time.Millisecond,
			1500*time.Millisecond
		o.turns, o.turn = 10, 100*time.Millisecond
	}
	process.Main("streams", o.run)
}

// run measures and reports, and returns the promises that do not hold.
func (o options) run(ctx context.Context) (broken []string, err error) {
	began := time.Now()
	m, err := measure(ctx, o)
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, c := range m.checks() {
		rows = append(rows, c.Cells())
		if !c.Holds() {
			broken = append(broken, c.What)
		}
	}
	table.Write(os.Stdout, o.markdown, ratio.Head, rows)
	fmt.Printf("\n%v in all\n", time.Since(began).Round(time.Second))
	return broken, nil
}

// A measurement is the result of a run.
type measurement struct {
	options
	latest *film   // four cameras, keep = latest
	fifth  *film   // of half the length, while the four send
	looks  []look  // at the memory for their frames
	all    *film   // four cameras, keep = all
	shared *film   // four cameras on the model that takes batches
	batch  float64 // frames in a batch of it
	costs  costs
}

const cameras = 4

func measure(ctx context.Context, o options) (m *measurement, err error) {
	dir, err := os.MkdirTemp("", "streams-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := process.Build(ctx, dir, "cmd/shivad", "bench/sleeper"); err != nil {
		return nil, err
	}
	r, err := startRig(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		r.stop()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.Output())
		}
	}()
	m = &measurement{options: o}
	for _, part := range []func(context.Context, *rig) error{m.four, m.control, m.sharing, m.costing} {
		if err := part(ctx, r); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// four makes four cameras send, and from half-way on a fifth.
func (m *measurement) four(ctx context.Context, r *rig) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	type late struct {
		film *film
		err  error
	}
	fifth := make(chan late, 1)
	start := time.AfterFunc(m.length/2, func() {
		f, err := r.film(ctx, shoot{model: slow, name: "fifth", keep: "latest", cameras: 1, length: m.length / 2})
		fifth <- late{f, err}
	})
	var err error
	m.looks, err = r.watched(ctx, slow, func() (err error) {
		m.latest, err = r.film(ctx,
			shoot{model: slow, name: "camera", keep: "latest", cameras: cameras, length: m.length})
		return err
	})
	if err != nil {
		quit()
		if start.Stop() {
			return err
		}
	}
	f := <-fifth
	m.fifth = f.film
	return errors.Join(err, f.err)
}

// control makes four cameras send that want an answer to each frame.
func (m *measurement) control(ctx context.Context, r *rig) (err error) {
	m.all, err = r.film(ctx,
		shoot{model: slow, name: "all", keep: "all", timeout: m.patience, cameras: cameras, length: m.options.control})
	return err
}

// sharing makes four cameras send to the model that takes batches.
func (m *measurement) sharing(ctx context.Context, r *rig) (err error) {
	before, err := r.Metrics(ctx)
	if err != nil {
		return err
	}
	if m.shared, err = r.film(ctx,
		shoot{model: wide, name: "wide", keep: "latest", cameras: cameras, length: m.options.shared}); err != nil {
		return err
	}
	after, err := r.Metrics(ctx)
	if err != nil {
		return err
	}
	of := func(name string) float64 { return after.By(name, "model")[wide] - before.By(name, "model")[wide] }
	m.batch = of("shivad_batch_rows_sum") / max(1, of("shivad_batch_rows_count"))
	return nil
}

func (m *measurement) costing(ctx context.Context, r *rig) (err error) {
	m.costs, err = r.cost(ctx, m.turns, m.turn)
	return err
}
