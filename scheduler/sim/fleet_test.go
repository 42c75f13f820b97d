package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// shared is a fleet of servers with the container of the table in scheduler/DESIGN.md.
func shared(servers, replicas int, load float64) Fleet {
	f := Fleet{Cell: Cell{Profile: Profiles()[1], Load: load, Warm: span(time.Second / 2), Length: span(time.Second),
		Seed: 1},
		Servers: servers, Grants: true, Delay: 100 * time.Microsecond, Jitter: 50 * time.Microsecond}
	f.Replicas = replicas
	return f
}

func runFleet(t *testing.T, f Fleet) *FleetResult {
	t.Helper()
	r, err := RunFleet(f, Strategies()[0])
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestShared: servers that share containers answer nearly as much in time as one server does, and
// without grants they do not. bench/sim has all cells.
func TestShared(t *testing.T) {
	budgettest.OneGoroutine(t)
	for _, c := range []struct {
		servers, replicas int
		load, share       float64
	}{{2, 1, 1.2, 0.93}, {4, 1, 0.8, 0.97}, {4, 1, 2, 0.90}, {2, 2, 2, 0.95}, {4, 8, 1.2, 0.90}} {
		if !budgettest.Whole() && c.servers*c.replicas > 4 {
			continue
		}
		t.Run(fmt.Sprintf("servers=%d/replicas=%d/load=%v", c.servers, c.replicas, c.load), func(t *testing.T) {
			t.Parallel()
			one, many := runFleet(t, shared(1, c.replicas, c.load)), runFleet(t, shared(c.servers, c.replicas, c.load))
			t.Logf("%.3f of one server's %.3f; %.1f rows in an execution, %.1f", many.Share()/one.Share(), one.Share(),
				many.MeanBatch, one.MeanBatch)
			if many.Share() < c.share*one.Share() {
				t.Errorf("%.3f in time, one server %.3f", many.Share(), one.Share())
			}
			if c.replicas > 1 {
				return
			}
			f := shared(c.servers, c.replicas, c.load)
			f.Grants = false
			if without := runFleet(t, f); without.Share() > 0.9*many.Share() {
				t.Errorf("%.3f without grants, %.3f with", without.Share(), many.Share())
			}
		})
	}
}

// TestAlone: with one server grants change nothing, not a single answer.
func TestAlone(t *testing.T) {
	budgettest.OneGoroutine(t)
	f := shared(1, 2, 1.2)
	with := runFleet(t, f)
	f.Grants = false
	if without := runFleet(t, f); with.Good != without.Good || with.Messages != without.Messages ||
		with.P50 != without.P50 || with.P99 != without.P99 {
		t.Errorf("%d in time with %d messages, p99 %v; without grants %d, %d and %v", with.Good, with.Messages,
			with.P99, without.Good, without.Messages, without.P99)
	}
}

// TestLiar: a server that claims a hundred times its rows, with a hundredth of the time left, takes
// little from the others.
func TestLiar(t *testing.T) {
	budgettest.OneGoroutine(t)
	f := shared(3, 1, 1.5)
	honest := runFleet(t, f)
	f.Lies = 100
	lying := runFleet(t, f)
	t.Logf("%v in time, %v with a liar", honest.ByServer, lying.ByServer)
	for n := 1; n < f.Servers; n++ {
		if float64(lying.ByServer[n]) < 0.6*float64(honest.ByServer[n]) {
			t.Errorf("server %d has %d answers, and %d without a liar", n, lying.ByServer[n], honest.ByServer[n])
		}
	}
}
