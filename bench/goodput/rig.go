package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/scheduler/sim"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	model  = "sleeper"
	warmup = time.Second
)

// A rig is a shivad whose model is in containers that sleep.
type rig struct {
	*process.Server
	profile sim.Profile
}

// A fleet is servers that share containers, which belong to the first of them.
type fleet []*rig

// startFleet starts servers and replicas, and returns when all servers answer. Programs are in dir.
func startFleet(ctx context.Context, dir string, p sim.Profile, servers, replicas int) (f fleet, err error) {
	defer func() {
		if err != nil {
			f.stop()
		}
	}()
	var addrs []string
	for range servers {
		s, err := process.Shivad(dir, process.Options{})
		if err != nil {
			return f, err
		}
		f, addrs = append(f, &rig{s, p}), append(addrs, s.Containers)
	}
	for range replicas {
		err := f[0].Run(nil, "sleeper", "-servers", strings.Join(addrs, ","), "-a", p.A.String(), "-b", p.B.String(),
			"-noise", fmt.Sprint(p.Noise), model+":FP32:16")
		if err != nil {
			return f, err
		}
	}
	for _, r := range f {
		if err := r.ready(ctx); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (f fleet) stop() {
	for _, r := range f {
		r.Stop()
	}
}

// ready returns when the model answers, with the default strategy.
func (r *rig) ready(ctx context.Context) error {
	return r.Await(ctx, 20*time.Second, func() error {
		_, err := r.offer(ctx, load.Config{Duration: 10 * time.Millisecond}, time.Second)
		if err == nil {
			err = r.set(ctx, map[string]string{"strategy": "deadline"})
		}
		return err
	})
}

// withRig builds the programs, and calls measure with a server and its container, which end
// afterwards. An error includes what they printed.
func withRig(ctx context.Context, p sim.Profile, measure func(r *rig) error, more ...string) error {
	return withPrograms(ctx, func(dir string) error {
		f, err := startFleet(ctx, dir, p, 1, 1)
		if err != nil {
			return err
		}
		defer f.stop()
		if err := measure(f[0]); err != nil {
			return fmt.Errorf("%w\n%s", err, f[0].Output())
		}
		return nil
	}, more...)
}

// withPrograms builds shivad, the container and more into a directory for a measurement.
func withPrograms(ctx context.Context, measure func(dir string) error, more ...string) error {
	dir, err := os.MkdirTemp("", "goodput-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := process.Build(ctx, dir, append(more, "cmd/shivad", "bench/sleeper")...); err != nil {
		return err
	}
	return measure(dir)
}

// set changes settings of the model.
func (r *rig) set(ctx context.Context, settings map[string]string) error {
	body, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPatch, "http://"+r.Admin+"/v1/models/"+model,
		bytes.NewReader(body))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/json")
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(a.Body)
		return fmt.Errorf("setting %s: %s: %s", body, a.Status, text)
	}
	_, err = io.Copy(io.Discard, a.Body)
	return err
}

// request encodes a request of one row with a deadline.
func request(deadline time.Duration) ([]byte, error) {
	x, err := tensor.FromSlice(tensor.Shape{16}, make([]float32, 16))
	if err != nil {
		return nil, err
	}
	return shiva.AppendMessage(nil, &shiva.Message{
		Namespace: model, Metadata: fmt.Appendf(nil, `{"timeout_ms":%g}`, deadline.Seconds()*1e3),
		Tensors: []tensor.Tensor{x},
	})
}

// offer offers load with a deadline on each request.
func (r *rig) offer(ctx context.Context, c load.Config, deadline time.Duration) (*load.Result, error) {
	frame, err := request(deadline)
	if err != nil {
		return nil, err
	}
	c.Addr, c.Frames = r.TCP, [][]byte{frame}
	return offered(load.Run(ctx, c))
}

// offered adds an error if requests have no answer.
func offered(res *load.Result, err error) (*load.Result, error) {
	switch {
	case err != nil:
	case res.Latency.Count()+res.Refusal.Count() == 0:
		err = errors.New("no answer")
	case res.Lost > 0:
		err = fmt.Errorf("%d requests were never answered", res.Lost)
	}
	return res, err
}

// capacity measures the rate with batches that take half the SLO: a fixed maximum, and enough
// requests waiting at all times.
func (r *rig) capacity(ctx context.Context, length time.Duration) (float64, error) {
	rows := int((r.profile.SLO/2 - r.profile.A) / r.profile.B)
	if err := r.set(ctx, map[string]string{"strategy": "static", "max_batch": fmt.Sprint(rows)}); err != nil {
		return 0, err
	}
	res, err := r.offer(ctx, load.Config{Conns: 3 * rows, Warmup: warmup, Duration: length}, 10*time.Second)
	if err != nil {
		return 0, err
	}
	return res.Rate(), r.set(ctx, map[string]string{"max_batch": "0"})
}
