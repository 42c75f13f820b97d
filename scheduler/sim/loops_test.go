package sim

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
)

const ms = time.Millisecond

// line is a replica that takes a + b·rows.
func line(a, b time.Duration) Profile { return Profile{A: a, B: b, Noise: 0.02, Replicas: 1} }

func replicas(p Profile, n int) Profile { p.Replicas = n; return p }

func lanes(p Profile, n int) Profile { p.Concurrency = n; return p }

func steps() Profile {
	p := line(0, 0)
	p.Curve = func(n int) time.Duration { return 4*ms + 8*ms*time.Duration((n+15)/16) }
	return p
}

// Think times.

func around(mean time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return time.Duration((1 + 0.1*r.NormFloat64()) * float64(mean)) }
}

func exponential(mean time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(mean)) }
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

func run(t *testing.T, l Loops, together bool) *LoopsResult {
	t.Helper()
	l.Warm, l.Length, l.Seed = 5*time.Second, 10*time.Second, 1
	r, err := RunLoops(l, scheduler.ModelConfig{Together: &together})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestCallersShareBatches: clients that ask again on each answer get at least the given share of
// the possible rate, which is that of groups that are as large as the model makes worth it.
func TestCallersShareBatches(t *testing.T) {
	const z = 0.3e-3
	accelerator, fast := line(120*ms, 0), line(5*ms, ms/2)
	for _, c := range []struct {
		name     string
		l        Loops
		possible float64 // answers per second
		share    float64
	}{
		{"constant 120, 2 clients", Loops{Profile: accelerator, Clients: 2}, 2 / (0.12 + z), 0.95},
		{"constant 120, 8 clients", Loops{Profile: accelerator, Clients: 8}, 8 / (0.12 + z), 0.95},
		{"constant 120, 32 clients", Loops{Profile: accelerator, Clients: 32}, 32 / (0.12 + z), 0.95},
		{"constant 120, 64 clients", Loops{Profile: accelerator, Clients: 64}, 64 / (0.12 + z), 0.95},
		{"constant 50, 2 clients", Loops{Profile: line(50*ms, 0), Clients: 2}, 2 / (0.05 + z), 0.95},
		{"constant 50, 2 replicas, 2 clients", Loops{Profile: replicas(line(50*ms, 0), 2), Clients: 2}, 2 / (0.05 + z), 0.95},
		{"constant 50, 2 replicas, 3 clients", Loops{Profile: replicas(line(50*ms, 0), 2), Clients: 3}, 3 / (0.05 + z), 0.95},
		{"20 + 1n, 2 clients", Loops{Profile: line(20*ms, ms), Clients: 2}, 2 / (0.022 + z), 0.95},
		{"20 + 1n, 8 clients", Loops{Profile: line(20*ms, ms), Clients: 8}, 8 / (0.028 + z), 0.95},
		{"20 + 1n, 32 clients", Loops{Profile: line(20*ms, ms), Clients: 32}, 32 / (0.052 + z), 0.95},
		{"5 + 0.5n, 2 clients", Loops{Profile: fast, Clients: 2}, 2 / (0.006 + z), 0.95},
		{"5 + 0.5n, 8 clients", Loops{Profile: fast, Clients: 8}, 8 / (0.009 + z), 0.95},
		{"5 + 0.5n, 32 clients", Loops{Profile: fast, Clients: 32}, 32 / (0.021 + z), 0.95},
		{"1 + 0.05n, 32 clients", Loops{Profile: line(ms, ms/20), Clients: 32}, 32 / (0.0026 + z), 0.95},
		{"10 + 5n, 8 clients", Loops{Profile: line(10*ms, 5*ms), Clients: 8}, 8 / (0.05 + z), 0.95},
		{"0.1 + 5n, 8 clients: nothing to gain", Loops{Profile: line(ms/10, 5*ms), Clients: 8}, 199, 0.95},
		{"0.3 + 0.02n, 32 clients: must not wait", Loops{Profile: line(3*ms/10, ms/50), Clients: 32}, 25800, 0.95},
		{"constant 120, 32 clients after 5", Loops{Profile: accelerator, Clients: 32, Think: around(5 * ms)}, 32 / 0.126, 0.95},
		{"constant 120, 32 clients after 20", Loops{Profile: accelerator, Clients: 32, Think: around(20 * ms)}, 32 / 0.142, 0.95},
		{"constant 120, 32 clients after 50", Loops{Profile: accelerator, Clients: 32, Think: around(50 * ms)}, 32 / 0.17, 0.9},
		{"constant 120, 32 clients after about 20", Loops{Profile: accelerator, Clients: 32, Think: exponential(20 * ms)}, 180, 0.95},
		{"20 + 1n, 32 clients after about 20: nothing to gain", Loops{Profile: line(20*ms, ms), Clients: 32, Think: exponential(20 * ms)}, 420, 0.95},
		{"20 + 1n, 8 clients after about 5, seldom long", Loops{Profile: line(20*ms, ms), Clients: 8, Think: lognormal(5*ms, 1.5)}, 209, 0.95},
		{"constant 120, 2 replicas, 32 clients", Loops{Profile: replicas(accelerator, 2), Clients: 32}, 32 / (0.12 + z), 0.95},
		{"constant 120, 2 at once, 32 clients", Loops{Profile: lanes(accelerator, 2), Clients: 32}, 32 / (0.12 + z), 0.95},
		{"20 + 1n, 2 replicas, 32 clients", Loops{Profile: replicas(line(20*ms, ms), 2), Clients: 32}, 32 / (0.036 + z), 0.95},
		{"20 + 1n, 4 replicas, 32 clients", Loops{Profile: replicas(line(20*ms, ms), 4), Clients: 32}, 32 / (0.028 + z), 0.95},
		{"constant 120, 4 connections with 8 in flight", Loops{Profile: accelerator, Clients: 4, InFlight: 8}, 32 / (0.12 + z), 0.95},
		{"20 + 1n, 1 connection with 16 in flight", Loops{Profile: line(20*ms, ms), Clients: 1, InFlight: 16}, 16 / (0.036 + z), 0.95},
		{"20 + 1n, 32 clients, 60 ms", Loops{Profile: line(20*ms, ms), Clients: 32, Deadline: 60 * ms}, 32 / (0.052 + z), 0.95},
		{"20 + 1n, 2 replicas, 3 clients with 8 rows", Loops{Profile: replicas(line(20*ms, ms), 2), Clients: 3, Rows: 8}, 3 / (0.036 + z), 0.9},
		{"20 + 1n, 4 replicas, 5 clients with 8 rows", Loops{Profile: replicas(line(20*ms, ms), 4), Clients: 5, Rows: 8}, 5 / (0.036 + z), 0.9},
		{"steps of 16, 16 clients", Loops{Profile: steps(), Clients: 16}, 16 / (0.012 + z), 0.95},
		{"steps of 16, 24 clients", Loops{Profile: steps(), Clients: 24}, 24 / (0.02 + z), 0.95},
		{"steps of 16, 32 clients", Loops{Profile: steps(), Clients: 32}, 32 / (0.02 + z), 0.95},
		{"bursts of 5", Loops{Profile: line(20*ms, ms), Clients: 8, Think: either(300*time.Microsecond, 200*ms, 5)}, 128, 0.95},
	} {
		r := run(t, c.l, true)
		if of := r.Closed.Rate / c.possible; of < c.share {
			t.Errorf("%s: %.0f/s, %.2f of the possible %.0f, want %g", c.name, r.Closed.Rate, of, c.possible, c.share)
		}
		if r.Closed.Failed > 0.01 {
			t.Errorf("%s: %.3f of the requests fail, want at most 0.01", c.name, r.Closed.Failed)
		}
	}
}

// TestOpenLoopsDoNotWait: with the rule open loops are as late as without it. Beside callers they
// are at most a fifth later, and only where callers get more answers.
func TestOpenLoopsDoNotWait(t *testing.T) {
	for _, c := range []struct {
		name  string
		l     Loops
		later float64 // factor of the mean
	}{
		{"5 + 0.5n, 400/s, 1 connection", Loops{Profile: line(5*ms, ms/2), Open: 400}, 1.01},
		{"5 + 0.5n, 1,500/s, 64 connections", Loops{Profile: line(5*ms, ms/2), Open: 1500, OpenSources: 64}, 1.01},
		{"5 + 0.5n, 1,500/s, 1,000 connections", Loops{Profile: line(5*ms, ms/2), Open: 1500, OpenSources: 1000}, 1.01},
		{"5 + 0.5n, 1,800/s in 50 ms", Loops{Profile: line(5*ms, ms/2), Open: 1800, OpenSources: 64, Deadline: 50 * ms}, 1.01},
		{"20 + 1n, 20/s", Loops{Profile: line(20*ms, ms), Open: 20}, 1.01},
		{"20 + 1n, 200/s, 4 connections", Loops{Profile: line(20*ms, ms), Open: 200, OpenSources: 4}, 1.01},
		{"20 + 1n, 600/s, 64 connections", Loops{Profile: line(20*ms, ms), Open: 600, OpenSources: 64}, 1.01},
		{"constant 120, 8/s, 1 connection", Loops{Profile: line(120*ms, 0), Open: 8}, 1.01},
		{"0.3 + 0.02n, 2,000/s", Loops{Profile: line(3*ms/10, ms/50), Open: 2000, OpenSources: 64}, 1.01},
		{"20 + 1n, 100/s beside 8 clients", Loops{Profile: line(20*ms, ms), Clients: 8, Open: 100, OpenSources: 64}, 1.2},
		{"20 + 1n, 300/s beside 2 clients", Loops{Profile: line(20*ms, ms), Clients: 2, Open: 300, OpenSources: 64}, 1.2},
		{"5 + 0.5n, 200/s beside 8 clients", Loops{Profile: line(5*ms, ms/2), Clients: 8, Open: 200, OpenSources: 64}, 1.2},
		{"5 + 0.5n, 600/s beside 8 clients", Loops{Profile: line(5*ms, ms/2), Clients: 8, Open: 600, OpenSources: 64}, 1.2},
		{"constant 120, 50/s beside 4 clients", Loops{Profile: line(120*ms, 0), Clients: 4, Open: 50, OpenSources: 64}, 1.2},
	} {
		r, without := run(t, c.l, true), run(t, c.l, false)
		if later := float64(r.Open.Mean) / float64(without.Open.Mean); later > c.later {
			t.Errorf("%s: the mean is %.3f of that without, want at most %g", c.name, later, c.later)
		}
		if c.l.Clients > 0 && r.Closed.Rate < 1.05*without.Closed.Rate {
			t.Errorf("%s: callers get %.0f/s, without it %.0f/s", c.name, r.Closed.Rate, without.Closed.Rate)
		}
	}
}
