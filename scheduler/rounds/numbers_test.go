package rounds

import (
	"math"
	"testing"
	"time"
)

// TestNumbersOfAnySize: whatever one server says of its rows, others are told numbers of rows: a
// server takes no others, and would end its session.
func TestNumbersOfAnySize(t *testing.T) {
	for _, most := range []int{0, 64} {
		for _, n := range []int{3, math.MaxInt / 4, math.MaxInt/4 + 1, math.MaxInt/2 + 1, math.MaxInt} {
			x, s := newTable(1, most, 3)
			honest := s[2]
			for now := time.Duration(0); now < 100*ms; now += ms {
				for _, one := range s {
					x.Offer(one, n, math.MaxInt64-now/2, now)
				}
				grants, e, _ := x.Next(now)
				for _, g := range grants {
					if min(g.Here, g.Elsewhere, g.Target) < 0 {
						t.Errorf("at most %d rows, claims of %d: granted %+v", most, n, g)
					}
					b := batch{Rows: n, Grant: g.ID, Best: math.MaxInt/2 + 1, Left: n}
					if g.Seat == honest {
						b = batch{Rows: 4, Grant: g.ID, Best: 8}
					}
					x.Arrive(g.Seat, b, now)
				}
				if e == nil {
					continue
				}
				if e.Rows < 1 || most > 0 && e.Rows > most {
					t.Errorf("at most %d rows, claims of %d: an execution of %d", most, n, e.Rows)
				}
				x.Done(e, now)
			}
			if honest.served == 0 {
				t.Errorf("at most %d rows, claims of %d: nothing of the honest server is executed", most, n)
			}
		}
	}
}

// TestLeadOfClaims: a batch that claims more rows than an execution has does not let other servers
// be ahead for longer.
func TestLeadOfClaims(t *testing.T) {
	x, s := newTable(1, 1, 3)
	liar, urgent, patient := s[0], s[1], s[2]
	x.Arrive(liar, batch{Rows: 1 << 40}, 0)
	x.Done(executed(t, x, 0, 1), ms)
	for now := ms; now < 101*ms; now += ms {
		x.Offer(urgent, 1, 1, now)
		x.Offer(patient, 1, 0, now)
		g := granted(t, x, now, 1)
		x.Arrive(g[0].Seat, batch{Rows: 1, Grant: g[0].ID}, now)
		x.Done(executed(t, x, now, 1), now+ms)
	}
	if patient.served < 40 {
		t.Errorf("%.0f of 100 executions are of the server without deadlines, want a half", patient.served)
	}
}
