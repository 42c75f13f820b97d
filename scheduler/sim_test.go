package scheduler_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A simulation runs the whole scheduler on virtual time against replicas that take a + b·rows,
// with noise.
type simulation struct {
	strategy string
	shed     *bool
	a, b     time.Duration
	noise    float64 // relative standard deviation
	slo      time.Duration
	replicas int

	concurrency int // of each replica; 0 means 1

	load   float64 // offered, as a share of the capacity
	bursts bool    // on/off, 1.8 and 0.2 times the mean, 200 ms each
	warm   time.Duration
	length time.Duration
	seed   uint64
}

// capacity is the rate with executions of half the SLO, in rows per second.
func (s simulation) capacity() float64 {
	rows := float64(s.slo/2-s.a) / float64(s.b)
	return float64(s.executors()) * rows / (float64(s.slo/2) / float64(time.Second))
}

// executors is the number of batches that all replicas together execute at once.
func (s simulation) executors() int { return s.replicas * max(1, s.concurrency) }

type simResult struct {
	offered, good int
	meanBatch     float64
	p50, p99      time.Duration
	stats         scheduler.Stats
}

// share is the goodput over the offered rows.
func (r simResult) share() float64 { return float64(r.good) / float64(r.offered) }

type simOwner struct {
	clock   *schedtest.Clock
	from    time.Time
	started time.Time
	sim     *simResult
	lat     *[]time.Duration
}

func (o *simOwner) Complete(r *scheduler.Request) {
	for _, t := range r.Outputs {
		t.Release()
	}
	if o.started.Before(o.from) {
		return
	}
	o.sim.offered++
	if now := o.clock.Now(); r.Err == nil && !now.After(r.Deadline) {
		o.sim.good++
		*o.lat = append(*o.lat, now.Sub(o.started))
	}
}

var rowSpec = []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 4}}}

func (s simulation) run(t testing.TB) simResult {
	t.Helper()
	rng := rand.New(rand.NewPCG(s.seed, 7))
	clock := schedtest.NewClock()
	start := clock.Now()
	batches, rows := 0, 0
	sched, err := scheduler.New(scheduler.Config{
		Clock:   clock,
		Default: scheduler.ModelConfig{Strategy: s.strategy, Objective: s.slo, Shed: s.shed},
		Hooks: scheduler.Hooks{BatchClosed: func(_ scheduler.ModelID, n int, _ scheduler.CloseReason, _ time.Duration) {
			if clock.Now().Sub(start) > s.warm {
				batches++
				rows += n
			}
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var model *scheduler.Model
	for i := range s.replicas {
		w := &schedtest.Worker{Clock: clock, Concurrency: s.concurrency, Exec: func(rows int) time.Duration {
			d := float64(s.a) + float64(s.b)*float64(rows)
			return time.Duration(d * max(0.2, 1+s.noise*rng.NormFloat64()))
		}}
		rep, err := sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"},
			scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec}, w,
			scheduler.ReplicaOptions{Label: fmt.Sprint(i), Concurrency: s.concurrency})
		if err != nil {
			t.Fatal(err)
		}
		model = rep.Model()
	}
	in, err := tensor.FromSlice(tensor.Shape{1, 4}, []uint8{1, 2, 3, 4})
	if err != nil {
		t.Fatal(err)
	}
	inputs := []tensor.Tensor{in}
	var res simResult
	var lat []time.Duration
	mean := float64(time.Second) / (s.capacity() * s.load)
	var arrive func()
	arrive = func() {
		now := clock.Now()
		sched.Submit(&scheduler.Request{
			Model: model, Inputs: inputs, Rows: 1, Deadline: now.Add(s.slo),
			Owner: &simOwner{clock: clock, from: start.Add(s.warm), started: now, sim: &res, lat: &lat},
		})
		gap := mean * rng.ExpFloat64()
		if s.bursts {
			if now.Sub(start)/(200*time.Millisecond)%2 == 0 {
				gap /= 1.8
			} else {
				gap /= 0.2
			}
		}
		if now.Sub(start) < s.warm+s.length {
			clock.AfterFunc(time.Duration(gap), arrive)
		}
	}
	arrive()
	clock.Advance(s.warm + s.length + 10*s.slo)
	res.stats = model.Stats()
	sched.Close()
	slices.Sort(lat)
	if len(lat) > 0 {
		res.p50, res.p99 = lat[len(lat)/2], lat[len(lat)*99/100]
	}
	res.meanBatch = float64(rows) / math.Max(1, float64(batches))
	return res
}
