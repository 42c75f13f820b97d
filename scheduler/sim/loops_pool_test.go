package sim

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// Which of the free connections a request takes.
type pick func(r *rand.Rand, free int) int

func latest(_ *rand.Rand, free int) int { return free - 1 } // most HTTP libraries, and nginx
func longest(*rand.Rand, int) int       { return 0 }
func anyOf(r *rand.Rand, free int) int  { return r.IntN(free) }

// pool makes clients take any free one of n connections for each request; n = 0: a new one each
// time. all: the open loop's requests take them, too, as behind a load balancer.
func (l *Loops) pool(n int, which pick, all bool) {
	rng := rand.New(rand.NewPCG(1, 1))
	var free []uint64
	next, bound := uint64(0), uint64(n)
	for next < bound {
		next++
		free = append(free, next)
	}
	l.Take = func(open bool) (connection uint64) {
		if len(free) == 0 || open && !all {
			next++
			return next
		}
		i := which(rng, len(free))
		connection = free[i]
		free = slices.Delete(free, i, i+1)
		return connection
	}
	l.Give = func(connection uint64) {
		if connection <= bound {
			free = append(free, connection)
		}
	}
}

// TestPools: clients whose requests take any connection of a pool get what clients with connections
// of their own get, if the pool prefers those used last, or takes any. In other pools, and behind a
// load balancer, nobody is worse off than without the rule.
func TestPools(t *testing.T) {
	budgettest.OneGoroutine(t)
	slow := line(20*ms, ms)
	for _, c := range []struct {
		name string
		l    Loops
	}{
		{"constant 120, 8 clients", Loops{Profile: line(120*ms, 0), Clients: 8}},
		{"20 + 1n, 16 clients", Loops{Profile: slow, Clients: 16}},
		{"20 + 1n, 16 clients after about 20", Loops{Profile: slow, Clients: 16, Think: exponential(20 * ms)}},
		{"20 + 1n, 8 clients beside 100/s", Loops{Profile: slow, Clients: 8, Open: 100, OpenSources: 64}},
		{"20 + 1n, 200/s", Loops{Profile: slow, Open: 200, OpenSources: 64}},
	} {
		own, without := run(t, c.l, true), run(t, c.l, false)
		n := c.l.Clients
		for _, how := range []struct {
			name  string
			size  int
			which pick
			all   bool
			found bool // callers are recognised
		}{
			{"a pool as large", n, latest, false, true},
			{"a pool twice as large, the latest used", 2 * n, latest, false, true},
			{"a pool twice as large, any", 2 * n, anyOf, false, true},
			{"a pool twice as large, the one unused for longest", 2 * n, longest, false, false},
			{"a new connection for each", 0, nil, false, false},
			{"a load balancer, the latest used", 32, latest, true, true},
			{"a load balancer, any", 32, anyOf, true, false},
			{"a load balancer, a new connection for each", 0, nil, true, false},
		} {
			l := c.l
			l.pool(how.size, how.which, how.all)
			got := run(t, l, true)
			want := 0.99 * without.Closed.Rate
			if how.found {
				want = 0.97 * own.Closed.Rate
			}
			if got.Closed.Rate < want {
				t.Errorf("%s, %s: %.0f/s, want %.0f", c.name, how.name, got.Closed.Rate, want)
			}
			if later := float64(got.Open.Mean) / float64(without.Open.Mean); later > 1.2 || !how.found && later > 1.01 {
				t.Errorf("%s, %s: %.3f of the open loop's mean time without the rule", c.name, how.name, later)
			}
		}
	}
}
