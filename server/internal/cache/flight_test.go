package cache

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
)

func TestEqualRequestsShareOneExecution(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	const askers = 64
	questions := make([]*question, askers)
	var wg sync.WaitGroup
	for i := range questions {
		questions[i] = g.question(7)
		wg.Go(func() { questions[i].ask() })
	}
	wg.Wait()
	for _, q := range questions {
		if q.answered() {
			t.Error("answered before anything was executed")
		}
	}
	g.answer()
	for _, q := range questions {
		q.want(7)
	}
	if n := g.executed(); n != 1 {
		t.Errorf("%d executions for %d equal requests", n, askers)
	}
	if c := g.counts.Counts(); c.Misses != 1 || c.Shared != askers-1 {
		t.Errorf("counted %+v", c)
	}
}

// However requests and answers interleave, no request is executed twice while its answer is cached.
func TestNothingIsExecutedTwice(t *testing.T) {
	const questions = 3000
	g := newRig(t, Config{Bytes: 16 << 20}, func(g *rig, _ *scheduler.ModelConfig) {
		g.worker.Exec = func(int) time.Duration { return 0 }
	})
	defer g.end()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var open []*question
			for v := range int32(questions) {
				open = append(open, g.ask(v))
				if len(open) == 4 {
					for i, q := range open {
						q.want(v - 3 + int32(i))
					}
					open = open[:0]
				}
			}
		})
	}
	wg.Wait()
	if n := g.executed(); n != questions {
		t.Errorf("%d executions of %d questions", n, questions)
	}
}

// If a leader ends for a reason of its own, the next follower is executed in its place, and the
// followers behind it wait for that one.
func TestFollowersTakeOver(t *testing.T) {
	pass := func(*rig, *question) { time.Sleep(20 * time.Millisecond) }
	cancel := func(_ *rig, leader *question) { leader.cancel() }
	for name, c := range map[string]struct {
		executing bool // the leader, when it ends
		end       func(g *rig, leader *question)
		want      error
	}{
		"canceled in the queue": {false, cancel, scheduler.ErrCanceled},
		"canceled in execution": {true, cancel, scheduler.ErrCanceled},
		"late in the queue":     {false, pass, scheduler.ErrDeadlineExceeded},
		"late in execution":     {true, pass, scheduler.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{}, func(_ *rig, c *scheduler.ModelConfig) { c.MaxBatch, c.Slots = 1, 1 })
				busy := g.ask(0) // the worker has this one, and the leader waits
				leader := g.question(1)
				leader.Deadline = time.Now().Add(20 * time.Millisecond)
				leader.ask()
				second, third := g.ask(1), g.ask(1)
				if c.executing {
					g.answer()
				}
				c.end(g, leader)
				if _, err := leader.close(); !errors.Is(err, c.want) {
					t.Errorf("leader: %v, want %v", err, c.want)
				}
				synctest.Wait() // for the next to be submitted
				if second.answered() || third.answered() {
					t.Error("the leader's end is the followers'")
				}
				for g.worker.Answer() == nil {
				}
				busy.want(0)
				second.want(1)
				third.want(1)
				want := 2
				if c.executing {
					want = 3 // plus the leader's, whose result is lost
				}
				if n := g.executed(); n != want {
					t.Errorf("%d rows executed, want %d", n, want)
				}
				g.end()
			})
		})
	}
}

// A leader that loses its place in a full queue to another connection passes the flight to a
// follower of a third connection.
func TestFollowerOfADisplacedLeader(t *testing.T) {
	g := newRig(t, Config{}, func(_ *rig, c *scheduler.ModelConfig) { c.MaxBatch, c.Slots, c.QueueRows = 1, 1, 4 })
	defer g.end()
	ask := func(source uint64, v int32) *question {
		q := g.question(v)
		q.Source = source
		return q.ask()
	}
	busy := ask(1, 0)
	heavy := []*question{ask(1, 10), ask(1, 11), ask(1, 12)}
	leader, follower := ask(1, 1), ask(3, 1)
	light := ask(2, 20)
	if _, err := leader.close(); !errors.Is(err, scheduler.ErrOverloaded) {
		t.Fatalf("the leader was not displaced: %v", err)
	}
	for g.worker.Answer() == nil {
	}
	busy.want(0)
	light.want(20)
	follower.want(1)
	displaced := 0
	for _, q := range heavy {
		if _, err := q.close(); errors.Is(err, scheduler.ErrOverloaded) {
			displaced++
		} else if err != nil {
			t.Error(err)
		}
	}
	if displaced != 1 {
		t.Errorf("%d others were displaced, want 1 for the follower", displaced)
	}
}

// Each follower keeps its own deadline, to the millisecond, and can be cancelled by itself.
func TestFollowersEndByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{}, nil)
		leader := g.ask(1)
		begun := time.Now()
		var wg sync.WaitGroup
		for _, ms := range rand.Perm(50) {
			timeout := time.Duration(ms+1) * time.Millisecond
			q := g.question(1)
			q.Deadline = begun.Add(timeout)
			q.ask()
			wg.Go(func() {
				<-q.done
				if late := time.Since(begun) - timeout; late < 0 || late > time.Millisecond {
					t.Errorf("answered %v after a deadline in %v", late, timeout)
				}
				if _, err := q.close(); !errors.Is(err, scheduler.ErrDeadlineExceeded) {
					t.Errorf("error %v, want that of its deadline", err)
				}
			})
		}
		canceled, forever := g.ask(1), g.question(1)
		forever.Deadline = time.Time{}
		forever.ask()
		canceled.cancel()
		if _, err := canceled.close(); !errors.Is(err, scheduler.ErrCanceled) {
			t.Errorf("error %v, want that it was canceled", err)
		}
		wg.Wait()
		g.answer()
		leader.want(1)
		forever.want(1)
		if n := g.executed(); n != 1 {
			t.Errorf("%d executions", n)
		}
		g.end()
	})
}

// The scheduler refuses a request past its deadline, even if its answer is cached.
func TestPastDeadline(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	q := g.ask(1)
	g.answer()
	q.want(1)
	q = g.question(1)
	q.Deadline = time.Now().Add(-time.Second)
	if _, err := q.ask().close(); !errors.Is(err, scheduler.ErrDeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// A refuser is a scheduler that refuses everything, before Submit returns.
type refuser struct{ refused int }

func (s *refuser) Submit(rs ...*scheduler.Request) {
	for _, r := range rs {
		s.refused++
		r.Err = &scheduler.OverloadedError{Limit: "queue_rows"}
		r.Owner.Complete(r)
	}
}

// depth records how deep the stack is when a request is answered.
type depth struct {
	*question
	deepest *int
}

func (d depth) Complete(r *scheduler.Request) {
	var pcs [1000]uintptr
	*d.deepest = max(*d.deepest, runtime.Callers(0, pcs[:]))
	d.question.Complete(r)
}

// Each of very many followers is tried and refused, without a stack that grows with their number.
func TestThousandsRefused(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	s := &refuser{}
	g.cache.submit = s.Submit
	leader := g.question(1)
	if leader.call.Find(&leader.Request, time.Now()) {
		t.Fatal("found")
	}
	followers := make([]*question, 5000)
	for i := range followers {
		followers[i] = g.ask(1)
	}
	deepest := 0
	for _, q := range followers {
		q.Owner = depth{q, &deepest}
	}
	s.Submit(&leader.Request)
	leader.close()
	for _, q := range followers {
		q.Owner = q
		if _, err := q.close(); !errors.Is(err, scheduler.ErrOverloaded) {
			t.Fatalf("error %v", err)
		}
	}
	if s.refused != len(followers)+1 {
		t.Errorf("%d were tried, want all", s.refused)
	}
	if deepest > 100 {
		t.Errorf("a stack of %d frames", deepest)
	}
}

// Goroutines send equal and different requests with short and long deadlines, cancel some, and
// clear the cache now and then. Every request is answered once, with the right answer or an error
// of its own.
func TestRandom(t *testing.T) {
	g := newRig(t, Config{Bytes: 8 << 10, TTL: 5 * time.Millisecond}, func(g *rig, c *scheduler.ModelConfig) {
		g.worker.Exec = func(rows int) time.Duration { return time.Duration(rand.IntN(2000)) * time.Microsecond }
		c.QueueRows, c.MaxBatch = 16, 4
	})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			var open []*question
			for range 400 {
				q := g.question(int32(rand.IntN(24)))
				q.Source = rand.Uint64N(4)
				q.Deadline = time.Now().Add(time.Duration(rand.IntN(4000)) * time.Microsecond)
				open = append(open, q.ask())
				if rand.IntN(4) == 0 {
					open[rand.IntN(len(open))].cancel()
				}
				if len(open) == 8 {
					for _, q := range open {
						checkRandom(t, q)
					}
					open = open[:0]
				}
			}
			for _, q := range open {
				checkRandom(t, q)
			}
		})
	}
	stop := make(chan struct{})
	var clearing sync.WaitGroup
	clearing.Go(func() {
		for tick := time.Tick(3 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-tick:
				if rand.IntN(2) == 0 {
					g.cache.Clear()
				} else {
					g.cache.Resize(int64(4+rand.IntN(8)) << 10)
				}
			}
		}
	})
	wg.Wait()
	close(stop)
	clearing.Wait()
	c := g.counts.Counts()
	t.Logf("%d rows executed, %+v", g.executed(), c)
	if c.Hits == 0 || c.Shared == 0 || c.Misses == 0 {
		t.Errorf("not all of it was tried: %+v", c)
	}
	// When the last batch is answered, only the entries hold memory: a buffer of the smallest class
	// each.
	budgettest.Until(t, "only the answers in the cache are out", func() bool {
		return g.pool.InUse() == 64*g.cache.Usage().Entries
	})
	g.end()
}

func checkRandom(t *testing.T, q *question) {
	v := values(q.Inputs[0])[0]
	row, err := q.close()
	switch {
	case err == nil:
		if row[0] != v+1 || row[1] != -v+1 {
			t.Errorf("asked %d, answered %v", v, row)
		}
	case !own(err):
		t.Errorf("error %v", err)
	}
}

// TestLateAnswersAreKept: the answers of a model that takes longer than its clients wait are
// stored, too. They used not to be, so that equal requests were never answered.
func TestLateAnswersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{}, nil)
		late := g.question(7)
		late.Deadline = time.Now().Add(50 * time.Millisecond)
		late.ask()
		gone := g.ask(8)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if _, err := late.close(); !errors.Is(err, scheduler.ErrDeadlineExceeded) {
			t.Fatalf("the first question: %v", err)
		}
		gone.cancel()
		if _, err := gone.close(); !errors.Is(err, scheduler.ErrCanceled) {
			t.Fatalf("the one that was cancelled: %v", err)
		}
		for g.worker.Answer() == nil {
		}
		synctest.Wait()
		rows := g.executed()
		g.ask(7).want(7)
		if g.executed() != rows {
			t.Error("the question was executed again")
		}
		// Answers to requests from before the cache was cleared are not stored, late or not.
		again := g.question(9)
		again.Deadline = time.Now().Add(50 * time.Millisecond)
		again.ask()
		g.cache.Clear()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		again.close()
		for g.worker.Answer() == nil {
		}
		synctest.Wait()
		if n := g.cache.Usage().Entries; n != 0 {
			t.Errorf("%d answers are kept", n)
		}
		g.end()
	})
}
