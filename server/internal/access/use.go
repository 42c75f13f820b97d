package access

import (
	"sync"
	"sync/atomic"
	"time"
)

// Payers are the accounts that a request or a gRPC stream is charged to: an identity's, an
// address's, or both. Elements may be nil.
type Payers [2]*Account

// A Use records what one request has charged to its payers. The zero Use has charged nothing. The
// caller of Begin must call End, however the request ends; End may be called again.
type Use struct {
	payers   Payers
	bytes    int64 // in flight
	unread   int64 // of answers that are unread, or promised
	inFlight bool  // the request is in flight
}

// due reports whether the account is charged, and within which limits.
func (a *Account) due() (l *Limits, pays bool) {
	if a == nil {
		return nil, false
	}
	l = a.limits.Load()
	return l, l != nil || a.pays
}

// Begin charges a request of that many bytes to all payers, or to none if one refuses it.
func (u *Use) Begin(of Payers, bytes int64, now time.Time) error {
	var limits [len(of)]*Limits
	for i, a := range of {
		l, pays := a.due()
		if !pays {
			continue
		}
		if err := a.begin(bytes, l, a.clock(now)); err != nil {
			for j, before := range u.payers[:i] {
				if before != nil {
					before.undo(bytes, limits[j])
				}
			}
			u.payers = Payers{}
			return err
		}
		u.payers[i], limits[i] = a, l
	}
	for _, a := range u.payers {
		if a != nil {
			a.balance.admitted()
		}
	}
	u.bytes, u.inFlight = bytes, true
	return nil
}

// More charges further bytes of a request that has begun. After an error nothing more is charged.
func (u *Use) More(bytes int64, now time.Time) error {
	if bytes <= 0 {
		return nil
	}
	for i, a := range u.payers {
		if a == nil {
			continue
		}
		if err := a.addBytes(bytes, u.bytes+bytes, a.limits.Load(), a.clock(now)); err != nil {
			for _, before := range u.payers[:i] {
				if before != nil {
					before.returnBytes(bytes, before.limits.Load())
				}
			}
			return err
		}
	}
	u.bytes += bytes
	return nil
}

// Waste charges bytes of a request that are read only to be thrown away: they count for the rate of
// the requests that follow, and are not in flight.
func (u *Use) Waste(bytes int64, now time.Time) {
	for _, a := range u.payers {
		if a == nil {
			continue
		}
		if l := a.limits.Load(); l != nil && l.Of[BytesPerSecond] > 0 {
			a.rates[BytesPerSecond].pay(bytes, l.Of[BytesPerSecond], a.clock(now))
		}
	}
}

// Fits reports whether there is room for an answer of that many bytes. A nil Use always has room.
func (u *Use) Fits(bytes int) bool {
	if u == nil {
		return true
	}
	for _, a := range u.payers {
		if l, _ := a.due(); l != nil && l.Of[UnreadBytes] > 0 &&
			a.held[UnreadBytes].Load()+int64(bytes) > l.Of[UnreadBytes] {
			return false
		}
	}
	return true
}

// Promise reserves room for an answer of that many bytes; after an error nothing is reserved. A
// payer without unread answers may have one answer of any size. A nil Use reserves nothing.
func (u *Use) Promise(bytes int) error {
	if u == nil || bytes == 0 {
		return nil
	}
	for i, a := range u.payers {
		if a == nil {
			continue
		}
		if err := a.hold(UnreadBytes, int64(bytes)); err != nil {
			for _, before := range u.payers[:i] {
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

// Became replaces the promised size with the real size of the answer. On a nil Use it does nothing.
func (u *Use) Became(bytes int) {
	if u == nil {
		return
	}
	if more := int64(bytes) - u.unread; more != 0 {
		for _, a := range u.payers {
			if a != nil {
				a.release(UnreadBytes, -more)
			}
		}
		u.unread = int64(bytes)
	}
}

// Answered ends the request's share of what is in flight: the client may send the next request
// before it has read this answer.
func (u *Use) Answered() {
	if !u.inFlight {
		return
	}
	for _, a := range u.payers {
		if a != nil {
			a.bytes.end(u.bytes)
			a.requests.end(1)
		}
	}
	u.bytes, u.inFlight = 0, false
}

// End returns everything that is still charged.
func (u *Use) End() {
	u.Answered()
	u.Became(0)
	u.payers = Payers{}
}

// Part returns a Use for one of several answers to the request. It may be used on another
// goroutine.
func (u *Use) Part() Use { return Use{payers: u.payers} }

// Open charges one unit of a kind that is held, such as a gRPC stream, until Close of the result.
func (p Payers) Open(k Quota) (taken Payers, err error) {
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

// Close returns what Open has charged.
func (p Payers) Close(k Quota) {
	for _, a := range p {
		if a != nil {
			a.release(k, 1)
		}
	}
}

// Claims holds the accounts that a connection counts for, until it ends: one for each identity that
// has sent a request on it. A proxy's connection may serve several.
type Claims struct {
	mu       sync.Mutex
	accounts []*Account
	ended    bool

	// See pace.go.
	balance balance
	last    atomic.Pointer[excess] // the latest refusal of balance
	noted   atomic.Bool            // a request was noted since the last pause
}

// Add counts the connection for an account. Adding it again, or nil, has no effect.
func (c *Claims) Add(a *Account) error {
	if a == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	for _, other := range c.accounts {
		if other == a {
			return nil
		}
	}
	if err := a.hold(Connections, 1); err != nil {
		return err
	}
	c.accounts = append(c.accounts, a)
	return nil
}

// End removes the connection from all accounts.
func (c *Claims) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.accounts {
		a.release(Connections, 1)
	}
	c.accounts, c.ended = nil, true
}
