package operate

import (
	"fmt"
	"time"

	"github.com/shivad/shivad/server/config"
)

// A scaling decides how many processes a container has. It scales up at once, since requests are
// refused meanwhile, and down when fewer have sufficed for a while, since a start takes long and
// the load may come back. It uses only numbers and times.
type scaling struct {
	wanted int

	since time.Time // since when fewer have sufficed; zero: they do not suffice
	most  int       // highest number needed since then
}

// A reading is the input of a scaling decision.
type reading struct {
	bounds config.Replicas
	needed int
	room   int // the most that memory and cores allow
	why    string
}

// decide returns how many processes there should be, and why, if the number has changed.
func (s *scaling) decide(now time.Time, r reading) (wanted int, why string) {
	top := max(r.bounds.Min, min(r.bounds.Max, r.room))
	needed := min(max(r.needed, r.bounds.Min), top)
	before := s.wanted
	switch {
	case s.wanted > top:
		why = fmt.Sprintf("max is %d", r.bounds.Max)
		if r.room < r.bounds.Max {
			why = fmt.Sprintf("memory and cores allow %d", r.room)
		}
		s.wanted, s.since = top, time.Time{}
	case needed > s.wanted:
		why = r.why
		if r.needed < needed {
			why = fmt.Sprintf("min is %d", r.bounds.Min)
		} else if r.needed > needed {
			why += fmt.Sprintf("; %s", s.bound(r))
		}
		s.wanted, s.since = needed, time.Time{}
	case needed == s.wanted:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since, s.most = now, needed
	default:
		s.most = max(s.most, needed)
		if now.Sub(s.since) >= r.bounds.DownAfter {
			why = fmt.Sprintf("%d or fewer were needed for %v (down_after); now %s", s.most, r.bounds.DownAfter, r.why)
			s.wanted, s.since, s.most = s.most, now, needed
		}
	}
	if s.wanted == before {
		why = ""
	}
	return s.wanted, why
}

// bound says why there are fewer processes than needed.
func (s *scaling) bound(r reading) string {
	if r.room < r.bounds.Max {
		return fmt.Sprintf("memory and cores allow %d", max(r.room, r.bounds.Min))
	}
	return fmt.Sprintf("max is %d", r.bounds.Max)
}
