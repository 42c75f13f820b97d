package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

var rowsSpec = scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec}

// start makes a scheduler with one replica. The test closes it.
func start(t testing.TB, w scheduler.Worker, cfg scheduler.Config) (*scheduler.Scheduler, *scheduler.Replica) {
	t.Helper()
	s, err := scheduler.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := s.AddReplica(benchID, rowsSpec, w, scheduler.ReplicaOptions{Label: "A"})
	if err != nil {
		t.Fatal(err)
	}
	return s, rep
}

func rowOf(t testing.TB, rows int) []tensor.Tensor {
	in, err := tensor.FromSlice(tensor.Shape{rows, 4}, make([]uint8, 4*rows))
	if err != nil {
		t.Fatal(err)
	}
	return []tensor.Tensor{in}
}

type ownerFunc func(*scheduler.Request)

func (f ownerFunc) Complete(r *scheduler.Request) { f(r) }

// TestExpiryIsPrompt: with a worker that never answers, each request is answered at its
// deadline, whether it waits or executes. (In a bubble, time is exact: not within 1 ms, but at
// the deadline.)
func TestExpiryIsPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, rep := start(t, &schedtest.Worker{}, scheduler.Config{})
		var wg sync.WaitGroup
		for i := range 100 {
			deadline := time.Now().Add(time.Duration(1+i*7%50) * time.Millisecond)
			wg.Add(1)
			s.Submit(&scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1, Deadline: deadline,
				Owner: ownerFunc(func(r *scheduler.Request) {
					defer wg.Done()
					if !time.Now().Equal(deadline) || !errors.Is(r.Err, scheduler.ErrDeadlineExceeded) {
						t.Errorf("answered %v off its deadline: %v", time.Since(deadline), r.Err)
					}
				})})
		}
		wg.Wait()
		s.Close()
	})
}

// TestDrain: accepted requests are answered, later ones refused, and Drain returns after the last
// call of Complete.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &schedtest.Worker{Exec: schedtest.Linear(10*time.Millisecond, time.Millisecond)}
		s, rep := start(t, w, scheduler.Config{})
		told := 0
		submit := func(want error) {
			s.Submit(&scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1,
				Owner: ownerFunc(func(r *scheduler.Request) {
					told++
					if !errors.Is(r.Err, want) {
						t.Errorf("answered %v, want %v", r.Err, want)
					}
				})})
		}
		for range 10 {
			submit(nil)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := s.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain with too little time: %v", err)
		}
		submit(scheduler.ErrDraining)
		if err := s.Drain(t.Context()); err != nil || told != 11 {
			t.Errorf("Drain: %v, with %d of 11 owners told", err, told)
		}
		if _, err := s.AddReplica(benchID, rowsSpec, w, scheduler.ReplicaOptions{}); !errors.Is(err,
			scheduler.ErrDraining) {
			t.Errorf("AddReplica while draining: %v", err)
		}
		s.Close()
	})
}

// TestCloseAnswersAll: Close leaves no request, goroutine or timer behind. A bubble cannot end
// with a goroutine in it.
func TestCloseAnswersAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &schedtest.Worker{}
		s, rep := start(t, w, scheduler.Config{})
		told := 0
		for range 10 {
			s.Submit(&scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1,
				Deadline: time.Now().Add(time.Hour), Owner: ownerFunc(func(r *scheduler.Request) {
					told++
					if !errors.Is(r.Err, scheduler.ErrDraining) {
						t.Errorf("answered %v", r.Err)
					}
				})})
		}
		s.Close()
		if told != 10 {
			t.Errorf("%d of 10 owners told", told)
		}
		if err := w.Answer(); err != nil { // a worker may still answer
			t.Error(err)
		}
	})
}

// TestInferGivesUp: when its context ends, Infer cancels the request.
func TestInferGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, rep := start(t, &schedtest.Worker{}, scheduler.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := s.Infer(ctx, &scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1}); !errors.Is(err,
			scheduler.ErrCanceled) {
			t.Errorf("got %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := s.Infer(ctx, &scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1}); err == nil ||
			time.Since(began) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		s.Close()
	})
}

// TestWorkerThatAnswersInSend: an owner that submits again from Complete, on a worker that
// answers within Send, must not recurse deeper with every round.
func TestWorkerThatAnswersInSend(t *testing.T) {
	depth, most, rounds := 0, 0, 0
	w := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		var pcs [512]uintptr
		depth = runtime.Callers(0, pcs[:])
		most = max(most, depth)
		out, _, err := schedtest.Echo(b)
		b.Complete(out, nil)
		return err
	})
	s, rep := start(t, w, scheduler.Config{})
	defer s.Close()
	done := make(chan struct{})
	r := &scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1}
	r.Owner = ownerFunc(func(r *scheduler.Request) {
		if rounds++; rounds == 1000 {
			close(done)
			return
		}
		s.Submit(r)
	})
	s.Submit(r)
	<-done
	if most > 100 {
		t.Errorf("the stack was %d frames deep after 1000 rounds", most)
	}
}

// TestPanics: a worker's panic removes only its replica; an owner's panic costs no other request
// its answer, and the model continues. Both are logged.
func TestPanics(t *testing.T) {
	var log strings.Builder
	s, err := scheduler.New(scheduler.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	add := func(w scheduler.Worker) *scheduler.Replica {
		rep, err := s.AddReplica(benchID, rowsSpec, w, scheduler.ReplicaOptions{Label: "A"})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	rep := add(scheduler.WorkerFunc(func(*scheduler.Batch) error { panic("index out of range") }))
	r := &scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1}
	if err := s.Infer(t.Context(), r); !errors.Is(err, scheduler.ErrContainerLost) || !strings.Contains(err.Error(), "index out of range") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(log.String(), "index out of range") || rep.Model().Replicas() != 0 {
		t.Errorf("%d replicas live, log %q", rep.Model().Replicas(), log.String())
	}

	w := &schedtest.Worker{}
	rep = add(w)
	told := 0
	var rs []*scheduler.Request
	for i := range 5 {
		rs = append(rs,
			&scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1,
				Owner: ownerFunc(func(*scheduler.Request) {
					told++
					if i%2 == 1 {
						panic(fmt.Sprint("owner ", i))
					}
				})})
	}
	s.Submit(rs...)
	for range 10 {
		_ = w.Answer()
	}
	if told != 5 || !strings.Contains(log.String(), "owner 1") || !strings.Contains(log.String(), "owner 3") {
		t.Errorf("%d of 5 owners told, log %q", told, log.String())
	}
	if err := rep.Model().Check(); err != nil {
		t.Error(err)
	}
}

// TestConcurrent submits, cancels and answers from many goroutines, for the race detector.
func TestConcurrent(t *testing.T) {
	pool := tensor.NewPool(0)
	s, err := scheduler.New(scheduler.Config{Pool: pool, Default: scheduler.ModelConfig{MaxBatch: 16}})
	if err != nil {
		t.Fatal(err)
	}
	var model *scheduler.Model
	var wg sync.WaitGroup
	queues := make([]chan *scheduler.Batch, 3)
	for i := range queues {
		work := make(chan *scheduler.Batch, 16)
		queues[i] = work
		wg.Go(func() {
			n := 0
			for b := range work {
				n++
				switch out, _, err := schedtest.Echo(b); {
				case err != nil:
					t.Error(err)
				case n%37 == 0:
					b.Fail(errors.New("model raised"))
				default:
					b.Complete(out, nil)
				}
			}
		})
		rep, err := s.AddReplica(benchID, rowsSpec,
			scheduler.WorkerFunc(func(b *scheduler.Batch) error { work <- b; return nil }), scheduler.ReplicaOptions{})
		if err != nil {
			t.Fatal(err)
		}
		model = rep.Model()
	}
	const clients, each = 8, 400
	var answered, open atomic.Int64
	var clientsDone sync.WaitGroup
	for c := range clients {
		clientsDone.Go(func() {
			for i := range each {
				buf, err := pool.Get(4 * (1 + i%20))
				if err != nil {
					t.Error(err)
					return
				}
				in := tensor.Tensor{DType: tensor.Uint8, Shape: tensor.Shape{1 + i%20, 4}, Data: buf.Bytes(), Buf: buf}
				r := &scheduler.Request{
					Model: model, Inputs: []tensor.Tensor{in}, Rows: 1 + i%20, Source: uint64(c), Priority: i % 2,
					Deadline: time.Now().Add(time.Duration(i%10+1) * 2 * time.Millisecond),
				}
				open.Add(1)
				r.Owner = ownerFunc(func(r *scheduler.Request) {
					for _, o := range r.Outputs {
						o.Release()
					}
					buf.Release()
					answered.Add(1)
					open.Add(-1)
				})
				s.Submit(r)
				if i%7 == 0 {
					s.Cancel(r)
				}
				if i%50 == 0 {
					if err := model.Check(); err != nil {
						t.Error(err)
					}
					_ = model.Stats()
				}
				for open.Load() > 500 {
					runtime.Gosched()
				}
			}
		})
	}
	clientsDone.Wait()
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := answered.Load(); n != clients*each {
		t.Errorf("%d of %d requests answered", n, clients*each)
	}
	s.Close()
	for _, work := range queues {
		close(work)
	}
	wg.Wait()
	if n := pool.InUse(); n != 0 {
		t.Errorf("%d bytes were never released: %v", n, tensor.Outstanding(pool))
	}
}

// A failure that is not the container's fault keeps its error.
func TestBlamelessFailure(t *testing.T) {
	for _, tt := range []struct{ err, want error }{
		{errors.New("model raised"), scheduler.ErrContainerFailed},
		{fmt.Errorf("%w: no memory", scheduler.ErrOverloaded), scheduler.ErrOverloaded},
		{fmt.Errorf("%w: a NUL", scheduler.ErrInvalidInput), scheduler.ErrInvalidInput},
	} {
		s, err := scheduler.New(scheduler.Config{})
		if err != nil {
			t.Fatal(err)
		}
		rep, err := s.AddReplica(benchID, rowsSpec, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			b.Fail(tt.err)
			return nil
		}), scheduler.ReplicaOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r := &scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1}
		err = s.Infer(t.Context(), r)
		if !errors.Is(err, tt.want) || tt.want != scheduler.ErrContainerFailed &&
			errors.Is(err, scheduler.ErrContainerFailed) {
			t.Errorf("failed with %v: %v", tt.err, err)
		}
		s.Close()
	}
}

// TestAlone: Request.Alone is set for an answer that no other answer follows: that of a batch of
// one request, and a single expiry.
func TestAlone(t *testing.T) {
	s, clock := newVirtual(t,
		scheduler.Config{Default: scheduler.ModelConfig{Strategy: "static", MaxBatch: 2, Slots: 1}})
	w := &schedtest.Worker{}
	model := addTo(t, s, benchID, rowsSpec, w).Model()
	var got []bool
	ask := func(n, rows int, within time.Duration) {
		rs := make([]*scheduler.Request, n)
		for i := range rs {
			rs[i] = &scheduler.Request{Model: model, Inputs: rowOf(t, rows), Rows: rows,
				Deadline: clock.Now().Add(within), Owner: ownerFunc(func(r *scheduler.Request) {
					got = append(got, r.Alone)
				})}
		}
		s.Submit(rs...)
	}
	check := func(when string, want ...bool) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: alone: %v, want %v", when, got, want)
		}
		got = nil
	}
	ask(1, 1, time.Second)
	ask(2, 1, time.Second)
	ask(1, 2, time.Second)
	answer := func() {
		if err := w.Answer(); err != nil {
			t.Fatal(err)
		}
	}
	answer()
	check("one of one row", true)
	answer()
	check("two", false, false)
	answer()
	check("one of two rows", true)
	ask(1, 1, time.Minute) // keeps the replica busy
	ask(1, 1, time.Millisecond)
	clock.Advance(10 * time.Millisecond)
	check("one deadline", true)
	ask(2, 1, time.Millisecond)
	clock.Advance(10 * time.Millisecond)
	check("two deadlines", false, false)
}
