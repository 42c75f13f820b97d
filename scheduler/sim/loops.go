package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Loops is an experiment with clients that ask again on each answer, beside which rows of an open
// loop may arrive.
type Loops struct {
	Profile
	Clients  int
	InFlight int // requests that each client has in flight; 0: one
	Cameras  int // of 30 frames a second, whose answers count as the open loop's
	Rows     int // of each request; 0: one
	// Think draws the time from an answer to the client's next request; nil: 300 µs.
	Think func(*rand.Rand) time.Duration
	// Burst is how many answers each client has in a row before it pauses; 0: it never does.
	Burst    int
	Pause    time.Duration
	Deadline time.Duration // of each request; 0: 30 s

	Open        float64 // rows per second of the open loop
	OpenSources int     // connections among which they are spread; 0: one

	Fault *Fault // of containers, see Cell; nil: none
	// Change is called with each request of a client before it is submitted; may be nil.
	Change func(client int, r *scheduler.Request)
	// Take names the connection of a request, and Give returns it after the answer; nil: each
	// client, and each source of the open loop, has a connection of its own.
	Take func(open bool) uint64
	Give func(connection uint64)

	// Servers share the replicas, as in a Fleet whose containers grant, and have equally many
	// clients. 0: one server, without transport.
	Servers int
	Delay   time.Duration // of a message, one way
	Jitter  time.Duration // mean of an additional, exponential delay

	Warm, Length time.Duration // not counted, and counted
	Seed         uint64

	Replica func(*scheduler.Replica) // called with each replica before the load; may be nil
}

// usualThink is the time in which a program that does nothing else asks again.
const usualThink = 300 * time.Microsecond

// Together returns the highest rate, in requests per second, of so many clients that ask again a
// think time after each answer: of all in one batch, or of smaller batches back to back. share is
// the part of the experiment that has passed, which the pace depends on.
func (p Profile) Together(clients int, think time.Duration, share float64) float64 {
	pace := 1.0
	if p.Pace != nil {
		pace = p.Pace(share)
	}
	seconds := func(rows int) float64 { return pace * p.mean(float64(p.base(rows))) / 1e9 }
	best := float64(clients) / (seconds(clients) + think.Seconds())
	for rows := 1; rows < clients; rows++ {
		best = max(best, float64(rows)/seconds(rows))
	}
	return best
}

// A LoopsResult summarises the counted requests.
type LoopsResult struct {
	Closed, Open Latencies
	Stats        scheduler.Stats // at the end
}

// Latencies summarises the answers of one kind of clients.
type Latencies struct {
	Rate      float64 // answers per second, without failures
	Failed    float64 // share of the requests that failed
	Mean, P99 time.Duration

	failed int
	all    []time.Duration
}

func (l *Latencies) done(length time.Duration) {
	slices.Sort(l.all)
	sum := time.Duration(0)
	for _, d := range l.all {
		sum += d
	}
	if n := len(l.all); n > 0 {
		l.Mean, l.P99 = sum/time.Duration(n), l.all[n*99/100]
	}
	l.Rate = float64(len(l.all)) / length.Seconds()
	l.Failed = float64(l.failed) / float64(max(1, len(l.all)+l.failed))
	l.all = nil
}

// RunLoops simulates the scheduler with a configuration.
func RunLoops(l Loops, cfg scheduler.ModelConfig) (*LoopsResult, error) {
	if l.Deadline == 0 {
		l.Deadline = 30 * time.Second
	}
	clock := schedtest.NewClock()
	r := &loops{Loops: l, clock: clock, began: clock.Now(), rng: rand.New(rand.NewPCG(l.Seed, 7))}
	r.Rows = max(1, r.Rows)
	var err error
	if r.rows, err = tensor.FromSlice(tensor.Shape{r.Rows, 4}, make([]uint8, 4*r.Rows)); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	if err = r.start(cfg); err != nil {
		return nil, err
	}
	for i := range l.Clients {
		for range max(1, l.InFlight) {
			q := &loopRequest{run: r, into: &r.result.Closed, source: uint64(1 + i), client: i, answers: i,
				server: r.servers[i%len(r.servers)]}
			clock.AfterFunc(time.Duration(r.rng.Int64N(int64(50*time.Millisecond))), q.ask)
		}
	}
	if l.Open > 0 {
		r.arrive()
	}
	for i := range l.Cameras {
		clock.AfterFunc(time.Duration(r.rng.Int64N(int64(cameraInterval))), func() { r.film(i) })
	}
	clock.Advance(l.Warm + l.Length)
	r.result.Stats = r.servers[0].model.Stats()
	r.over = true
	clock.Advance(time.Minute)
	for _, s := range r.servers {
		s.sched.Close()
	}
	r.result.Closed.done(l.Length)
	r.result.Open.done(l.Length)
	return &r.result, r.failed()
}

// loops is one run of Loops.
type loops struct {
	Loops
	clock   *schedtest.Clock
	began   time.Time
	servers []*server
	failed  func() error // of the simulation itself
	rng     *rand.Rand
	rows    tensor.Tensor // of a request
	result  LoopsResult
	over    bool
}

// A server is what clients submit to.
type server struct {
	sched *scheduler.Scheduler
	model *scheduler.Model
}

// start makes the servers and their replicas.
func (r *loops) start(cfg scheduler.ModelConfig) error {
	cell := Cell{Profile: r.Profile, Warm: r.Warm, Length: r.Length, Seed: r.Seed, Replica: r.Replica, Fault: r.Fault}
	outs, err := outputs()
	if err != nil {
		return err
	}
	if r.Servers > 0 {
		x := &fleet{Fleet: Fleet{Cell: cell, Servers: r.Servers, Grants: true, Delay: r.Delay, Jitter: r.Jitter},
			clock: r.clock, start: r.began, rng: rand.New(rand.NewPCG(r.Seed, 4)), outs: outs,
			res: &FleetResult{Result: &Result{cell: cell}}}
		for _, w := range cell.clockworks() {
			x.containers = append(x.containers, newHost(x, w))
		}
		r.failed = func() error { return nil }
		for n := range r.Servers {
			d, err := x.server(n, cfg, nil)
			if err != nil {
				return err
			}
			r.servers = append(r.servers, &server{d.sched, d.model})
		}
		return nil
	}
	sched, err := scheduler.New(scheduler.Config{Clock: r.clock, Default: cfg})
	if err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	stage := &stage{Cell: cell, clock: r.clock, start: r.began, sched: sched, outs: outs}
	for i, w := range cell.clockworks() {
		stage.add(i, w)
	}
	r.failed = func() error { return stage.err }
	r.servers = []*server{{sched, stage.model}}
	return stage.err
}

// A loopRequest is one place in a client's loop, or a request of the open loop.
type loopRequest struct {
	scheduler.Request
	run    *loops
	into   *Latencies
	source uint64
	client int
	// Of its client, as far as bursts are concerned: the clients begin in different parts of one.
	answers int
	server  *server
	asked   time.Time
}

// arrive submits the rows of the open loop.
func (r *loops) arrive() {
	if r.over {
		return
	}
	r.clock.AfterFunc(time.Duration(r.rng.ExpFloat64()/r.Open*1e9), r.arrive)
	q := r.open(1<<20 + r.rng.IntN(max(1, r.OpenSources)))
	q.ask()
}

// open makes a request that does not follow an answer, of a source.
func (r *loops) open(source int) *loopRequest {
	return &loopRequest{run: r, into: &r.result.Open, source: uint64(source), server: r.servers[source%len(r.servers)]}
}

// film submits a camera's frames, one at a time; of each only the newest waits.
func (r *loops) film(camera int) {
	if r.over {
		return
	}
	r.clock.AfterFunc(cameraInterval, func() { r.film(camera) })
	q := r.open(1<<21 + camera)
	q.Frame = &scheduler.Frame{Stream: fmt.Sprint("camera ", camera), Keep: 1, Seq: -1}
	q.ask()
}

// cameraInterval is that of 30 frames a second.
const cameraInterval = time.Second / 30

func (q *loopRequest) ask() {
	r := q.run
	if r.over {
		return
	}
	q.asked = r.clock.Now()
	if r.Take != nil {
		q.source = r.Take(q.into == &r.result.Open)
	}
	if q.Inputs == nil {
		q.Inputs = []tensor.Tensor{r.rows}
	}
	q.Model, q.Rows, q.Owner, q.Source, q.Deadline = q.server.model, r.Rows, q, q.source, q.asked.Add(r.Deadline)
	if r.Change != nil && q.into == &r.result.Closed {
		r.Change(q.client, &q.Request)
	}
	q.server.sched.Submit(&q.Request)
}

// Complete counts the answer, after which the client thinks and asks again.
func (q *loopRequest) Complete(answered *scheduler.Request) {
	r := q.run
	if r.Give != nil {
		r.Give(q.source)
	}
	now := r.clock.Now()
	if at := now.Sub(r.began); !r.over && at >= r.Warm && at < r.Warm+r.Length {
		if answered.Err == nil {
			q.into.all = append(q.into.all, now.Sub(q.asked))
		} else {
			q.into.failed++
		}
	}
	for i := range answered.Outputs {
		answered.Outputs[i].Release()
	}
	if q.into == &r.result.Open {
		return
	}
	think := usualThink
	if r.Think != nil {
		think = r.Think(r.rng)
	}
	if q.answers++; r.Burst > 0 && q.answers%r.Burst == 0 {
		think = r.Pause
	}
	r.clock.AfterFunc(max(think, time.Microsecond), q.ask)
}
