package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A preparer is a container that prepares the inputs of a batch while it executes the one before.
type preparer struct {
	clock          *schedtest.Clock
	prepare, exec  func(rows int) time.Duration
	says           func(time.Duration) time.Duration // of its preparation; nil: the truth
	prepared, free time.Time                         // when it has done what it has
}

func (p *preparer) Send(b *scheduler.Batch) error {
	now, prepare := p.clock.Now(), p.prepare(b.Rows)
	p.prepared = later(now, p.prepared).Add(prepare)
	p.free = later(p.prepared, p.free).Add(p.exec(b.Rows))
	p.clock.AfterFunc(p.free.Sub(now), func() {
		if p.says != nil {
			prepare = p.says(prepare)
		}
		b.Prepared(prepare)
		outputs, rowErrors, err := schedtest.Echo(b)
		if err == nil {
			err = b.Complete(outputs, rowErrors)
		}
		if err != nil {
			panic(err)
		}
	})
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A looper sends a request, and another one on each answer, 300 µs later unless back says when.
type looper struct {
	scheduler.Request
	sched    *scheduler.Scheduler
	clock    *schedtest.Clock
	patience time.Duration
	back     func() time.Duration
	answered *[]error
}

func (l *looper) Complete(r *scheduler.Request) {
	*l.answered = append(*l.answered, r.Err)
	for _, out := range r.Outputs {
		out.Release()
	}
	after := 300 * time.Microsecond
	if l.back != nil {
		after = l.back()
	}
	l.clock.AfterFunc(after, l.ask)
}

func (l *looper) ask() {
	r := &scheduler.Request{Model: l.Model, Inputs: l.Inputs, Rows: l.Rows, Source: l.Source, Owner: l,
		Deadline: l.clock.Now().Add(l.patience)}
	l.sched.Submit(r)
}

// loops has clients, which begin one after the other, ask a preparer for some rows each, and
// returns the answers of ten seconds after a while.
func loops(t *testing.T, rows int, begin []time.Duration, patience, after time.Duration, p *preparer) []error {
	return loopsBack(t, rows, begin, patience, after, nil, p)
}

// loopsBack is loops of clients that ask again when back says, of as many replicas as preparers.
func loopsBack(t *testing.T, rows int, begin []time.Duration, patience, after time.Duration,
	back func(*schedtest.Clock) time.Duration, ps ...*preparer) []error {
	answered, _ := loopsBeside(t, 0, rows, begin, patience, after, back, ps...)
	return answered
}

// loopsBeside is loopsBack beside a camera, if it has an interval, the latest frame of which waits;
// seen are its frames that were answered.
func loopsBeside(t *testing.T, camera time.Duration, rows int, begin []time.Duration, patience, after time.Duration,
	back func(*schedtest.Clock) time.Duration, ps ...*preparer) ([]error, int) {
	clock := schedtest.NewClock()
	sched, err := scheduler.New(scheduler.Config{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	defer sched.Close()
	spec := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1}}}
	var model *scheduler.Model
	for _, p := range ps {
		p.clock = clock
		rep, err := sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"},
			scheduler.Spec{Inputs: spec, Outputs: spec}, p, scheduler.ReplicaOptions{})
		if err != nil {
			t.Fatal(err)
		}
		model = rep.Model()
	}
	input := func(rows int) []tensor.Tensor {
		x, err := tensor.FromSlice(tensor.Shape{rows, 1}, make([]uint8, rows))
		if err != nil {
			t.Fatal(err)
		}
		return []tensor.Tensor{x}
	}
	var answered []error
	for i, at := range begin {
		l := &looper{sched: sched, clock: clock, patience: patience, answered: &answered}
		if back != nil {
			l.back = func() time.Duration { return back(clock) }
		}
		l.Model, l.Inputs, l.Rows, l.Source = model, input(rows), rows, uint64(1+i)
		clock.AfterFunc(at, l.ask)
	}
	frame, seen := input(1), 0
	var next func()
	next = func() {
		sched.Submit(&scheduler.Request{Model: model, Inputs: frame, Rows: 1, Source: 100,
			Deadline: clock.Now().Add(patience), Frame: &scheduler.Frame{Client: "c", Stream: "s", Keep: 1, Seq: -1},
			Owner: ownerFunc(func(r *scheduler.Request) {
				for _, out := range r.Outputs {
					out.Release()
				}
				if r.Err == nil {
					seen++
				}
			})})
		clock.AfterFunc(camera, next)
	}
	if camera > 0 {
		next()
	}
	clock.Advance(after)
	answered, seen = answered[:0], 0
	clock.Advance(10 * time.Second)
	return answered, seen
}

// apart is when clients begin.
func apart(clients int, by time.Duration) (begin []time.Duration) {
	for i := range clients {
		begin = append(begin, time.Duration(i)*by)
	}
	return begin
}

func TestPreparation(t *testing.T) {
	nearlyFlat := schedtest.Linear(16*time.Millisecond, 200*time.Microsecond)
	for _, c := range []struct {
		name    string
		clients int
		row     time.Duration
		exec    func(rows int) time.Duration
		least   float64 // answers/s
	}{
		// Sent only when the replica is idle they take 19.2 + 32 ms for 16 rows: 312/s.
		{"as long as the execution", 16, 2 * time.Millisecond, nearlyFlat, 420},
		// ... and 16 + 8 ms for 8: 333/s.
		{"of a model that is linear", 8, time.Millisecond, schedtest.Linear(0, 2*time.Millisecond), 470},
		// Two groups of four in turn would have 80/s.
		{"short beside the execution", 8, 2 * time.Millisecond, schedtest.Linear(50*time.Millisecond, 0), 115},
		// In turn they would have 62/s.
		{"of two clients", 2, 2 * time.Millisecond, schedtest.Linear(16*time.Millisecond, 0), 92},
		{"one client", 1, 2 * time.Millisecond, schedtest.Linear(16*time.Millisecond, 0), 54},
	} {
		for _, by := range []time.Duration{0, 7 * time.Millisecond, 207 * time.Millisecond} {
			t.Run(fmt.Sprint(c.name, ", ", by, " apart"), func(t *testing.T) {
				p := &preparer{prepare: schedtest.Linear(0, c.row), exec: c.exec}
				answered := loops(t, 1, apart(c.clients, by), 2*time.Second, 5*time.Second, p)
				for _, err := range answered {
					if err != nil {
						t.Fatal(err)
					}
				}
				rate := float64(len(answered)) / 10
				t.Logf("%.1f answers/s", rate)
				if rate < c.least {
					t.Errorf("%.1f answers/s, want %.0f", rate, c.least)
				}
			})
		}
	}
}

// TestPreparationInTurn: clients whose way back takes nearly as long as an execution, as by another
// model with two replicas, are two groups in turn. One group of all would wait for all of its ways,
// and a group that comes apart must not become two.
func TestPreparationInTurn(t *testing.T) {
	for _, c := range []struct {
		way, late time.Duration // of the way back beyond the other model, and of preparation in the mean
		least     float64       // answers/s, of 119
	}{
		{time.Millisecond, 700 * time.Microsecond, 110}, // 106 if short preparation is waited for
		{time.Millisecond, 3 * time.Millisecond, 112},   // 110 if it begins no sooner than it must
		{6 * time.Millisecond, 3 * time.Millisecond, 100.5},
	} {
		rng := rand.New(rand.NewPCG(1, 1))
		noise := func(mean time.Duration) time.Duration { return time.Duration(rng.ExpFloat64() * float64(mean)) }
		var free [2]time.Time // of the other model's replicas
		back := func(clock *schedtest.Clock) time.Duration {
			i := 0
			if free[1].Before(free[0]) {
				i = 1
			}
			free[i] = later(clock.Now(), free[i]).Add(9 * time.Millisecond)
			late := noise(500 * time.Microsecond)
			if rng.IntN(20) == 0 {
				late += 6 * time.Millisecond
			}
			return free[i].Sub(clock.Now()) + c.way + late
		}
		p := &preparer{exec: schedtest.Linear(16*time.Millisecond, 50*time.Microsecond),
			prepare: func(int) time.Duration { return time.Millisecond + noise(c.late) }}
		answered := loopsBack(t, 8, apart(4, 7*time.Millisecond), 2*time.Second, 5*time.Second, back, p)
		rate := float64(len(answered)) / 10
		t.Logf("%v, %v: %.1f answers/s", c.way, c.late, rate)
		if rate < c.least {
			t.Errorf("%v, %v: %.1f answers/s, want %v", c.way, c.late, rate, c.least)
		}
	}
}

// TestPreparationThatIsALie: what a container says of itself, once or always, ends nothing.
func TestPreparationThatIsALie(t *testing.T) {
	n := 0
	for name, says := range map[string]func(time.Duration) time.Duration{
		"an hour": func(time.Duration) time.Duration { return time.Hour },
		"nothing": func(time.Duration) time.Duration { return 0 },
		"less":    func(d time.Duration) time.Duration { return -d },
		"at times": func(d time.Duration) time.Duration {
			if n++; n%5 == 0 {
				return time.Hour
			}
			return d
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &preparer{says: says, prepare: schedtest.Linear(0, 2*time.Millisecond),
				exec: schedtest.Linear(16*time.Millisecond, 200*time.Microsecond)}
			answered := loops(t, 1, apart(8, 7*time.Millisecond), 2*time.Second, 5*time.Second, p)
			for _, err := range answered {
				if err != nil {
					t.Fatal(err)
				}
			}
			if rate := float64(len(answered)) / 10; rate < 150 { // 8 rows in 33.6 ms: 238/s
				t.Errorf("%.1f answers/s, want 150", rate)
			} else {
				t.Logf("%.1f answers/s", rate)
			}
		})
	}
}

// TestPreparationThatStalls: a batch whose preparation takes seconds, the first one or a later one,
// is forgotten at once. The two clients have 20 errors a second meanwhile.
func TestPreparationThatStalls(t *testing.T) {
	for _, stalls := range []int{1, 2, 250} {
		batches := 0
		prepare := func(rows int) time.Duration {
			if batches++; batches == stalls {
				return 3 * time.Second
			}
			return time.Duration(rows) * 5 * time.Millisecond
		}
		answered := loops(t, 1, apart(2, 7*time.Millisecond), 100*time.Millisecond, 0,
			&preparer{exec: schedtest.Linear(16*time.Millisecond, 0), prepare: prepare})
		failed := 0
		for _, err := range answered {
			if err != nil {
				failed++
			}
		}
		if ok := len(answered) - failed; ok < 400 || failed > 65 {
			t.Errorf("batch %d stalls: %d answers and %d errors in ten seconds, want 400 and at most 65",
				stalls, ok, failed)
		} else {
			t.Logf("batch %d stalls: %d answers and %d errors", stalls, ok, failed)
		}
	}
}

// TestPreparationOfShared: the times of a shared container, from the grant to the answer, include
// its preparation.
func TestPreparationOfShared(t *testing.T) {
	for _, shared := range []bool{false, true} {
		clock := schedtest.NewClock()
		sched, err := scheduler.New(scheduler.Config{Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		defer sched.Close()
		p := &preparer{clock: clock, prepare: schedtest.Linear(10*time.Millisecond, 0),
			exec: schedtest.Linear(20*time.Millisecond, 0)}
		spec := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1}}}
		rep, err := sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"},
			scheduler.Spec{Inputs: spec, Outputs: spec}, p, scheduler.ReplicaOptions{Offer: func(scheduler.Offer) {}})
		if err != nil {
			t.Fatal(err)
		}
		rep.Share(shared)
		x, err := tensor.FromSlice(tensor.Shape{1, 1}, []uint8{1})
		if err != nil {
			t.Fatal(err)
		}
		var answered []error
		for i := range uint64(8) {
			l := &looper{sched: sched, clock: clock, patience: time.Second, answered: &answered}
			l.Model, l.Inputs, l.Rows, l.Source = rep.Model(), []tensor.Tensor{x}, 1, 1
			if i == 0 {
				l.ask()
			}
			if shared {
				rep.Grant(i+1, 1, 0, 0)
			}
			clock.Advance(31 * time.Millisecond)
		}
		s := rep.Stats()
		if len(answered) < 7 {
			t.Fatalf("shared %t: %d answers", shared, len(answered))
		}
		if took := s.Measured[0].Took; shared && (s.Preparation != 0 || took != 30*time.Millisecond) {
			t.Errorf("shared: it prepares in %v and executes in %v, want 0s and 30ms", s.Preparation, took)
		} else if !shared && s.Preparation != 10*time.Millisecond {
			t.Errorf("it prepares in %v, want 10ms", s.Preparation)
		}
	}
}

// TestPreparationOfTwo: two idle replicas do not leave rows to each other for ever that are late by
// the preparation of all that wait.
func TestPreparationOfTwo(t *testing.T) {
	p := preparer{prepare: schedtest.Linear(time.Millisecond, 0), exec: schedtest.Linear(2*time.Millisecond, 0)}
	q := p
	begin, ok := apart(8, 700*time.Microsecond), 0
	for _, err := range loopsBack(t, 1, begin, 3600*time.Microsecond, 5*time.Second, nil, &p, &q) {
		if err == nil {
			ok++
		}
	}
	t.Logf("%d answers/s", ok/10)
	if ok < 5000 {
		t.Errorf("%d answers/s, want 500", ok/10)
	}
}

// TestPreparationBesideIdle: a busy replica does not have what an idle one could begin.
func TestPreparationBesideIdle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	p := preparer{exec: schedtest.Linear(5*time.Millisecond, 0),
		prepare: func(int) time.Duration { return time.Duration(rng.ExpFloat64() * float64(5*time.Millisecond)) }}
	p2, p3 := p, p
	back := func(*schedtest.Clock) time.Duration { return 3 * time.Millisecond }
	answered := loopsBack(t, 1, apart(2, 700*time.Microsecond), 2*time.Second, 5*time.Second, back, &p, &p2, &p3)
	rate := float64(len(answered)) / 10
	t.Logf("%.1f answers/s", rate)
	if rate < 140 {
		t.Errorf("%.1f answers/s, want 140", rate)
	}
}

// TestPreparationInThree: where preparation and the way back take longer than two groups execute,
// three groups in turn have more answers, and none waits for a part of another.
func TestPreparationInThree(t *testing.T) {
	p := &preparer{prepare: schedtest.Linear(0, 1600*time.Microsecond),
		exec: schedtest.Linear(12300*time.Microsecond, 370*time.Microsecond)}
	back := func(*schedtest.Clock) time.Duration { return 19200 * time.Microsecond }
	answered := loopsBack(t, 2, apart(5, 700*time.Microsecond), 2*time.Second, 5*time.Second, back, p)
	rate := float64(len(answered)) / 10
	t.Logf("%.1f answers/s", rate)
	if rate < 120 {
		t.Errorf("%.1f answers/s, want 120", rate)
	}
}

// TestPreparationBesideCamera: groups in turn do not leave before the frame of a camera that is
// about to come.
func TestPreparationBesideCamera(t *testing.T) {
	p := &preparer{prepare: schedtest.Linear(0, 42*time.Microsecond), exec: schedtest.Linear(5*time.Millisecond, 0)}
	back := func(*schedtest.Clock) time.Duration { return 6 * time.Millisecond }
	answered, seen := loopsBeside(t, 3500*time.Microsecond, 4, apart(3, 4*time.Millisecond), 2*time.Second,
		5*time.Second, back, p)
	t.Logf("%d answers/s and %d frames/s", len(answered)/10, seen/10)
	if rate := float64(len(answered)) / 10; rate < 190 || seen < 1800 {
		t.Errorf("%.1f answers/s and %d frames of 2000, want 190 and 1800", rate, seen)
	}
}
