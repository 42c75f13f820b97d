package scheduler_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/budgettest"
)

// TestNeeded: as many replicas as Need reports meet the deadlines of the arriving requests, the
// number does not grow once they are live, and it is 0 when no request has arrived for a minute.
func TestNeeded(t *testing.T) {
	rates := []int{100, 1000, 4000} // rows per second; one replica does 800 in time
	if !budgettest.Whole() {
		rates = rates[:2]
	}
	for _, rate := range rates {
		s, clock := newVirtual(t, scheduler.Config{})
		add := func() *scheduler.Replica {
			return addTo(t, s, benchID, rowsSpec,
				&schedtest.Worker{Clock: clock, Exec: schedtest.Linear(10*time.Millisecond, time.Millisecond)})
		}
		model := add().Model()
		if n := model.Stats().Need.Replicas; n != 0 {
			t.Errorf("nobody has asked, and %d replicas are needed", n)
		}
		arrive := func(seconds int) (inTime float64) {
			good := 0
			for range seconds * rate {
				s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1,
					Deadline: clock.Now().Add(100 * time.Millisecond),
					Owner: ownerFunc(func(r *scheduler.Request) {
						if r.Err == nil {
							good++
						}
					})})
				clock.Advance(time.Second / time.Duration(rate))
			}
			return float64(good) / float64(seconds*rate)
		}
		alone := arrive(10)
		n := model.Stats().Need.Replicas
		t.Logf("%d rows/s: one replica answers %.3f in time; %d are needed", rate, alone, n)
		for range n - 1 {
			add()
		}
		arrive(5) // the new replicas learn their times
		if share := arrive(5); share < 0.99 {
			t.Errorf("%d rows/s: with %d replicas %.3f are in time", rate, n, share)
		}
		arrive(60 * 100 / rate)
		if again := model.Stats().Need.Replicas; again < 1 || again > n {
			t.Errorf("%d rows/s: %d replicas were needed, and %d with these", rate, n, again)
		}
		clock.Advance(2 * time.Minute)
		if n := model.Stats().Need.Replicas; n != 0 {
			t.Errorf("nobody has asked for two minutes, and %d replicas are needed", n)
		}
	}
}

// A crowd asks one model for rows at random, at a mean rate.
type crowd struct {
	t     *testing.T
	clock *schedtest.Clock
	sched *scheduler.Scheduler
	model *scheduler.Model
	rand  *rand.Rand

	deadline time.Duration
	even     bool // not at random
	refused  int
}

// newCrowd returns a crowd with replicas, each of which takes exec for a batch.
func newCrowd(t *testing.T, exec func(rows int) time.Duration, replicas int, deadline time.Duration) *crowd {
	s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{MaxBatch: 32}})
	c := &crowd{t: t, clock: clock, sched: s, rand: rand.New(rand.NewPCG(1, 2)), deadline: deadline}
	for range replicas {
		c.model = addTo(t, s, benchID, rowsSpec, &schedtest.Worker{Clock: clock, Exec: exec}).Model()
	}
	return c
}

// ask submits rate rows per second for the span, and passes the Need to look every second.
func (c *crowd) ask(rate float64, span time.Duration, look func(scheduler.Need)) {
	end := c.clock.Now().Add(span)
	next := c.clock.Now().Add(time.Second)
	for {
		pause := 1.0
		if !c.even {
			pause = c.rand.ExpFloat64()
		}
		at := c.clock.Now().Add(time.Duration(pause / rate * float64(time.Second)))
		for ; !next.After(at) && !next.After(end); next = next.Add(time.Second) {
			c.clock.Advance(next.Sub(c.clock.Now()))
			if look != nil {
				look(c.model.Stats().Need)
			}
		}
		if at.After(end) {
			c.clock.Advance(end.Sub(c.clock.Now()))
			return
		}
		c.clock.Advance(at.Sub(c.clock.Now()))
		c.sched.Submit(&scheduler.Request{Model: c.model, Inputs: rowOf(c.t, 1), Rows: 1, Deadline: at.Add(c.deadline),
			Owner: ownerFunc(func(r *scheduler.Request) {
				if r.Err != nil {
					c.refused++
				}
			})})
	}
}

// TestNeededAfterStep: after a step from nothing to three times the rate of a replica, the number
// is right within seconds, also if the model has answered single rows until then, and although most
// requests are refused. It does not rise while new replicas are being tried, nor during the rest of
// a minute.
func TestNeededAfterStep(t *testing.T) {
	for _, c := range []struct {
		name     string
		exec     func(rows int) time.Duration
		deadline time.Duration
		worth    float64 // rows per second of a replica
		even     bool
	}{
		{"in batches", schedtest.Linear(10*time.Millisecond, 4*time.Millisecond), 100 * time.Millisecond, 200, false},
		// It takes as long for 32 rows as for one. Judged by batches of one row, it would need 32
		// times as many.
		{"accelerator", schedtest.Linear(120*time.Millisecond, 0), 400 * time.Millisecond, 32 / 0.12, false},
		{"accelerator in a hurry", schedtest.Linear(120*time.Millisecond, 0), 200 * time.Millisecond, 32 / 0.12, false},
		{"row by row", schedtest.Linear(0, 20*time.Millisecond), 200 * time.Millisecond, 50, false},
		// So few rows arrive that chance could explain much, if they were not as even as those of
		// cameras.
		{"few rows", schedtest.Linear(0, 200*time.Millisecond), 600 * time.Millisecond, 5, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			crowd := newCrowd(t, c.exec, 1, c.deadline)
			crowd.even = c.even
			crowd.ask(1, 2*time.Minute, func(n scheduler.Need) {
				if n.Replicas > 1 {
					t.Fatalf("one row a second needs %+v", n)
				}
			})
			crowd.clock.Advance(2 * time.Minute)
			// A replica that registers and leaves does not count as a request.
			addTo(t, crowd.sched, benchID, rowsSpec, &schedtest.Worker{Clock: crowd.clock, Exec: c.exec}).
				Remove(errors.New("gone"))
			crowd.clock.Advance(10 * time.Second)
			seconds := 0
			span := 20 * time.Second
			if !budgettest.Whole() {
				span = 8 * time.Second
			}
			crowd.ask(3*c.worth, span, func(n scheduler.Need) {
				seconds++
				if seconds >= 5 && n.Replicas != 4 { // 3 / 0.8
					t.Errorf("after %d s of three times the capacity: %+v", seconds, n)
				}
			})
			if crowd.refused == 0 {
				t.Error("nothing was refused: this is no overload")
			}
			for range 3 {
				addTo(t, crowd.sched, benchID, rowsSpec, &schedtest.Worker{Clock: crowd.clock, Exec: c.exec})
			}
			crowd.ask(3*c.worth, span/2, func(n scheduler.Need) {
				if n.Replicas != 4 {
					t.Errorf("with the replicas that were needed: %+v", n)
				}
			})
		})
	}
}

// TestNeededUpAndDown: the number follows a step from a load that has lasted within ten seconds,
// and falls within a minute.
func TestNeededUpAndDown(t *testing.T) {
	const worth = 50
	crowd := newCrowd(t, schedtest.Linear(0, 20*time.Millisecond), 4, 200*time.Millisecond)
	for _, step := range []struct {
		load float64
		soon time.Duration
		want int
	}{{0.5, 2 * time.Second, 1}, {3, 10 * time.Second, 4}, {0.5, 66 * time.Second, 1}} {
		crowd.ask(step.load*worth, step.soon, nil)
		crowd.ask(step.load*worth, 70*time.Second-step.soon, func(n scheduler.Need) {
			if n.Replicas != step.want {
				t.Errorf("of load %.1f: %+v", step.load, n)
			}
		})
	}
}

// TestNeededInNoise: five minutes of a random load, with a different mean in each second, change
// the number at most once, whatever the overall mean.
func TestNeededInNoise(t *testing.T) {
	span := 20 * time.Second
	if budgettest.Whole() {
		span = 5 * time.Minute
	}
	for _, load := range []float64{0.9, 1.0, 1.1} {
		crowd := newCrowd(t, schedtest.Linear(0, 20*time.Millisecond), 3, 200*time.Millisecond)
		const worth = 50
		crowd.ask(2.4*load*worth, 10*time.Second, nil)
		changes, last := 0, crowd.model.Stats().Need
		for end := crowd.clock.Now().Add(span); crowd.clock.Now().Before(end); {
			crowd.ask(2.4*load*worth*(0.8+0.4*crowd.rand.Float64()), time.Second, func(n scheduler.Need) {
				if n.Replicas != last.Replicas {
					changes++
					t.Logf("at %.1f: from %+v to %+v", load, last, n)
				}
				last = n
			})
		}
		if changes > 1 {
			t.Errorf("load %.1f: %d changes", load, changes)
		}
	}
}

// TestNeededWithoutAnswers: as long as no replica has answered, the number is a guess of one; for a
// model whose replicas have left, the rate that they had counts.
func TestNeededWithoutAnswers(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{})
	silent := addTo(t, s, benchID, rowsSpec, &schedtest.Worker{Clock: clock})
	ask := func(m *scheduler.Model, rows int) {
		for range rows {
			s.Submit(&scheduler.Request{Model: m, Inputs: rowOf(t, 1), Rows: 1,
				Deadline: clock.Now().Add(100 * time.Millisecond), Owner: ownerFunc(func(*scheduler.Request) {})})
			clock.Advance(time.Millisecond)
		}
	}
	ask(silent.Model(), 5000)
	if n := silent.Model().Stats().Need; n.Replicas != 1 || n.Worth != 0 {
		t.Errorf("nothing was answered, and %+v", n)
	}
	silent.Remove(errors.New("gone"))
	known := addTo(t, s, benchID, rowsSpec,
		&schedtest.Worker{Clock: clock, Exec: schedtest.Linear(10*time.Millisecond, time.Millisecond)})
	ask(known.Model(), 1500)
	known.Remove(errors.New("gone"))
	clock.Advance(2 * time.Minute)
	if n := known.Model().Stats().Need; n.Replicas != 0 {
		t.Errorf("nothing arrives, and %+v", n)
	}
	ask(known.Model(), 5000) // all refused
	if n := known.Model().Stats().Need; n.Replicas != 2 {
		t.Errorf("1000 rows/s and no replica: %+v", n)
	}
}

// TestCamerasNeed: streams that keep their newest frame need as many replicas as answer one of
// their frames in each stream_interval, and without one a single replica, however many frames they
// send, and whether or not requests arrive besides. The replicas needed keep the promise.
func TestCamerasNeed(t *testing.T) {
	batches, rows := schedtest.Linear(50*time.Millisecond, 50*time.Millisecond),
		schedtest.Linear(0, 200*time.Millisecond)
	for _, tt := range []struct {
		exec     func(rows int) time.Duration
		interval time.Duration
		cameras  string // one letter each
		fps      int
		arriving float64 // rows per second
		replicas int
	}{
		{batches, 0, "abc", 30, 1, 1},
		{batches, time.Second, "abc", 30, 3 + 1, 1},
		{batches, 100 * time.Millisecond, "abc", 30, 3*10 + 1, 3}, // one answers 13 a second
		{batches, 100 * time.Millisecond, "abc", 8, 3*8 + 1, 3},   // no more than they send
		{batches, 60 * time.Millisecond, "abc", 30, 3/0.06 + 1, 5},
		{rows, 50 * time.Millisecond, "a", 30, 20 + 1, 6}, // far more than are unanswered at once
	} {
		s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{StreamInterval: tt.interval}})
		add := func() *scheduler.Model {
			return addTo(t, s, benchID, rowsSpec, &schedtest.Worker{Clock: clock, Exec: tt.exec}).Model()
		}
		model := add()
		answered := 0
		done := ownerFunc(func(r *scheduler.Request) {
			if r.Frame != nil && r.Err == nil {
				answered++
			}
		})
		film := func(seconds int) {
			answered = 0
			for i := range seconds * tt.fps {
				for _, camera := range tt.cameras {
					s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1, Owner: done,
						Frame:    &scheduler.Frame{Stream: string(camera), Keep: 1},
						Deadline: clock.Now().Add(time.Second)})
				}
				if i%tt.fps == 0 {
					s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1, Owner: done,
						Deadline: clock.Now().Add(time.Second)})
				}
				clock.Advance(time.Second / time.Duration(tt.fps))
			}
		}
		film(30)
		if n := model.Stats().Need; n.Replicas != tt.replicas || n.Arriving > 1.1*tt.arriving ||
			n.Arriving < 0.9*tt.arriving {
			t.Errorf("an answer each %v at %d frames/s: need %+v, expected %d replicas for %.1f rows/s", tt.interval,
				tt.fps, n, tt.replicas, tt.arriving)
		}
		for range tt.replicas - 1 {
			add()
		}
		film(30)
		if promised := 30 * int(tt.arriving-1); answered < promised {
			t.Errorf("an answer each %v at %d frames/s: %d replicas gave %d of %d answers", tt.interval, tt.fps,
				tt.replicas, answered, promised)
		}
	}
}

// TestClosedLoopNeedsNoMore: a client that waits for each answer keeps one replica busy, and a
// second one would get nothing.
func TestClosedLoopNeedsNoMore(t *testing.T) {
	for _, clients := range []int{1, 2} {
		s, clock := newVirtual(t, scheduler.Config{})
		model := addTo(t, s, benchID, rowsSpec,
			&schedtest.Worker{Clock: clock, Exec: schedtest.Linear(50*time.Millisecond, 50*time.Millisecond)}).Model()
		var ask func(*scheduler.Request)
		ask = func(last *scheduler.Request) {
			if last != nil && last.Err != nil {
				return
			}
			s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1, Owner: ownerFunc(ask),
				Deadline: clock.Now().Add(time.Second)})
		}
		for range clients {
			ask(nil)
		}
		clock.Advance(30 * time.Second)
		if n := model.Stats().Need; n.Replicas > clients || n.Load > float64(clients) {
			t.Errorf("%d clients: need %+v", clients, n)
		}
		s.Close()
	}
}

// TestCallersNeed: clients that ask again on each answer need as many replicas as answer them
// within the objective, 100 ms, and no more of them when there are more.
func TestCallersNeed(t *testing.T) {
	slow, accelerator := schedtest.Linear(20*time.Millisecond, time.Millisecond),
		schedtest.Linear(120*time.Millisecond, 0)
	off := false
	for _, c := range []struct {
		name     string
		exec     func(rows int) time.Duration
		clients  int
		deadline time.Duration
		together *bool
		open     int // rows per second of others
		want     int
	}{
		{"all in a batch of 52 ms", slow, 32, time.Second, nil, 0, 1},
		{"all in a batch of 92 ms", slow, 72, time.Second, nil, 0, 1},
		{"too many for one batch", slow, 120, time.Second, nil, 0, 2},
		{"within their deadline", slow, 64, 60 * time.Millisecond, nil, 0, 2},
		{"two groups of 35 ms", slow, 30, time.Second, &off, 0, 1},
		{"two groups of 60 ms", slow, 80, time.Second, &off, 0, 2},
		{"on an accelerator", accelerator, 100, time.Second, nil, 0, 1},
		{"beside others", slow, 20, time.Second, nil, 600, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{Together: c.together}})
			defer s.Close()
			add := func() *scheduler.Replica {
				return addTo(t, s, benchID, rowsSpec, &schedtest.Worker{Clock: clock, Exec: c.exec})
			}
			model, over := add().Model(), false
			submit := func(source uint64, owner ownerFunc) {
				s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1, Source: source, Owner: owner,
					Deadline: clock.Now().Add(c.deadline)})
			}
			var ask func(source uint64)
			ask = func(source uint64) {
				if !over {
					submit(source, func(*scheduler.Request) {
						clock.AfterFunc(300*time.Microsecond, func() { ask(source) })
					})
				}
			}
			for i := range c.clients {
				ask(uint64(1 + i))
			}
			rest := func(span time.Duration) {
				for range int(span.Seconds()) * c.open {
					submit(1000, func(*scheduler.Request) {})
					clock.Advance(time.Second / time.Duration(c.open))
				}
				if c.open == 0 {
					clock.Advance(span)
				}
			}
			rest(20 * time.Second)
			if n := model.Stats().Need; n.Replicas != c.want {
				t.Errorf("one replica: %+v, want %d", n, c.want)
			}
			for range c.want {
				add()
			}
			rest(70 * time.Second)
			if n := model.Stats().Need; n.Replicas > c.want {
				t.Errorf("one more than needed: %+v, want %d", n, c.want)
			}
			over = true
			clock.Advance(2 * time.Minute)
			if n := model.Stats().Need; n.Replicas != 0 {
				t.Errorf("nobody asks: %+v", n)
			}
		})
	}
}
