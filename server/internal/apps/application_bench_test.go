package apps

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// BenchmarkApplication measures a request from Open to Close, to a model inside the process that
// answers at once: by the model's name (via=model), and by the names of applications that ask one
// model or three.
//
//	go test -run '^$' -bench Application ./server/internal/apps | benchstat -col /via -
func BenchmarkApplication(b *testing.B) {
	h := newHouse(b)
	for _, name := range []string{"a", "b", "c"} {
		h.instant(name)
	}
	h.app(Definition{Name: "one", Models: []string{"a"}})
	h.app(Definition{Name: "exp3", Models: []string{"a", "b", "c"}, Policy: "exp3"})
	h.app(Definition{Name: "vote", Models: []string{"a", "b", "c"}, Policy: "ensemble"})
	for _, via := range []struct{ name, route string }{{"model", "a"}, {"single", "one"}, {"exp3", "exp3"}, {"vote", "vote"}} {
		b.Run("via="+via.name, func(b *testing.B) {
			b.ReportAllocs()
			x := []tensor.Tensor{row()}
			c := &asker{}
			for b.Loop() {
				c.done = make(chan struct{})
				if err := h.Open(&c.Call, &gate.Request{Model: via.route, Inputs: x, Arrived: time.Now()}); err != nil {
					b.Fatal(err)
				}
				c.Owner = c
				h.Submit(&c.Call)
				<-c.done
				c.Close()
			}
		})
	}
}

// instant serves a model that answers in Send.
func (h *house) instant(name string) {
	h.t.Helper()
	w := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		out, err := tensor.FromSlice(tensor.Shape{b.Rows}, make([]int64, b.Rows))
		if err != nil {
			return err
		}
		b.Complete([]tensor.Tensor{out}, nil)
		return nil
	})
	h.serve(name, "1", w)
}
