package pipelines

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/shiva/tensor"
)

// A run is a request on its way through a pipeline.
//
// It is driven by whoever completes one of its calls: what the answer makes possible begins at
// once, on that goroutine. Work that is under way is counted in pending: each call that is not
// complete, each stage that waits in a line, and each goroutine that drives the run. Whoever ends
// the last one answers, so there is exactly one answer, and no call of the run is left then.
//
// It owns its calls until the answer is made, and is counted by references: one is the outer call's
// until Close, the others belong to those who are about to cancel or to drive it.
type run struct {
	p       *pipeline
	call    *gate.Call   // to answer; not to be touched once it is complete
	request gate.Request // of the client, for the calls to models
	asker   gate.Asker
	within  *trace.Ask // the stage of another pipeline that asks; nil: none, or it is not traced
	trial   bool       // no estimate counts
	parts   scheduler.Parts

	refs   atomic.Int32
	waiter *composite.Waiter // of a frame of a stream, once submitted; else nil
	// timer ends waiting in lines at the deadline, and has a reference; nil: it does not wait.
	timer *time.Timer

	mu       sync.Mutex // guards all below
	stages   []work     // parallel to those of the plan
	unbegun  int        // of them
	pictures map[pictureKey]pictured
	opened   map[pictureKey]*scheduler.Opened
	pending  int
	asking   int    // stages that read the request and are not done
	moves    []move // of other runs, to be made without the lock
	err      error  // of the request; nothing begins any more
	short    bool   // a row failed for want of time or of replicas
	refused  bool   // and a model refused it
	started  bool
	stopped  bool // calls were canceled because of err
	expired  bool // it waits in no line any more
	over     bool
}

// A work is a stage of a run.
type work struct {
	rows    []row // never moved
	missing int   // stages that it reads and that are not done
	readers []int // by output: stages that read it and are not done
	left    int   // rows that are not complete
	lined   bool  // its frame waits in a line
	begun   bool  // or it has arrived in its line
	done    bool
	listed  bool    // its rows are known
	whole   float64 // how many they would be; see missed

	entry    entry
	fastest  time.Duration // at least what it takes
	rest     time.Duration // at least what those after it take
	since    time.Time     // its inputs were there
	sent     time.Duration // since then, when the first row was sent; the least
	leftOut  int
	notBegun int
	trace    *trace.Ask // nil: it is not traced
}

// A row is a call of a stage, or why there is none.
type row struct {
	origin
	call  gate.Call
	run   *run
	stage int32
	asked bool // its call was opened, and is submitted unless Open fails
	done  bool
	err   error
}

// An origin says what a row is about.
type origin struct {
	parent  int32 // the row of the surrounding scope
	element int32 // of that row; with each
	of      int32 // the element among those of all parent rows
}

// mostRows bounds the rows of one request at one stage.
const mostRows = 4096

// mostElements bounds the elements of one request among which a stage chooses its rows. The size of
// an output does not: elements may have no bytes.
const mostElements = 1 << 20

// spareRows is how many rows of a stage are kept for the next request.
const spareRows = 128

var errCanceled = fmt.Errorf("%w: the caller gave up", scheduler.ErrCanceled)

var runs = sync.Pool{New: func() any { return new(run) }}

// open prepares a run for a request whose tensors c has, and opens the calls of the stages that
// read nothing else.
func (p *pipeline) open(c *gate.Call, q *gate.Request) (*run, error) {
	r := runs.Get().(*run)
	r.p, r.call, r.request = p, c, *q
	r.refs.Store(1)
	r.stages = grown(r.stages, len(p.plan.stages))
	r.asking, r.unbegun = p.plan.asked, len(r.stages)
	r.parts.Add(1) // until all are known
	a := &r.request
	a.Model, a.Version, a.Outputs, a.Texts, a.Legacy, a.Bridge = "", "", nil, nil, nil, false
	a.Candidates, a.Use, a.Inputs, a.Plain = nil, nil, nil, true
	a.Keep = cmp.Or(a.Keep, p.Keep)
	if q.Asker != nil {
		r.within = q.Asker.Stage
	}
	a.Asker = &r.asker
	r.trial = p.shared.tries(time.Now())
	r.estimate()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.stages {
		s := &p.plan.stages[i]
		w := &r.stages[i]
		w.missing, w.readers = len(s.makers), append(w.readers[:0], s.readers...)
		if w.lined = c.Frame != nil && c.Keep() > 0 && !(s.first && c.Rows == 1); w.lined {
			w.entry = entry{run: r, stage: i, keep: c.Keep(), room: max(1, s.target.Live)}
		}
	}
	for i := range r.stages {
		// A stage without calls is done, and those after it can begin.
		if w := &r.stages[i]; w.missing == 0 && !w.lined && r.err == nil {
			r.begin(i)
		}
	}
	if r.err != nil {
		r.missed(false)
		r.closeRows()
		return nil, r.err
	}
	return r, nil
}

// grown returns a list of n zero values that reuses the memory of old, and of the rows in it.
func grown(old []work, n int) []work {
	if cap(old) < n {
		return make([]work, n)
	}
	return old[:n]
}

// estimate sets what the stages, and those after each, take at least.
func (r *run) estimate() {
	if r.trial {
		return
	}
	stages := r.p.plan.stages
	for i := len(stages) - 1; i >= 0; i-- {
		w := &r.stages[i]
		if w.fastest = fastest(stages[i].target); stages[i].timeout > 0 {
			w.fastest = min(w.fastest, stages[i].timeout)
		}
		for _, m := range stages[i].makers {
			r.stages[m].rest = max(r.stages[m].rest, w.fastest+w.rest)
		}
	}
}

// Start implements gate.Fanout.
func (r *run) Start(calls []*gate.Call) []*gate.Call {
	g := r.p.registry
	g.begun()
	r.mu.Lock()
	r.waiter = g.order.Join(r.call, r.call, r)
	r.started, r.pending = true, 1
	if r.call.Frame != nil {
		g.lines.join(r)
	}
	for i := range r.stages {
		w := &r.stages[i]
		for k := range w.rows {
			if o := &w.rows[k]; !o.done && r.err == nil {
				r.pending++
				calls = append(calls, &o.call)
			}
		}
	}
	r.mu.Unlock()
	r.advance()
	return calls
}

// Complete takes the answer of a model.
func (o *row) Complete(*gate.Call) {
	r := o.run
	r.mu.Lock()
	r.recordEnd(o, o.call.Err)
	r.mu.Unlock()
	r.advance()
}

// recordEnd records how a row ended. The caller has the lock.
func (r *run) recordEnd(o *row, err error) {
	w, s := &r.stages[o.stage], &r.p.plan.stages[o.stage]
	o.done, o.err = true, err
	r.short, r.refused = r.short || lacking(err), r.refused || refusing(err)
	if err != nil && (s.needed || errors.Is(err, scheduler.ErrSuperseded)) && r.err == nil {
		where := fmt.Sprintf("stage %q", s.Name)
		if len(w.rows) > 1 {
			where += fmt.Sprintf(", row %d", o.index(w))
		}
		r.err = fmt.Errorf("%w (%s of pipeline %q)", err, where, r.p.Name)
	}
	if err == nil {
		w.sent = min(w.sent, o.call.Timing.Queue)
	}
	if w.left--; w.left == 0 {
		r.finished(int(o.stage))
	}
}

// index is the place of a row in its stage.
func (o *row) index(w *work) int {
	for i := range w.rows {
		if &w.rows[i] == o {
			return i
		}
	}
	return -1
}

// finished notes that no row of a stage is left. The caller has the lock.
func (r *run) finished(i int) {
	w, s := &r.stages[i], &r.p.plan.stages[i]
	w.done = true
	r.count(i)
	if w.trace != nil {
		w.trace.Ended(len(w.rows), w.fault())
	}
	if w.lined {
		r.leave(w)
	}
	for k := range r.stages {
		for _, m := range r.p.plan.stages[k].makers {
			if m == i {
				r.stages[k].missing--
			}
		}
	}
	for _, u := range s.uses {
		r.stages[u.stage].readers[u.output]--
		r.giveBack(u)
	}
	for output := range w.readers {
		r.giveBack(use{i, output})
	}
	if s.asks {
		if r.asking--; r.asking == 0 {
			r.closeOpened()
			r.call.GiveInputsUp()
		}
	}
}

// fault returns the error of the first row that has one; nil: none has.
func (w *work) fault() error {
	for k := range w.rows {
		if err := w.rows[k].err; err != nil {
			return err
		}
	}
	return nil
}

// giveBack releases an output of a stage if nobody reads it any more and the answer does not show
// it. The caller has the lock.
func (r *run) giveBack(u use) {
	w := &r.stages[u.stage]
	if w.readers[u.output] > 0 || r.p.plan.stages[u.stage].shown[u.output] {
		return
	}
	for k := range w.rows {
		if o := &w.rows[k]; o.err == nil {
			t := &o.call.Outputs[u.output]
			t.Release()
			t.Data, t.Buf = nil, nil
		}
	}
}

// count counts a stage that is done.
func (r *run) count(i int) {
	w := &r.stages[i]
	ran := metrics.StageRun{LeftOut: uint64(w.leftOut), NotBegun: uint64(w.notBegun), Took: time.Since(w.since)}
	ran.Whole = r.call.Deadline.Sub(r.request.Arrived)
	ran.Waited = min(w.sent, ran.Took)
	for k := range w.rows {
		ran.Rows[fault.Outcome(w.rows[k].err)]++
	}
	r.p.target.Stages[i].Ran(&ran)
}

// advance begins what can begin now, cancels what an error made useless, and ends a unit of pending
// work, which is the caller's. The last one answers.
func (r *run) advance() {
	r.mu.Lock()
	for {
		if moves := r.moves; len(moves) > 0 {
			r.moves = nil
			r.mu.Unlock()
			perform(moves)
			r.mu.Lock()
			continue
		}
		if r.err != nil {
			if r.stopped {
				break
			}
			r.stopped = true
			r.stop()
			continue
		}
		i := r.ready()
		if i < 0 {
			break
		}
		if r.stages[i].lined && !r.expired {
			r.queue(i)
			continue
		}
		r.submit(r.begin(i))
	}
	r.pending--
	last := r.pending == 0
	r.over = r.over || last
	r.mu.Unlock()
	if last {
		r.finish()
	}
}

// ready returns a stage whose inputs are there and that has not begun; -1: there is none.
func (r *run) ready() int {
	for i := range r.stages {
		if w := &r.stages[i]; w.missing == 0 && !w.begun {
			return i
		}
	}
	return -1
}

// queue makes a frame wait for a stage, for as long as the line wants. The caller has the lock,
// which is released meanwhile.
func (r *run) queue(i int) {
	w := &r.stages[i]
	w.begun, w.since = true, time.Now()
	r.pending++ // for the entry
	if r.timer == nil {
		r.Retain()
		r.timer = time.AfterFunc(time.Until(r.call.Deadline), r.expire)
	}
	moves := r.p.registry.lines.arrive(&w.entry)
	r.mu.Unlock()
	perform(moves)
	r.mu.Lock()
}

// submit submits calls that were opened; the lock is released meanwhile.
func (r *run) submit(calls []*gate.Call) {
	if len(calls) == 0 {
		return
	}
	r.pending += len(calls)
	r.mu.Unlock()
	r.p.gate.SubmitNext(calls...)
	r.mu.Lock()
	if r.err != nil {
		r.stopped = false // these calls were canceled too early
	}
}

// perform makes moves in lines.
func perform(moves []move) {
	for _, m := range moves {
		m.run.enter(m.stage, m.err)
		m.run.Close()
	}
}

// enter begins a stage for which the run has waited in a line; or err says that it will not. The
// unit of work of the entry is the caller's.
func (r *run) enter(i int, err error) {
	r.mu.Lock()
	if r.err == nil {
		if r.err = err; err == nil {
			r.submit(r.begin(i))
		}
	}
	r.mu.Unlock()
	r.advance()
}

// expire ends waiting in lines at the deadline: it is too late to begin the stages, which is for
// begin to say.
func (r *run) expire() {
	defer r.Close()
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		return
	}
	r.pending++
	r.expired = true
	for i := range r.stages {
		w := &r.stages[i]
		if !w.lined || r.err != nil {
			continue
		}
		waited, next := r.p.registry.lines.withdraw(&w.entry)
		if r.moves = append(r.moves, next...); waited {
			r.pending--
			r.submit(r.begin(i))
		}
	}
	r.mu.Unlock()
	r.advance()
}

// leave takes a stage out of its line, and reports whether the frame waited there: then its unit of
// work has ended. The caller has the lock, and another unit.
func (r *run) leave(w *work) (waited bool) {
	waited, next := r.p.registry.lines.leave(&w.entry)
	if r.moves = append(r.moves, next...); waited {
		r.pending--
	}
	return waited
}

// stopAgain is how soon calls are canceled again: those that were being submitted by somebody else
// do not know of it.
const stopAgain = time.Millisecond

// stop cancels what is under way. The caller has the lock, which is released meanwhile, and a unit
// of work.
func (r *run) stop() {
	var under []*gate.Call
	for i := range r.stages {
		w := &r.stages[i]
		if w.lined && !w.done {
			r.leave(w)
		}
		for k := range w.rows {
			if o := &w.rows[k]; !o.done {
				under = append(under, &o.call)
			}
		}
	}
	r.mu.Unlock()
	for _, c := range under {
		r.p.gate.Cancel(c)
	}
	r.mu.Lock()
	for i := range r.stages {
		for k := range r.stages[i].rows {
			if !r.stages[i].rows[k].done {
				r.Retain()
				time.AfterFunc(stopAgain, r.restop)
				return
			}
		}
	}
}

// restop is stop for calls that were not submitted yet the last time.
func (r *run) restop() {
	defer r.Close()
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		return
	}
	r.pending++
	r.stopped = false
	r.mu.Unlock()
	r.advance()
}

// giveUp ends the request with an error, unless it has ended.
func (r *run) giveUp(err error) {
	r.mu.Lock()
	if r.over || r.err != nil {
		r.mu.Unlock()
		return
	}
	if r.err = err; !r.started {
		r.mu.Unlock()
		return
	}
	r.pending++
	r.mu.Unlock()
	r.advance()
}

// Cancel implements gate.Fanout.
func (r *run) Cancel() {
	r.giveUp(errCanceled)
	r.mu.Lock()
	waiter := r.waiter
	r.mu.Unlock()
	waiter.Cancel()
}

// GiveUp implements composite.Work.
func (r *run) GiveUp() { r.giveUp(errCanceled) }

// Retain implements composite.Work.
func (r *run) Retain() { r.refs.Add(1) }

// Voices implements gate.Fanout.
func (r *run) Voices() int { return 1 }

// finish answers. Nothing of the run is under way.
func (r *run) finish() {
	g := r.p.registry
	if r.timer != nil && r.timer.Stop() {
		r.Close()
	}
	var moves []move
	for i := range r.stages {
		if w := &r.stages[i]; w.lined {
			_, next := g.lines.leave(&w.entry)
			moves = append(moves, next...)
		}
	}
	c, waiter := r.call, r.waiter
	c.Outputs = c.Outputs[:0]
	if c.Err = r.err; c.Err == nil {
		c.Err = r.answer()
	}
	if c.Err != nil {
		c.Outputs = gate.Released(c.Outputs)
	}
	r.tell()
	r.time(c)
	r.missed(true)
	r.closeRows()
	g.ended()
	if waiter != nil {
		waiter.FailIfSuperseded()
		waiter.Finish()
	} else {
		c.Finish()
	}
	perform(moves)
}

// tell tells the models that the client is about to have its answer.
func (r *run) tell() {
	for i := range r.stages {
		for k := range r.stages[i].rows {
			r.p.gate.Told(&r.stages[i].rows[k].call)
		}
	}
}

// time says where the time went: until the first row was sent to a container, and the rest.
func (r *run) time(c *gate.Call) {
	c.Timing = scheduler.Timing{}
	for i := range r.stages {
		for k := range r.stages[i].rows {
			if t := r.stages[i].rows[k].call.Timing; r.p.plan.stages[i].first {
				c.Timing.Queue = max(c.Timing.Queue, t.Queue)
				c.Timing.BatchRows = max(c.Timing.BatchRows, t.BatchRows)
			}
		}
	}
	c.Timing.Exec = max(0, time.Since(r.request.Arrived)-c.Timing.Queue)
}

// closeRows closes all calls to models.
func (r *run) closeRows() {
	for i := range r.stages {
		w := &r.stages[i]
		for k := range w.rows {
			o := &w.rows[k]
			o.call.Close()
			o.err, o.run, o.asked, o.done = nil, nil, false, false
		}
		rows := w.rows[:0]
		if cap(rows) > spareRows {
			rows = nil
		}
		*w = work{rows: rows, readers: w.readers[:0]}
	}
	clear(r.pictures)
	r.closeOpened()
}

// Close implements gate.Fanout: it releases a reference. After the last one the run is reused.
func (r *run) Close() {
	left := r.refs.Add(-1)
	if tensor.Invariants && left < 0 {
		panic(tensor.Violation("pipelines: a run was released more often than it was retained"))
	}
	if left > 0 {
		return
	}
	if !r.over { // it was opened and not submitted
		r.closeRows()
	}
	r.p, r.call, r.request, r.asker, r.within = nil, nil, gate.Request{}, gate.Asker{}, nil
	r.waiter, r.timer, r.moves, r.err = nil, nil, nil, nil
	r.parts.Reset()
	r.pending, r.trial, r.short, r.refused = 0, false, false, false
	r.started, r.stopped, r.expired, r.over = false, false, false, false
	runs.Put(r)
}

// panicked makes an error of a panic during one request.
func (p *pipeline) panicked(what any) error {
	if v, is := what.(tensor.Violation); is {
		panic(v)
	}
	p.registry.cfg.Log.Error("panic in a request to a pipeline", "pipeline", p.Name, "panic", what, "stack",
		string(debug.Stack()))
	return fmt.Errorf("%w: pipeline %q: %v", fault.ErrInternal, p.Name, what)
}
