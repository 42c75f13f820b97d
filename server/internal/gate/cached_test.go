package gate

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A lab is a gate in front of workers that count their executions and answer with the count.
type lab struct {
	*testing.T
	gate     *Gate
	sched    *scheduler.Scheduler
	pool     *tensor.Pool
	options  ModelOptions
	executed atomic.Int32
}

func newLab(t *testing.T) *lab {
	l := &lab{T: t, pool: tensor.NewPool(0), options: ModelOptions{Deadline: 30 * time.Second}}
	l.gate = New(Config{
		Options: func(string) ModelOptions { return l.options },
		Pool:    l.pool, Metrics: metrics.New("test"),
	})
	var err error
	if l.sched, err = scheduler.New(scheduler.Config{Hooks: scheduler.Hooks{ModelChanged: l.gate.ModelChanged}}); err !=
		nil {
		t.Fatal(err)
	}
	l.gate.Attach(l.sched, Server{Ready: func() (bool, string) { return true, "" }})
	t.Cleanup(func() {
		l.sched.Close()
		l.gate.Close()
		if n := l.pool.InUse(); n != 0 {
			t.Errorf("%d bytes of the pool are out at the end: %v", n, tensor.Outstanding(l.pool))
		}
	})
	return l
}

var counter = scheduler.Spec{
	Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 1}}},
	Outputs: []tensor.Spec{{Name: "n", DType: tensor.Int32, Shape: tensor.Shape{-1}}},
}

func (l *lab) replica(version string, spec scheduler.Spec) *scheduler.Replica {
	l.Helper()
	r, err := l.sched.AddReplica(scheduler.ModelID{Name: "m", Version: version}, spec,
		scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			n := make([]int32, b.Rows)
			for i := range n {
				n[i] = l.executed.Add(1)
			}
			out, err := tensor.FromSlice(tensor.Shape{b.Rows}, n)
			if err != nil {
				return err
			}
			b.Complete([]tensor.Tensor{out}, nil)
			return nil
		}), scheduler.ReplicaOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return r
}

// caller is a door's call: it embeds the gate's.
type caller struct {
	Call
	answers int
}

func (c *caller) Complete(*Call) { c.answers++ }

// ask asks a route and returns the number of the execution that answered.
func (l *lab) ask(route string, v int32, p Request) (n int32, err error) {
	l.Helper()
	x, _ := tensor.FromSlice(tensor.Shape{1}, []int32{v})
	x.Name = "x"
	p.Arrived = time.Now()
	c := &caller{}
	p.Model, p.Inputs = route, []tensor.Tensor{x}
	if err := l.gate.Open(&c.Call, &p); err != nil {
		return 0, err
	}
	defer c.Close()
	c.Owner = c
	l.gate.Submit(&c.Call)
	if c.answers != 1 {
		l.Fatalf("%d answers", c.answers)
	}
	if c.Err != nil {
		return 0, c.Err
	}
	values, err := tensor.Values[int32](c.Outputs[0])
	if err != nil {
		l.Fatal(err)
	}
	return values[0], nil
}

func (l *lab) want(n int32, route string, v int32, p Request) {
	l.Helper()
	if got, err := l.ask(route, v, p); got != n || err != nil {
		l.Errorf("%s asked %d: answered by execution %d, error %v; want execution %d", route, v, got, err, n)
	}
}

func (l *lab) set(bytes int64, ttl time.Duration) {
	l.options.CacheBytes, l.options.CacheTTL = bytes, ttl
	l.gate.Changed()
}

func TestCacheIsAskedFor(t *testing.T) {
	l := newLab(t)
	l.replica("1", counter)
	l.want(1, "m", 5, Request{})
	l.want(2, "m", 5, Request{})
	if _, ok := l.gate.Cache("m"); ok {
		t.Error("a model has a cache that nobody asked for")
	}
	if _, _, err := l.gate.ClearCache("m"); !errors.Is(err, scheduler.ErrNotFound) {
		t.Errorf("clearing no cache: %v", err)
	}

	l.set(1<<20, 0)
	l.want(3, "m", 5, Request{})
	l.want(3, "m", 5, Request{})
	l.want(4, "m", 6, Request{})
	// The container gets another parameter.
	l.want(5, "m", 5, Request{Parameters: []byte(`{"temperature":1}`)})
	l.want(3, "m/1", 5, Request{Values: parameter.Values{Priority: 3}, Source: 4})
	if u, ok := l.gate.Cache("m"); !ok || u.Entries != 3 || u.Limit != 1<<20 {
		t.Errorf("usage %+v %v", u, ok)
	}
	if n, _, err := l.gate.ClearCache("m"); n != 3 || err != nil {
		t.Errorf("cleared %d: %v", n, err)
	}
	l.want(6, "m", 5, Request{})

	l.set(2<<20, 0) // the same size: entries stay
	l.want(6, "m", 5, Request{})
	if u, _ := l.gate.Cache("m"); u.Limit != 2<<20 {
		t.Errorf("limit %d after it was changed", u.Limit)
	}
	l.set(2<<20, time.Hour) // another time to live: starts over
	l.want(7, "m", 5, Request{})
	l.want(7, "m", 5, Request{})
	l.set(0, 0)
	l.want(8, "m", 5, Request{})
	l.want(9, "m", 5, Request{})
	if l.pool.InUse() != 0 {
		t.Errorf("%d bytes are kept without a cache", l.pool.InUse())
	}
}

func TestCacheKeepsVersionsApart(t *testing.T) {
	l := newLab(t)
	l.set(1<<20, 0)
	one := l.replica("1", counter)
	l.replica("2", counter)
	l.want(1, "m/1", 5, Request{})
	l.want(2, "m/2", 5, Request{})
	l.want(2, "m", 5, Request{}) // the newest
	l.want(1, "m", 5, Request{Version: "1"})

	// A second replica is added and removed: still the same model.
	another := l.replica("1", counter)
	l.want(1, "m/1", 5, Request{})
	one.Remove(errors.New("over"))
	l.want(1, "m/1", 5, Request{})

	// The last replica is removed, and with it the version's answers.
	another.Remove(errors.New("over"))
	if _, err := l.ask("m/1", 5, Request{}); !errors.Is(err, scheduler.ErrUnavailable) {
		t.Errorf("without a replica: %v", err)
	}
	if u, _ := l.gate.Cache("m"); u.Entries != 1 {
		t.Errorf("%d entries, want that of version 2", u.Entries)
	}
	again := l.replica("1", counter)
	l.want(3, "m/1", 5, Request{})
	l.want(3, "m/1", 5, Request{})
	l.want(2, "m/2", 5, Request{})

	// The version returns with another declaration: another model.
	again.Remove(errors.New("over"))
	other := counter
	other.Outputs = []tensor.Spec{{Name: "other", DType: tensor.Int32, Shape: tensor.Shape{-1}}}
	l.replica("1", other)
	l.want(4, "m/1", 5, Request{})
	l.want(4, "m/1", 5, Request{})
}

// A replica that returns before the routes are rebuilt still counts as a new incarnation.
func TestCacheMissesNoRestart(t *testing.T) {
	l := newLab(t)
	l.set(1<<20, 0)
	first := l.replica("1", counter)
	l.want(1, "m", 5, Request{})
	l.gate.mu.Lock() // as if a refresh took long
	done := make(chan struct{})
	go func() {
		defer close(done)
		first.Remove(errors.New("over"))
	}()
	model := first.Model()
	budgettest.Until(t, "the replica goes", func() bool { return model.Replicas() == 0 })
	second := make(chan struct{})
	go func() {
		defer close(second)
		l.replica("1", counter)
	}()
	budgettest.Until(t, "it is back", func() bool { return model.Replicas() > 0 })
	l.gate.mu.Unlock()
	<-done
	<-second
	l.want(2, "m", 5, Request{})
}

// A call that waits for an equal one can be cancelled like any other, and the equal one goes on.
func TestCancelOfAFollower(t *testing.T) {
	l := newLab(t)
	l.set(1<<20, 0)
	var held *scheduler.Batch
	_, err := l.sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"}, counter,
		scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			held = b
			return nil
		}), scheduler.ReplicaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var calls [3]caller
	var opened []*Call
	x, _ := tensor.FromSlice(tensor.Shape{1}, []int32{1})
	x.Name = "x"
	for i := range calls {
		c := &calls[i]
		if err := l.gate.Open(&c.Call, &Request{Model: "m", Inputs: []tensor.Tensor{x}, Arrived: time.Now()}); err !=
			nil {
			t.Fatal(err)
		}
		c.Owner = c
		opened = append(opened, &c.Call)
	}
	l.gate.Submit(opened...)
	if held == nil || held.Rows != 1 {
		t.Fatalf("three equal requests of one submission made the batch %+v", held)
	}
	l.gate.Cancel(&calls[1].Call)
	if calls[1].answers != 1 || !errors.Is(calls[1].Err, scheduler.ErrCanceled) ||
		calls[0].answers+calls[2].answers != 0 {
		t.Errorf("after the cancel %d answers, error %v", calls[1].answers, calls[1].Err)
	}
	out, _ := tensor.FromSlice(tensor.Shape{1}, []int32{1})
	held.Complete([]tensor.Tensor{out}, nil)
	for i := range calls {
		if calls[i].answers != 1 {
			t.Errorf("call %d has %d answers", i, calls[i].answers)
		}
		l.gate.Cancel(&calls[i].Call) // late, so without effect
		calls[i].Close()
	}
}

func BenchmarkSubmitUncached(b *testing.B) {
	for _, caching := range []bool{false, true} {
		name := "caches=none"
		if caching {
			name = "caches=of-other-models"
		}
		b.Run(name, func(b *testing.B) {
			g := New(Config{Metrics: metrics.New("test"), Options: func(string) ModelOptions { return ModelOptions{} }})
			var err error
			if g.sched, err = scheduler.New(scheduler.Config{}); err != nil {
				b.Fatal(err)
			}
			g.caching.Store(caching)
			c := &caller{}
			calls := make([]*Call, 16)
			c.Owner = c
			for i := range calls {
				calls[i] = &c.Call // which has no model, and is answered at once
			}
			b.ReportAllocs()
			for b.Loop() {
				g.Submit(calls...)
			}
		})
	}
}
