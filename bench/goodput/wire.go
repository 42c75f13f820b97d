package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/bench/sim"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	// connections are so many that hardly ever one has two requests in flight: answers on a connection
	// leave in order, so that a request which waits until its deadline would hold up the one behind it.
	connections = 512
	model       = "sleeper"
	ofBest      = 0.9                  // of its best goodput the default strategy must reach at 1.5 times the capacity and above
	grace       = 2 * time.Millisecond // for the way from the intended send time to the server's clock, and back
	warmup      = time.Second
)

// A rig is a shivad and a container that sleeps, as processes, on free ports.
type rig struct {
	profile sim.Profile
	tcp     string
	admin   string
	dir     string
	running []*exec.Cmd
	log     *os.File
}

// startRig builds and starts both, and returns when the model answers.
func startRig(ctx context.Context, p sim.Profile) (_ *rig, err error) {
	r := &rig{profile: p}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.stop())
		}
	}()
	if r.dir, err = os.MkdirTemp("", "goodput"); err != nil {
		return nil, err
	}
	if r.log, err = os.Create(filepath.Join(r.dir, "log")); err != nil {
		return nil, err
	}
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", r.dir+"/", "./cmd/shivad", "./bench/sleeper").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building: %w\n%s", err, text)
	}
	var containers string
	for _, addr := range []*string{&r.tcp, &r.admin, &containers} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		*addr = l.Addr().String()
		l.Close()
	}
	for _, args := range [][]string{
		{"shivad", "--tcp", r.tcp, "--admin", r.admin, "--containers", containers},
		{"sleeper", "-servers", containers, "-a", p.A.String(), "-b", p.B.String(), "-noise", fmt.Sprint(p.Noise), model + ":FP32:16"},
	} {
		c := exec.Command(filepath.Join(r.dir, args[0]), args[1:]...)
		c.Stdout, c.Stderr = r.log, r.log
		if err := c.Start(); err != nil {
			return nil, err
		}
		r.running = append(r.running, c)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := r.offer(ctx, load.Config{Duration: 10 * time.Millisecond}, time.Second)
		if err == nil {
			err = r.set(ctx, map[string]string{"strategy": "deadline"})
		}
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return r, err
		}
	}
}

// stop ends the processes and returns what they had to say.
func (r *rig) stop() string {
	for i := len(r.running) - 1; i >= 0; i-- {
		c := r.running[i]
		c.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(5*time.Second, func() { c.Process.Kill() })
		c.Wait()
		kill.Stop()
	}
	var text []byte
	if r.log != nil {
		text, _ = os.ReadFile(r.log.Name())
		r.log.Close()
	}
	os.RemoveAll(r.dir)
	return string(text)
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

// offer offers load with a deadline on each request.
func (r *rig) offer(ctx context.Context, c load.Config, deadline time.Duration) (*load.Result, error) {
	x, err := tensor.FromSlice(tensor.Shape{16}, make([]float32, 16))
	if err != nil {
		return nil, err
	}
	frame, err := shiva.AppendMessage(nil, &shiva.Message{
		Namespace: model, Metadata: fmt.Appendf(nil, `{"timeout_ms":%g}`, deadline.Seconds()*1e3), Tensors: []tensor.Tensor{x},
	})
	if err != nil {
		return nil, err
	}
	c.Addr, c.Frames = r.tcp, [][]byte{frame}
	res, err := load.Run(ctx, c)
	if err == nil && res.Latency.Count()+res.Refusal.Count() == 0 {
		err = errors.New("no answer")
	}
	if err == nil && res.Lost > 0 {
		err = fmt.Errorf("%d requests were never answered", res.Lost)
	}
	return res, err
}

// capacity measures the rate of batches that take half the SLO: a fixed maximum, and always enough that waits.
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

// wire prints what the strategies answer in time over real sockets, beside the simulation, and returns the promises
// that are broken.
func wire(ctx context.Context, p sim.Profile, loads []float64, length time.Duration, seed uint64, only string) (broken []string, err error) {
	r, err := startRig(ctx, p)
	if err != nil {
		return nil, err
	}
	defer func() {
		if text := r.stop(); err != nil {
			err = fmt.Errorf("%w\n%s", err, text)
		}
	}()
	capacity, err := r.capacity(ctx, length)
	if err != nil {
		return nil, err
	}
	fmt.Printf("%s; Poisson, one SLO; on the wire: capacity %.0f rows/s measured, %.0f computed\n", p.Name, capacity, p.Capacity())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "load\t\tin time\tof capacity\tsimulated\tp50\tp99\trefused p99.9\t")
	best := 0.0
	var goodput []float64 // of the default strategy, by load
	for i, s := range sim.Strategies() {
		if only != "" && s.Name != only {
			continue
		}
		settings := map[string]string{"strategy": s.Config.Strategy, "objective": p.SLO.String(), "shed": fmt.Sprint(s.Config.Shed == nil)}
		if err := r.set(ctx, settings); err != nil {
			return nil, err
		}
		for _, at := range loads {
			res, err := r.offer(ctx, load.Config{
				Conns: connections, Rate: at * capacity, Seed: seed, Warmup: warmup, Duration: length, Check: load.SameTensors,
			}, p.SLO)
			if err != nil {
				return nil, fmt.Errorf("%s at %.2f: %w", s.Name, at, err)
			}
			all := res.Latency.Count() + res.Refusal.Count()
			share := float64(res.Latency.Within(p.SLO+grace)) / float64(max(all, 1))
			simulated, err := sim.Run(sim.Cell{Profile: p, Load: at, Warm: 2 * time.Second, Length: length, Seed: seed}, s)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(w, "%.2f\t%s\t%.1f %%\t%.2f\t%.2f\t%.1f ms\t%.1f ms\t%.1f ms\t\n", at, s.Name, 100*share, share*at, simulated.OfCapacity(),
				res.Latency.Quantile(0.5).Seconds()*1e3, res.Latency.Quantile(0.99).Seconds()*1e3, res.Refusal.Quantile(0.999).Seconds()*1e3)
			if i == 0 {
				goodput = append(goodput, share*at)
				best = max(best, share*at)
			}
		}
	}
	w.Flush()
	for i, at := range loads[:len(goodput)] {
		if at >= 1.5 && goodput[i] < ofBest*best {
			broken = append(broken, fmt.Sprintf("on the wire at %.2f of the capacity: goodput is %.2f of it, want %.2f of the best, %.2f", at, goodput[i], ofBest, best))
		}
	}
	return broken, nil
}
