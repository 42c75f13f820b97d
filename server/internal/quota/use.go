package quota

import (
	"sync"
	"time"
)

// Payers are the accounts that a request, or a gRPC stream, is charged to: an identity's, an
// address', or both; nil: none.
type Payers [2]*Account

// A Use is what one request has taken of its payers. The zero Use has taken nothing. Whoever begins
// one ends it, however the request ends; ending it again has no effect.
type Use struct {
	of     Payers
	bytes  int64 // in flight
	unread int64 // answers on their way to the client, or about to be
	flies  bool  // the request is in flight
}

// due is whether somebody pays, and within which limits.
func (a *Account) due() (l *Limits, pays bool) {
	if a == nil {
		return nil, false
	}
	l = a.limits.Load()
	return l, l != nil || a.pays
}

// Begin charges a request of so many bytes, or none if it is refused.
func (u *Use) Begin(of Payers, bytes int64, now time.Time) error {
	var limits [len(of)]*Limits
	for i, a := range of {
		l, pays := a.due()
		if !pays {
			continue
		}
		if err := a.begin(bytes, l, a.clock(now)); err != nil {
			for j, before := range u.of[:i] {
				if before != nil {
					before.unbegin(bytes, limits[j])
				}
			}
			u.of = Payers{}
			return err
		}
		u.of[i], limits[i] = a, l
	}
	u.bytes, u.flies = bytes, true
	return nil
}

// More charges bytes that the request has beside those that it began with. An error takes nothing.
func (u *Use) More(bytes int64, now time.Time) error {
	if bytes <= 0 {
		return nil
	}
	for i, a := range u.of {
		if a == nil {
			continue
		}
		if err := a.more(bytes, u.bytes+bytes, a.limits.Load(), a.clock(now)); err != nil {
			for _, before := range u.of[:i] {
				if before != nil {
					before.less(bytes, before.limits.Load())
				}
			}
			return err
		}
	}
	u.bytes += bytes
	return nil
}

// Fits reports whether there is room for an answer of so many bytes; always of a nil Use.
func (u *Use) Fits(bytes int) bool {
	if u == nil {
		return true
	}
	for _, a := range u.of {
		if l, _ := a.due(); l != nil && l.Of[UnreadBytes] > 0 && a.held[UnreadBytes].Load()+int64(bytes) > l.Of[UnreadBytes] {
			return false
		}
	}
	return true
}

// Promise takes room for an answer of so many bytes, or none; a nil Use needs none. A payer that
// has no unread answer may have one of any size.
func (u *Use) Promise(bytes int) error {
	if u == nil || bytes == 0 {
		return nil
	}
	for i, a := range u.of {
		if a == nil {
			continue
		}
		if err := a.hold(UnreadBytes, int64(bytes)); err != nil {
			for _, before := range u.of[:i] {
				if before != nil {
					before.release(UnreadBytes, int64(bytes))
				}
			}
			return err
		}
	}
	u.unread = int64(bytes)
	return nil
}

// Became says how large the answer is that was promised; of a nil Use nobody wants to know.
func (u *Use) Became(bytes int) {
	if u == nil {
		return
	}
	if more := int64(bytes) - u.unread; more != 0 {
		for _, a := range u.of {
			if a != nil {
				a.release(UnreadBytes, -more)
			}
		}
		u.unread = int64(bytes)
	}
}

// Answered ends what is in flight: the client may ask again before it has read the answer.
func (u *Use) Answered() {
	if !u.flies {
		return
	}
	for _, a := range u.of {
		if a != nil {
			a.bytes.end(u.bytes)
			a.requests.end(1)
		}
	}
	u.bytes, u.flies = 0, false
}

// End gives back all that is left.
func (u *Use) End() {
	u.Answered()
	u.Became(0)
	u.of = Payers{}
}

// Part is a Use for one of several answers to the request, which other goroutines may have.
func (u *Use) Part() Use { return Use{of: u.of} }

// Open charges something of that kind, a gRPC stream, which Close of what is returned ends.
func (p Payers) Open(k Kind) (taken Payers, err error) {
	for i, a := range p {
		if _, pays := a.due(); !pays {
			continue
		}
		if err := a.hold(k, 1); err != nil {
			taken.Close(k)
			return Payers{}, err
		}
		taken[i] = a
	}
	return taken, nil
}

// Close ends what Open has returned.
func (p Payers) Close(k Kind) {
	for _, a := range p {
		if a != nil {
			a.release(k, 1)
		}
	}
}

// Claims are for whom a connection counts: each identity that has asked on it, until it ends. A
// proxy's connection may be several identities'.
type Claims struct {
	mu    sync.Mutex
	of    []*Account
	ended bool
}

// Add counts the connection for an identity's account, once; nil is none's.
func (c *Claims) Add(a *Account) error {
	if a == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	for _, other := range c.of {
		if other == a {
			return nil
		}
	}
	if err := a.hold(Connections, 1); err != nil {
		return err
	}
	c.of = append(c.of, a)
	return nil
}

// End takes the connection off all accounts.
func (c *Claims) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.of {
		a.release(Connections, 1)
	}
	c.of, c.ended = nil, true
}
