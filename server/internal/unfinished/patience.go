package unfinished

import (
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/plural"
)

// Doors give a message ten seconds by default, and a second for each 16 KiB of it
// (message_timeout). From a half-full room on the room gives less, by the same measure, down to an
// eighth of it when it is full: 1.25 s, and a second for each 128 KiB.
const (
	patience   = 10 * time.Second
	leastPart  = 8
	watchEvery = 500 * time.Millisecond
)

// watch checks the messages regularly as long as memory is short. mu is held.
func (r *Room) watch() {
	if !r.watching && r.short() {
		r.watching = true
		r.refusedByPool = r.pool.Refused()
		time.AfterFunc(watchEvery, r.check)
	}
}

// short reports whether some messages have less patience than usual.
func (r *Room) short() bool {
	return len(r.known.parties)+len(r.strangers.parties) > 0 &&
		(r.patience(&r.known) < 1 || r.patience(&r.strangers) < 1)
}

// patience returns the part of the usual time that messages have.
func (r *Room) patience(p *part) float64 {
	used := 0.0
	if p.limit > 0 {
		used = float64(p.held) / float64(p.limit)
	}
	if budget := r.pool.Budget(); budget > 0 {
		used = max(used, float64(r.pool.InUse())/float64(budget))
	}
	return min(max(2*(1-used), 1./leastPart), 1)
}

// check ends the messages that are too slow for the memory that is left, and the largest ones if
// the pool has had none for others since the last check.
func (r *Room) check() {
	r.mu.Lock()
	var ended []ending
	now := time.Now()
	for _, p := range []*part{&r.strangers, &r.known} {
		allowed := r.patience(p)
		var late []*Message
		for _, one := range p.parties {
			for _, m := range one.messages {
				if now.Sub(m.began) >= m.allowed(allowed) {
					late = append(late, m)
				}
			}
		}
		for _, m := range late {
			r.stats.Slow++
			r.end(m, errSlow(m, now, allowed))
			ended = append(ended, ending{m.sender.Reader, m.ended})
		}
	}
	for r.refusedByPool != r.pool.Refused() && r.poolFull(0) {
		v := r.heaviest()
		if v == nil {
			break
		}
		r.stats.Most++
		r.end(v, errMost(v))
		ended = append(ended, ending{v.sender.Reader, v.ended})
	}
	r.refusedByPool = r.pool.Refused()
	if r.watching = r.short(); r.watching {
		time.AfterFunc(watchEvery, r.check)
	}
	r.mu.Unlock()
	tell(ended)
}

// heaviest returns the message that ends first; nil: there is none.
func (r *Room) heaviest() *Message {
	for _, p := range []*part{&r.strangers, &r.known} {
		if len(p.parties) > 0 && p.held > 0 {
			return p.parties[0].messages[0]
		}
	}
	return nil
}

// allowed is the time that the message has for that part of the usual patience.
func (m *Message) allowed(part float64) time.Duration {
	return time.Duration(float64(setting.Allowance(patience, m.arrived.Load())) * part)
}

func errSlow(m *Message, now time.Time, part float64) error {
	return fmt.Errorf("%w: %s of the message arrived in %v; memory for messages that are still arriving is short, so that %v were allowed: send the message again later",
		scheduler.ErrOverloaded, plural.Of(m.arrived.Load(), "byte"), now.Sub(m.began).Round(time.Millisecond),
		m.allowed(part).Round(time.Millisecond))
}
