package composite

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/inorder"
	"github.com/shivad/shivad/server/internal/gate"
)

// An Order delivers the answers of each stream in the order in which its calls to a composite
// arrived, except errors, which leave at once. Each model keeps its own order, but that does not
// cover calls to different models: the older call may go to a slower model. The zero Order is ready
// to use.
//
// The rule is that of the models, [inorder.Line]: a policy that tries a slow model now and then does
// not stall the stream. This adds the mutex, the deadlines of held answers, and who is told.
type Order struct {
	mu    sync.Mutex // guards all below; not held while an owner is told
	lines map[gate.Stream]*line
}

// A line is the unanswered calls of one stream. Keep is that of the call that joined last. A silent
// stream has no line, and takes no memory.
type line struct {
	inorder.Line[*Waiter]
	order   *Order
	stream  gate.Stream
	skipped int // Waiter.skipped of the next call
}

// Work is what makes the answer of a call: its calls to models.
type Work interface {
	Retain()
	// GiveUp cancels the calls. The caller has a reference.
	GiveUp()
	Close() // releases a reference
}

// A Waiter is a call in its line; nil is that of a call without a stream. It is allocated
// separately, since a timer may still refer to it when the call is reused.
type Waiter struct {
	node         inorder.Node[*Waiter]
	line         *line
	call         *gate.Call // not to be touched after unlink, except to deliver it
	work         Work       // makes the answer; nil: it is already made
	canceled     bool       // its client has disconnected
	supersededBy error      // the error if it is superseded; else nil
	outputs      bool       // it leaves with outputs
	skipped      int        // frames that were superseded since the last one that had outputs
	timer        *time.Timer
}

// Errors that replace existing outputs.
var (
	errHeld = fmt.Errorf("%w: it passed while the answer waited for that of an older frame of its stream",
		scheduler.ErrDeadlineExceeded)
	errCanceled = fmt.Errorf("%w: the caller gave up", scheduler.ErrCanceled)
)

// Join makes c, which is being submitted, the newest call of its stream. It returns nil if c has no
// stream. The stream is that of says, which may be c itself or one of the calls of work. work is
// nil if the answer is already made.
func (o *Order) Join(c, says *gate.Call, work Work) *Waiter {
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
	w := &Waiter{line: l, call: c, work: work, skipped: l.skipped}
	w.node.Of = w
	l.skipped, l.Keep = 0, says.Keep()
	l.Join(&w.node)
	return w
}

// Streams counts the streams with an unanswered call.
func (o *Order) Streams() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.lines)
}

// FailIfSuperseded turns the outcome of a complete call into an error if it has been superseded.
func (w *Waiter) FailIfSuperseded() {
	if w == nil {
		return
	}
	w.line.order.mu.Lock()
	defer w.line.order.mu.Unlock()
	if w.supersededBy != nil {
		w.fail(w.supersededBy)
	}
}

// Finish calls the call's Finish, now or once the older calls have been answered. Call it after
// FailIfSuperseded.
func (w *Waiter) Finish() {
	l := w.line
	l.order.mu.Lock()
	if w.canceled && w.call.Err == nil {
		w.fail(errCanceled)
	}
	if w.call.Err == nil && !l.MayLeave(&w.node) {
		w.hold()
		slow := l.supersede()
		l.order.mu.Unlock()
		for _, work := range slow {
			work.GiveUp()
			work.Close()
		}
		return
	}
	w.unlink()
	l.order.mu.Unlock()
	l.leave(w)
}

// supersede marks each call that holds up more answers than frames may wait, and returns their
// work, each with a reference. The caller must cancel it, which takes other locks. A call that is
// being submitted at this moment is missed, and found when the next answer has to wait.
func (l *line) supersede() (slow []Work) {
	n := l.Overdue()
	if n == nil {
		return nil
	}
	by := l.NewestHeld().Of.call.Frame.Supersedes()
	for ; !n.Held; n = n.Newer {
		if w := n.Of; w.work != nil {
			w.supersededBy = by
			w.work.Retain()
			slow = append(slow, w.work)
		}
	}
	return slow
}

// hold makes the call wait for older calls, at most until its own deadline: their deadlines may be
// later.
func (w *Waiter) hold() {
	w.line.Hold(&w.node)
	w.call.Alone = false
	if !w.call.Deadline.IsZero() {
		w.timer = time.AfterFunc(time.Until(w.call.Deadline), func() { w.withdraw(errHeld) })
	}
}

// Cancel answers the call with an error if it has to wait, now or later.
func (w *Waiter) Cancel() {
	if w != nil {
		w.withdraw(errCanceled)
	}
}

func (w *Waiter) withdraw(err error) {
	l := w.line
	l.order.mu.Lock()
	if !w.node.Held {
		w.canceled = true // a timer fires only for a held call, or too late
		l.order.mu.Unlock()
		return
	}
	w.fail(err)
	w.unlink()
	l.order.mu.Unlock()
	l.leave(w)
}

// fail replaces the outputs by an error.
func (w *Waiter) fail(err error) {
	c := w.call
	c.Outputs, c.Err = gate.Released(c.Outputs), err
	if c.Choice != nil {
		c.Choice.Default, c.Choice.Explanation = false, ""
	}
}

// unlink removes the call from its line; its answer leaves unchanged.
func (w *Waiter) unlink() {
	l, c := w.line, w.call
	if w.timer != nil {
		w.timer.Stop()
	}
	if c.Err == nil {
		w.outputs = true
		l.Leave(&w.node)
		if c.Frame != nil {
			c.Frame.MarkSent(w.skipped)
		}
		return
	}
	if errors.Is(c.Err, scheduler.ErrSuperseded) {
		w.skipped++
	}
	if newer := w.node.Newer.Request(); newer != nil {
		newer.skipped += w.skipped
	} else {
		l.skipped += w.skipped
	}
	l.Remove(&w.node)
}

// leave delivers the answer of w, and then, one by one, the answers that waited for it.
func (l *line) leave(w *Waiter) {
	for ; w != nil; w = l.next() {
		l.deliver(w)
	}
}

func (l *line) deliver(w *Waiter) {
	defer func() { // also if the owner panics: that costs only its own answer
		l.order.mu.Lock()
		defer l.order.mu.Unlock()
		if w.outputs {
			l.Left()
		}
		if l.Idle() && l.order.lines[l.stream] == l {
			delete(l.order.lines, l.stream)
		}
	}()
	w.call.Finish()
}

// next removes and returns the next call that can leave; nil: there is none.
func (l *line) next() *Waiter {
	l.order.mu.Lock()
	defer l.order.mu.Unlock()
	w := l.Next().Request()
	if w != nil {
		w.unlink()
	}
	return w
}
