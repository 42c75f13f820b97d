package pipelines

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// ways are the definitions of one name that two servers change. Way w makes values of at most w+1
// things, with a model of its own, which adds offsetOf(w), and names its outputs by w.
const ways = 3

func offsetOf(way int) int64 { return int64(1000 * (way + 1)) }

func way(w int) Definition {
	n := fmt.Sprint(w)
	return Definition{
		Name: "p", Inputs: []string{"x"}, Outputs: map[string]string{"y" + n: "make.y", "things" + n: "find" + n + ".things"},
		Stages: []admin.Stage{
			{Name: "find" + n, Model: "finder", Inputs: map[string]string{"x": "x"}},
			{Name: "make", Model: "maker" + n, Each: "find" + n + ".things", Keep: &admin.Filter{Most: w + 1},
				Inputs: map[string]string{"x": "find" + n + ".things"}},
		},
	}
}

// isWhole returns which way an answer for a thing of that id, with n below it, was made; an error
// if it is of several.
func isWhole(a *asker, id, n int64) (w int, err error) {
	defer func() {
		if what := recover(); what != nil {
			err = fmt.Errorf("%v", what)
		}
	}()
	for w = range ways {
		if byName(a.Target.Spec.Outputs, fmt.Sprint("y", w)) >= 0 {
			break
		}
	}
	var things, y []int64
	for k := range n {
		if things = append(things, child(id, k), found(child(id, k))); k <= int64(w) {
			y = append(y, child(id, k)+offsetOf(w), found(child(id, k)))
		}
	}
	got, err := tensor.Values[int64](a.output(fmt.Sprint("y", w)))
	if err != nil || !slices.Equal(got, y) {
		return w, fmt.Errorf("way %d made %v of %d, expected %v, %v", w, got, id, y, err)
	}
	if got, err = tensor.Values[int64](a.output(fmt.Sprint("things", w))); err != nil || !slices.Equal(got, things) {
		return w, fmt.Errorf("way %d found %v, expected %v, %v", w, got, things, err)
	}
	return w, nil
}

// servers returns two servers with one Redis, each with containers of its own.
func servers(t *testing.T) (list [2]*rig) {
	redis := statetest.NewRedis(t)
	for i := range list {
		store, err := state.Open(t.Context(), redis.Target(), state.Options{Required: true})
		if err != nil {
			t.Fatal(err)
		}
		r := newRig(t, store)
		list[i] = r
		t.Cleanup(func() {
			r.sched.Close()
			r.Gate.Close()
			r.reg.Close()
			r.apps.Close()
			store.Close()
			budgettest.Until(t, "all memory is back", func() bool { return r.pool.InUse() == 0 })
		})
		fast := func() *schedtest.Worker { return takes(time.Millisecond) }
		r.serve("finder", finder, fast())
		for w := range ways {
			k := maker
			k.rows = func(p *scheduler.Part, row int) ([][]byte, string) {
				v := rowOfInts(p, 0, row)
				return [][]byte{ints(v[0]+offsetOf(w), v[1]), tensor.AppendElem(nil, "")}, ""
			}
			r.serve(fmt.Sprint("maker", w), k, fast())
		}
	}
	return list
}

// asks sends one request, and returns which way it was answered; -1: there is no such pipeline.
func asks(r *rig, id int64) int {
	n := id % 5
	a := r.ask(&gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(id, n)}})
	if errors.Is(a.Err, scheduler.ErrNotFound) {
		return -1
	}
	defer a.Close()
	if a.Err != nil {
		r.t.Error(a.Err)
		return -1
	}
	w, err := isWhole(a, id, n)
	if err != nil {
		r.t.Error(err)
	}
	return w
}

// TestTwoServersOneRedis: a pipeline that is made, changed or deleted at one of two servers is so
// at the other one, too, while both are asked. At the first it is so at once. Each answer is whole
// by one definition; of changes at the same time none is lost, and of two that make the same name
// one does.
func TestTwoServersOneRedis(t *testing.T) {
	both := servers(t)
	both[0].define(way(0))
	budgettest.Until(t, "the pipeline at the other server", func() bool { return asks(both[1], 1) == 0 })

	var clients sync.WaitGroup
	var seen [2][ways]atomic.Int32
	stop := make(chan struct{})
	for i, r := range both {
		for c := range int64(2) {
			clients.Go(func() {
				for id := c; ; id += 2 {
					select {
					case <-stop:
						return
					default:
					}
					if w := asks(r, id); w >= 0 {
						seen[i][w].Add(1)
					} else {
						t.Errorf("request %d has no answer", id)
					}
				}
			})
		}
	}
	for k := range 60 {
		at, now := k%2, k%ways
		both[at].define(way(now))
		if w := asks(both[at], int64(k)); w != now {
			t.Errorf("change %d: the server where it was made answers by definition %d, not %d", k, w, now)
		}
		if k%10 == 0 {
			budgettest.Until(t, "the change at the other server",
				func() bool { return asks(both[1-at], int64(k)) == now })
		}
	}
	close(stop)
	clients.Wait()
	for i := range both {
		for w := range ways {
			if seen[i][w].Load() == 0 {
				t.Errorf("server %d has answered by definition %d to nobody", i, w)
			}
		}
	}
	changeAtOnce(t, both)

	if err := both[1].reg.Delete(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if w := asks(both[1], 1); w >= 0 {
		t.Errorf("deleted, and answered by definition %d", w)
	}
	budgettest.Until(t, "it is deleted at the other server", func() bool { return asks(both[0], 1) < 0 })
	if err := both[0].reg.Delete(t.Context(), "p"); !errors.Is(err, scheduler.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	createAtOnce(t, both)
}

// changeAtOnce changes a definition at both servers at the same time: no change is lost.
func changeAtOnce(t *testing.T, both [2]*rig) {
	both[0].define(way(0))
	const each = 10
	var writers sync.WaitGroup
	for _, r := range both {
		for range 2 {
			writers.Go(func() {
				for range each {
					if _, err := r.reg.Change(t.Context(), "p", func(d *Definition) error {
						d.Stages[1].Keep.Most++
						return nil
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	writers.Wait()
	for _, r := range both {
		budgettest.Until(t, "all changes",
			func() bool { return r.reg.Find("p").Definition.Stages[1].Keep.Most == 1+4*each })
	}
}

// createAtOnce makes a pipeline at both servers at the same time: it is that of one of them.
func createAtOnce(t *testing.T, both [2]*rig) {
	var errs [2]error
	var made sync.WaitGroup
	for i, r := range both {
		made.Go(func() { _, errs[i] = r.reg.Create(t.Context(), way(1+i)) })
	}
	made.Wait()
	first := slices.Index(errs[:], nil)
	if first < 0 || !errors.Is(errs[1-first], composite.ErrExists) {
		t.Fatalf("made at once: %v", errs)
	}
	for i, r := range both {
		budgettest.Until(t, fmt.Sprint("the pipeline at server ", i), func() bool { return asks(r, 1) == 1+first })
	}
}
