package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestCallersWithEverything: clients that ask again on each answer get what is possible, and no
// less than without the rule, whatever else the model and its requests have.
func TestCallersWithEverything(t *testing.T) {
	budgettest.OneGoroutine(t)
	slow, accelerator := line(20*ms, ms), line(120*ms, 0)
	stalls := slow
	stalls.Chance, stalls.Stall = 0.03, 100*ms
	priority := func(client int, r *scheduler.Request) { r.Priority = client % 3 }
	deadlines := func(client int, r *scheduler.Request) {
		if client%2 == 0 {
			r.Deadline = r.Deadline.Add(100*ms - 30*time.Second)
		}
	}
	latest := func(client int, r *scheduler.Request) {
		r.Frame = &scheduler.Frame{Stream: fmt.Sprint("camera ", client), Keep: 1, Seq: -1}
	}
	bad, err := tensor.FromSlice(tensor.Shape{1, 4}, []uint8{rowPoison, 0, 0, 0})
	if err != nil {
		t.Fatal(err)
	}
	// failing: one client's rows fail now and then, so that its batches are tried again in halves.
	asked, good := 0, []tensor.Tensor(nil)
	failing := func(client int, r *scheduler.Request) {
		if client > 0 {
			return
		}
		if good == nil {
			good = r.Inputs
		}
		if r.Inputs = good; asked%10 == 9 {
			r.Inputs = []tensor.Tensor{bad}
		}
		asked++
	}
	// cached: the answers to two questions in three come from a cache, which the scheduler does not
	// see: their client asks at once.
	cached := func(r *rand.Rand) time.Duration {
		d := usualThink
		for r.IntN(3) > 0 {
			d += usualThink
		}
		return d
	}
	for _, c := range []struct {
		name     string
		l        Loops
		cfg      scheduler.ModelConfig
		possible float64 // 0: the rate without the rule
	}{
		{"max_batch below the clients", Loops{Profile: slow, Clients: 32}, scheduler.ModelConfig{MaxBatch: 16},
			32 / 0.072},
		{"max_batch that leaves some out", Loops{Profile: accelerator, Clients: 32},
			scheduler.ModelConfig{MaxBatch: 24}, 32 / 0.24},
		{"a row in each batch", Loops{Profile: slow, Clients: 8}, scheduler.ModelConfig{MaxBatch: 1}, 1 / 0.021},
		{"priorities", Loops{Profile: slow, Clients: 9, Change: priority}, scheduler.ModelConfig{}, 9 / 0.0293},
		{"deadlines of a half", Loops{Profile: slow, Clients: 16, Change: deadlines}, scheduler.ModelConfig{},
			16 / 0.0363},
		{"the latest of each camera, sent on answer", Loops{Profile: slow, Clients: 8, Change: latest},
			scheduler.ModelConfig{}, 8 / 0.0283},
		{"cache", Loops{Profile: slow, Clients: 8, Think: cached}, scheduler.ModelConfig{}, 8 / 0.0296},
		{"applications that ask another model, too", Loops{Profile: slow, Clients: 8, Think: around(15 * ms)},
			scheduler.ModelConfig{}, 8 / 0.0455},
		{"sizes that fail", Loops{Profile: accelerator, Clients: 16, Fault: &Fault{Above: 8}}, scheduler.ModelConfig{},
			16 / 0.24},
		{"rows that fail, and batches that are tried again",
			Loops{Profile: slow, Clients: 8, Change: failing, Fault: &Fault{Poison: 1}}, scheduler.ModelConfig{},
			80 / 0.37}, // ten batches, and halves of the last of them
		{"a replica that stalls", Loops{Profile: stalls, Clients: 8}, scheduler.ModelConfig{}, 8 / 0.0313},
		{"a replica that stops for 3 s",
			Loops{Profile: replicas(slow, 2), Clients: 16, Fault: &Fault{Stop: 8 * time.Second}},
			scheduler.ModelConfig{ExecTimeout: time.Second}, 0},
		{"aimd", Loops{Profile: slow, Clients: 8}, scheduler.ModelConfig{Strategy: "aimd"}, 8 / 0.0283},
		{"quantile", Loops{Profile: slow, Clients: 8}, scheduler.ModelConfig{Strategy: "quantile"}, 8 / 0.0283},
		{"static", Loops{Profile: slow, Clients: 8}, scheduler.ModelConfig{Strategy: "static", MaxBatch: 16},
			8 / 0.0283},
		{"a delay", Loops{Profile: slow, Clients: 8}, scheduler.ModelConfig{Delay: ms}, 8 / 0.0283},
	} {
		rate := func(together bool) *LoopsResult {
			c.l.Warm, c.l.Length, c.l.Seed = 5*time.Second, 10*time.Second, 1
			c.cfg.Together = &together
			r, err := RunLoops(c.l, c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		with, without := rate(true), rate(false)
		if of := with.Closed.Rate / c.possible; c.possible > 0 && of < 0.9 {
			t.Errorf("%s: %.0f/s, %.2f of the possible %.0f", c.name, with.Closed.Rate, of, c.possible)
		}
		if with.Closed.Rate < 0.97*without.Closed.Rate {
			t.Errorf("%s: %.0f/s, without the rule %.0f", c.name, with.Closed.Rate, without.Closed.Rate)
		}
		if with.Closed.Failed > without.Closed.Failed+0.002 {
			t.Errorf("%s: %.3f fail, without the rule %.3f", c.name, with.Closed.Failed, without.Closed.Failed)
		}
		if c.cfg.MaxBatch == 1 && with.Stats.Waits > 0 {
			t.Errorf("%s: %d waits where a batch has one row", c.name, with.Stats.Waits)
		}
	}
}
