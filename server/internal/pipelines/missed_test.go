package pipelines

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// offered asks a pipeline of three models: it finds four things, and makes a value of each
// and then one of that.
type offered struct {
	*rig
	models  map[string]*scheduler.Model
	makes   atomic.Int64 // ns, for a row of the second
	timeout time.Duration
	good    atomic.Int32 // answered requests
}

const (
	offeredRate   = 50 // requests per second
	offeredThings = 4
)

// offer makes the pipeline. The second stage asks made: the model, or what asks it.
func offer(r *rig, made string) *offered {
	o := &offered{rig: r, models: map[string]*scheduler.Model{}, timeout: 500 * time.Millisecond}
	o.makes.Store(int64(10 * time.Millisecond))
	for _, name := range []string{"finder", "maker", "checker"} {
		o.add(name)
	}
	if made == "app" {
		if _, err := r.apps.Put(r.t.Context(), apps.Definition{Name: "app", Models: []string{"maker"}}); err != nil {
			r.t.Fatal(err)
		}
	}
	d := twoStages()
	d.Stages[1].Model, d.Stages[1].Required = made, new(true)
	d.Outputs = map[string]string{"y": "check.y", "text": "make.text", "things": "find.things"}
	d.Stages = append(d.Stages, admin.Stage{Name: "check", Model: "checker", Required: new(true),
		Inputs: map[string]string{"x": "make.y"}})
	inner := Definition{Name: "inner", Inputs: []string{"x"}, Outputs: map[string]string{"y": "s.y", "text": "s.text"},
		Stages: []admin.Stage{{Name: "s", Model: "maker", Inputs: map[string]string{"x": "x"}}}}
	r.define(inner, d)
	return o
}

// add starts a replica.
func (o *offered) add(name string) {
	k := maker
	k.rows = func(p *scheduler.Part, row int) ([][]byte, string) {
		return [][]byte{ints(rowOfInts(p, 0, row)...), tensor.AppendElem(nil, "a text")}, ""
	}
	exec := map[string]func(rows int) time.Duration{
		"finder":  schedtest.Linear(2*time.Millisecond, 0),
		"maker":   func(rows int) time.Duration { return time.Duration(int64(rows) * o.makes.Load()) },
		"checker": schedtest.Linear(0, 20*time.Millisecond),
	}[name]
	if name == "finder" {
		k = finder
	}
	o.models[name] = o.serve(name, k, &schedtest.Worker{Exec: exec}).Model()
}

// ask offers load.
func (o *offered) ask(rate int, span time.Duration) {
	for i := range int(span.Seconds() * float64(rate)) {
		q := &gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(int64(i), offeredThings)}}
		q.Timeout = o.timeout
		if a, err := o.begin(q); err == nil {
			go func() {
				if <-a.done; a.Err == nil {
					o.good.Add(1)
				}
				a.Close()
			}()
		}
		time.Sleep(time.Second / time.Duration(rate))
	}
}

// needs checks what the models need.
func (o *offered) needs(when string, want map[string]int) {
	o.t.Helper()
	for name, n := range want {
		if need := o.models[name].Need(); need.Replicas != n {
			o.t.Errorf("%s: %s needs %+v, expected %d", when, name, need, n)
		}
	}
}

// TestReplicasOfStages: all stages that are too small are found to be so at once, although few
// requests reach the second of them; with the replicas that they need the requests are answered;
// and none is needed when the load has ended.
func TestReplicasOfStages(t *testing.T) {
	for _, made := range []string{"maker", "app", "inner"} {
		t.Run(made, func(t *testing.T) {
			onRig(t, func(r *rig) {
				o := offer(r, made)
				o.ask(1, 20*time.Second)
				o.needs("a request a second", map[string]int{"finder": 1, "maker": 1, "checker": 1})
				o.good.Store(0)
				o.ask(offeredRate, 10*time.Second)
				if n := o.good.Load(); n > 5*offeredRate {
					t.Errorf("%d are answered: this is no overload", n)
				}
				// 200 rows a second, for each of which a replica may be busy for 0.8 of the time.
				want := map[string]int{"finder": 1, "maker": 3, "checker": 5}
				o.needs("too few", want)
				for name, n := range want {
					for range n - 1 {
						o.add(name)
					}
				}
				o.ask(offeredRate, 5*time.Second) // the new replicas learn their times
				o.good.Store(0)
				o.ask(offeredRate, 10*time.Second)
				if n := o.good.Load(); n < 10*offeredRate*98/100 {
					t.Errorf("with the replicas that are needed %d of %d are answered", n, 10*offeredRate)
				}
				o.needs("enough", want)
				time.Sleep(2 * time.Minute)
				o.needs("nobody asks", map[string]int{"finder": 0, "maker": 0, "checker": 0})
			})
		})
	}
}

// TestReplicasOfRefused: requests that are refused because the stages together take too long count
// at each of them. Otherwise replicas that are slow under load would be taken away as nobody asks
// them.
func TestReplicasOfRefused(t *testing.T) {
	onRig(t, func(r *rig) {
		o := offer(r, "maker")
		o.ask(offeredRate, 10*time.Second)
		o.makes.Store(int64(400 * time.Millisecond))
		for range 30 { // until that is known
			o.timeout = 10 * time.Second
			o.ask(1, time.Second)
		}
		time.Sleep(2 * time.Minute)
		o.timeout = 300 * time.Millisecond
		o.good.Store(0)
		o.ask(offeredRate, 20*time.Second)
		if n := o.good.Load(); n > 0 {
			t.Errorf("%d are answered", n)
		}
		things := float64(offeredThings * offeredRate)
		for name, rows := range map[string]float64{"finder": offeredRate, "maker": things, "checker": things} {
			if n := o.models[name].Need(); n.Arriving < 0.9*rows || n.Arriving > 1.1*rows {
				t.Errorf("%s needs %+v, expected %v rows a second", name, n, rows)
			}
			// A request each second is tried: more replicas than it has rows would get nothing.
			if n := o.models[name].Need(); n.Replicas < 1 || n.Replicas > offeredThings {
				t.Errorf("%s needs %+v, and no number of replicas helps", name, n)
			}
		}
		time.Sleep(2 * time.Minute)
		o.needs("nobody asks", map[string]int{"finder": 0, "maker": 0, "checker": 0})
	})
}
