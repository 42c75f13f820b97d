package scheduler

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Model is one version of one model: a queue, and the replicas that work on it. It is the shell
// around a core: one mutex, one timer, and the calls to other code, which are made without the
// mutex.
//
// The spec of a Model never changes. When no replica is left and one registers with another spec,
// the scheduler makes a new Model with the same ID, and the old one answers ErrUnavailable.
type Model struct {
	// Set once.

	sched   *Scheduler
	id      ModelID
	spec    Spec
	batched bool
	// For each output, the index of the output that counts its values, or -1; nil: none is ragged.
	ragged []int
	// For each input, the index of the input with regions of its pictures, or -1; nil: there is
	// none.
	regions []int

	// running counts the events whose callbacks are being called.
	running atomic.Int64

	mu sync.Mutex

	// Guarded by mu.

	core  core
	timer Timer
	armed int64 // when the timer fires; never: it does not
	early []answer
	busy  bool          // a goroutine is working on early
	idle  chan struct{} // closed once all requests are answered; nil: no Drain waits
}

// answer is a worker's answer to a batch.
type answer struct {
	b         *Batch
	outputs   []tensor.Tensor
	rowErrors []RowError
	err       error
}

func newModel(s *Scheduler, id ModelID, spec Spec, cfg ModelConfig) *Model {
	m := &Model{sched: s, id: id, spec: spec, batched: spec.Batched(), ragged: spec.Raggeds(),
		regions: spec.Regions(), armed: never}
	m.core = newCore(id, spec, cfg)
	m.core.model = m
	return m
}

// ID returns the model's name and version.
func (m *Model) ID() ModelID { return m.id }

// Spec returns what its replicas declare. It must not be modified. Platform, MaxBatch and
// Parameters are those of the first replica; [Stats] has the effective maximum of each replica.
func (m *Model) Spec() Spec { return m.spec }

// Replicas counts the live replicas: those that take batches.
func (m *Model) Replicas() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.live
}

// Incarnation rises whenever a replica registers while none is live: from then on another build
// of the same version may answer, and answer differently.
func (m *Model) Incarnation() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.incarnation
}

var effectsPool = sync.Pool{New: func() any { return new(effects) }}

// begin locks the model for an event.
func (m *Model) begin() (fx *effects, now int64) {
	m.running.Add(1)
	fx = effectsPool.Get().(*effects)
	m.mu.Lock()
	now = m.sched.now() // with the lock, so that time does not run backwards between events
	m.core.past.sample(now, &m.core.stats, m.core.requests)
	m.core.sources.begin(now)
	m.core.demand.sample(now, &m.core)
	return fx, now
}

// end unlocks the model and carries out the effects of the event.
func (m *Model) end(fx *effects, now int64) {
	m.unlock(now)
	m.run(fx)
	m.conclude(fx)
}

// unlock sets the timer and unlocks. The timer is only ever moved to an earlier time: if it fires
// too early, tick finds nothing to do and sets it again. So requests with equal SLOs hardly ever
// set it.
func (m *Model) unlock(now int64) {
	if at := m.core.wake; at < m.armed && !m.core.closed {
		m.armed = at
		d := time.Duration(max(0, at-now))
		if m.timer == nil {
			m.timer = m.sched.clock.AfterFunc(d, m.tick)
		} else {
			m.timer.Reset(d)
		}
	}
	m.mu.Unlock()
}

// conclude ends an event after its effects are carried out.
func (m *Model) conclude(fx *effects) {
	clear(fx.send)
	clear(fx.answered)
	clear(fx.lost)
	clear(fx.removed)
	clear(fx.offers)
	clear(fx.silent)
	clear(fx.convicted)
	clear(fx.drained)
	*fx = effects{
		send: fx.send[:0], answered: fx.answered[:0], lost: fx.lost[:0], removed: fx.removed[:0],
		offers: fx.offers[:0], silent: fx.silent[:0], convicted: fx.convicted[:0], drained: fx.drained[:0],
	}
	effectsPool.Put(fx)
	m.ended()
}

// ended wakes Drain once the model has answered every request.
func (m *Model) ended() {
	if m.running.Add(-1) == 0 && m.sched.draining.Load() {
		m.mu.Lock()
		m.checkIdleLocked()
		m.mu.Unlock()
	}
}

func (m *Model) checkIdleLocked() {
	if m.idle != nil && m.core.requests == 0 && m.running.Load() == 0 {
		close(m.idle)
		m.idle = nil
	}
}

// run carries out the effects.
func (m *Model) run(fx *effects) {
	hooks := &m.sched.hooks
	for _, b := range fx.send {
		m.send(b)
	}
	for _, b := range fx.removed {
		b.leave()
	}
	for i := range fx.lost {
		if g := &fx.lost[i]; hooks.BatchDone != nil {
			hooks.BatchDone(m.id, g.rows, time.Duration(g.exec), time.Duration(g.predicted), g.err)
		}
	}
	for i := range fx.offers {
		if o := &fx.offers[i]; o.replica.options.Offer != nil {
			o.replica.options.Offer(o.Offer)
		}
	}
	for _, rep := range fx.silent {
		if f := rep.options.Silent; f != nil {
			f(fmt.Errorf("no answer for %d times execution_timeout", silentTimeouts))
		}
	}
	if fx.wasted > 0 && hooks.RowsWasted != nil {
		hooks.RowsWasted(m.id, fx.wasted)
	}
	if fx.changed && hooks.ModelChanged != nil {
		hooks.ModelChanged(m)
	}
	for i := range fx.convicted {
		m.remember(fx.convicted[i])
	}
	for _, r := range fx.answered {
		r.Alone = len(fx.answered) == 1
		m.finish(r)
	}
	for _, done := range fx.drained {
		done()
	}
}

// send hands a batch to its worker.
func (m *Model) send(b *Batch) {
	b.ID = m.sched.batchID.Add(1)
	if b.due != never {
		b.Deadline = m.sched.epoch.Add(time.Duration(b.due))
	}
	if f := m.sched.hooks.BatchClosed; f != nil {
		f(m.id, b.Rows-b.padding, b.reason, time.Duration(b.oldest))
	}
	if err := sendTo(b); err != nil {
		if p, ok := err.(*workerPanic); ok {
			m.sched.log.Error("panic while sending a batch; the replica is removed",
				"model", m.id, "replica", b.replica.label, "panic", p.value, "stack", string(p.stack))
		}
		m.remove(b.replica, fmt.Errorf("sending a batch: %w", err))
	}
	b.leave()
}

// A workerPanic is a panic in Worker.Send, turned into an error since the goroutine is often an
// event loop that serves other requests.
type workerPanic struct {
	value any
	stack []byte
}

func (p *workerPanic) Error() string { return fmt.Sprintf("the worker panicked: %v", p.value) }

func sendTo(b *Batch) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &workerPanic{v, debug.Stack()}
		}
	}()
	return b.replica.worker.Send(b)
}

// submit accepts or refuses requests of this model.
func (m *Model) submit(rs []*Request) {
	for _, r := range rs {
		r.check(m.sched)
	}
	fx, now := m.begin()
	for _, r := range rs {
		if r.Err != nil {
			m.core.refuse(r, OutcomeInvalidInput, r.Err, fx)
		} else {
			m.core.submit(r, now, fx)
		}
	}
	m.core.dispatch(now, fx)
	m.end(fx, now)
}

// check prepares a request for submission and validates it.
func (r *Request) check(s *Scheduler) {
	r.Err, r.Outputs = nil, r.Outputs[:0]
	if r.Rare != nil {
		r.Rare.Failed = nil
	}
	if r.deadline = never; !r.Deadline.IsZero() {
		r.deadline = int64(r.Deadline.Sub(s.epoch))
	}
	r.bytes = 0
	if f := r.Frame; f != nil {
		f.stream, f.leaving, f.Reordered = nil, false, false
		if f.captured = never; !f.Captured.IsZero() {
			f.captured = max(int64(f.Captured.Sub(s.epoch)), -1<<61) // so that ages do not overflow
		}
		if f.Stream == "" {
			r.Err = fmt.Errorf("%w: the frame names no stream", ErrInvalidInput)
			return
		}
	}
	switch {
	case r.Rows < 1:
		r.Err = fmt.Errorf("%w: expected at least one row, got %d", ErrInvalidInput, r.Rows)
	case len(r.Inputs) == 0 && len(r.Model.spec.Inputs) > 0:
		r.Err = fmt.Errorf("%w: the request has no inputs", ErrInvalidInput)
	case len(r.Inputs) > len(r.Model.spec.Inputs):
		r.Err = fmt.Errorf("%w: the request has %s, and the model declares %d",
			ErrInvalidInput, plural.Of(len(r.Inputs), "input"), len(r.Model.spec.Inputs))
	case r.Priority < 0 || r.Priority >= priorities:
		r.Err = fmt.Errorf("%w: expected a priority from 0 to %d, got %d", ErrInvalidInput, priorities-1, r.Priority)
	}
	shares := false
	for i := range r.Inputs {
		t := &r.Inputs[i]
		r.bytes += int64(len(t.Data))
		if r.Err != nil {
			return
		}
		if r.lacks(i) {
			continue
		}
		rows := r.Rows
		if r.shares(i) {
			rows, shares = 1, true
		}
		if t.Rows() != rows {
			r.Err = fmt.Errorf("%w: input %q has shape %s, but the request has %s of it",
				ErrInvalidInput, t.Name, t.Shape, plural.Of(rows, "row"))
		} else if err := t.Check(); err != nil {
			r.Err = fmt.Errorf("%w: input %q: %w", ErrInvalidInput, t.Name, err)
		}
	}
	if numbered := r.Rare != nil && r.Rare.Picture != 0; r.Err == nil && numbered != shares {
		r.Err = fmt.Errorf("%w: the rows are regions of a picture: %v; the picture has a number: %v",
			ErrInvalidInput, shares, numbered)
	}
}

// lacks reports whether input i is an absent optional input.
func (r *Request) lacks(i int) bool {
	specs := r.Model.spec.Inputs
	return len(r.Inputs[i].Shape) == 0 && i < len(specs) && specs[i].Optional
}

// cancel ends a request that its caller gave up.
func (m *Model) cancel(r *Request) {
	fx, now := m.begin()
	m.core.cancel(r, fx)
	m.end(fx, now)
}

// tick is the timer's function.
func (m *Model) tick() {
	fx, now := m.begin()
	m.armed = never
	if !m.core.closed {
		m.core.tick(now, fx)
	}
	m.end(fx, now)
}

// batchAnswered handles a worker's answer.
//
// A worker may answer before its Send returns, and the owners of the requests may at once submit
// more for the same worker: the recursion would deepen with every round. So an answer that arrives
// before Send has returned is put into early, which one goroutine empties.
func (m *Model) batchAnswered(b *Batch, outputs []tensor.Tensor, rowErrors []RowError, err error) {
	a := answer{b, outputs, rowErrors, err}
	if b.parties.Load() < 2 { // Send has returned
		m.handleAnswer(a)
		return
	}
	m.mu.Lock()
	m.early = append(m.early, a)
	busy := m.busy
	m.busy = true
	m.mu.Unlock()
	if !busy {
		m.handleEarly()
	}
}

// handleEarly handles the answers in early.
func (m *Model) handleEarly() {
	for {
		m.mu.Lock()
		if len(m.early) == 0 {
			m.busy = false
			m.mu.Unlock()
			return
		}
		a := m.early[0]
		n := copy(m.early, m.early[1:])
		m.early[n] = answer{}
		m.early = m.early[:n]
		m.mu.Unlock()
		m.handleAnswer(a)
	}
}

// handleAnswer handles an answer and delivers it.
func (m *Model) handleAnswer(a answer) {
	b := a.b
	fx, now := m.begin()
	if b.state == batchOut && a.err == nil {
		b.outputs = append(b.outputs[:0], a.outputs...)
	}
	exec, v := m.core.answered(b, a.rowErrors, a.err, now, fx)
	rows, predicted := b.Rows-b.padding, b.predicted
	m.unlock(now)
	// The replica's next batch is sent first: it is idle now.
	for _, next := range fx.send {
		m.send(next)
	}
	fx.send = fx.send[:0]
	if v == verdictDeliver {
		// Before the answers, so that a client that reads statistics next finds its own request in
		// them.
		if f := m.sched.hooks.BatchDone; f != nil {
			f(m.id, rows, time.Duration(exec), time.Duration(predicted), a.err)
		}
		m.deliver(b, exec)
	}
	for _, t := range a.outputs {
		t.Release()
	}
	if v != verdictIgnore {
		b.leave()
	}
	m.run(fx)
	m.conclude(fx)
}

// remove removes a replica.
func (m *Model) remove(rep *Replica, reason error) {
	why := fmt.Errorf("%w: %w", ErrContainerLost, reason) // here, as it calls a method of reason
	fx, now := m.begin()
	m.core.remove(rep, why, now, fx)
	m.end(fx, now)
}

// Remove removes the replica for good: its session has ended, for the given reason. Its batches go
// to other replicas, once, or their requests are answered ErrContainerLost. After it the worker
// must not read the batches' inputs; calling Complete or Fail on such a batch late is harmless.
// Further calls of Remove do nothing.
func (r *Replica) Remove(reason error) { r.m.remove(r, reason) }

// Drain stops sending batches to the replica. It calls done, with no lock held, once the last batch
// is answered (at once if there is none) or the replica is removed. The caller must still call
// Remove.
func (r *Replica) Drain(done func()) {
	fx, now := r.m.begin()
	r.m.core.drain(r, done, now, fx)
	r.m.end(fx, now)
}

// Model returns the model of the replica.
func (r *Replica) Model() *Model { return r.m }
