package shiva

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/shiva/backoff"
)

// What a [Client] does with a request that failed at a server.

// rounds is the pace of rounds over all servers.
var rounds = backoff.Backoff{First: 20 * time.Millisecond, Most: 320 * time.Millisecond}

// An Attempt records the failure of a request, or of an attempt to connect, at one server.
type Attempt struct {
	Addr string
	Err  error
}

// An AttemptsError reports why none of several servers has answered. It wraps the error of each,
// the last one first.
type AttemptsError struct{ Attempts []Attempt }

func (e *AttemptsError) Error() string {
	var b strings.Builder
	b.WriteString("shiva: no answer from any server: ")
	listed := make([]bool, len(e.Attempts))
	for i, a := range e.Attempts {
		if listed[i] {
			continue
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(a.Addr)
		why := a.reason()
		for k := i + 1; k < len(e.Attempts); k++ { // servers with the same reason
			if !listed[k] && e.Attempts[k].reason() == why {
				listed[k] = true
				b.WriteString(", " + e.Attempts[k].Addr)
			}
		}
		b.WriteString(": " + why)
	}
	return b.String()
}

// reason returns the text of the error, without the address, which the list has already.
func (a Attempt) reason() string {
	err, fate := a.Err, ""
	if e, ok := err.(*CallError); ok {
		if err = e.Err; e.MayHaveRun {
			fate = " (" + e.fate() + ")"
		}
	}
	text := strings.TrimPrefix(err.Error(), "shiva: ")
	return strings.TrimPrefix(text, "connecting to "+a.Addr+": ") + fate
}

func (e *AttemptsError) Unwrap() (errs []error) {
	for _, a := range slices.Backward(e.Attempts) {
		errs = append(errs, a.Err)
	}
	return errs
}

// add records the failure at a server, and replaces an earlier one there.
func (e *AttemptsError) add(addr string, err error) {
	e.Attempts = slices.DeleteFunc(e.Attempts, func(a Attempt) bool { return a.Addr == addr })
	e.Attempts = append(e.Attempts, Attempt{addr, err})
}

// err returns e, or its error if it has only one.
func (e *AttemptsError) err() error {
	if len(e.Attempts) == 1 {
		return e.Attempts[0].Err
	}
	return e
}

// with returns e with another attempt.
func (e *AttemptsError) with(addr string, err error) error {
	e.add(addr, err)
	return e.err()
}

// A pursuit is a request on its way from server to server.
type pursuit struct {
	client     *Client
	resendable bool // the request may be sent again
	repeatable bool // ... even if it may have run
	feedback   bool

	failed      AttemptsError
	tried       []*link // in this round
	overloaded  int     // number of servers that were
	lost        int     // number of containers that were lost with the request
	recoverable bool    // another round may succeed
}

// tryServers sends m to one server after the other until one answers.
func (c *Client) tryServers(ctx context.Context, m *Message, tell bool) (*Message, error) {
	p := pursuit{client: c, feedback: isFeedback(m.Namespace)}
	p.resendable = c.opts.repeatable || (*c.links.Load())[0].oneOfSeveral
	p.repeatable = c.opts.repeatable && !p.feedback
	until, bounded := ctx.Deadline()
	if !bounded {
		until = time.Now().Add(c.opts.dialTimeout)
	}
	for round := 1; ; round++ {
		for l := c.pick(p.tried); l != nil; l = c.pick(p.tried) {
			answer, err := l.Do(ctx, m, tell)
			if err == nil {
				return answer, nil
			}
			if !p.recordFailure(ctx, l, err) {
				return nil, p.result(err)
			}
		}
		p.noteDown()
		if c.ctx.Err() != nil {
			return nil, &CallError{Addr: c.name, Err: ErrClosed}
		}
		pause := rounds.After(round)
		if !p.recoverable || time.Until(until) <= pause {
			return nil, p.failed.err()
		}
		if err := c.rest(ctx, pause); err != nil {
			return nil, p.failed.with(c.name, err)
		}
		c.lookUpIfDue()
		p.tried, p.recoverable = p.tried[:0], false
	}
}

// isFeedback reports whether a route is for an application's feedback.
func isFeedback(namespace string) bool {
	name, found := strings.CutSuffix(namespace, "/update")
	return found && !strings.Contains(name, "/")
}

// rest sleeps for d; the error is why it ended early.
func (c *Client) rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return ErrClosed
	}
}

// recordFailure records the failure at a server, and reports whether another server may get the
// request.
func (p *pursuit) recordFailure(ctx context.Context, l *link, err error) bool {
	p.tried = append(p.tried, l)
	p.failed.add(l.at.Load().text, err)
	if ctx.Err() != nil || errors.Is(err, ErrClosed) {
		return false
	}
	switch e := err.(type) {
	case *CallError:
		p.recoverable = true
		return errors.Is(err, errRetired) || p.resendable && (!e.MayHaveRun || p.repeatable)
	case *RemoteError:
		return p.resendable && p.retriesAfter(e)
	}
	return false
}

// retriesAfter reports whether another server may get the request after this error.
func (p *pursuit) retriesAfter(e *RemoteError) bool {
	switch e.Type {
	case Draining:
		p.recoverable = true
		return true
	case Unavailable: // feedback may have been stored
		p.recoverable = true
		return !p.feedback
	case ContainerLost:
		// At most twice: the request itself may be what ends containers. The server says so
		// (retryable is false) once it knows.
		p.lost++
		again := p.repeatable && e.Retryable && p.lost < 2
		p.recoverable = p.recoverable || again
		return again
	case NotFound:
		return !p.feedback
	case Overloaded:
		// At most twice: if all servers are overloaded, requests that move from one to the next
		// would become most of their load.
		p.overloaded++
		return p.overloaded < 2 && !p.feedback
	}
	return false
}

// noteDown records the servers that did not get the request because they are unreachable.
func (p *pursuit) noteDown() {
	for _, l := range *p.client.links.Load() {
		if !l.oneOfSeveral || l.up.Load() {
			continue
		}
		p.recoverable = true
		if !slices.Contains(p.tried, l) {
			p.failed.add(l.at.Load().text, cmp.Or(l.down(), errUntried))
		}
	}
}

// result returns the error of a request that no further server gets: that of the last server if it
// is final, otherwise those of all.
func (p *pursuit) result(err error) error {
	if e, ok := err.(*RemoteError); ok && !e.Retryable && e.Type != NotFound {
		return err
	}
	return p.failed.err()
}
