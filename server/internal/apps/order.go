package apps

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
)

// An order has the answers of each stream leave in the order in which its calls to an application
// arrived, but for errors, which leave at once. Each model has an order of its own, which says
// nothing of calls that other models answer: of an older one that a policy sent to a slow model, of
// one of which all models but a slow one have answered. The zero order is ready.
type order struct {
	mu    sync.Mutex // guards all below, and is not held while an owner is told
	lines map[gate.Stream]*line
}

// A line is the calls of one stream, from the first that is unanswered to the last that is: silent
// streams take no memory.
type line struct {
	of             *order
	stream         gate.Stream
	oldest, newest *turn // unanswered
	leaving        bool  // an answer with outputs is being delivered; until it is, no other one leaves
	skipped        int   // of the next call, as turn.skipped
}

// A turn is the place of a call in its line. It is nobody's memory but its own, since a timer may
// have it when the call is another one's.
type turn struct {
	line         *line
	call         *gate.Call // not to be touched after part, but for its delivery
	older, newer *turn
	held         bool // the call is complete, with outputs, and waits for older ones
	canceled     bool // its client has gone
	shown        bool // it leaves with outputs
	skipped      int  // frames that were superseded since the last one that had outputs
	timer        *time.Timer
}

// What calls are answered whose outputs were there.
var (
	errHeld     = fmt.Errorf("%w: it passed while the answer waited for that of an older frame of its stream", scheduler.ErrDeadlineExceeded)
	errCanceled = fmt.Errorf("%w: the caller gave up", scheduler.ErrCanceled)
)

// join makes c, which is submitted now, the newest of its stream; nil: f is nil, and c of none.
func (o *order) join(c *gate.Call, f *gate.Frame) *turn {
	if f == nil {
		return nil
	}
	stream := f.Stream()
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lines[stream]
	if l == nil {
		stream.Client, stream.Name = strings.Clone(stream.Client), strings.Clone(stream.Name)
		l = &line{of: o, stream: stream}
		if o.lines == nil {
			o.lines = make(map[gate.Stream]*line)
		}
		o.lines[stream] = l
	}
	t := &turn{line: l, call: c, older: l.newest, skipped: l.skipped}
	l.skipped = 0
	if l.newest != nil {
		l.newest.newer = t
	} else {
		l.oldest = t
	}
	l.newest = t
	return t
}

// finish is the call's Finish, now or when the older calls have been answered.
func (t *turn) finish() {
	l := t.line
	l.of.mu.Lock()
	if t.canceled && t.call.Err == nil {
		t.fail(errCanceled)
	}
	if t.call.Err == nil && (l.oldest != t || l.leaving) {
		t.hold()
		l.of.mu.Unlock()
		return
	}
	t.part()
	l.of.mu.Unlock()
	l.leave(t)
}

// hold has the call wait, until its deadline: that of an older one may be later.
func (t *turn) hold() {
	t.held = true
	t.call.Alone = false
	if !t.call.Deadline.IsZero() {
		t.timer = time.AfterFunc(time.Until(t.call.Deadline), func() { t.withdraw(errHeld) })
	}
}

// cancel answers the call with an error if it has to wait, now or later.
func (t *turn) cancel() {
	if t != nil {
		t.withdraw(errCanceled)
	}
}

func (t *turn) withdraw(err error) {
	l := t.line
	l.of.mu.Lock()
	if !t.held {
		t.canceled = true // a timer comes to none but a held one, or too late
		l.of.mu.Unlock()
		return
	}
	t.fail(err)
	t.part()
	l.of.mu.Unlock()
	l.leave(t)
}

// fail puts an error in the place of the outputs.
func (t *turn) fail(err error) {
	c := t.call
	for i := range c.Outputs {
		c.Outputs[i].Release()
	}
	clear(c.Outputs)
	c.Outputs, c.Err = c.Outputs[:0], err
	if c.Choice != nil {
		c.Choice.Default, c.Choice.Explanation = false, ""
	}
}

// part takes the call out of its line: it leaves, as it is.
func (t *turn) part() {
	l, c := t.line, t.call
	if t.older != nil {
		t.older.newer = t.newer
	} else {
		l.oldest = t.newer
	}
	if t.newer != nil {
		t.newer.older = t.older
	} else {
		l.newest = t.older
	}
	if t.timer != nil {
		t.timer.Stop()
	}
	t.held = false
	if c.Err == nil {
		t.shown, l.leaving = true, true
		if c.Frame != nil {
			c.Frame.Shown(t.skipped)
		}
		return
	}
	if errors.Is(c.Err, scheduler.ErrSuperseded) {
		t.skipped++
	}
	if t.newer != nil {
		t.newer.skipped += t.skipped
	} else {
		l.skipped += t.skipped
	}
}

// leave delivers the answer of t, and then those that have waited for it, one after another: had
// one left before the Finish of another returns, another goroutine could have overtaken this one.
func (l *line) leave(t *turn) {
	for ; t != nil; t = l.next() {
		l.deliver(t)
	}
}

func (l *line) deliver(t *turn) {
	defer func() { // also if the owner panics, which costs it its own answer only
		l.of.mu.Lock()
		defer l.of.mu.Unlock()
		if t.shown {
			l.leaving = false
		}
		if l.oldest == nil && !l.leaving && l.of.lines[l.stream] == l {
			delete(l.of.lines, l.stream)
		}
	}()
	t.call.Finish()
}

// next takes the call out of the line that has waited for the one before; nil: there is none.
func (l *line) next() *turn {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	t := l.oldest
	if t == nil || !t.held || l.leaving {
		return nil
	}
	t.part()
	return t
}
