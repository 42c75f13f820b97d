package containers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A rig is a scheduler and a listener, torn down and checked for leaks at the end of the test.
type rig struct {
	*containers.Listener
	sched *scheduler.Scheduler
	pool  *tensor.Pool
	log   *logBuffer
}

func newRig(t testing.TB, cfg containers.Config) *rig {
	t.Helper()
	r := &rig{pool: cfg.Pool, log: &logBuffer{}}
	if r.pool == nil {
		r.pool = tensor.NewPool(64 << 20)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	budgettest.Goroutines(t)
	var err error
	r.sched, err = scheduler.New(scheduler.Config{Pool: r.pool, Log: slog.New(slog.NewTextHandler(r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Scheduler, cfg.Pool = r.sched, r.pool
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(r.log, nil))
	}
	r.Listener, err = containers.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		r.sched.Close()
		budgettest.Until(t, "memory to come back", func() bool { return r.pool.InUse() == 0 })
	})
	return r
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var (
	echoIn  = []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}}
	echoOut = []tensor.Spec{{Name: "y", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}}
	echoID  = scheduler.ModelID{Name: "echo", Version: "1"}
)

func echo(answer func(*containertest.Batch) containertest.Reply) containertest.Model {
	return containertest.Model{Name: "echo", Version: "1", Inputs: echoIn, Outputs: echoOut, Answer: answer}
}

// join connects a scripted container in memory.
func (r *rig) join(t testing.TB, m containertest.Model) *containertest.Container {
	t.Helper()
	c, err := containertest.Join(r, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r.wait(t, scheduler.ModelID{Name: m.Name, Version: m.Version}, 1)
	return c
}

// peer connects, in memory, a peer that speaks the protocol by hand.
func (r *rig) peer(t testing.TB) *containertest.Peer {
	t.Helper()
	return r.peerAs(t, containers.DialectV3)
}

// peerAs connects a peer as if at an address for a dialect.
func (r *rig) peerAs(t testing.TB, d containers.Dialect) *containertest.Peer {
	t.Helper()
	mine, theirs := containertest.Pipe()
	if !r.AddAs(theirs, d) {
		t.Fatal("the listener refuses connections")
	}
	p, err := containertest.NewPeer(mine)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// wait waits for a model to have at least n live replicas.
func (r *rig) wait(t testing.TB, id scheduler.ModelID, n int) {
	t.Helper()
	budgettest.Until(t, fmt.Sprintf("%d replicas of %v", n, id), func() bool {
		m, ok := r.sched.Model(id)
		return ok && m.Replicas() >= n
	})
}

// infer submits a request and returns its outputs.
func (r *rig) infer(id scheduler.ModelID, inputs ...tensor.Tensor) ([]tensor.Tensor, error) {
	return r.ask(&scheduler.Request{Inputs: inputs}, id)
}

func (r *rig) ask(q *scheduler.Request, id scheduler.ModelID) ([]tensor.Tensor, error) {
	m, ok := r.sched.Model(id)
	if !ok {
		return nil, errors.New("no such model")
	}
	q.Model, q.Rows = m, q.Inputs[0].Rows()
	if q.Deadline.IsZero() {
		q.Deadline = time.Now().Add(30 * time.Second)
	}
	if err := r.sched.Infer(context.Background(), q); err != nil {
		return nil, err
	}
	return q.Outputs, nil
}

// echoes checks that the model answers a row with itself.
func (r *rig) echoes(id scheduler.ModelID) error {
	in := floats(1, 2, 3, 4)
	out, err := r.infer(id, in)
	if err != nil {
		return err
	}
	defer out[0].Release()
	if !bytes.Equal(out[0].Data, in.Data) {
		return fmt.Errorf("answered % x", out[0].Data)
	}
	return nil
}

// floats makes rows of four.
func floats(v ...float32) tensor.Tensor {
	t, err := tensor.FromSlice(tensor.Shape{len(v) / 4, 4}, v)
	if err != nil {
		panic(err)
	}
	t.Name = "x"
	return t
}

func dial(t testing.TB, r *rig) net.Conn {
	t.Helper()
	a := r.Addrs()[0]
	c, err := net.Dial(a.Network(), a.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// logs waits for a line with all of the words.
func (r *rig) logs(t testing.TB, words ...string) {
	t.Helper()
	budgettest.Until(t, fmt.Sprintf("a log line with %q in\n%s", words, r.log), func() bool {
		for line := range strings.Lines(r.log.String()) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return true
			}
		}
		return false
	})
}
