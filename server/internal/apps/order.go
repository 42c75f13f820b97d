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

// An order delivers the answers of each stream in the order in which its calls to an application
// arrived, except errors, which leave at once. Each model keeps its own order, but that does not
// cover calls to different models: the older call may go to a slower model. The zero order is ready
// to use.
//
// When more answers wait for an older frame than the stream's limit of waiting frames, the older
// frame is superseded, just as within one model. Otherwise a policy that tries a slow model now and
// then would stall the stream.
type order struct {
	mu    sync.Mutex // guards all below; not held while an owner is told
	lines map[gate.Stream]*line
}

// A line holds the calls of one stream from the oldest unanswered one to the newest. A silent
// stream has no line, and takes no memory.
type line struct {
	order          *order
	stream         gate.Stream
	oldest, newest *turn // unanswered
	keep           int   // limit of the call that joined last; 0: none
	held           int   // answers that wait
	leaving        bool  // an answer with outputs is being delivered; the others wait
	skipped        int   // turn.skipped of the next call
}

// A turn is the place of a call in its line. It is allocated separately, since a timer may still
// refer to it when the call is reused.
type turn struct {
	line         *line
	call         *gate.Call // not to be touched after unlink, except to deliver it
	fanout       *fanout    // whose calls to models make the answer; nil: already made
	older, newer *turn
	held         bool  // the call is complete, with outputs, and waits for older ones
	canceled     bool  // its client has disconnected
	supersededBy error // the error if it is superseded; else nil
	shown        bool  // it leaves with outputs
	skipped      int   // frames that were superseded since the last one that had outputs
	timer        *time.Timer
}

// Errors that replace existing outputs.
var (
	errHeld     = fmt.Errorf("%w: it passed while the answer waited for that of an older frame of its stream", scheduler.ErrDeadlineExceeded)
	errCanceled = fmt.Errorf("%w: the caller gave up", scheduler.ErrCanceled)
)

// join makes c, which is being submitted, the newest call of its stream. It returns nil if c has no
// stream. The stream is that of the calls of f, or of c itself if f is nil because its answer is
// already made.
func (o *order) join(c *gate.Call, f *fanout) *turn {
	says := c
	if f != nil {
		says = &f.firstToAnswer().call
	}
	if says.Frame == nil {
		return nil
	}
	stream := says.Frame.Stream()
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lines[stream]
	if l == nil {
		stream.Client, stream.Name = strings.Clone(stream.Client), strings.Clone(stream.Name)
		l = &line{order: o, stream: stream}
		if o.lines == nil {
			o.lines = make(map[gate.Stream]*line)
		}
		o.lines[stream] = l
	}
	t := &turn{line: l, call: c, fanout: f, older: l.newest, skipped: l.skipped}
	l.skipped, l.keep = 0, says.Keep()
	if l.newest != nil {
		l.newest.newer = t
	} else {
		l.oldest = t
	}
	l.newest = t
	return t
}

// settle turns the outcome of a complete call into an error if it has been superseded.
func (t *turn) settle() {
	if t == nil {
		return
	}
	t.line.order.mu.Lock()
	defer t.line.order.mu.Unlock()
	if t.supersededBy != nil {
		t.fail(t.supersededBy)
	}
}

// finish calls the call's Finish, now or once the older calls have been answered. Call it after
// settle.
func (t *turn) finish() {
	l := t.line
	l.order.mu.Lock()
	if t.canceled && t.call.Err == nil {
		t.fail(errCanceled)
	}
	if t.call.Err == nil && (l.oldest != t || l.leaving) {
		t.hold()
		slow := l.supersede()
		l.order.mu.Unlock()
		for _, f := range slow {
			f.giveUp()
			f.Close()
		}
		return
	}
	t.unlink()
	l.order.mu.Unlock()
	l.leave(t)
}

// supersede marks each call that holds up more answers than frames may wait, and returns their
// fanouts, each with a reference. The caller must cancel them, which takes other locks. A call that
// is being submitted at this moment is missed, and found when the next answer has to wait.
func (l *line) supersede() (slow []*fanout) {
	if l.keep == 0 || l.held <= l.keep {
		return nil
	}
	newest := l.newest
	for !newest.held {
		newest = newest.older
	}
	for t := l.oldest; !t.held; t = t.newer {
		if t.fanout != nil {
			t.supersededBy = newest.call.Frame.Supersedes()
			t.fanout.refs.Add(1)
			slow = append(slow, t.fanout)
		}
	}
	return slow
}

// hold makes the call wait for older calls, at most until its own deadline: their deadlines may be
// later.
func (t *turn) hold() {
	t.held = true
	t.line.held++
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
	l.order.mu.Lock()
	if !t.held {
		t.canceled = true // a timer fires only for a held call, or too late
		l.order.mu.Unlock()
		return
	}
	t.fail(err)
	t.unlink()
	l.order.mu.Unlock()
	l.leave(t)
}

// fail replaces the outputs by an error.
func (t *turn) fail(err error) {
	c := t.call
	c.Outputs, c.Err = gate.Released(c.Outputs), err
	if c.Choice != nil {
		c.Choice.Default, c.Choice.Explanation = false, ""
	}
}

// unlink removes the call from its line; its answer leaves unchanged.
func (t *turn) unlink() {
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
	if t.held {
		t.held = false
		l.held--
	}
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

// leave delivers the answer of t, and then, one by one, the answers that waited for it. Each Finish
// must return before the next begins, or goroutines could overtake each other.
func (l *line) leave(t *turn) {
	for ; t != nil; t = l.next() {
		l.deliver(t)
	}
}

func (l *line) deliver(t *turn) {
	defer func() { // also if the owner panics: that costs only its own answer
		l.order.mu.Lock()
		defer l.order.mu.Unlock()
		if t.shown {
			l.leaving = false
		}
		if l.oldest == nil && !l.leaving && l.order.lines[l.stream] == l {
			delete(l.order.lines, l.stream)
		}
	}()
	t.call.Finish()
}

// next removes and returns the next call that can leave; nil: there is none.
func (l *line) next() *turn {
	l.order.mu.Lock()
	defer l.order.mu.Unlock()
	t := l.oldest
	if t == nil || !t.held || l.leaving {
		return nil
	}
	t.unlink()
	return t
}
