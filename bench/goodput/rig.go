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
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/metrics"
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

// A rig is a shivad, a container that sleeps and a bare alarm, as processes on free ports.
type rig struct {
	profile sim.Profile
	tcp     string
	admin   string
	alarm   string
	dir     string
	running []*process.Process
}

// startRig builds and starts the processes, and returns when the model answers.
func startRig(ctx context.Context, p sim.Profile) (_ *rig, err error) {
	r := &rig{profile: p}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.stop())
		}
	}()
	if err := r.build(ctx, "cmd/shivad", "bench/sleeper", "bench/alarm"); err != nil {
		return nil, err
	}
	containers, err := r.serve()
	if err == nil {
		r.alarm, err = process.FreeAddr()
	}
	if err == nil {
		err = r.run("alarm", "-listen", r.alarm)
	}
	if err == nil {
		err = r.sleep(containers)
	}
	if err != nil {
		return nil, err
	}
	return r, r.ready(ctx)
}

// build builds programs into a folder of its own.
func (r *rig) build(ctx context.Context, programs ...string) (err error) {
	if r.dir, err = os.MkdirTemp("", "goodput"); err != nil {
		return err
	}
	return process.Build(ctx, r.dir, programs...)
}

// run starts a program that was built.
func (r *rig) run(program string, args ...string) error {
	p, err := process.Start(r.dir, filepath.Join(r.dir, program), args...)
	if err == nil {
		r.running = append(r.running, p)
	}
	return err
}

// serve starts a shivad and returns where containers connect.
func (r *rig) serve() (containers string, err error) {
	if err := process.FreeAddrs(&r.tcp, &r.admin, &containers); err != nil {
		return "", err
	}
	return containers, r.run("shivad", "--tcp", r.tcp, "--rest", "", "--grpc", "", "--admin", r.admin, "--containers", containers)
}

// sleep starts a container that connects to servers.
func (r *rig) sleep(servers string) error {
	p := r.profile
	return r.run("sleeper", "-servers", servers, "-a", p.A.String(), "-b", p.B.String(), "-noise", fmt.Sprint(p.Noise), model+":FP32:16")
}

// ready returns when the model answers, with the default strategy.
func (r *rig) ready(ctx context.Context) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := r.offer(ctx, load.Config{Duration: 10 * time.Millisecond}, time.Second)
		if err == nil {
			err = r.set(ctx, map[string]string{"strategy": "deadline"})
		}
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

// counts returns the samples of one metric of the model, by the value of a label.
func (r *rig) counts(ctx context.Context, metric, label string) (map[string]float64, error) {
	text, err := metrics.Text(ctx, r.admin)
	if err != nil {
		return nil, err
	}
	counts := make(map[string]float64)
	for _, m := range regexp.MustCompile(`(?m)^`+metric+`\{([^}]*)\} (\S+)$`).FindAllStringSubmatch(text, -1) {
		labels := make(map[string]string)
		for _, l := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(m[1], -1) {
			labels[l[1]] = l[2]
		}
		if labels["model"] == model {
			n, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				return nil, err
			}
			counts[labels[label]] += n
		}
	}
	return counts, nil
}

// stop ends the processes and returns their output.
func (r *rig) stop() string {
	var text strings.Builder
	for _, p := range slices.Backward(r.running) {
		p.Stop()
		text.WriteString(p.Output())
	}
	os.RemoveAll(r.dir)
	return text.String()
}

// set changes settings of the model.
func (r *rig) set(ctx context.Context, settings map[string]string) error {
	body, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPatch, "http://"+r.admin+"/v1/models/"+model, bytes.NewReader(body))
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
		Namespace: model, Metadata: fmt.Appendf(nil, `{"timeout_ms":%g}`, deadline.Seconds()*1e3), Tensors: []tensor.Tensor{x},
	})
}

// offer offers load with a deadline on each request.
func (r *rig) offer(ctx context.Context, c load.Config, deadline time.Duration) (*load.Result, error) {
	frame, err := request(deadline)
	if err != nil {
		return nil, err
	}
	c.Addr, c.Frames = r.tcp, [][]byte{frame}
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
