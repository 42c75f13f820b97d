//go:build invariants

package apps

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// The strict build ends a program that uses a call that belongs to another owner at that moment.
func TestWhoseTurnItIs(t *testing.T) {
	h := newHouse(t)
	var held []*scheduler.Batch
	h.serve("held", "1", scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		held = append(held, b)
		return nil
	}))
	h.app(Definition{Name: "app", Models: []string{"held"}})
	fails := func(what string, misuse func()) {
		t.Helper()
		defer func() {
			t.Helper()
			r := recover()
			if _, is := r.(tensor.Violation); !is {
				t.Errorf("%s: panic %v", what, r)
			}
		}()
		misuse()
	}
	for _, route := range []string{"held", "app"} {
		c := &asker{done: make(chan struct{})}
		if err := h.Open(&c.Call,
			&gate.Request{Model: route, Inputs: []tensor.Tensor{row()}, Arrived: time.Now()}); err != nil {
			t.Fatal(err)
		}
		f, _ := c.Fanout.(*fanout)
		c.Owner = c
		h.Submit(&c.Call)
		fails(route+" is submitted twice", func() { h.Submit(&c.Call) })
		fails(route+" is closed while it is asked", func() { c.Close() })
		out, err := tensor.FromSlice(tensor.Shape{1}, []int64{1})
		if err != nil {
			t.Fatal(err)
		}
		held[len(held)-1].Complete([]tensor.Tensor{out}, nil)
		<-c.done
		c.Close()
		if f != nil {
			fails("a reference to a fanout is given back twice", f.Close)
			f.refs.Store(0)
		}
	}
}
