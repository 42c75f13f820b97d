package containers_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// bubble runs a test on a fake clock, over memory.
func bubble(t *testing.T, f func(t *testing.T, r *rig)) { bubbleWith(t, containers.Config{}, f) }

func bubbleWith(t *testing.T, cfg containers.Config, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{pool: tensor.NewPool(1 << 30), log: &logBuffer{}}
		var err error
		if r.sched, err = scheduler.New(scheduler.Config{Pool: r.pool}); err != nil {
			t.Fatal(err)
		}
		cfg.Scheduler, cfg.Pool, cfg.Log = r.sched, r.pool, slog.New(slog.NewTextHandler(r.log, nil))
		r.Listener, err = containers.Listen(cfg)
		if err != nil {
			t.Fatal(err)
		}
		f(t, r)
		r.Close()
		r.sched.Close()
		synctest.Wait()
		if n := r.pool.InUse(); n != 0 {
			t.Errorf("%d bytes not given back", n)
		}
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
}

// start joins a container inside a bubble.
func (r *rig) start(t *testing.T, m containertest.Model) *containertest.Container {
	t.Helper()
	c, err := containertest.Join(r, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	synctest.Wait()
	return c
}

func (r *rig) live(id scheduler.ModelID) int {
	m, ok := r.sched.Model(id)
	if !ok {
		return 0
	}
	return m.Replicas()
}

// TestSilence: an idle container that sends heartbeats stays alive. One that only answers PINGs
// through its ZeroMQ library, as its process holds the interpreter lock, lives for thirty
// intervals.
func TestSilence(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		c := r.start(t, echo(nil))
		time.Sleep(time.Hour)
		if r.live(echoID) != 1 {
			t.Fatal("an idle container that beats was given up")
		}
		c.Mute(true)
		time.Sleep(28900 * time.Millisecond)
		synctest.Wait()
		if r.live(echoID) != 1 {
			t.Error("given up though it answers PINGs")
		}
		c.Mute(false)
		time.Sleep(2 * time.Second)
		c.Mute(true)
		time.Sleep(30*time.Second + time.Millisecond)
		synctest.Wait()
		if r.live(echoID) != 0 {
			t.Error("not given up after thirty beats")
		}
		<-c.Gone()
		r.logs(t, "container gone", "model=echo/1", "no message for 30s")
	})
}

// TestHangs: an idle container that is silent on every level, such as a stopped one, is dead
// after three intervals.
func TestHangs(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p, _, _ := r.slowly(t, 0) // reads nothing
		began := time.Now()
		for r.live(echoID) == 1 && time.Since(began) < time.Minute {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(began); took > 3020*time.Millisecond {
			t.Errorf("given up after %v, expected 3 s", took)
		}
		p.Close()
		r.logs(t, "container gone", "model=echo/1", "silent for 3s")
	})
}

// TestComputing: a container that computes for long answers PINGs and keeps its session.
func TestComputing(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		c := r.start(t, echo(func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, Delay: 20 * time.Second}
		}))
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { err = r.echoes(echoID) })
		synctest.Wait()
		c.Mute(true) // a model that holds the interpreter lock sends no heartbeats
		wg.Wait()
		if err != nil {
			t.Error(err)
		}
	})
}

// TestSilent: a container that sends heartbeats and no answers is dead after three execution
// timeouts, and Config.Silent is called. One request that hangs does not count while the container
// answers others.
func TestSilent(t *testing.T) {
	var told atomic.Pointer[error]
	cfg := containers.Config{Silent: func(conn net.Conn, reason error) {
		if conn == nil {
			t.Error("told without the connection")
		}
		told.Store(&reason)
	}}
	bubbleWith(t, cfg, func(t *testing.T, r *rig) {
		if err := r.sched.Configure(echoID.Name, scheduler.ModelConfig{ExecTimeout: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		c := r.start(t, echo(func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, Delay: time.Hour}
		}))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.echoes(echoID); !errors.Is(err, scheduler.ErrContainerLost) {
				t.Errorf("a request that hangs is answered %v", err)
			}
		})
		time.Sleep(14 * time.Second)
		synctest.Wait()
		if told.Load() != nil {
			t.Error("told after less than three execution timeouts")
		}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if told.Load() == nil || r.live(echoID) != 0 {
			t.Error("not told after three execution timeouts")
		}
		<-c.Gone()
		wg.Wait()
		r.logs(t, "container gone", "no answer for 3 times execution_timeout")
	})
}

// TestLetGo: an idle session holds no memory of the batches that it has sent, which may be large.
func TestLetGo(t *testing.T) {
	r := newRig(t, containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}})
	c, err := containertest.Dial(t.Context(), r.Dialable()[0], echo(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.wait(t, echoID, 1)
	input := func() weak.Pointer[float32] {
		v := make([]float32, 4096)
		out, err := r.infer(echoID, floats(v...))
		if err != nil {
			t.Fatal(err)
		}
		out[0].Release()
		return weak.Make(&v[0])
	}()
	budgettest.Until(t, "the input of an answered request to be collected", func() bool {
		runtime.GC()
		return input.Value() == nil
	})
}

// TestDeath: when a replica's socket closes, its batches go to another replica, and each request
// is answered once.
func TestDeath(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var dying, living *containertest.Container
		hang := func(b *containertest.Batch) containertest.Reply { return containertest.Reply{Silent: true} }
		dying = r.start(t, echo(hang))
		var answers atomic.Int32
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := r.echoes(echoID); err != nil {
					t.Error(err)
				}
				answers.Add(1)
			})
		}
		synctest.Wait()
		living = r.start(t, echo(nil))
		synctest.Wait()
		began := time.Now()
		dying.Kill()
		wg.Wait()
		if took := time.Since(began); took != 0 {
			t.Errorf("the death was noticed after %v", took)
		}
		if answers.Load() != 10 || len(dying.Batches()) == 0 || len(living.Batches()) == 0 {
			t.Errorf("%d answers; %d batches went to the dying container, %d to the other", answers.Load(),
				len(dying.Batches()), len(living.Batches()))
		}
	})
}

// TestDeathOfTheOnly: without another replica the requests fail with a typed error, and a new
// container serves again.
func TestDeathOfTheOnly(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		c := r.start(t,
			echo(func(b *containertest.Batch) containertest.Reply { return containertest.Reply{Die: true} }))
		err := r.echoes(echoID)
		if !errors.Is(err, scheduler.ErrContainerLost) && !errors.Is(err, scheduler.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		<-c.Gone()
		if err := r.echoes(echoID); !errors.Is(err, scheduler.ErrUnavailable) {
			t.Errorf("got %v, expected ErrUnavailable", err)
		}
		r.start(t, echo(nil))
		if err := r.echoes(echoID); err != nil {
			t.Error(err)
		}
	})
}

// TestDrain: a container that sends draining gets no more batches, gets goodbye after its last
// answer, and hangs up.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		c := r.start(t, echo(func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, Delay: 5 * time.Second}
		}))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.echoes(echoID); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if err := c.Drain(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := r.Sessions(); len(s) != 1 || s[0].State != "draining" || s[0].InFlight != 1 {
			t.Errorf("sessions %+v", s)
		}
		if err := r.echoes(echoID); !errors.Is(err, scheduler.ErrUnavailable) {
			t.Errorf("while draining: %v", err)
		}
		wg.Wait()
		<-c.Gone()
		if g := c.Goodbye(); g == nil || g.Reconnect || g.Reason != "drained" {
			t.Errorf("goodbye %+v", g)
		}
		synctest.Wait()
		if n := len(r.Sessions()); n != 0 {
			t.Errorf("%d sessions left", n)
		}
	})
}

// TestShutdown: every container answers its batches and is told to reconnect.
func TestShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		c := r.start(t, echo(func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, Delay: 2 * time.Second}
		}))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.echoes(echoID); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		<-c.Gone()
		if g := c.Goodbye(); g == nil || !g.Reconnect {
			t.Errorf("goodbye %+v", g)
		}
		if _, err := containertest.Join(r, echo(nil)); err == nil {
			t.Error("a container joined a listener that is shut down")
		}
	})
}

// TestShutdownTimeout: the connection of a container that neither answers nor leaves is closed at
// the end of the context.
func TestShutdownTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.start(t, echo(func(*containertest.Batch) containertest.Reply { return containertest.Reply{Silent: true} }))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.echoes(echoID); !errors.Is(err, scheduler.ErrContainerLost) &&
				!errors.Is(err, scheduler.ErrUnavailable) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := r.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: %v", err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("Shutdown took %v", took)
		}
		wg.Wait()
	})
}

// TestRetire: the containers of one version are dismissed, the others stay.
func TestRetire(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		old := r.start(t, echo(nil))
		second := echo(nil)
		second.Version = "2"
		r.start(t, second)
		if n, _ := r.Retire(echoID, "version 2 serves"); n != 1 {
			t.Errorf("retired %d", n)
		}
		<-old.Gone()
		if g := old.Goodbye(); g == nil || g.Reconnect || g.Reason != "version 2 serves" {
			t.Errorf("goodbye %+v", g)
		}
		synctest.Wait()
		if s := r.Sessions(); len(s) != 1 || s[0].Model.Version != "2" {
			t.Errorf("sessions %+v", s)
		}
	})
}

// TestReplacedWhileSuspect: a container that does not answer loses its version to one with other
// shapes. It is dismissed, so that it does not come back to life in a model that nobody asks, and
// serves again when the other one has left.
func TestReplacedWhileSuspect(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		if err := r.sched.Configure(echoID.Name, scheduler.ModelConfig{ExecTimeout: 2 * time.Second}); err != nil {
			t.Fatal(err)
		}
		old := r.start(t, echo(func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, Delay: 3 * time.Second}
		}))
		if err := r.echoes(echoID); !errors.Is(err, scheduler.ErrContainerLost) {
			t.Errorf("answered %v, expected the execution timeout", err)
		}
		other := echo(nil)
		other.Inputs, other.Outputs = slices.Clone(other.Inputs), slices.Clone(other.Outputs)
		other.Inputs[0].Shape, other.Outputs[0].Shape = tensor.Shape{-1, 5}, tensor.Shape{-1, 5}
		next := r.start(t, other)
		<-old.Gone()
		if g := old.Goodbye(); g == nil || !g.Reconnect || !strings.Contains(g.Reason, "with other shapes") {
			t.Errorf("goodbye %+v", g)
		}
		next.Close()
		synctest.Wait()
		r.start(t, echo(nil))
		if err := r.echoes(echoID); err != nil {
			t.Error(err)
		}
	})
}

// TestForbiddenWhileRegistering: a container that a reload forbids while it registers, which no
// Review saw, is dismissed as by a Review: it may reconnect.
func TestForbiddenWhileRegistering(t *testing.T) {
	r := newRig(t, containers.Config{Allow: func(a containers.Applicant) (containers.Party, error) {
		if a.Registered {
			return containers.Party{}, errors.New("its right has gone")
		}
		return containers.Party{Identity: "camera"}, nil
	}})
	c, err := containertest.Join(r, echo(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-c.Gone()
	if g := c.Goodbye(); g == nil || !g.Reconnect || g.Reason != "its right has gone" {
		t.Errorf("goodbye %+v", g)
	}
}

// TestReconnectedSocket: a container whose socket reconnected by itself is told to register
// again.
func TestReconnectedSocket(t *testing.T) {
	for _, first := range []string{"heartbeat", "result", "draining"} {
		bubble(t, func(t *testing.T, r *rig) {
			p := r.peer(t)
			if err := p.Send([]byte(first), make([]byte, 8), []byte("{}")); err != nil {
				t.Fatal(err)
			}
			f, err := p.Receive()
			if err != nil || string(f[0]) != "goodbye" || !bytes.Contains(f[1], []byte(`"reconnect":true`)) {
				t.Errorf("after %s: %q, %v", first, f, err)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if len(r.Sessions()) != 0 {
				t.Errorf("after %s: still connected 2 s after goodbye", first)
			}
		})
	}
}

// TestNeverRegisters: a peer that does not register is disconnected after the handshake timeout,
// whatever it sends meanwhile.
func TestNeverRegisters(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p := r.peer(t)
		began := time.Now()
		go func() {
			for p.Send(nil, le32(2)) == nil { // a v3 container that only sends heartbeats
				time.Sleep(time.Second)
			}
		}()
		for {
			f, err := p.Receive()
			if err != nil {
				break
			}
			if len(f) != 4 || string(f[3]) != string(le32(1)) {
				t.Fatalf("got %q", f)
			}
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("ended after %v", took)
		}
		synctest.Wait()
		r.logs(t, "before it registered", "not registered within 10s")
		time.Sleep(2 * time.Second) // the sender notices
	})
}

func le32(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }

// TestV3Clock: a v3 container sends a heartbeat every 5 s, each is answered, and it is dead after
// 30 s of silence.
func TestV3Clock(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p, id := r.v3(t, "2")
		for range 20 {
			time.Sleep(5 * time.Second)
			if err := p.Send(nil, le32(2)); err != nil {
				t.Fatal(err)
			}
			if f, err := p.Receive(); err != nil || len(f) != 4 || !bytes.Equal(f[1], le32(3)) ||
				!bytes.Equal(f[2], le32(2)) || !bytes.Equal(f[3], le32(0)) {
				t.Fatalf("a beat was answered with %q, %v", f, err)
			}
		}
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if r.live(id) != 1 {
			t.Error("given up before 30 s")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if r.live(id) != 0 {
			t.Error("not given up after 30 s")
		}
	})
}

// v3 registers a legacy container by hand.
func (r *rig) v3(t testing.TB, inputType string) (*containertest.Peer, scheduler.ModelID) {
	t.Helper()
	p := r.peer(t)
	if err := p.Send(nil, le32(2)); err != nil {
		t.Fatal(err)
	}
	if f, err := p.Receive(); err != nil || len(f) != 4 || !bytes.Equal(f[3], le32(1)) {
		t.Fatalf("the first beat was answered with %q, %v", f, err)
	}
	if err := p.Send(nil, le32(0), []byte("legacy"), []byte("7"), []byte(inputType), le32(3)); err != nil {
		t.Fatal(err)
	}
	id := scheduler.ModelID{Name: "legacy", Version: "7"}
	for r.live(id) == 0 {
		time.Sleep(time.Millisecond)
	}
	return p, id
}

// TestV3Serves: rows of different lengths, the Java container's ids, and its end.
func TestV3Serves(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p, id := r.v3(t, "2\x00stray")
		go func() {
			for {
				f, err := p.Receive()
				if err != nil {
					return
				}
				sizes := binary.LittleEndian.AppendUint64(nil, uint64(len(f)-7))
				outputs := [][]byte{}
				for _, row := range f[7:] {
					out := []byte(time.Duration(len(row)).String())
					sizes = binary.LittleEndian.AppendUint64(sizes, uint64(len(out)))
					outputs = append(outputs, out)
				}
				id8 := append(bytes.Clone(f[3]), 0, 0, 0, 0)
				_ = p.Send(
					append([][]byte{nil, le32(1), id8, binary.LittleEndian.AppendUint64(nil, uint64(len(sizes))),
						sizes}, outputs...)...)
			}
		}()
		for _, n := range []int{1, 3, 0} {
			in, _ := tensor.FromSlice(tensor.Shape{2, n}, make([]float32, 2*n))
			out, err := r.infer(id, in)
			if err != nil {
				t.Fatal(err)
			}
			want := (4 * time.Duration(n)).String()
			if got, err := tensor.Strings(out[0]); err != nil || len(got) != 2 || got[0] != want || got[1] != want {
				t.Errorf("rows of %d: %q, %v", n, got, err)
			}
			out[0].Release()
		}
		if s := r.Sessions()[0]; s.RPC != "v3" || s.Model != id {
			t.Errorf("session %+v", s)
		}
		p.Close()
		synctest.Wait()
		if r.live(id) != 0 {
			t.Error("still a replica")
		}
		r.logs(t, "container gone", "model=legacy/7", "closed the connection")
	})
}
