package pipelines

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A loopModel is the model of a stage: the time of a batch in ms, and its replicas.
type loopModel struct {
	fixed, row float64
	replicas   int
}

func (m loopModel) String() string { return fmt.Sprintf("%d of %g+%gn", m.replicas, m.fixed, m.row) }

func (m loopModel) takes(rows float64) time.Duration {
	return time.Duration((m.fixed + m.row*rows) * float64(time.Millisecond))
}

// TestLoops: clients that ask a pipeline again on each answer share a batch of each stage, or are
// two groups at different stages, whichever is faster. A model is not asked again on its own answer
// but on that of the last stage: when each took its answer for the client's, a group that had left
// a stage was not waited for when it came back, and groups became three: 0.67 to 0.9 of the
// possible rate.
func TestLoops(t *testing.T) {
	fast, linear := loopModel{5, 0.5, 1}, loopModel{20, 1, 1}
	constant, slow := loopModel{50, 0, 1}, loopModel{120, 0, 1}
	for _, c := range []struct {
		stages  []loopModel
		clients []int
		share   float64
	}{
		{[]loopModel{linear, constant}, []int{2, 8, 32}, 0.95},
		{[]loopModel{constant, linear}, []int{2, 8, 32}, 0.95},
		{[]loopModel{linear, slow}, []int{2, 8, 32}, 0.95},
		{[]loopModel{slow, linear}, []int{2, 8, 32}, 0.95},
		{[]loopModel{constant, constant}, []int{2, 8, 32}, 0.95},
		{[]loopModel{constant, fast}, []int{2, 8, 32}, 0.95},
		{[]loopModel{fast, constant}, []int{2, 8, 32}, 0.95},
		{[]loopModel{fast, linear}, []int{2, 8, 32}, 0.9},
		{[]loopModel{linear, fast}, []int{2, 8, 32}, 0.9},
		{[]loopModel{linear, linear}, []int{2, 3, 8, 32}, 0.9},
		{[]loopModel{fast, fast}, []int{8, 32}, 0.95},
		{[]loopModel{fast, linear, constant}, []int{2, 8}, 0.95},
		{[]loopModel{constant, linear, fast}, []int{2, 8}, 0.95},
		{[]loopModel{{20, 1, 2}, fast}, []int{3, 8}, 0.95},
		{[]loopModel{fast, {20, 1, 2}}, []int{3, 8}, 0.95},
		{[]loopModel{constant, {50, 0, 2}}, []int{8, 32}, 0.95},
		{[]loopModel{{50, 0, 2}, {50, 0, 2}}, []int{8, 32}, 0.95},
	} {
		for _, clients := range c.clients {
			if budgettest.Race && clients != 2 {
				continue // it takes ten times as long
			}
			of := loopRate(t, c.stages, c.stages, clients, 4*time.Second) / possible(c.stages, clients)
			if of < c.share {
				t.Errorf("%v, %d clients: %.3f of the possible rate, want %g", c.stages, clients, of, c.share)
			} else {
				t.Logf("%v, %d clients: %.3f", c.stages, clients, of)
			}
		}
	}
}

// TestLoopsChange: clients that became one group, as two are no faster at stages of constant time,
// become two at stages whose time grows with the rows, within a minute.
func TestLoopsChange(t *testing.T) {
	constant, proportional := loopModel{120, 0, 1}, loopModel{1, 5, 1}
	first, then := []loopModel{constant, {5, 0.5, 1}}, []loopModel{proportional, proportional}
	if of := loopRate(t, first, then, 8, time.Minute) / possible(then, 8); of < 0.95 {
		t.Errorf("%.3f of the possible rate, want 0.95", of)
	}
}

// loopThink is the time from an answer to the client's next request.
const loopThink = 300 * time.Microsecond

// possible is the rate of so many clients in the best number of groups, each at another replica.
func possible(stages []loopModel, clients int) (best float64) {
	most := 0
	for _, m := range stages {
		most += m.replicas
	}
	for groups := 1; groups <= min(clients, most); groups++ {
		all, slowest := loopThink, time.Duration(0)
		for _, m := range stages {
			took := m.takes(float64(clients) / float64(groups))
			all, slowest = all+took, max(slowest, took/time.Duration(m.replicas))
		}
		best = max(best, float64(clients)/max(all, slowest*time.Duration(groups)).Seconds())
	}
	return best
}

// loopRate is the rate of the answers of a pipeline of such stages to so many clients, once it
// knows them: after warm. In the first seconds its stages are other ones.
func loopRate(t *testing.T, first, stages []loopModel, clients int, warm time.Duration) (rate float64) {
	const others, length = 4 * time.Second, 16 * time.Second
	onRig(t, func(r *rig) {
		began := time.Now()
		var mu sync.Mutex // guards rng
		rng := rand.New(rand.NewPCG(1, 1))
		d := Definition{Name: "p", Inputs: []string{"x"}}
		from := "x"
		for i, m := range stages {
			name := fmt.Sprint("s", i)
			for range m.replicas {
				r.serve(name, maker, &schedtest.Worker{Exec: func(rows int) time.Duration {
					mu.Lock()
					defer mu.Unlock()
					took := m.takes(float64(rows))
					if time.Since(began) < others {
						took = first[i].takes(float64(rows))
					}
					return time.Duration((1 + 0.02*rng.NormFloat64()) * float64(took))
				}})
			}
			d.Stages = append(d.Stages, admin.Stage{Name: name, Model: name, Inputs: map[string]string{"x": from}})
			from = name + ".y"
		}
		d.Outputs = map[string]string{"y": from}
		r.define(d)
		answers, phases := make([]int, clients), make([]time.Duration, clients)
		for i := range phases {
			phases[i] = time.Duration(rng.Int64N(int64(50 * time.Millisecond)))
		}
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				for time.Sleep(phases[i]); time.Since(began) < warm+length; time.Sleep(loopThink) {
					q := gate.Request{Model: "p", Source: uint64(1 + i), Inputs: []tensor.Tensor{thing(1, 2)}}
					a := r.ask(&q)
					if a.Err != nil {
						t.Error(a.Err)
					}
					a.Close()
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
		for _, m := range r.sched.Models() {
			if err := m.Check(); err != nil {
				t.Error(err)
			}
		}
	})
	return rate
}
