package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	benchBatch = 64
	// Limit of a request's cost, in hand-overs of about 0.6 µs.
	mostHandOvers = 1.5
	mostPick      = 20 * time.Microsecond // limit of a pick from 10,000 rows
)

var benchID = scheduler.ModelID{Name: "m", Version: "1"}

// countdown is an owner that signals when all its requests are answered.
type countdown struct {
	left int
	done chan struct{}
}

func (c *countdown) Complete(r *scheduler.Request) {
	for i := range r.Outputs {
		r.Outputs[i].Release()
	}
	if c.left--; c.left == 0 {
		c.done <- struct{}{}
	}
}

// loop is a scheduler with a worker that hands batches to a goroutine, which answers them with
// prepared outputs: the model costs nothing.
type loop struct {
	sched  *scheduler.Scheduler
	model  *scheduler.Model
	reqs   []*scheduler.Request
	owner  *countdown
	outs   [benchBatch + 1]tensor.Tensor // by rows
	direct bool
}

func newLoop(tb testing.TB) *loop {
	l := &loop{owner: &countdown{done: make(chan struct{}, 1)}}
	for n := 1; n <= benchBatch; n++ {
		out, err := tensor.FromSlice(tensor.Shape{n, 4}, make([]uint8, 4*n))
		if err != nil {
			tb.Fatal(err)
		}
		l.outs[n] = out
	}
	sched, err := scheduler.New(scheduler.Config{
		Default: scheduler.ModelConfig{Strategy: "static", MaxBatch: benchBatch}})
	if err != nil {
		tb.Fatal(err)
	}
	l.sched = sched
	var wg sync.WaitGroup
	work := make(chan *scheduler.Batch, 4)
	var outputs [1]tensor.Tensor
	answer := func(b *scheduler.Batch) {
		outputs[0] = l.outs[b.Rows]
		b.Complete(outputs[:], nil)
	}
	wg.Go(func() {
		for b := range work {
			answer(b)
		}
	})
	tb.Cleanup(func() { sched.Close(); close(work); wg.Wait() })
	rep, err := sched.AddReplica(benchID, scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec},
		scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			if l.direct {
				answer(b)
			} else {
				work <- b
			}
			return nil
		}), scheduler.ReplicaOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	l.model = rep.Model()
	pool := tensor.NewPool(0)
	for i := range benchBatch {
		buf, err := pool.Get(4)
		if err != nil {
			tb.Fatal(err)
		}
		in := tensor.Tensor{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1, 4}, Data: buf.Bytes(), Buf: buf}
		l.reqs = append(l.reqs, &scheduler.Request{
			Model: l.model, Inputs: []tensor.Tensor{in}, Rows: 1, Owner: l.owner, Source: uint64(i % 16),
		})
	}
	return l
}

// round submits a batch of requests in one go, as an event loop does, and waits for the answers.
func (l *loop) round() {
	l.owner.left = len(l.reqs)
	deadline := time.Now().Add(time.Second)
	for _, r := range l.reqs {
		r.Deadline = deadline
	}
	l.sched.Submit(l.reqs...)
	<-l.owner.done
}

// BenchmarkRequest measures a request from Submit to Complete, at batches of 64; chan is the same
// number of bare hand-overs through a channel to another goroutine and back, for comparison.
// ns/op is per request.
func BenchmarkRequest(b *testing.B) {
	b.Run("way=scheduler/batch=64", func(b *testing.B) {
		l := newLoop(b)
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			if n++; n%benchBatch == 0 {
				l.round()
			}
		}
	})
	b.Run("way=direct/batch=64", func(b *testing.B) {
		l := newLoop(b)
		l.direct = true
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			if n++; n%benchBatch == 0 {
				l.round()
			}
		}
	})
	b.Run("way=chan", func(b *testing.B) {
		there, back := make(chan *scheduler.Request), make(chan *scheduler.Request)
		var wg sync.WaitGroup
		wg.Go(func() {
			for r := range there {
				back <- r
			}
		})
		r := new(scheduler.Request)
		b.ReportAllocs()
		for b.Loop() {
			there <- r
			<-back
		}
		close(there)
		wg.Wait()
	})
}

// BenchmarkRequestRatio alternates between the two measurements of BenchmarkRequest, so that the
// noise of the machine affects both. x-chan is the cost of a request in bare hand-overs through a
// channel and back, by wall time, and cpu-x-chan by the processor time of the process, user and
// system, garbage collection included. It fails above mostHandOvers, which is about a microsecond.
func BenchmarkRequestRatio(b *testing.B) {
	l := newLoop(b)
	there, back := make(chan *scheduler.Request), make(chan *scheduler.Request)
	var wg sync.WaitGroup
	wg.Go(func() {
		for r := range there {
			back <- r
		}
	})
	const rounds = 100
	var wall, cpu [2]time.Duration // of the scheduler, of the channel
	measure := func(i int, f func()) {
		start, used := time.Now(), cpuTime(b)
		f()
		wall[i] += time.Since(start)
		cpu[i] += cpuTime(b) - used
	}
	for b.Loop() {
		measure(0, func() {
			for range rounds {
				l.round()
			}
		})
		measure(1, func() {
			for range rounds * benchBatch {
				there <- l.reqs[0]
				<-back
			}
		})
	}
	close(there)
	wg.Wait()
	per := float64(b.N * rounds * benchBatch)
	b.ReportMetric(float64(wall[0])/per, "ns/request")
	b.ReportMetric(float64(wall[1])/per, "ns/chan")
	b.ReportMetric(float64(wall[0])/float64(wall[1]), "x-chan")
	b.ReportMetric(float64(cpu[0])/per, "cpu-ns/request")
	b.ReportMetric(float64(cpu[1])/per, "cpu-ns/chan")
	b.ReportMetric(float64(cpu[0])/float64(cpu[1]), "cpu-x-chan")
	if ratio := float64(cpu[0]) / float64(cpu[1]); ratio > mostHandOvers {
		b.Errorf("a request takes as much processor time as %.2f hand-overs through a channel and back, want at most %v",
			ratio, mostHandOvers)
	}
}

// BenchmarkWaiting measures the memory of 100,000 requests that wait for a busy replica:
// B/request is the scheduler's memory beyond the requests and their inputs, which belong to their
// owners.
func BenchmarkWaiting(b *testing.B) {
	const n = 100_000
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // the pools' second chance
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		s, rep := start(b, &schedtest.Worker{},
			scheduler.Config{Default: scheduler.ModelConfig{QueueRows: n, MaxBatch: 1, Slots: 1}})
		rs := make([]*scheduler.Request, n)
		inputs, deadline := rowOf(b, 1), time.Now().Add(time.Hour)
		for i := range rs {
			rs[i] = &scheduler.Request{Model: rep.Model(), Inputs: inputs, Rows: 1, Source: uint64(i % 100),
				Deadline: deadline, Owner: ownerFunc(func(*scheduler.Request) {})}
		}
		before := heap()
		for _, r := range rs {
			s.Submit(r)
		}
		if waiting := rep.Model().Stats().QueueRows; waiting < n-1 {
			b.Fatalf("%d of %d requests wait", waiting, n)
		}
		b.ReportMetric(float64(heap()-before)/n, "B/request")
		s.Close()
		runtime.KeepAlive(rs)
	}
}

// BenchmarkPick measures the choice of a batch from 10,000 waiting rows by the default strategy,
// for rows with one SLO and with mixed ones.
func BenchmarkPick(b *testing.B) {
	for _, mixed := range []bool{false, true} {
		name := "slo=one/waiting=10000"
		if mixed {
			name = "slo=mixed/waiting=10000"
		}
		b.Run(name, func(b *testing.B) {
			p := scheduler.NewPicker(10_000, func() time.Duration {
				if mixed {
					return time.Duration(rand.IntN(1_000_000_000))
				}
				return 0
			})
			b.ReportAllocs()
			used := cpuTime(b) // on a busy machine wall time includes other processes
			for b.Loop() {
				p.Pick()
			}
			each := (cpuTime(b) - used) / time.Duration(b.N)
			b.ReportMetric(float64(each), "cpu-ns/op")
			if each > mostPick {
				b.Errorf("picking takes %v of processor time, want at most %v", each, mostPick)
			}
		})
	}
}

// BenchmarkLearn measures the update of the profile after a batch.
func BenchmarkLearn(b *testing.B) {
	l := scheduler.NewLearner()
	b.ReportAllocs()
	for b.Loop() {
		l.Learn()
	}
}

// BenchmarkRefused measures the refusal of a request that would be late, while another source has
// 60,000 patient rows waiting.
func BenchmarkRefused(b *testing.B) {
	clock := schedtest.NewClock()
	s, err := scheduler.New(scheduler.Config{Clock: clock, Default: scheduler.ModelConfig{MaxBatch: 10, Slots: 1}})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(0, time.Millisecond)}
	rep, err := s.AddReplica(benchID, scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec}, w, scheduler.ReplicaOptions{})
	if err != nil {
		b.Fatal(err)
	}
	refused := 0
	owner := ownerFunc(func(r *scheduler.Request) {
		if r.Err != nil {
			refused++
		}
	})
	submit := func(n int, source uint64, within time.Duration) {
		for range n {
			s.Submit(&scheduler.Request{Model: rep.Model(), Inputs: rowOf(b, 1), Rows: 1, Source: source,
				Deadline: clock.Now().Add(within), Owner: owner})
		}
	}
	for range 40 {
		submit(10, 1, time.Second)
		clock.Advance(20 * time.Millisecond)
	}
	submit(120, 1, 90*time.Millisecond)
	submit(60_000, 1, time.Hour)
	submit(100, 2, 50*time.Millisecond)
	r := &scheduler.Request{Model: rep.Model(), Inputs: rowOf(b, 1), Rows: 1, Source: 2,
		Deadline: clock.Now().Add(50 * time.Millisecond), Owner: owner}
	refused = 0
	b.ResetTimer()
	for b.Loop() {
		s.Submit(r)
	}
	if refused < b.N {
		b.Fatalf("%d of %d requests were refused", refused, b.N)
	}
}

// BenchmarkSuperseded measures the cost of a frame that is superseded while it waits, with a
// hundred streams: admitting it, and answering the frame before it.
func BenchmarkSuperseded(b *testing.B) {
	sched, err := scheduler.New(scheduler.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer sched.Close()
	model := addTo(b, sched, benchID, rowsSpec, &schedtest.Worker{}).Model()
	in := rowOf(b, 1)
	owner := ownerFunc(func(*scheduler.Request) {})
	for range 4 { // more than the worker takes at once: from here on all wait
		sched.Submit(&scheduler.Request{Model: model, Inputs: in, Rows: 1, Owner: owner})
	}
	const streams = 100
	var requests [2 * streams]scheduler.Request // for each stream, the waiting one and the next
	for i := range requests {
		requests[i] = scheduler.Request{
			Model: model, Inputs: in, Rows: 1, Owner: owner,
			Frame: &scheduler.Frame{Stream: fmt.Sprint("camera ", i%streams), Keep: 1},
		}
	}
	b.ReportAllocs()
	next := 0
	for b.Loop() {
		r := &requests[next%len(requests)]
		next++
		sched.Submit(r)
	}
}
