package scheduler_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

var (
	soakFlag     = flag.Duration("soak", 0, "how long TestSoak runs; 0: a second, or a quarter of it where a change is tried")
	soakSeedFlag = flag.Uint64("soakseed", 1, "of TestSoak; the goroutines' order is not its to choose")
)

// TestSoak is TestRandom in real time and on many goroutines: clients that submit, cancel and let
// requests expire, replicas that fail, stall, die and return, shapes that change. Every request
// must be answered once and with its own bytes, Check must always pass, and nothing may be left
// over.
//
//	go test -race ./scheduler -run TestSoak -soak 2m
func TestSoak(t *testing.T) {
	before := runtime.NumGoroutine()
	s := &soak{t: t, pool: tensor.NewPool(0), id: scheduler.ModelID{Name: "m", Version: "1"}}
	var err error
	s.sched, err = scheduler.New(scheduler.Config{Pool: s.pool, Default: scheduler.ModelConfig{
		Objective: 5 * time.Millisecond, ExecTimeout: 30 * time.Millisecond, QueueRows: 400,
	}})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() { s.replicas(rand.New(rand.NewPCG(*soakSeedFlag, uint64(i))), stop) })
	}
	for i := range 4 {
		wg.Go(func() { s.client(rand.New(rand.NewPCG(*soakSeedFlag, uint64(100+i))), stop) })
	}
	wg.Go(func() { s.auditor(stop) })
	length := cmp.Or(*soakFlag, time.Second)
	if *soakFlag == 0 && !budgettest.Whole() && !budgettest.Race {
		length /= 4
	}
	time.Sleep(length) // as long as the flag asks for
	budgettest.Until(t, "a request to have a result", func() bool { return s.good.Load() > 0 })
	close(stop)
	wg.Wait()
	s.sched.Close()
	t.Logf("%d requests, %d of them answered with outputs", s.submitted.Load(), s.good.Load())
	if submitted, answered := s.submitted.Load(), s.answered.Load(); submitted != answered {
		t.Errorf("%d requests, %d answers", submitted, answered)
	}
	// Batches that stalled, and the last timers, end by themselves.
	budgettest.Until(t, "all memory comes back", func() bool { return s.pool.InUse() == 0 })
	budgettest.Until(t, "all goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

type soak struct {
	t     *testing.T
	pool  *tensor.Pool
	id    scheduler.ModelID
	sched *scheduler.Scheduler

	submitted, answered, good atomic.Int64
}

var soakSpec = []tensor.Spec{{Name: "x", DType: tensor.Uint32, Shape: tensor.Shape{-1, -1}}}

// replicas runs one replica after another.
func (s *soak) replicas(rng *rand.Rand, stop chan struct{}) {
	var mu sync.Mutex // guards rng: a removed replica may still be computing
	random := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
	for {
		w := &schedtest.Worker{
			Exec: func(rows int) time.Duration {
				if random(300) == 0 {
					return 50 * time.Millisecond // longer than the execution timeout
				}
				return time.Duration(200+rows*20+random(200)) * time.Microsecond
			},
			Model: func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
				if random(100) == 0 {
					return nil, nil, errors.New("model raised")
				}
				return schedtest.Echo(b)
			},
		}
		rep, err := s.sched.AddReplica(s.id,
			scheduler.Spec{Inputs: soakSpec, Outputs: soakSpec, MaxBatch: 1 + random(32)}, w,
			scheduler.ReplicaOptions{})
		if err != nil {
			s.t.Error(err)
			return
		}
		life := time.NewTimer(time.Duration(50+random(200)) * time.Millisecond)
		ended := false
		select {
		case <-life.C:
		case <-stop:
			ended = true
		}
		life.Stop()
		switch random(3) {
		case 0: // it drains
			drained := make(chan struct{})
			rep.Drain(func() { close(drained) })
			select {
			case <-drained:
			case <-time.After(time.Minute):
				s.t.Error("a replica did not drain within a minute")
			}
		case 1: // it dies
			w.Drop()
		default: // its connection breaks
			w.Break(errors.New("broken pipe"))
		}
		// From here on it accepts no batch and reads none, as Remove requires.
		w.Break(errors.New("gone"))
		w.Drop()
		rep.Remove(errors.New("gone"))
		if ended {
			return
		}
	}
}

// client submits bursts, each row with a number of its own, and cancels some.
func (s *soak) client(rng *rand.Rand, stop chan struct{}) {
	var last []*scheduler.Request
	var pending sync.WaitGroup
	defer pending.Wait()
	for next := uint32(0); ; {
		select {
		case <-stop:
			// Unanswered requests end at their deadlines.
			return
		default:
		}
		m, ok := s.sched.Model(s.id)
		if !ok {
			time.Sleep(time.Millisecond)
			continue
		}
		burst := make([]*scheduler.Request, 1+rng.IntN(8))
		for i := range burst {
			rows, width := 1, 1+rng.IntN(2)
			if rng.IntN(20) == 0 {
				rows = 1 + rng.IntN(60)
			}
			buf, err := s.pool.Get(rows * width * 4)
			if err != nil {
				s.t.Error(err)
				return
			}
			for k := range rows * width {
				binary.NativeEndian.PutUint32(buf.Bytes()[4*k:], next+uint32(k))
			}
			r := &scheduler.Request{
				Model: m, Rows: rows, Priority: rng.IntN(3), Source: rng.Uint64N(5),
				Owner: &soakOwner{s: s, first: next, pending: &pending},
				Inputs: []tensor.Tensor{{Name: "x", DType: tensor.Uint32, Shape: tensor.Shape{rows, width},
					Data: buf.Bytes(), Buf: buf}},
				Deadline: time.Now().Add(time.Duration(1+rng.IntN(20)) * time.Millisecond),
			}
			next += uint32(rows * width)
			burst[i] = r
			pending.Add(1)
			s.submitted.Add(1)
		}
		s.sched.Submit(burst...)
		for _, r := range last {
			if rng.IntN(10) == 0 {
				s.sched.Cancel(r)
			}
		}
		last = burst
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
	}
}

// auditor calls Check again and again.
func (s *soak) auditor(stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(3 * time.Millisecond):
		}
		if m, ok := s.sched.Model(s.id); ok {
			if err := m.Check(); err != nil {
				s.t.Error(err)
				return
			}
		}
	}
}

type soakOwner struct {
	s       *soak
	first   uint32
	pending *sync.WaitGroup
	answers atomic.Int32
}

func (o *soakOwner) Complete(r *scheduler.Request) {
	defer o.pending.Done()
	o.s.answered.Add(1)
	if o.answers.Add(1) > 1 {
		o.s.t.Errorf("request %d is answered twice", o.first)
	}
	if r.Err == nil {
		o.s.good.Add(1)
		x, err := tensor.Values[uint32](r.Outputs[0])
		if err != nil || len(x) != r.Rows*r.Inputs[0].Shape[1] {
			o.s.t.Errorf("request %d of %d rows has output %s: %v", o.first, r.Rows, r.Outputs[0].Shape, err)
		}
		for i, v := range x {
			if v != o.first+uint32(i) {
				o.s.t.Errorf("request %d has the answer of %d", o.first, v)
				break
			}
		}
	} else if len(r.Outputs) > 0 {
		o.s.t.Errorf("request %d has outputs and an error", o.first)
	}
	for _, t := range r.Outputs {
		t.Release()
	}
	r.Inputs[0].Release()
}

// TestThroughputWhileDeadlinesFire: a minute in which three of five rows expire does not slow the
// scheduler down (Triton's issue 8870: with timeouts firing, its batcher became slower until the
// model was loaded anew).
func TestThroughputWhileDeadlinesFire(t *testing.T) {
	s := cell("deadline", 2.5)
	s.length = 5 * time.Second
	if !budgettest.Whole() {
		s.length = time.Second
	}
	s.warm = 2 * time.Second
	early := s.run(t)
	s.warm = 60 * time.Second
	if !budgettest.Whole() {
		s.warm = 6 * time.Second
	}
	if late := s.run(t); late.share() < 0.98*early.share() {
		t.Errorf("%.3f of what was offered was answered in time after %v, %.3f after %v", early.share(), 2*time.Second,
			late.share(), s.warm)
	}
}
