package access

import (
	"sync/atomic"
	"time"
)

// Refusals cost time, too: each request wakes the server and is read, checked and answered. A
// client that keeps sending more than its rate admits could take any amount of that time. So while
// many requests of a payer exceed a rate, the connections on which it is refused are read in turns,
// and the rate admits as many turns as requests. Requests that have arrived by their turn are
// admitted or refused at once. A client that waits for its answers sends less. The payer's requests
// are counted on all of its connections together: a client on a hundred of them would otherwise be
// refused a hundred times as often before it is read in turns.
const (
	// A refusal counts as much as this many admissions. A client that has one request at a time is
	// admitted at nearly every turn: if both counted the same, it would be read without turns until
	// as many were refused again.
	refusal = 4
	// A payer is read in turns when its latest refusals outweigh its admissions by manyRefused. At
	// most mostRefused is remembered, per payer and per connection.
	manyRefused = 16 * refusal
	mostRefused = 2 * manyRefused
	// A connection waits for its turn for at most longestTurn, and for at most one ofBurst-th of
	// the burst: the client loses nothing of what it may save up meanwhile.
	longestTurn = 250 * time.Millisecond
	ofBurst     = 4
)

// An excess is a request that exceeded a rate.
type excess struct {
	account *Account
	kind    Quota // of the rate
	price   time.Duration
}

// balance is the weight of the latest refusals, less the admissions. It may miss one of several
// concurrent updates.
type balance struct{ atomic.Int32 }

func (b *balance) refused() {
	n := b.Load()
	b.CompareAndSwap(n, min(n+refusal, mostRefused))
}

func (b *balance) admitted() {
	if n := b.Load(); n > 0 {
		b.CompareAndSwap(n, n-1)
	}
}

// count takes the outcome of a request into account.
func (c *Claims) count(err error) {
	c.noted.Store(true)
	if err == nil {
		c.balance.admitted()
		return
	}
	if e, ok := err.(*QuotaError); ok && e.excess != nil {
		c.last.Store(e.excess)
		c.balance.refused()
	}
}

// Begin is Use.Begin for a request on the connection, whose outcome it counts.
func (c *Claims) Begin(u *Use, of Payers, bytes int64, now time.Time) error {
	err := u.Begin(of, bytes, now)
	c.count(err)
	return err
}

// Again refuses a request before it is read, when its size is not known yet, if the last refused
// request on the connection exceeded a rate of these payers and nothing of that rate is left yet.
// That costs less than receiving a request that Begin would then refuse. Otherwise it returns nil,
// and the caller must read the request and call Begin, which charges it. of is called only after a
// recent refusal.
func (c *Claims) Again(of func() Payers, now time.Time) *QuotaError {
	if c.balance.Load() == 0 {
		return nil
	}
	last := c.last.Load()
	a := last.account
	l := a.limits.Load()
	if l == nil || l.Of[last.kind] == 0 {
		return nil
	}
	if payers := of(); payers[0] != a && payers[1] != a {
		return nil
	}
	at := a.clock(now)
	again := a.expect(last.kind, l, at)
	if again == 0 {
		return nil
	}
	a.requests.begin(1)
	a.requests.end(1)
	err := a.decline(last, l.Of[last.kind], again, at)
	c.count(err)
	return err
}

// expect returns when to retry a request if nothing of a rate is left, as take does; 0: the request
// may be read. Several requests can pass before the first of them is charged, and would exceed the
// rate together, so each counts as charged from now on. A request that is never charged, because
// its client disconnects before it is complete, costs no more than one that is. For bytes per
// second nothing is expected, since the size of the request is not known: too high a guess would
// refuse requests that the rate admits.
func (a *Account) expect(k Quota, l *Limits, now time.Duration) (again time.Duration) {
	if k == BytesPerSecond {
		return wait(a.rates[k].paid.Load(), l.burst(), now)
	}
	for {
		before := a.expected.paid.Load()
		paid := max(before, a.rates[k].paid.Load())
		if again := wait(paid, l.burst(), now); again > 0 {
			return again
		}
		if a.expected.paid.CompareAndSwap(before, int64(max(time.Duration(paid), now)+price(1, l.Of[k]))) {
			return 0
		}
	}
}

// Pause returns how long to wait before the next read of the connection, usually 0. A connection
// that several identities share, such as a proxy's, is never paused: one identity would make the
// others wait. A turn is divided into that many parts, with a read in each: with more parts, fewer
// requests are refused at a time, but more often.
//
// There is one pause at most for each request that was charged or refused: the rest of a large
// message is read without any.
func (c *Claims) Pause(parts int) time.Duration {
	if c.balance.Load() == 0 {
		return 0
	}
	last := c.last.Load()
	if last.account.balance.Load() < manyRefused {
		return 0
	}
	c.mu.Lock()
	shared := len(c.accounts) > 1
	c.mu.Unlock()
	if shared || !c.noted.Load() {
		return 0
	}
	c.noted.Store(false)
	return last.account.turn(last.price/time.Duration(parts), time.Now())
}

// turn takes the next turn and returns the time until it. The interval between two turns is the
// price of the declined request.
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
