package grpc

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/metrics"
)

// HTTP/2 bounds the calls that a connection has at one time, and a call that is cancelled is
// none any more; but its rows may be executing, and are not taken back. So a client that asks
// and cancels at once has as much work done as it likes, beside everybody else's. grpc-go
// bounds the handlers that run at one time, and no rate.
//
// cancels is what a connection may cancel: so many calls, so many more in each second, and some
// more for each that it lets be answered. Who cancels now and then, when his own user has gone
// on, or a hedged request that another server has answered, never comes to the end of it. Who
// does has calls at the rate at which it fills again; and when he goes on like that, he is sent
// away.
type cancels struct {
	mu     sync.Mutex
	credit float64
	at     time.Time // when credit was that
	over   int       // calls that were cancelled without credit, since there was some again

	// A call may be reset when it has been answered, and its client has not looked. What shows
	// that are the resets: there are more of them than of calls that ended so, by more than can
	// be on the way at one time.
	unseen int
}

const (
	cancelCredit = 256 // at first, and at most
	cancelRate   = 100 // more in a second
	cancelAnswer = 4   // and for each answer
	cancelOver   = 400 // without credit, then the connection ends
	cancelUnseen = 256 // resets whose calls have not ended yet
)

// begin opens the account. Where a client was sent away a short while ago the first call waits
// for a moment already.
func (k *cancels) begin(reformed bool) {
	if k.at, k.credit = time.Now(), -1; reformed {
		k.credit = cancelCredit
	}
}

// call notes that a call begins, and says how long that has to wait. paid is to be handed to ended.
func (k *cancels) call(now time.Time) (wait time.Duration, paid bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fill(now)
	if k.credit >= 0 {
		return 0, false
	}
	k.credit--
	return time.Duration(-k.credit / cancelRate * float64(time.Second)), true
}

// debt is how long it takes until there is credit again. low says that there is little.
func (k *cancels) debt(now time.Time) (wait time.Duration, low bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fill(now)
	return time.Duration(max(-k.credit, 0) / cancelRate * float64(time.Second)), k.credit < cancelCredit/2
}

// reset notes that the client has reset a stream, before its call finds out. It says whether
// that was one too many.
func (k *cancels) reset(now time.Time) (away bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fill(now)
	k.credit--
	if k.unseen++; k.unseen > cancelUnseen {
		k.unseen--
		k.credit -= cancelAnswer
	}
	if k.credit < 0 {
		k.over++
	}
	return k.over == cancelOver
}

// cut notes that a call has ended early, for whatever reason: there may be a reset for it.
func (k *cancels) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unseen = max(k.unseen-1, -cancelUnseen)
}

// ended notes how a call ended. What was cancelled has been charged when its reset was read.
func (k *cancels) ended(now time.Time, canceled, paid bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fill(now)
	if paid {
		k.credit++
	}
	if !canceled {
		k.credit = min(k.credit+cancelAnswer, cancelCredit)
	}
	if k.credit >= cancelCredit/2 {
		k.over = 0
	}
}

func (k *cancels) fill(now time.Time) {
	k.credit = min(k.credit+max(now.Sub(k.at), 0).Seconds()*cancelRate, cancelCredit)
	k.at = now
}

const (
	longestPause = 250 * time.Millisecond // between two looks at a connection's frames, which are not calls alone
	lowRead      = 2 << 10                // bytes that are read at a time with little credit: some dozens of calls
)

// pause waits, before at most n bytes are read, for as long as the client has no credit, and
// says how many to read. To hold back the calls alone is not enough: eight connections that
// reset 26,000 a second had hundreds of goroutines begin and end them, and everybody else's
// waited behind these.
func (c *conn) pause(n int) int {
	wait, low := c.cancels.debt(time.Now())
	if wait > 0 {
		t := time.NewTimer(min(wait, longestPause))
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.socket.gone:
		case <-c.door.stopping.Done():
		}
	}
	if low {
		n = min(n, lowRead)
	}
	return n
}

// bridled runs a call of a connection at the pace that its cancelling allows.
func (d *Door) bridled(ctx context.Context, run func() error) error {
	c, began := connOf(ctx), time.Now()
	wait, paid := c.cancels.call(began)
	var err error
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			err = statusOf(scheduler.ErrCanceled).Err()
		}
	}
	if err == nil {
		err = run()
	}
	now := time.Now()
	if ctx.Err() != nil {
		c.cancels.cut()
	}
	c.cancels.ended(now, d.stopping.Err() == nil && givenUp(ctx, began, now), paid)
	return err
}

// sendAway ends a connection that cancels too much.
func (d *Door) sendAway(c *conn, now time.Time) {
	d.log.Warn("closing a connection: it cancels nearly all that it asks", "peer", c.socket.RemoteAddr().String())
	d.exile(c.socket.Host(), now)
	c.socket.end(metrics.ClosedCancels)
}

// givenUp reports whether the client has cancelled a call, and not because its time was over:
// its clock says so a little before ours.
func givenUp(ctx context.Context, began, now time.Time) bool {
	if ctx.Err() == nil {
		return false
	}
	end, ok := ctx.Deadline()
	return !ok || end.Sub(now) > 5*time.Millisecond+now.Sub(began)/10
}

// exileTime is for how long connections from where one was sent away begin without credit.
const (
	exileTime = time.Minute
	maxExiles = 4096 // hosts that are remembered
)

// exile remembers that a connection from a host was sent away.
func (d *Door) exile(host netip.Addr, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.exiles) >= maxExiles {
		clear(d.exiles)
	}
	d.exiles[host] = now
}

// reformed reports whether none was for a while.
func (d *Door) reformed(host netip.Addr, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.exiles[host]
	if ok && now.Sub(at) >= exileTime {
		delete(d.exiles, host)
		ok = false
	}
	return !ok
}
