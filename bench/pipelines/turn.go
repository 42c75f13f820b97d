package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

// A turn is what some cameras got one way.
type turn struct {
	rate      float64 // pictures per second, of all
	processor usage   // for a picture
	beyond    float64 // bytes that a camera sends for a picture, without its file's
	batch     float64 // mean rows of the second model
	decodes   float64 // of a picture, by the models
}

// A usage is processor time, in seconds.
type usage struct{ cameras, server, find, read float64 }

func (u usage) all() float64 { return u.cameras + u.server + u.find + u.read }

// decoded is what a model prints for each picture that it decodes.
const decoded = "decoded\n"

// A report is what a camera prints at its end, in seconds and bytes.
type report struct {
	Frames, Seconds, Processor, File float64
}

// turn has a number of cameras send for a while.
func (b *bench) turn(ctx context.Context, way string, n int) (t turn, err error) {
	var cameras process.Group
	defer func() { cameras.Stop() }()
	begin := filepath.Join(b.server.Dir, fmt.Sprintf("begin-%d", time.Now().UnixNano()))
	for range n {
		if err := cameras.Start(b.server.Dir, process.Python(), filepath.Join("bench", "pipelines", "camera.py"),
			way, b.server.TCP, fmt.Sprint(b.length.Seconds()), begin); err != nil {
			return t, err
		}
	}
	err = cameras.Await(ctx, time.Minute, func() error {
		if ready := strings.Count(cameras.Output(), "ready"); ready < n {
			return fmt.Errorf("%d of %d cameras are ready", ready, n)
		}
		return nil
	})
	if err != nil {
		return t, err
	}
	before, err := b.read(ctx)
	if err != nil {
		return t, err
	}
	if err := os.WriteFile(begin, nil, 0o600); err != nil {
		return t, err
	}
	var all report
	for _, camera := range cameras {
		r, err := reportOf(ctx, camera, b.length+time.Minute)
		if err != nil {
			return t, err
		}
		all.Frames += r.Frames
		all.Processor += r.Processor
		all.File = r.File
		t.rate += r.Frames / r.Seconds
	}
	after, err := b.read(ctx)
	t.processor = usage{
		cameras: all.Processor / all.Frames,
		server:  (after.processor.server - before.processor.server) / all.Frames,
		find:    (after.processor.find - before.processor.find) / all.Frames,
		read:    (after.processor.read - before.processor.read) / all.Frames,
	}
	t.beyond = (after.received-before.received)/all.Frames - all.File
	t.batch = (after.rows - before.rows) / (after.batches - before.batches)
	t.decodes = float64(after.decodes-before.decodes) / all.Frames
	return t, err
}

// reportOf waits until a camera has ended.
func reportOf(ctx context.Context, camera *process.Process, within time.Duration) (r report, err error) {
	for end := time.Now().Add(within); camera.Alive() == nil; time.Sleep(20 * time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(end) {
			return r, fmt.Errorf("a camera does not end\n%s", camera.Output())
		}
	}
	_, text, _ := strings.Cut(camera.Output(), "ready\n")
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return r, fmt.Errorf("a camera's report: %w\n%s", err, camera.Output())
	}
	return r, nil
}

// A reading is what server and models have counted so far.
type reading struct {
	processor               usage // without cameras
	received, rows, batches float64
	decodes                 int
}

func (b *bench) read(ctx context.Context) (r reading, err error) {
	m, err := b.server.Metrics(ctx)
	if err != nil {
		return r, err
	}
	r.received = m.By("shivad_received_bytes_total", "door")["tcp"]
	r.rows = m.By("shivad_batch_rows_sum", "model")["read"]
	r.batches = m.By("shivad_batch_rows_count", "model")["read"]
	r.decodes = strings.Count(b.server.Output(), decoded)
	var used [3]float64
	all := b.server.Group // in the order in which run has started them
	for i, part := range []process.Group{all[:2], all[2:4], all[4:]} {
		d, err := part.CPU()
		if err != nil {
			return r, err
		}
		used[i] = d.Seconds()
	}
	r.processor = usage{server: used[0], find: used[1], read: used[2]}
	return r, nil
}

// longest is the number of stages of the longest chain.
const longest = 4

// chain is the configuration of a pipeline of n stages, one after the other, of a model that takes
// no time.
func chain(n int) string {
	var text strings.Builder
	fmt.Fprintf(&text, "[pipeline.chain%d]\ninputs = [\"x\"]\noutputs = { x = \"s%d.x\" }\n", n, n-1)
	from := "x"
	for i := range n {
		fmt.Fprintf(&text, "[[pipeline.chain%d.stage]]\nname = \"s%d\"\nmodel = \"echo\"\n", n, i)
		fmt.Fprintf(&text, "inputs = { x = %q }\n", from)
		from = fmt.Sprintf("s%d.x", i)
	}
	return text.String()
}

// stage returns the median time that one more stage takes, when nothing else is asked.
func (b *bench) stage(ctx context.Context) (time.Duration, error) {
	x, err := tensor.FromSlice(tensor.Shape{1, 64}, make([]float32, 64))
	if err != nil {
		return 0, err
	}
	x.Name = "x"
	median := func(n int) (time.Duration, error) {
		request := load.Request{Model: fmt.Sprintf("chain%d", n), Inputs: []tensor.Tensor{x}}
		frame, _, err := request.Encode(load.Shiva)
		if err != nil {
			return 0, err
		}
		r, err := load.Run(ctx, load.Config{Addr: b.server.TCP, Wire: load.Shiva, Frames: [][]byte{frame}, Conns: 1,
			Warmup: b.length / 10, Duration: b.length / 2})
		if err != nil {
			return 0, err
		}
		if r.Failed+r.Lost > 0 {
			return 0, fmt.Errorf("a chain of %d stages: %d requests failed, %d were not answered: %s",
				n, r.Failed, r.Lost, r.Failure)
		}
		return r.Latency.Quantile(0.5), nil
	}
	one, err := median(1)
	if err != nil {
		return 0, err
	}
	all, err := median(longest)
	return (all - one) / (longest - 1), err
}
