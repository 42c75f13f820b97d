package sim

import (
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// TestCallersOfSeveralServers: clients of several servers that share a container get nearly what
// as many get from one server, and open loops are no later.
func TestCallersOfSeveralServers(t *testing.T) {
	budgettest.OneGoroutine(t)
	accelerator, fast := line(120*ms, 0), line(5*ms, ms/2)
	for _, c := range []struct {
		name    string
		l       Loops
		servers int
		share   float64 // of the rate with one server
	}{
		{"constant 50, 1 + 1", Loops{Profile: line(50*ms, 0), Clients: 2}, 2, 0.95},
		{"constant 50, 4 + 4", Loops{Profile: line(50*ms, 0), Clients: 8}, 2, 0.95},
		{"constant 120, 16 + 16", Loops{Profile: accelerator, Clients: 32}, 2, 0.95},
		{"constant 120, 4 servers of 8", Loops{Profile: accelerator, Clients: 32}, 4, 0.95},
		{"constant 120, 8 servers of 1", Loops{Profile: accelerator, Clients: 8}, 8, 0.95},
		{"20 + 1n, 1 + 1", Loops{Profile: line(20*ms, ms), Clients: 2}, 2, 0.95},
		{"20 + 1n, 4 + 4", Loops{Profile: line(20*ms, ms), Clients: 8}, 2, 0.95},
		{"20 + 1n, 2 + 1", Loops{Profile: line(20*ms, ms), Clients: 3}, 2, 0.95},
		{"20 + 1n, 16 + 16", Loops{Profile: line(20*ms, ms), Clients: 32}, 2, 0.95},
		{"5 + 0.5n, 1 + 1", Loops{Profile: fast, Clients: 2}, 2, 0.9},
		{"5 + 0.5n, 4 + 4", Loops{Profile: fast, Clients: 8}, 2, 0.95},
		{"5 + 0.5n, 16 + 16", Loops{Profile: fast, Clients: 32}, 2, 0.95},
		{"1 + 0.05n, 16 + 16", Loops{Profile: line(ms, ms/20), Clients: 32}, 2, 0.8},
		{"0.1 + 5n, 4 + 4: nothing to gain", Loops{Profile: line(ms/10, 5*ms), Clients: 8}, 2, 0.95},
		{"0.1 + 5n, 1 + 1: nothing to gain", Loops{Profile: line(ms/10, 5*ms), Clients: 2}, 2, 0.95},
		{"0.3 + 0.02n, 16 + 16: must not wait", Loops{Profile: line(3*ms/10, ms/50), Clients: 32}, 2, 0.8},
		{"constant 120, 16 + 16 after 5", Loops{Profile: accelerator, Clients: 32, Think: around(5 * ms)}, 2, 0.95},
		{"constant 120, 16 + 16 after 20", Loops{Profile: accelerator, Clients: 32, Think: around(20 * ms)}, 2, 0.9},
		{"constant 120, 16 + 16 after about 20", Loops{Profile: accelerator, Clients: 32, Think: exponential(20 * ms)},
			2, 0.95},
		{"20 + 1n, 16 + 16 after about 20", Loops{Profile: line(20*ms, ms), Clients: 32, Think: exponential(20 * ms)},
			2, 0.95},
		{"20 + 1n, 2 replicas, 16 + 16", Loops{Profile: replicas(line(20*ms, ms), 2), Clients: 32}, 2, 0.9},
		{"constant 120, 4 replicas, 4 + 4 after about 20",
			Loops{Profile: replicas(accelerator, 4), Clients: 8, Think: exponential(20 * ms)}, 2, 0.95},
		{"5 + 0.5n, 4 replicas, 4 + 4 beside 100/s",
			Loops{Profile: replicas(fast, 4), Clients: 8, Open: 100, OpenSources: 64}, 2, 0.9},
		{"steps of 16, 12 + 12", Loops{Profile: steps(), Clients: 24}, 2, 0.9},
		{"bursts of 5, 4 + 4",
			Loops{Profile: line(20*ms, ms), Clients: 8, Burst: 5, Pause: 200 * ms}, 2, 0.9},
		{"20 + 1n, 4 + 4 beside 100/s", Loops{Profile: line(20*ms, ms), Clients: 8, Open: 100, OpenSources: 64}, 2,
			0.9},
		{"constant 120, 2 + 2 beside 50/s", Loops{Profile: accelerator, Clients: 4, Open: 50, OpenSources: 64}, 2, 0.9},
		{"20 + 1n, 50/s", Loops{Profile: line(20*ms, ms), Open: 50, OpenSources: 64}, 2, 0},
		{"20 + 1n, 200/s", Loops{Profile: line(20*ms, ms), Open: 200, OpenSources: 64}, 2, 0},
		{"constant 120, 16/s", Loops{Profile: accelerator, Open: 16, OpenSources: 64}, 4, 0},
		{"5 + 0.5n, 300/s", Loops{Profile: fast, Open: 300, OpenSources: 64}, 4, 0},
	} {
		c.l.Delay, c.l.Jitter = 100*time.Microsecond, 50*time.Microsecond
		c.l.Servers = 1
		one := run(t, c.l, true)
		c.l.Servers = c.servers
		many := run(t, c.l, true)
		if later := float64(many.Open.Mean) / float64(one.Open.Mean); later > 1.06 {
			t.Errorf("%s: %v is the mean of the open loop, with one server %v", c.name, many.Open.Mean, one.Open.Mean)
		}
		if of := many.Closed.Rate / one.Closed.Rate; of < c.share {
			t.Errorf("%s: %.0f/s, %.2f of the %.0f with one server, want %g", c.name, many.Closed.Rate, of,
				one.Closed.Rate, c.share)
		}
	}
}
