//go:build !race && !invariants

package apps

import (
	"testing"
	"time"

	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestApplicationAllocations bounds what an application adds to a request.
func TestApplicationAllocations(t *testing.T) {
	h := newHouse(t)
	for _, name := range []string{"a", "b", "c"} {
		h.instant(name)
	}
	h.app(Definition{Name: "one", Models: []string{"a"}})
	h.app(Definition{Name: "vote", Models: []string{"a", "b", "c"}, Policy: "ensemble"})
	c := &asker{}
	x := []tensor.Tensor{row()}
	count := func(route string) float64 {
		return testing.AllocsPerRun(200, func() {
			c.done = make(chan struct{})
			if err := h.Open(&c.Call, &gate.Request{Model: route, Inputs: x, Arrived: time.Now()}); err != nil {
				t.Fatal(err)
			}
			c.Owner = c
			h.Submit(&c.Call)
			<-c.done
			c.Close()
		})
	}
	model := count("a")
	for route, most := range map[string]float64{"one": 6, "vote": 7 + 2*model} {
		if n := count(route) - model; n > most {
			t.Errorf("%s makes %v allocations more than its model, want at most %v", route, n, most)
		} else {
			t.Logf("%s makes %v allocations more than its model's %v", route, n, model)
		}
	}
}
