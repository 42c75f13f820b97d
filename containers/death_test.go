package containers_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestDeathUnderLoad: one of three replicas dies again and again, in the middle of batches, and is
// replaced. Every request is answered once, none wrongly, and hardly any with an error: only those
// that lost two replicas.
func TestDeathUnderLoad(t *testing.T) {
	r := newRig(t, containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}})
	begin := func() *containertest.Container {
		c, err := containertest.Dial(t.Context(), r.Dialable()[0],
			echo(func(b *containertest.Batch) containertest.Reply {
				return containertest.Reply{Outputs: b.Inputs, Delay: time.Millisecond}
			}))
		if err != nil {
			t.Error(err)
			return nil
		}
		return c
	}
	live := []*containertest.Container{begin(), begin(), begin()}
	if slices.Contains(live, nil) {
		t.FailNow()
	}
	r.wait(t, echoID, 3)
	var stop atomic.Bool
	var answered, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := 0; !stop.Load(); k++ {
				in := floats(float32(i), float32(k), 3, 4)
				out, err := r.infer(echoID, in)
				switch {
				case errors.Is(err, scheduler.ErrContainerLost):
					lost.Add(1)
				case err != nil:
					t.Error(err)
				case !bytes.Equal(out[0].Data, in.Data):
					t.Errorf("request %d.%d got % x", i, k, out[0].Data)
				default:
					answered.Add(1)
				}
				for _, o := range out {
					o.Release()
				}
			}
		})
	}
	for k := range 20 {
		// Deaths must be rare relative to answers on a slow machine, too.
		enough := answered.Load() + 50
		budgettest.Until(t, "answers", func() bool { return answered.Load() >= enough })
		live[k%3].Kill()
		if live[k%3] = begin(); live[k%3] == nil {
			t.FailNow()
		}
	}
	stop.Store(true)
	wg.Wait()
	for _, c := range live {
		c.Close()
	}
	t.Logf("%d answered, %d lost", answered.Load(), lost.Load())
	if a, l := answered.Load(), lost.Load(); a < 100 || l*100 > a {
		t.Errorf("%d answered, %d lost: expected at most one in a hundred", a, l)
	}
}

// TestStopped: a process that is stopped (SIGSTOP) while it has a batch is detected by a timeout,
// its request ends at its deadline, and after SIGCONT the container reconnects by itself.
func TestStopped(t *testing.T) {
	t.Parallel() // it mostly waits
	r := newRig(t,
		containers.Config{Addrs: []string{"tcp://127.0.0.1:0"},
			Settings: containers.Settings{Heartbeat: 300 * time.Millisecond}})
	cmd := spawn(t, "noop", r.Dialable()[0])
	id := scheduler.ModelID{Name: "noop", Version: "1"}
	in := tensor.Tensor{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1, 1}, Data: []byte{7}}
	r.stopWhileAsked(t, cmd, id, in, 50*time.Millisecond)
	budgettest.Until(t, "the replica to be given up", func() bool {
		m, _ := r.sched.Model(id)
		return m.Replicas() == 0
	})
	r.logs(t, "container gone", "model=noop/1", "silent for")
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.wait(t, id, 1)
	out, err := r.infer(id, in)
	if err != nil {
		t.Fatal(err)
	}
	out[0].Release()
}

// stopWhileAsked stops the only container of a model and sends it a request, which must end at its
// deadline. That is long before the container counts as dead, unless this process is delayed that
// long; then everything is repeated.
func (r *rig) stopWhileAsked(t *testing.T, cmd *exec.Cmd, id scheduler.ModelID, in tensor.Tensor,
	timeout time.Duration) {
	t.Helper()
	for {
		r.wait(t, id, 1)
		hosttest.Stop(t, cmd.Process)
		stopped := time.Now()
		_, err := r.ask(&scheduler.Request{Inputs: []tensor.Tensor{in}, Deadline: time.Now().Add(timeout)}, id)
		if errors.Is(err, scheduler.ErrDeadlineExceeded) {
			return
		}
		if time.Since(stopped) < 2*r.Settings().Heartbeat {
			t.Fatalf("got %v, expected the deadline", err)
		}
		budgettest.Until(t, "the replica to be given up", func() bool { return r.live(id) == 0 })
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKilled: kill -9 is detected at once, by the end of the socket.
func TestKilled(t *testing.T) {
	r := newRig(t,
		containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}, Settings: containers.Settings{Heartbeat: time.Minute}})
	cmd := spawn(t, "noop", r.Dialable()[0])
	id := scheduler.ModelID{Name: "noop", Version: "1"}
	r.wait(t, id, 1)
	cmd.Process.Kill()
	budgettest.Until(t, "the replica to be given up", func() bool {
		m, _ := r.sched.Model(id)
		return m.Replicas() == 0
	})
}

// TestV3TooManyRows: a batch whose answer would exceed the limits of the generation is not sent.
// It fails alone, or is tried again in smaller pieces, and the session, which may be sent another
// batch from within that failure, continues.
func TestV3TooManyRows(t *testing.T) {
	r := newRig(t, containers.Config{Settings: containers.Settings{Limits: containers.Limits{Frames: 16}}})
	if err := r.sched.Configure("legacy", scheduler.ModelConfig{Strategy: "static", MaxBatch: 64}); err != nil {
		t.Fatal(err)
	}
	p, id := r.v3(t, "2")
	go func() {
		for {
			f, err := p.Receive()
			if err != nil {
				return
			}
			sizes := binary.LittleEndian.AppendUint64(nil, uint64(len(f)-7))
			if len(f)-7 > 11 {
				t.Errorf("a batch of %d rows was sent: its answer would have more than 16 frames", len(f)-7)
			}
			var outputs [][]byte
			for range f[7:] {
				sizes = binary.LittleEndian.AppendUint64(sizes, 1)
				outputs = append(outputs, []byte("1"))
			}
			_ = p.Send(
				append([][]byte{nil, le32(1), f[3], binary.LittleEndian.AppendUint64(nil, uint64(len(sizes))), sizes},
					outputs...)...)
		}
	}()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			rows := 1 + 19*(i%2)
			out, err := r.infer(id, floats(make([]float32, 4*rows)...))
			if err != nil && (rows == 1 || !errors.Is(err, scheduler.ErrContainerFailed)) ||
				err == nil && out[0].Rows() != rows {
				t.Errorf("%d rows: %v, %v", rows, out, err)
			}
			for _, o := range out {
				o.Release()
			}
		})
	}
	wg.Wait()
}

// A panicking owner's Complete runs on the session's goroutine.
type panicking chan struct{}

func (p panicking) Complete(q *scheduler.Request) {
	for _, o := range q.Outputs {
		o.Release()
	}
	close(p)
	panic("an owner's bug")
}

// TestPanic: a panic of a request's owner, over an answer or over the loss of a container, affects
// no other request. A panic of our own ends the session on whose goroutine it happens, and nothing
// else.
func TestPanic(t *testing.T) {
	dies := func(*containertest.Batch) containertest.Reply { return containertest.Reply{Die: true} }
	t.Run("owner, answered", func(t *testing.T) {
		r := newRig(t, containers.Config{})
		r.join(t, echo(nil))
		r.askAs(panicking(make(chan struct{})))
		r.logs(t, "panic in the callback of a request", "an owner's bug", "model=echo/1")
		if err := r.echoes(echoID); err != nil {
			t.Errorf("the container that answered serves no more: %v", err)
		}
	})
	t.Run("owner, lost", func(t *testing.T) {
		r := newRig(t, containers.Config{})
		peer := r.join(t, echo(dies))
		r.askAs(panicking(make(chan struct{})))
		<-peer.Gone()
		r.logs(t, "panic in the callback of a request", "an owner's bug", "model=echo/1")
		r.logs(t, "container gone", "it closed the connection")
		r.join(t, echo(nil))
		if err := r.echoes(echoID); err != nil {
			t.Error(err)
		}
	})
	t.Run("session", func(t *testing.T) {
		log := &logBuffer{}
		r := newRig(t, containers.Config{Log: slog.New(&buggy{Handler: slog.NewTextHandler(log, nil)})})
		r.log = log
		// The connection may be lost before Join returns.
		if peer, err := containertest.Join(r, echo(nil)); err == nil {
			<-peer.Gone()
			peer.Close()
		}
		r.logs(t, "panic in a container", "a bug of ours")
		r.logs(t, "container gone", "panic: a bug of ours")
		r.join(t, echo(nil))
		if err := r.echoes(echoID); err != nil {
			t.Error(err)
		}
	})
}

// buggy panics in the goroutine of the first session that has registered.
type buggy struct {
	slog.Handler
	done atomic.Bool
}

func (b *buggy) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "container registered" && b.done.CompareAndSwap(false, true) {
		panic("a bug of ours")
	}
	return b.Handler.Handle(ctx, r)
}

// askAs submits one row to the echo model, and returns when its owner has the answer.
func (r *rig) askAs(owner panicking) {
	m, _ := r.sched.Model(echoID)
	r.sched.Submit(&scheduler.Request{Model: m, Rows: 1, Inputs: []tensor.Tensor{floats(1, 2, 3, 4)}, Owner: owner})
	<-owner
}

// TestNoMemory: a request for whose answer the pool has no room is answered Overloaded, and the
// session continues.
func TestNoMemory(t *testing.T) {
	r := newRig(t, containers.Config{})
	c := r.join(t,
		echo(func(b *containertest.Batch) containertest.Reply { return containertest.Reply{Outputs: b.Inputs} }))
	budgettest.Until(t, "the hello's memory to come back", func() bool { return r.pool.InUse() == 0 })
	taken, err := r.pool.Get(int(r.pool.Budget()))
	if err != nil {
		t.Fatal(err)
	}
	in := floats(make([]float32, 4096)...)
	if _, err := r.infer(echoID, in); !errors.Is(err, scheduler.ErrOverloaded) {
		t.Errorf("got %v, expected Overloaded", err)
	}
	taken.Release()
	if err := r.echoes(echoID); err != nil {
		t.Error(err)
	}
	if i := r.Sessions()[0]; i.Failures != 0 || i.LastFailure != "" {
		t.Errorf("the container is blamed: %+v", i)
	}
	c.Close()
}
