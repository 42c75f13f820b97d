package pipelines

import (
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// BenchmarkObjects compares a request to a model with one to a pipeline that asks that model, and
// then another one about each of 8 things that it finds. The models answer at once.
func BenchmarkObjects(b *testing.B) {
	r := newRig(b, inMemory(b))
	b.Cleanup(func() {
		r.sched.Close()
		r.Gate.Close()
		r.reg.Close()
		r.apps.Close()
		r.store.Close()
	})
	for name, k := range map[string]kind{"finder": finder, "maker": maker} {
		w := &schedtest.Worker{}
		w.Seen = func(*scheduler.Batch) { go func() { _ = w.Answer() }() }
		r.serve(name, k, w)
	}
	d := twoStages()
	r.define(d)
	for _, name := range []string{"finder", "p"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a := r.ask(&gate.Request{Model: name, Inputs: []tensor.Tensor{thing(1, 8)}})
				if a.Err != nil {
					b.Fatal(a.Err)
				}
				a.Close()
			}
		})
	}
}
