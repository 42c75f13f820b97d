package apps

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/budgettest"
)

// A loopModel is a model of an application: the time of a batch in ms, and its replicas.
type loopModel struct {
	fixed, row float64
	replicas   int
}

func (m loopModel) String() string { return fmt.Sprintf("%d of %g+%gn", m.replicas, m.fixed, m.row) }

func (m loopModel) takes(rows int) time.Duration {
	return time.Duration((m.fixed + m.row*float64(rows)) * float64(time.Millisecond))
}

// TestLoops: clients that ask an ensemble again on each answer share a batch of each model, as if
// they asked the slowest one alone. The answer of a model is not their answer: when each model took
// it for that, those of about the same speed waited in vain, and their groups drifted apart: 0.66
// to 0.85 of the possible rate.
func TestLoops(t *testing.T) {
	slow, fast := loopModel{20, 1, 1}, loopModel{5, 0.5, 1}
	for _, c := range []struct {
		models  [2]loopModel
		clients []int
		share   float64
	}{
		{[2]loopModel{slow, {50, 0, 1}}, []int{2, 8, 32}, 0.95},
		{[2]loopModel{slow, {120, 0, 1}}, []int{2, 8, 32}, 0.95},
		{[2]loopModel{{50, 0, 1}, {50, 0, 1}}, []int{2, 8, 32}, 0.95},
		{[2]loopModel{fast, slow}, []int{2, 8, 32}, 0.95},
		{[2]loopModel{{50, 0, 1}, fast}, []int{2, 8, 32}, 0.95},
		{[2]loopModel{slow, slow}, []int{2, 8, 32}, 0.95},
		{[2]loopModel{slow, {120, 0, 2}}, []int{2, 8, 32}, 0.95},
		{[2]loopModel{fast, {20, 1, 2}}, []int{2, 8, 32}, 0.95},
		{[2]loopModel{{50, 0, 2}, fast}, []int{2, 8, 32}, 0.95},
		// Which model is the slower one depends on the size of the batches.
		{[2]loopModel{{20, 3, 1}, {60, 0, 1}}, []int{8, 32}, 0.9},
	} {
		for _, clients := range c.clients {
			if budgettest.Race && clients != 8 {
				continue // it takes ten times as long
			}
			slowest := time.Duration(0)
			for _, m := range c.models {
				slowest = max(slowest, m.takes((clients+m.replicas-1)/m.replicas))
			}
			possible := float64(clients) / (slowest + loopThink).Seconds()
			if of := loopRate(t, c.models[:], clients) / possible; of < c.share {
				t.Errorf("%v, %d clients: %.3f of the possible rate, want %g", c.models, clients, of, c.share)
			} else {
				t.Logf("%v, %d clients: %.3f", c.models, clients, of)
			}
		}
	}
}

// loopThink is the time from an answer to the client's next request.
const loopThink = 300 * time.Microsecond

// loopRate is the rate of the answers of an ensemble of models to so many clients, once it knows
// them.
func loopRate(t *testing.T, models []loopModel, clients int) (rate float64) {
	const warm, length = 4 * time.Second, 6 * time.Second
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		var mu sync.Mutex // guards rng
		rng := rand.New(rand.NewPCG(1, 1))
		phases := make([]time.Duration, clients)
		for i := range phases {
			phases[i] = time.Duration(rng.Int64N(int64(50 * time.Millisecond)))
		}
		d := Definition{Name: "app", Policy: "ensemble"}
		for i, m := range models {
			d.Models = append(d.Models, fmt.Sprint("m", i))
			for range m.replicas {
				w := h.labels(1, 0)
				w.Exec = func(rows int) time.Duration {
					mu.Lock()
					defer mu.Unlock()
					return time.Duration((1 + 0.02*rng.NormFloat64()) * float64(m.takes(rows)))
				}
				h.serve(d.Models[i], "1", w)
			}
		}
		h.app(d)
		answers := make([]int, clients)
		began := time.Now()
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				for time.Sleep(phases[i]); time.Since(began) < warm+length; time.Sleep(loopThink) {
					q := gate.Request{Source: uint64(1 + i)}
					h.expect(h.ask("app", q), "1 by m")
					if at := time.Since(began); at >= warm && at < warm+length {
						answers[i]++
					}
				}
			})
		}
		all.Wait()
		for _, n := range answers {
			rate += float64(n) / length.Seconds()
		}
		for _, m := range h.sched.Models() {
			if err := m.Check(); err != nil {
				t.Error(err)
			}
		}
	})
	return rate
}
