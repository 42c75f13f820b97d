package sim

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// A LoopCell is an experiment with clients that ask again on each answer, an open loop, or both,
// with what is expected of it: with the rule of the scheduler, and beside a run without.
type LoopCell struct {
	Name string
	Loops
	Leave int // clients that stop asking, before the counted time

	// Possible is the rate of the clients in groups that are as large as the model makes worth it;
	// 0: it is not known, and the rate without the rule is the reference.
	Possible float64
	Share    float64 // of the reference that must be reached
	Failures float64 // share of the requests that may fail; 0: mostFailures
	// Later is the largest factor of the open loop's mean and p99 without the rule. Beside clients
	// it applies to the mean alone, and these must get leastGain of what they get without, and both
	// together no less.
	Later float64
}

// line is a replica that takes a + b·rows.
func line(a, b time.Duration) Profile { return Profile{A: a, B: b, Noise: 0.02, Replicas: 1} }

func replicas(p Profile, n int) Profile { p.Replicas = n; return p }

func lanes(p Profile, n int) Profile { p.Concurrency = n; return p }

func steps() Profile {
	p := line(0, 0)
	p.Curve = func(n int) time.Duration { return 4*ms + 8*ms*time.Duration((n+15)/16) }
	return p
}

const ms = time.Millisecond

// Think times.

func around(mean time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return time.Duration((1 + 0.1*r.NormFloat64()) * float64(mean)) }
}

func exponential(mean time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(mean)) }
}

func uniform(most time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return time.Duration(r.Float64() * float64(most)) }
}

func lognormal(mean time.Duration, sigma float64) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration {
		return time.Duration(float64(mean) * math.Exp(sigma*r.NormFloat64()-sigma*sigma/2))
	}
}

// either is the one or the other, with a probability of 1 in n for the second.
func either(most, now time.Duration, n int) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration {
		if r.IntN(n) == 0 {
			return now
		}
		return most
	}
}

// leaving makes n clients never ask again: those with the next answers after the first ones.
func leaving(n, after int, think func(*rand.Rand) time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration {
		if after--; after < 0 && after >= -n {
			return time.Hour
		}
		if think == nil {
			return usualThink
		}
		return think(r)
	}
}

// LoopCells returns the cells for which the promises hold.
func LoopCells(warm, length time.Duration, seed uint64) []LoopCell {
	cells := slices.Concat(closedCells(), deadlineCells(), openCells())
	for i := range cells {
		c := &cells[i]
		c.Warm, c.Length, c.Seed = warm, length, seed
	}
	return cells
}

// one is the rate of a group of n clients that ask after z, with so much time for a batch.
func one(n int, batch, z time.Duration) float64 { return float64(n) / (batch + z).Seconds() }

func deadlineCells() []LoopCell {
	fast, slow, z := line(5*ms, ms/2), line(20*ms, ms), usualThink
	const often = 0.95
	return []LoopCell{
		{Name: "20 + 1n, 32 clients, 60 ms",
			Loops: Loops{Profile: slow, Clients: 32, Deadline: 60 * ms}, Possible: one(32, 52*ms, z), Share: often},
		{Name: "20 + 1n, 32 clients, 55 ms",
			Loops: Loops{Profile: slow, Clients: 32, Deadline: 55 * ms}, Possible: one(32, 52*ms, z), Share: often},
		{Name: "5 + 0.5n, 32 clients, 26 ms",
			Loops: Loops{Profile: fast, Clients: 32, Deadline: 26 * ms}, Possible: one(32, 21*ms, z), Share: often,
			Failures: 0.02},
		{Name: "20 + 1n, 2 clients, 30 ms",
			Loops: Loops{Profile: slow, Clients: 2, Deadline: 30 * ms}, Possible: one(2, 22*ms, z), Share: often},
	}
}

func closedCells() []LoopCell {
	accelerator, fast, slow := line(120*ms, 0), line(5*ms, ms/2), line(20*ms, ms)
	const often, seldom = 0.95, 0.9
	z := usualThink
	return []LoopCell{
		{Name: "constant 120, 2 clients",
			Loops: Loops{Profile: accelerator, Clients: 2}, Possible: one(2, 120*ms, z), Share: often},
		{Name: "constant 120, 8 clients",
			Loops: Loops{Profile: accelerator, Clients: 8}, Possible: one(8, 120*ms, z), Share: often},
		{Name: "constant 120, 32 clients",
			Loops: Loops{Profile: accelerator, Clients: 32}, Possible: one(32, 120*ms, z), Share: often},
		{Name: "constant 120, 64 clients",
			Loops: Loops{Profile: accelerator, Clients: 64}, Possible: one(64, 120*ms, z), Share: often},
		{Name: "constant 50, 2 clients",
			Loops: Loops{Profile: line(50*ms, 0), Clients: 2}, Possible: one(2, 50*ms, z), Share: often},
		{Name: "constant 50, 2 replicas, 2 clients",
			Loops: Loops{Profile: replicas(line(50*ms, 0), 2), Clients: 2}, Possible: one(2, 50*ms, z), Share: often},
		{Name: "constant 50, 2 replicas, 3 clients",
			Loops: Loops{Profile: replicas(line(50*ms, 0), 2), Clients: 3}, Possible: one(3, 50*ms, z), Share: often},
		{Name: "20 + 1n, 2 clients", Loops: Loops{Profile: slow, Clients: 2}, Possible: one(2, 22*ms, z), Share: often},
		{Name: "20 + 1n, 8 clients", Loops: Loops{Profile: slow, Clients: 8}, Possible: one(8, 28*ms, z), Share: often},
		{Name: "20 + 1n, 32 clients",
			Loops: Loops{Profile: slow, Clients: 32}, Possible: one(32, 52*ms, z), Share: often},
		{Name: "5 + 0.5n, 2 clients", Loops: Loops{Profile: fast, Clients: 2}, Possible: one(2, 6*ms, z), Share: often},
		{Name: "5 + 0.5n, 8 clients", Loops: Loops{Profile: fast, Clients: 8}, Possible: one(8, 9*ms, z), Share: often},
		{Name: "5 + 0.5n, 32 clients",
			Loops: Loops{Profile: fast, Clients: 32}, Possible: one(32, 21*ms, z), Share: often},
		{Name: "1 + 0.05n, 32 clients", Loops: Loops{Profile: line(ms, ms/20), Clients: 32},
			Possible: one(32, 2600*time.Microsecond, z), Share: often},
		{Name: "10 + 5n, 8 clients",
			Loops: Loops{Profile: line(10*ms, 5*ms), Clients: 8}, Possible: one(8, 50*ms, z), Share: often},
		{Name: "0.1 + 5n, 8 clients: nothing to gain",
			Loops: Loops{Profile: line(ms/10, 5*ms), Clients: 8}, Possible: 199, Share: often},
		{Name: "0.3 + 0.02n, 32 clients: must not wait",
			Loops: Loops{Profile: line(3*ms/10, ms/50), Clients: 32}, Possible: 25800, Share: often},
		{Name: "constant 120, 32 clients after 5",
			Loops: Loops{Profile: accelerator, Clients: 32, Think: around(5 * ms)}, Possible: one(32, 120*ms, 6*ms),
			Share: often},
		{Name: "constant 120, 32 clients after 20",
			Loops: Loops{Profile: accelerator, Clients: 32, Think: around(20 * ms)}, Possible: one(32, 120*ms, 22*ms),
			Share: often},
		{Name: "constant 120, 32 clients after 50",
			Loops: Loops{Profile: accelerator, Clients: 32, Think: around(50 * ms)}, Possible: one(32, 120*ms, 50*ms),
			Share: seldom},
		{Name: "constant 120, 32 clients after about 20",
			Loops: Loops{Profile: accelerator, Clients: 32, Think: exponential(20 * ms)}, Possible: 180, Share: often},
		{Name: "constant 120, 32 clients after 0 to 200",
			Loops: Loops{Profile: accelerator, Clients: 32, Think: uniform(200 * ms)}, Share: 0.98},
		{Name: "constant 120, 32 clients after about 100",
			Loops: Loops{Profile: accelerator, Clients: 32, Think: exponential(100 * ms)}, Share: 0.98},
		{Name: "20 + 1n, 32 clients after about 20: nothing to gain",
			Loops: Loops{Profile: slow, Clients: 32, Think: exponential(20 * ms)}, Possible: 420, Share: often},
		{Name: "20 + 1n, 8 clients after about 5, seldom long",
			Loops: Loops{Profile: slow, Clients: 8, Think: lognormal(5*ms, 1.5)}, Possible: 209, Share: often},
		{Name: "20 + 1n, 16 clients, fast and slow",
			Loops:    Loops{Profile: slow, Clients: 16, Think: either(usualThink, 15*ms, 4)},
			Possible: one(16, 36*ms, 4*ms), Share: often},
		{Name: "constant 120, 2 replicas, 32 clients",
			Loops: Loops{Profile: replicas(accelerator, 2), Clients: 32}, Possible: one(32, 120*ms, z), Share: often},
		{Name: "constant 120, 2 at once, 32 clients",
			Loops: Loops{Profile: lanes(accelerator, 2), Clients: 32}, Possible: one(32, 120*ms, z), Share: often},
		{Name: "20 + 1n, 2 replicas, 32 clients",
			Loops: Loops{Profile: replicas(slow, 2), Clients: 32}, Possible: one(32, 36*ms, z), Share: often},
		{Name: "20 + 1n, 4 replicas, 32 clients",
			Loops: Loops{Profile: replicas(slow, 4), Clients: 32}, Possible: one(32, 28*ms, z), Share: often},
		{Name: "constant 120, 4 connections with 8 in flight",
			Loops: Loops{Profile: accelerator, Clients: 4, InFlight: 8}, Possible: one(32, 120*ms, z), Share: often},
		{Name: "20 + 1n, 1 connection with 16 in flight",
			Loops: Loops{Profile: slow, Clients: 1, InFlight: 16}, Possible: one(16, 36*ms, z), Share: often},
		{Name: "20 + 1n, 2 replicas, 3 clients with 8 rows",
			Loops:    Loops{Profile: replicas(slow, 2), Clients: 3, Rows: 8},
			Possible: one(1, 28*ms, z) + one(2, 36*ms, z), Share: often},
		{Name: "20 + 1n, 4 replicas, 5 clients with 8 rows",
			Loops:    Loops{Profile: replicas(slow, 4), Clients: 5, Rows: 8},
			Possible: 3*one(1, 28*ms, z) + one(2, 36*ms, z), Share: often},
		{Name: "steps of 16, 16 clients",
			Loops: Loops{Profile: steps(), Clients: 16}, Possible: one(16, 12*ms, z), Share: often},
		{Name: "steps of 16, 24 clients",
			Loops: Loops{Profile: steps(), Clients: 24}, Possible: one(24, 20*ms, z), Share: often},
		{Name: "steps of 16, 32 clients",
			Loops: Loops{Profile: steps(), Clients: 32}, Possible: one(32, 20*ms, z), Share: often},
		{Name: "20 + 1n, 8 clients in bursts of 5",
			Loops: Loops{Profile: slow, Clients: 8, Burst: 5, Pause: 200 * ms}, Possible: 123, Share: often},
		{Name: "20 + 1n, 8 clients in bursts of 2",
			Loops: Loops{Profile: slow, Clients: 8, Burst: 2, Pause: 200 * ms}, Share: 0.98},
		{Name: "20 + 1n, 16 of 24 clients leave",
			Loops: Loops{Profile: slow, Clients: 24}, Leave: 16, Possible: one(8, 28*ms, z), Share: often},
	}
}

func openCells() []LoopCell {
	fast, slow := line(5*ms, ms/2), line(20*ms, ms)
	const same, beside = 1.01, 1.2
	return []LoopCell{
		{Name: "5 + 0.5n, 20/s, 1 connection", Loops: Loops{Profile: fast, Open: 20}, Later: same},
		{Name: "5 + 0.5n, 400/s, 1 connection", Loops: Loops{Profile: fast, Open: 400}, Later: same},
		{Name: "5 + 0.5n, 400/s, 64 connections", Loops: Loops{Profile: fast, Open: 400, OpenSources: 64}, Later: same},
		{Name: "5 + 0.5n, 1,500/s, 64 connections",
			Loops: Loops{Profile: fast, Open: 1500, OpenSources: 64}, Later: same},
		{Name: "5 + 0.5n, 1,500/s, 1,000 connections",
			Loops: Loops{Profile: fast, Open: 1500, OpenSources: 1000}, Later: same},
		{Name: "5 + 0.5n, 1,800/s in 50 ms",
			Loops: Loops{Profile: fast, Open: 1800, OpenSources: 64, Deadline: 50 * ms}, Later: same},
		{Name: "20 + 1n, 20/s, 1 connection", Loops: Loops{Profile: slow, Open: 20}, Later: same},
		{Name: "20 + 1n, 20/s, 64 connections", Loops: Loops{Profile: slow, Open: 20, OpenSources: 64}, Later: same},
		{Name: "20 + 1n, 200/s, 4 connections", Loops: Loops{Profile: slow, Open: 200, OpenSources: 4}, Later: same},
		{Name: "20 + 1n, 600/s, 64 connections", Loops: Loops{Profile: slow, Open: 600, OpenSources: 64}, Later: same},
		{Name: "constant 120, 8/s, 1 connection", Loops: Loops{Profile: line(120*ms, 0), Open: 8}, Later: same},
		{Name: "constant 120, 200/s, 64 connections",
			Loops: Loops{Profile: line(120*ms, 0), Open: 200, OpenSources: 64}, Later: same},
		{Name: "0.3 + 0.02n, 2,000/s, 64 connections",
			Loops: Loops{Profile: line(3*ms/10, ms/50), Open: 2000, OpenSources: 64}, Later: same},
		{Name: "20 + 1n, 2 replicas, 400/s, 64 connections",
			Loops: Loops{Profile: replicas(slow, 2), Open: 400, OpenSources: 64}, Later: same},
		{Name: "20 + 1n, 2,000/s in 100 ms, 64 connections",
			Loops: Loops{Profile: slow, Open: 2000, OpenSources: 64, Deadline: 100 * ms}, Later: same},
		{Name: "20 + 1n, 2,000/s in 100 ms, 1 connection",
			Loops: Loops{Profile: slow, Open: 2000, Deadline: 100 * ms}, Later: same},
		{Name: "constant 120, 30/s in 200 ms, 1 connection",
			Loops: Loops{Profile: line(120*ms, 0), Open: 30, Deadline: 200 * ms}, Later: same},
		{Name: "constant 120, 500/s in 150 ms, 16 connections",
			Loops: Loops{Profile: line(120*ms, 0), Open: 500, OpenSources: 16, Deadline: 150 * ms}, Later: same},
		{Name: "20 + 1n, 8 cameras", Loops: Loops{Profile: slow, Cameras: 8}, Later: same},
		{Name: "constant 120, 8 cameras", Loops: Loops{Profile: line(120*ms, 0), Cameras: 8}, Later: same},
		{Name: "5 + 0.5n, 30 cameras", Loops: Loops{Profile: fast, Cameras: 30}, Later: same},
		{Name: "20 + 1n, 4 cameras beside 8 clients",
			Loops: Loops{Profile: slow, Clients: 8, Cameras: 4}, Later: beside},
		{Name: "20 + 1n, 100/s beside 8 clients",
			Loops: Loops{Profile: slow, Clients: 8, Open: 100, OpenSources: 64}, Later: beside},
		{Name: "20 + 1n, 300/s beside 2 clients",
			Loops: Loops{Profile: slow, Clients: 2, Open: 300, OpenSources: 64}, Later: beside},
		{Name: "5 + 0.5n, 200/s beside 8 clients",
			Loops: Loops{Profile: fast, Clients: 8, Open: 200, OpenSources: 64}, Later: beside},
		{Name: "5 + 0.5n, 600/s beside 8 clients",
			Loops: Loops{Profile: fast, Clients: 8, Open: 600, OpenSources: 64}, Later: beside},
		{Name: "constant 120, 50/s beside 4 clients",
			Loops: Loops{Profile: line(120*ms, 0), Clients: 4, Open: 50, OpenSources: 64}, Later: beside},
		{Name: "20 + 1n, 2 replicas, 200/s beside 16 clients",
			Loops: Loops{Profile: replicas(slow, 2), Clients: 16, Open: 200, OpenSources: 64}, Later: beside},
		{Name: "20 + 1n, 4 replicas, 400/s beside 32 clients",
			Loops: Loops{Profile: replicas(slow, 4), Clients: 32, Open: 400, OpenSources: 64}, Later: beside},
		{Name: "5 + 0.5n, 4 replicas, 600/s beside 32 clients",
			Loops: Loops{Profile: replicas(fast, 4), Clients: 32, Open: 600, OpenSources: 64}, Later: beside},
		{Name: "20 + 1n, 2 at once, 200/s beside 16 clients",
			Loops: Loops{Profile: lanes(slow, 2), Clients: 16, Open: 200, OpenSources: 64}, Later: beside},
		{Name: "20 + 1n, 4 at once, 200/s beside 16 clients",
			Loops: Loops{Profile: lanes(slow, 4), Clients: 16, Open: 200, OpenSources: 64}, Later: beside},
	}
}

// A LoopOutcome is what a cell shows with the rule and without.
type LoopOutcome struct {
	LoopCell
	With, Without *LoopsResult
}

// RunLoopCells runs all cells, as many at once as there are jobs.
func RunLoopCells(ctx context.Context, cells []LoopCell, jobs int) ([]*LoopOutcome, error) {
	return all(ctx, cells, jobs, func(c LoopCell) (*LoopOutcome, error) {
		o := &LoopOutcome{LoopCell: c}
		var err error
		if o.With, err = c.run(true); err == nil {
			o.Without, err = c.run(false)
		}
		return o, err
	})
}

func (c *LoopCell) run(together bool) (*LoopsResult, error) {
	l := c.Loops
	if c.Leave > 0 {
		l.Think = leaving(c.Leave, 50*c.Clients, l.Think)
	}
	return RunLoops(l, scheduler.ModelConfig{Together: &together})
}

// Reference is the rate of which the clients must get a share.
func (o *LoopOutcome) Reference() float64 {
	if o.Possible > 0 {
		return o.Possible
	}
	return o.Without.Closed.Rate
}

const (
	mostFailures = 0.01 // of the clients' requests
	leastGain    = 1.05 // of the clients for which an open loop waits
)

// Broken returns the promises that the cell breaks, each with both figures.
func (o *LoopOutcome) Broken() (all []string) {
	broken := func(format string, args ...any) { all = append(all, o.Name+": "+fmt.Sprintf(format, args...)) }
	closed, open := &o.With.Closed, &o.With.Open
	if want := o.Share * o.Reference(); closed.Rate < want {
		broken("the clients have %.0f/s, want %.0f, which is %g of %.0f", closed.Rate, want, o.Share, o.Reference())
	}
	if most := cmp.Or(o.Failures, mostFailures); closed.Failed > most {
		broken("%.3f of the clients' requests fail, want at most %g", closed.Failed, most)
	}
	if o.Later == 0 {
		return all
	}
	before, clients := &o.Without.Open, &o.Without.Closed
	later := func(what string, is, was time.Duration) {
		if float64(is) > o.Later*float64(was) {
			broken("the %s of the open loop is %v, want at most %g of the %v without", what, is, o.Later, was)
		}
	}
	later("mean", open.Mean, before.Mean)
	if o.Clients == 0 {
		later("p99", open.P99, before.P99)
		if o.Later*open.Rate < before.Rate {
			broken("the open loop has %.1f answers/s, without it %.1f", open.Rate, before.Rate)
		}
		return all
	}
	if closed.Rate < leastGain*clients.Rate {
		broken("the clients have %.0f/s, want at least %g of the %.0f without", closed.Rate, leastGain, clients.Rate)
	}
	if is, was := closed.Rate+open.Rate, clients.Rate+before.Rate; is < was {
		broken("%.0f/s in all, want at least the %.0f without", is, was)
	}
	return all
}
