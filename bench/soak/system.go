package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	// The model of the steady load; its containers sleep and take no processor time.
	steady   = "steady"
	replicas = 3
)

// A system is shivad with the containers of the steady model.
type system struct {
	*process.Server
	frames   [][]byte
	replicas process.Group // oldest first
	looking  sync.Mutex    // keeps one look's allocations out of another's heap
}

// start builds and starts the processes, and returns once the model answers.
func start(ctx context.Context, dir string) (_ *system, err error) {
	s := &system{}
	if err := process.Build(ctx, dir, "cmd/shivad", "bench/sleeper"); err != nil {
		return nil, err
	}
	if s.frames, err = load.Frames(clients, steady, tensor.Float32, tensor.Shape{16}); err != nil {
		return nil, err
	}
	if s.Server, err = process.Shivad(dir, process.Options{}); err != nil {
		return nil, err
	}
	for range replicas {
		if err := s.addReplica(ctx); err != nil {
			s.stop()
			return nil, err
		}
	}
	return s, nil
}

func (s *system) stop() {
	s.replicas.Stop()
	s.Stop()
}

// addReplica starts a container and returns once it has registered.
func (s *system) addReplica(ctx context.Context) error {
	if err := s.replicas.Start(s.Dir, filepath.Join(s.Dir, "sleeper"), "-servers", s.Containers,
		steady+":FP32:16"); err != nil {
		return err
	}
	return s.await(ctx)
}

// await returns once exactly the running containers have registered.
func (s *system) await(ctx context.Context) error {
	return s.Await(ctx, settle, func() error {
		n, err := s.ready(ctx)
		if err == nil && n != len(s.replicas) {
			err = fmt.Errorf("the server has %d replicas of %s after %v, expected %d", n, steady, settle,
				len(s.replicas))
		}
		return err
	})
}

// capacity measures the requests per second that are answered under saturation.
func (s *system) capacity(ctx context.Context) (float64, error) {
	got, err := load.Run(ctx,
		load.Config{Addr: s.TCP, Frames: s.frames, Conns: clients, InFlight: 4, Warmup: 2 * time.Second,
			Duration: 5 * time.Second, Check: load.SameTensors})
	if err != nil {
		return 0, err
	}
	if got.Failed > 0 || got.Lost > 0 || got.Answered == 0 {
		return 0, fmt.Errorf("measuring the capacity: %d answered, %d refused, %d lost: %s", got.Answered, got.Failed,
			got.Lost, got.Failure)
	}
	return got.Rate(), nil
}

// A state is the server's use of resources.
type state struct {
	Heap        int64 // bytes, after a collection
	Resident    int64 // bytes
	Goroutines  int
	Descriptors int
}

func (s state) String() string {
	return fmt.Sprintf("heap %.2f MiB, resident %.1f MiB, %d goroutines, %d descriptors", float64(s.Heap)/(1<<20),
		float64(s.Resident)/(1<<20), s.Goroutines, s.Descriptors)
}

// A sample is a state with its time.
type sample struct {
	At time.Duration
	state
}

// look triggers a garbage collection in the server and returns its state. The heap is taken from
// the profile: that of /metrics includes the memory to make that page, which is megabytes when
// there are hundreds of models.
func (s *system) look(ctx context.Context) (state, error) {
	s.looking.Lock()
	defer s.looking.Unlock()
	var profile strings.Builder
	if err := s.Get(ctx, "/debug/pprof/heap?gc=1&debug=1", &profile); err != nil {
		return state{}, err
	}
	const heap = "\n# HeapAlloc = "
	_, text, _ := strings.Cut(profile.String(), heap)
	text, _, _ = strings.Cut(text, "\n")
	alloc, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return state{}, fmt.Errorf("the profile of the heap has no line%s: %w", heap, err)
	}
	gauges, err := s.Metrics(ctx)
	return state{
		Heap: alloc, Resident: int64(gauges["process_resident_memory_bytes"]),
		Goroutines: int(gauges["go_goroutines"]), Descriptors: int(gauges["process_open_fds"]),
	}, err
}

// watch takes a sample once in a period until ctx ends.
func (s *system) watch(ctx context.Context, period time.Duration) (list []sample, err error) {
	began, ticker := time.Now(), time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return list, nil
		case <-ticker.C:
			now, err := s.look(ctx)
			if ctx.Err() != nil {
				return list, nil
			}
			if err != nil {
				return nil, err
			}
			list = append(list, sample{time.Since(began), now})
		}
	}
}

// settled takes samples until the state has not changed for a second and, if was is set, has
// returned to it, or until the time is over.
func (s *system) settled(ctx context.Context, was *state) (now state, err error) {
	for end := time.Now().Add(settle); ; {
		before := now
		if now, err = s.look(ctx); err != nil {
			return now, err
		}
		same := now.Goroutines == before.Goroutines && now.Descriptors == before.Descriptors
		if was != nil {
			same = same && near(now.Goroutines, was.Goroutines) && near(now.Descriptors, was.Descriptors)
		}
		if same || time.Now().After(end) {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func near(a, b int) bool { return a-b <= maxLeft && b-a <= maxLeft }

// profile writes a heap profile.
func (s *system) profile(ctx context.Context, file string) error {
	w, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := s.Get(ctx, "/debug/pprof/heap", w); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}

// ready returns the number of live replicas of the steady model.
func (s *system) ready(ctx context.Context) (int, error) {
	var text bytes.Buffer
	if err := s.Get(ctx, "/v1/models/"+steady+"/versions/1", &text); err != nil {
		return 0, err
	}
	var model struct{ Replicas int }
	err := json.Unmarshal(text.Bytes(), &model)
	return model.Replicas, err
}
