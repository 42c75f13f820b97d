package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/rounds"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Fleet has servers that share the replicas of a cell: each server has a session with each
// replica. The rows arrive at the servers at random.
type Fleet struct {
	Cell
	Servers int
	// Grants makes containers decide whose rows are next, as real ones do; false: they execute the
	// batches of all servers in order of arrival.
	Grants bool
	Most   int           // rows of an execution; 0: MaxBatch
	Delay  time.Duration // of a message, one way
	Jitter time.Duration // mean of an additional, exponential delay
	// Serve is the time that a server takes for each row of an answer before it reads the next
	// message.
	Serve  time.Duration
	Lies   int  // factor by which the first server overstates its rows; 0: 1
	Uneven bool // two thirds of the rows go to the first server; false: an equal share
}

// A FleetResult is a Result with counts of messages, and of rows by server.
type FleetResult struct {
	*Result
	Messages int   // of all servers and containers
	ByServer []int // rows that were answered in time
}

// RunFleet simulates a fleet with a strategy of the scheduler.
func RunFleet(f Fleet, s Strategy) (*FleetResult, error) {
	clock := schedtest.NewClock()
	x := &fleet{Fleet: f, clock: clock, start: clock.Now(), rng: rand.New(rand.NewPCG(f.Seed, 4))}
	x.res = &FleetResult{Result: &Result{cell: f.Cell}, ByServer: make([]int, f.Servers)}
	var err error
	if x.outs, err = outputs(); err != nil {
		return nil, err
	}
	for _, w := range f.clockworks() {
		x.containers = append(x.containers, newHost(x, w))
	}
	cfg := s.Config
	if cfg.Objective == 0 {
		if cfg.Objective = f.Objective; cfg.Objective == 0 {
			cfg.Objective = f.longest()
		}
	}
	cfg.MaxBatch = cmp.Or(f.Most, cfg.MaxBatch)
	rows := make([][]arrival, f.Servers)
	for _, a := range f.arrivals() {
		n := x.rng.IntN(f.Servers)
		if f.Uneven && f.Servers > 1 {
			if n = 0; x.rng.IntN(3) == 2 {
				n = 1 + x.rng.IntN(f.Servers-1)
			}
		}
		rows[n] = append(rows[n], a)
	}
	var drivers []*driver
	for n := range f.Servers {
		d, err := x.server(n, cfg, rows[n])
		if err != nil {
			return nil, err
		}
		defer d.sched.Close()
		drivers = append(drivers, d)
	}
	for _, d := range drivers {
		d.arrive()
	}
	clock.Advance(f.end() + 20*f.SLO + time.Second)
	x.res.done()
	return x.res, nil
}

// A fleet is the state of a simulation of a Fleet.
type fleet struct {
	Fleet
	clock      *schedtest.Clock
	start      time.Time
	rng        *rand.Rand
	containers []*host
	outs       [MaxBatch + 1]tensor.Tensor
	res        *FleetResult
}

func (x *fleet) now() time.Duration { return x.clock.Now().Sub(x.start) }

// server makes a server, and its sessions with all containers.
func (x *fleet) server(n int, cfg scheduler.ModelConfig, rows []arrival) (*driver, error) {
	sched, err := scheduler.New(scheduler.Config{Clock: x.clock, Default: cfg})
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	d := &driver{clock: x.clock, start: x.start, sched: sched, res: x.res.Result, rows: rows, kind: x.rowKinds(),
		sources: max(1, x.Sources), rng: rand.New(rand.NewPCG(x.Seed, 5+uint64(n)))}
	d.good = func() { x.res.ByServer[n]++ }
	if d.inputs[rowGood], err = tensor.FromSlice(tensor.Shape{1, 4}, make([]uint8, 4)); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	for i, c := range x.containers {
		s := &session{fleet: x, host: c, lies: 1}
		if n == 0 && x.Lies > 0 {
			s.lies = x.Lies
		}
		options := scheduler.ReplicaOptions{Label: fmt.Sprint(i), Offer: s.offer}
		s.replica, err = sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"},
			scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec}, s, options)
		if err != nil {
			return nil, fmt.Errorf("sim: %w", err)
		}
		d.model = s.replica.Model()
		if x.Replica != nil {
			x.Replica(s.replica)
		}
		granting := x.Grants && x.Servers > 1
		s.seat = c.table.Join(granting)
		c.sessions[s.seat] = s
		s.replica.Share(granting)
	}
	return d, nil
}

// A session is a connection between a server and a container.
type session struct {
	*fleet
	host     *host
	replica  *scheduler.Replica
	seat     *rounds.Seat[sentBatch]
	lies     int
	to, from time.Duration // when the latest message arrives at the container, at the server
}

// sentBatch is a batch with the session on which it arrived.
type sentBatch struct {
	*scheduler.Batch
	session *session
}

// carry delivers a message after the delay, behind earlier messages.
func (s *session) carry(last *time.Duration, deliver func()) {
	s.res.Messages++
	now := s.now()
	*last = max(*last, now+s.Delay+time.Duration(float64(s.Jitter)*s.rng.ExpFloat64()))
	s.clock.AfterFunc(*last-now, deliver)
}

func (s *session) Send(b *scheduler.Batch) error {
	grant, rows := b.Grant, b.Rows
	s.carry(&s.to, func() {
		s.host.table.Arrive(s.seat, rounds.Batch[sentBatch]{Rows: rows, Grant: grant.ID, Best: grant.Best,
			Left: grant.Left * s.lies, Body: sentBatch{b, s}}, s.now())
		s.host.run()
	})
	return nil
}

func (s *session) offer(o scheduler.Offer) {
	s.carry(&s.to, func() {
		if o.Grant != 0 {
			s.host.table.Pass(s.seat, o.Grant, o.Rows*s.lies, s.now())
		} else {
			s.host.table.Offer(s.seat, o.Rows*s.lies, o.Due/time.Duration(s.lies), s.now())
		}
		s.host.run()
	})
}

// A host is a container.
type host struct {
	*fleet
	work  *clockwork
	table *rounds.Table[sentBatch]

	sessions map[*rounds.Seat[sentBatch]]*session
}

func newHost(x *fleet, w *clockwork) *host {
	alone := !x.Grants || x.Servers == 1
	fit := func(a, b sentBatch) bool { return !alone }
	return &host{fleet: x, work: w, table: rounds.New(1, cmp.Or(x.Most, MaxBatch), fit),
		sessions: make(map[*rounds.Seat[sentBatch]]*session)}
}

// run carries out the table's actions.
func (h *host) run() {
	for {
		grants, e, wake := h.table.Next(h.now())
		for _, g := range grants {
			s := h.sessions[g.Seat]
			s.carry(&s.from, func() { s.replica.Grant(g.ID, g.Here, g.Elsewhere, g.Target) })
		}
		if e != nil {
			h.res.batch(h.now(), e.Rows)
			h.clock.AfterFunc(h.work.next(e.Rows, h.now()), func() { h.done(e) })
		}
		if len(grants) == 0 && e == nil {
			if wake > 0 {
				h.clock.AfterFunc(wake-h.now(), h.run)
			}
			return
		}
	}
}

func (h *host) done(e *rounds.Execution[sentBatch]) {
	h.table.Done(e, h.now())
	h.run()
	for i, b := range e.Batches {
		s := b.Body.session
		s.carry(&s.from, func() {
			if b.Grant != 0 {
				b.Body.Executed(e.Rows, e.Queued(i))
			}
			_ = b.Body.Complete(h.outs[b.Rows:b.Rows+1], nil) // an error counts as late
		})
		s.from += time.Duration(b.Rows) * h.Serve
	}
}
