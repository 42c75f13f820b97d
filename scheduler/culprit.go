package scheduler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Which request ends its container. A container that is lost while it executes a batch was killed
// by an operator, or by one of the batch's requests; nothing tells which. A death costs a restart,
// an answer milliseconds, so the requests are tried again apart from all others, in groups that
// find the culprit with few deaths. Halving would take up to log2(n) of them.
//
//	death 1  the batch       tried next: those whose sources are trusted, together; then the others
//	death 2  a group         as many groups as lineupTime allows, at least √n
//	death 3  a group again   one by one
//
// Where sources differ, the second death is that of the culprit alone: its source is new, or had a
// request in a batch that ended a container and no answer since. Otherwise groups of one find it
// with the second death as well, unless they would take too long. If a group dies, the others of
// its batch are cleared.
//
// A request that was executing alone in a container that was lost is at fault, if that was its
// second loss, or if its source is not trusted. It is answered with ErrCulprit. One loss of a
// trusted source's request is chance as a rule: an operator may kill any container.
//
// No belief lasts: an answer makes a source trusted, whatever happened before, and its requests
// wait in the same queue as all others. Only the order of retries depends on it.
//
// A batch that is not answered in time counts as lost, but its container still exists and may be
// taken from all other requests for as long as the culprit hangs. So the last group, which has the
// culprit if no other group has it, waits until that container answers or is removed, and after a
// second loss all groups do.

// ErrCulprit is an ErrContainerLost of a request that was alone in the container: it should not be
// sent again.
var ErrCulprit = errors.New("it executed this request alone, so do not send that again")

const (
	// Containers that may be lost with a request; see the table above.
	maxLosses = 4
	// Time for the groups of a batch, and their part of the time that is left: all other requests
	// wait meanwhile, and their deadlines are about the same.
	lineupTime = 1e9
	lineupPart = 1. / 3
)

// A record is what happened to rows before.
type record struct {
	losses uint8 // containers that were lost while executing them
	probed bool  // they were a probe that was not answered
}

// A Culprit is a request that was at fault for the loss of a container.
type Culprit struct {
	Name    string // that its owner gives it, see [Named]
	Stream  string // "": it was no frame
	Replica string // the label of the last container that was lost with it
	Err     error
	Ago     time.Duration

	at int64
}

// keepCulprits is how many of a model's latest culprits are remembered.
const keepCulprits = 4

// A Named is a Completer that can name its request to operators, as its client would. Name is
// called before Complete, with no lock held.
type Named interface {
	Completer
	Name() string
}

// convict answers a request that was at fault.
func (c *core) convict(r *Request, rep *Replica, why error, now int64, fx *effects) {
	one := Culprit{Replica: rep.label, Err: why, at: now}
	if r.Frame != nil {
		one.Stream = r.Frame.Stream
	}
	fx.convicted = append(fx.convicted, conviction{r, one})
	c.answer(r, OutcomeContainerLost, fmt.Errorf("%w; %w", why, ErrCulprit), fx)
}

// A conviction is a Culprit that has no name yet.
type conviction struct {
	of *Request
	Culprit
}

// remember adds a culprit to those that operators see, under the name that its owner gives it.
func (m *Model) remember(one conviction) {
	defer m.recoverPanic()
	one.Name = fmt.Sprintf("of source %d", one.of.Source)
	if o, ok := one.of.Owner.(Named); ok {
		one.Name = o.Name()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.core
	c.culprits = append([]Culprit{one.Culprit}, c.culprits[:min(len(c.culprits), keepCulprits-1)]...)
}

// waits reports whether a retry waits for a replica that hangs.
func (r *retry) waits(now int64) bool {
	return r.held != nil && len(r.held.overdue) > 0 && now < r.until
}

// A loss is how a replica was lost.
type loss struct {
	alone bool // it was executing nothing but the batches that are lost
	hung  bool // it still exists, and has not answered
	why   error
}

// lose handles the requests of batches that a lost replica was executing.
func (c *core) lose(rep *Replica, lost []*Batch, by loss, now int64, fx *effects) {
	requests, rows, live := 0, 0, []span(nil)
	for _, b := range lost {
		requests += b.requests
		rows = max(rows, b.Rows)
		spans, _ := b.takeSpans()
		live = append(live, spans...)
		if b.retry != nil && b.retry.apart() {
			b.retry.failure.failed = true
			c.acquit(b.retry.failure, now)
		}
	}
	one := requests == 1
	alone := by.alone && one && !rep.sharing.on // else rows of other servers may have been with it
	again := live[:0]
	for _, s := range live {
		r := s.req
		s.record.losses++
		trusted := c.sources.trusts(r.Source)
		switch {
		case r.state != stateWaiting: // answered with another of its spans
		case alone && (s.record.losses > 1 || !trusted):
			c.convict(r, rep, by.why, now, fx)
		case one && by.hung, s.record.losses >= maxLosses, !*c.cfg.Retry, r.deadline <= now, !c.hopeful(now):
			c.answer(r, OutcomeContainerLost, by.why, fx)
		default:
			c.streams.returned(r)
			again = append(again, s)
		}
	}
	switch {
	case len(again) > 0:
		c.lineUp(rep, again, rows, by.hung, now)
	case !by.hung: // nothing tells a request from its size
		c.deadly.blame(rows, now)
	}
	for _, s := range again {
		c.sources.distrust(s.req.Source)
	}
}

// lineUp makes retries of spans of a lost batch of that many rows, in groups.
func (c *core) lineUp(rep *Replica, spans []span, rows int, hung bool, now int64) {
	losses := uint8(0)
	for _, s := range spans {
		losses = max(losses, s.record.losses)
	}
	var groups [][]span
	trusted, others := c.tellApart(spans, losses)
	if len(trusted) > 0 && len(others) > 0 {
		groups = append(groups, trusted)
	} else {
		others = spans
	}
	left := float64(math.MaxInt64)
	for _, s := range others {
		left = min(left, float64(s.req.deadline-now))
	}
	for size := groupSize(len(others), losses, rep.profile.typical(1),
		min(lineupTime, left*lineupPart)); len(others) > 0; {
		n := min(size, len(others))
		groups, others = append(groups, others[:n]), others[n:]
	}
	f := &failure{rows: rows, lineup: true, died: !hung}
	for i, g := range groups {
		r := c.addRetry(f, g, nil, now)
		if hung && (i == len(groups)-1 || losses > 1) {
			r.held, r.until = rep, now+silentTimeouts*int64(c.cfg.ExecTimeout)
			c.wakeAt(r.until)
		}
	}
}

// tellApart separates the spans that are less likely to be at fault: their sources are trusted, and
// fewer containers were lost with them than with others.
func (c *core) tellApart(spans []span, losses uint8) (trusted, others []span) {
	for _, s := range spans {
		if s.record.losses == losses && (losses > 1 || !c.sources.trusts(s.req.Source)) {
			others = append(others, s)
		} else {
			trusted = append(trusted, s)
		}
	}
	return trusted, others
}

// groupSize is the size of groups of n spans, whose executions may take that long. one is the time
// of one row; 0: unknown.
func groupSize(n int, losses uint8, one, limit float64) int {
	if losses >= maxLosses-1 {
		return 1
	}
	groups := math.Ceil(math.Sqrt(float64(n)))
	if one > 0 {
		groups = max(groups, min(float64(n), limit/one))
	}
	return max(1, int(math.Ceil(float64(n)/max(1, groups))))
}

// acquit returns the other groups of a batch to the queue: one of its groups was lost.
func (c *core) acquit(f *failure, now int64) {
	for i := 0; i < len(c.retries); {
		if r := c.retries[i]; r.failure == f {
			c.retries = slices.Delete(c.retries, i, i+1)
			c.unretry(r, now)
		} else {
			i++
		}
	}
}

// apart reports whether a retry must execute alone in its container.
func (r *retry) apart() bool { return r.failure.lineup }

// mayTake reports whether the replica may be sent a retry now. One that must execute alone waits
// until a container that executes several batches at once has none; meanwhile the container gets no
// other batch.
func (r *Replica) mayTake(t *retry) bool {
	return !t.apart() || r.concurrency == 1 || len(r.inflight) == 0
}

// makesRoom reports whether the replica should get no batch, as a retry waits for it to have none.
func (c *core) makesRoom(rep *Replica, now int64) bool {
	if rep.concurrency == 1 || len(rep.inflight) == 0 {
		return false
	}
	return slices.ContainsFunc(c.retries, func(r *retry) bool { return r.rows > 0 && !r.waits(now) && !rep.mayTake(r) })
}

// secluded reports whether the replica executes a retry that must be alone.
func (r *Replica) secluded() bool {
	return r.concurrency > 1 && slices.ContainsFunc(r.inflight,
		func(b *Batch) bool { return b.retry != nil && b.retry.apart() })
}
