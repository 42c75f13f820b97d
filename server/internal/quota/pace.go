package quota

import (
	"time"
)

// Refusals cost time, too: each request wakes the server, is read, checked and answered. A client
// that goes on sending more than its rate admits could take any amount of that time. So a
// connection many of whose requests exceed a rate is read in turns, and the rate admits as many
// turns as requests. What has arrived by then is admitted or refused at once. A client that waits
// for its answers sends less.
const (
	// A refusal counts as much as this many admissions. A client that has one request at a time is
	// admitted with nearly each turn: if these counted the same, it would be read without turns
	// until as many were refused again.
	refusal = 4
	// A connection is read in turns when its latest refusals count for so much more than its
	// admissions. At most mostRefused of that is remembered.
	manyRefused = 16 * refusal
	mostRefused = 2 * manyRefused
	// A connection waits for its turn for at most longestTurn, and for at most one ofBurst-th of
	// the burst: nothing of what a client may save up is lost meanwhile.
	longestTurn = 250 * time.Millisecond
	ofBurst     = 4
)

// declined is a request that exceeded a rate.
type declined struct {
	by    *Account
	price time.Duration
}

// note counts the outcome of a request. It may miss one of several concurrent requests.
func (c *Claims) note(err error) {
	refused := c.refused.Load()
	if err == nil {
		if refused > 0 {
			c.refused.Store(refused - 1)
		}
		return
	}
	if e, ok := err.(*Error); ok && e.declined != nil {
		c.last.Store(e.declined)
		c.refused.Store(min(refused+refusal, mostRefused))
	}
}

// Begin is Use.Begin for a request on the connection, whose outcome it counts.
func (c *Claims) Begin(u *Use, of Payers, bytes int64, now time.Time) error {
	err := u.Begin(of, bytes, now)
	c.note(err)
	return err
}

// Pause is how long to wait before the next read of the connection, usually 0. A connection that
// several identities share, such as a proxy's, is never paused: the others would wait for what one
// of them does.
func (c *Claims) Pause() time.Duration {
	if c.refused.Load() < manyRefused {
		return 0
	}
	c.mu.Lock()
	shared := len(c.of) > 1
	c.mu.Unlock()
	if shared {
		return 0
	}
	last := c.last.Load()
	return last.by.turn(last.price, time.Now())
}

// turn takes the next turn and returns the time until then. A turn follows the one before it after
// the price of the request that was declined.
func (a *Account) turn(price time.Duration, at time.Time) time.Duration {
	l := a.limits.Load()
	if l == nil {
		return 0
	}
	most := min(longestTurn, l.burst()/ofBurst)
	now := a.clock(at)
	for {
		before := a.turns.Load()
		wait := max(time.Duration(before)-now, 0) + price
		if wait > most {
			return most
		}
		if a.turns.CompareAndSwap(before, int64(now+wait)) {
			return wait
		}
	}
}
