package grpc

import (
	"context"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/backoff"
)

// HTTP/2 bounds the calls that are open on a connection. A cancelled call no longer counts, but its
// rows may be executing and cannot be recalled: a client that cancels each call at once causes
// unbounded work. grpc-go bounds how many handlers run at one time, not their rate.
//
// cancels is a connection's account of calls that it may cancel. It begins full, refills with time
// and with each answer, and each cancellation costs one. A client that cancels now and then,
// because its user moved on or another server answered a hedged request first, never empties it.
// While the account is empty, calls wait until it has refilled, and a client that goes on
// cancelling is disconnected.
//
// What ends a call makes no difference. A client can make the server reset its calls, with frames
// that break the protocol (MadeYouReset): such resets are charged when they are written, and where
// only a broken or hostile client could have caused one, the connection ends, see isWrong. It can
// also name deadlines that no answer meets: eight connections with deadlines of 100 µs delayed the
// requests of others a hundredfold. Such calls are charged, too, but nobody is disconnected for
// them, since a model may have stopped answering. A client all of whose calls are late is read
// slowly until some have answers: whatever is read begins, so that it is never refused for good.
//
// The account also pays for chores: PINGs and other frames that belong to no call. Fifty cost as
// much as one cancellation, because clients that measure their link send a PING with every answer.
// A client that reads an answer sends window updates for it, at most two for each frame: frames of
// answers pay for those.
type cancels struct {
	mu     sync.Mutex
	credit float64
	at     time.Time // when credit had this value
	over   int       // calls cancelled without credit since there last was some

	// unseen counts resets whose calls have not ended. A call can be reset after its answer was
	// handed to grpc-go, and then no handler sees the reset: unseen exceeds the number of resets
	// that can be under way at one time.
	unseen int
}

const (
	cancelCredit = 256 // at first, and at most
	cancelRate   = 100 // refilled per second
	cancelAnswer = 4   // refilled per answer
	cancelOver   = 400 // after so many cancellations without credit the connection is closed
	cancelUnseen = 256 // resets under way at one time
	choresPaid   = 50  // chores per unit of credit
	choresFree   = 4   // chores that a data frame of an answer pays for
)

// begin opens the account. For a banned host it is empty, and the first call waits.
func (k *cancels) begin(banned bool) {
	if k.at, k.credit = time.Now(), cancelCredit; banned {
		k.credit = -1
	}
}

// call records that a call begins, and returns how long it must wait. The caller passes paid on to
// ended.
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

// debt returns the time until there is credit. low reports that little is left.
func (k *cancels) debt(now time.Time) (wait time.Duration, low bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fill(now)
	return time.Duration(max(-k.credit, 0) / cancelRate * float64(time.Second)), k.credit < cancelCredit/2
}

// reset records that the client has reset a stream, or provoked its reset, before the call sees it.
// away reports that the connection must be closed for it.
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

// chores records that n frames have arrived that belong to no call.
func (k *cancels) chores(now time.Time, n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fill(now)
	k.credit -= float64(n) / choresPaid
}

// cut records that a call has ended early, for whatever reason: the client may have reset it.
func (k *cancels) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unseen = max(k.unseen-1, -cancelUnseen)
}

// An ending is how a call ended, for the account.
type ending int

const (
	answered  ending = iota // with an answer or an error
	abandoned               // by a reset, which has been charged
	given                   // by a reset because of its deadline
	expired                 // by its deadline
	waited                  // it has not begun
)

// ended records how a call ended.
func (k *cancels) ended(now time.Time, how ending, paid bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fill(now)
	if paid {
		k.credit++
	}
	switch how {
	case answered:
		k.credit = min(k.credit+cancelAnswer, cancelCredit)
	case expired:
		k.credit--
		k.over = max(k.over-1, -cancelUnseen) // a reset may follow
	case given:
		k.over = max(k.over-1, -cancelUnseen)
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
	// longestPause bounds the pause before a read: a connection carries frames other than calls.
	longestPause = 250 * time.Millisecond
	// lowRead is how many bytes are read at a time while credit is low: a few dozen calls.
	lowRead = 2 << 10
	// turnParts is how many reads a turn has, for a connection that is read in turns: each read
	// costs wake-ups, and the calls that it brings are refused at once. With one read, or four, the
	// p99 of other clients was longer than with two.
	turnParts = 2
)

// pause waits, before at most n bytes are read, while the client has no credit or most of its
// requests are refused, and returns how many bytes to read. Holding back the calls alone is not
// enough: with eight connections that reset 26,000 calls a second, hundreds of goroutines began and
// ended them, and the calls of all other clients waited for these.
func (c *conn) pause(n int) int {
	wait, low := c.cancels.debt(time.Now())
	c.Rest(max(min(wait, longestPause), c.Pause(turnParts)), c.open.Done())
	if low {
		n = min(n, lowRead)
	}
	return n
}

// throttle runs a call once its connection's account of cancellations allows it.
func (d *Door) throttle(ctx context.Context, run func() error) error {
	c, began := connOf(ctx), time.Now()
	wait, paid := c.cancels.call(began)
	how, err := waited, statusOf(scheduler.ErrCanceled).Err()
	if backoff.Wait(wait, ctx.Done()) {
		err = run()
		how = endingOf(ctx, began, time.Now())
	}
	if ctx.Err() != nil {
		c.cancels.cut()
	}
	if d.stopping.Err() != nil {
		how = answered
	}
	c.cancels.ended(time.Now(), how, paid)
	return err
}

// disconnect closes a connection that cancels too much, or that breaks the protocol as only a
// hostile client does. Only the goroutine that reads it may call it.
func (d *Door) disconnect(c *conn, why metrics.Closed, now time.Time) {
	fault := "it cancels nearly all of its calls"
	if why == metrics.ClosedProtocol {
		fault = "it breaks HTTP/2 in a way that would end single calls"
	}
	d.log.Warn("closing a connection: "+fault, "peer", c.RemoteAddr().String())
	d.ban(c.Host(), now)
	c.hangUp(why, true)
}

// endingOf returns how a call ended that has begun. The clocks of clients reach a deadline earlier
// than the server's, which begins when it has read the call: a reset after half of the time is one
// for the deadline. A client could as well name half of it.
func endingOf(ctx context.Context, began, now time.Time) ending {
	end, limited := ctx.Deadline()
	switch {
	case ctx.Err() == nil:
		return answered
	case ctx.Err() == context.DeadlineExceeded:
		return expired
	case limited && end.Sub(now) <= now.Sub(began):
		return given
	}
	return abandoned
}

// Connections from a host that was disconnected for any of this, or for its PINGs, begin without
// credit for banTime.
const (
	banTime = time.Minute
	maxBans = 4096 // most hosts remembered
)

// ban records that a connection from a host was closed for such a reason.
func (d *Door) ban(host listen.Host, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.bans) >= maxBans {
		clear(d.bans)
	}
	d.bans[host] = now
}

// banned reports whether a connection from a host was closed for such a reason within banTime.
func (d *Door) banned(host listen.Host, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.bans[host]
	if ok && now.Sub(at) >= banTime {
		delete(d.bans, host)
		ok = false
	}
	return ok
}
