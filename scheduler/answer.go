package scheduler

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

// Splitting the outputs of a batch into those of its requests. Except for take, all of it runs
// without a lock, on batches and requests that no other goroutine can reach any more.

// deliver hands each span's rows to its request, if that still waits, and completes the requests.
// Their outcomes are set already; those with an error get no rows.
func (m *Model) deliver(b *Batch, exec int64) {
	b.cuts, b.cutRows = append(b.cuts[:0], b.outputs...), 0
	if len(b.spans) > 1 {
		if f := m.sched.hooks.Delivering; f != nil {
			if over := f(); over != nil {
				defer over()
			}
		}
		m.sched.delivering.Add(1)
		defer m.sched.release()
	}
	for i := range b.spans {
		s := &b.spans[i]
		r, rows := s.req, s.hi-s.lo
		if late := s.late; late != nil && r == nil && s.err == nil {
			s.late = nil
			m.lend(b, late, rows)
		} else if r == nil || r.Err != nil || r.pieces != nil {
			b.skip(rows)
		} else {
			b.cut(r, rows)
		}
		if r == nil {
			continue
		}
		s.req = nil
		r.Timing.Exec = time.Duration(exec)
		r.Timing.BatchRows = b.Rows
		r.Alone = r.Rows == b.Rows
		m.finish(r)
	}
}

// A verdict tells the shell what to do with an answer.
type verdict uint8

const (
	verdictIgnore verdict = iota // the batch no longer belongs to the worker: drop the answer
	verdictDrop                  // drop the answer; the worker is done with the batch
	// Deliver the rows of the spans; the worker is done with the batch.
	verdictDeliver
)

// skip drops the next rows of the outputs.
func (b *Batch) skip(rows int) {
	for i := range b.cuts {
		t := &b.cuts[i]
		if len(t.Shape) > 0 {
			t.Data = t.Data[rowsBytes(t, b.length(i, b.cutRows, b.cutRows+rows)):]
		}
	}
	b.cutRows += rows
}

// cut moves the next rows of the outputs to r, with one reference for each output.
func (b *Batch) cut(r *Request, rows int) {
	r.Outputs = r.Outputs[:0]
	if cap(r.Outputs) < len(b.cuts) {
		if r.Outputs = r.out[:0]; len(b.cuts) > len(r.out) {
			r.Outputs = make([]tensor.Tensor, 0, len(b.cuts))
		}
	}
	dims := r.dims[:0]
	for i := range b.cuts {
		t := &b.cuts[i]
		length := b.length(i, b.cutRows, b.cutRows+rows)
		n := rowsBytes(t, length)
		view := *t
		view.Data = t.Data[:n:n]
		t.Data = t.Data[n:]
		if cap(dims)-len(dims) < len(t.Shape) {
			dims = make([]int, 0, len(t.Shape)*(len(b.cuts)-i))
		}
		at := len(dims)
		dims = append(dims, t.Shape...)
		view.Shape = dims[at:len(dims):len(dims)]
		view.Shape[0] = length
		view.Retain()
		r.Outputs = append(r.Outputs, view)
	}
	b.cutRows += rows
}

// lend passes the next rows of the outputs to the owner of a request that has ended already.
func (m *Model) lend(b *Batch, late LateReceiver, rows int) {
	var r Request
	b.cut(&r, rows)
	defer func() {
		for _, t := range r.Outputs {
			t.Release()
		}
	}()
	defer m.recoverPanic()
	late.ReceiveLate(r.Outputs)
}

// rowsBytes is the length in bytes of the first rows of t (values, if t is ragged); t has at least
// as many. (tensor.Cut does the same, but allocates the shapes, once for each request.)
func rowsBytes(t *tensor.Tensor, rows int) int {
	elems, _ := t.Shape[1:].Elements()
	elems *= rows
	if t.DType != tensor.Bytes {
		return elems * t.DType.Size()
	}
	at := 0
	for range elems {
		at += 4 + int(uint32(t.Data[at])|uint32(t.Data[at+1])<<8|uint32(t.Data[at+2])<<16|uint32(t.Data[at+3])<<24)
	}
	return at
}

// take stores the answer of a span whose request was split over several batches. It runs under
// the model's mutex, since pieces arrive from several workers.
func (b *Batch) take(s *span, from int) error {
	p := piece{lo: s.lo}
	for i, t := range b.outputs {
		lo := b.length(i, 0, from)
		view, err := t.RowSlice(lo, lo+b.length(i, from, from+s.hi-s.lo))
		if err != nil {
			return fmt.Errorf("%w: %v", ErrContainerFailed, err)
		}
		view.Retain()
		p.outputs = append(p.outputs, view)
	}
	s.req.pieces = append(s.req.pieces, p)
	return nil
}

// assemble joins the pieces of a request in row order, or releases them if the request has
// failed.
func (m *Model) assemble(r *Request) {
	pieces := r.pieces
	r.pieces = nil
	if r.Err == nil {
		slices.SortFunc(pieces, func(a, b piece) int { return a.lo - b.lo })
		r.Outputs = r.Outputs[:0]
		if len(pieces) == 1 { // it waited for an older frame of its stream
			r.Outputs = append(r.Outputs, pieces[0].outputs...)
			return
		}
		parts := make([]tensor.Tensor, len(pieces))
		for i := range pieces[0].outputs {
			for k, p := range pieces {
				parts[k] = p.outputs[i]
			}
			whole, err := tensor.Concat(parts, m.sched.pool)
			if err != nil {
				m.spoiled(r, len(pieces), err)
				for _, t := range r.Outputs {
					t.Release()
				}
				r.Outputs = r.Outputs[:0]
				break
			}
			r.Outputs = append(r.Outputs, whole)
		}
	}
	for _, p := range pieces {
		for _, t := range p.outputs {
			t.Release()
		}
	}
}

// freeSizes lists the declarations for a model whose rows have answers of different sizes.
const freeSizes = "if the size of an output differs between rows, declare the output as ragged, or pad it and return a count, or declare batched = false"

// spoiled fails a request whose pieces cannot be joined: memory is short, or the pieces have
// different shapes.
func (m *Model) spoiled(r *Request, batches int, err error) {
	r.outcome, r.Err = OutcomeContainerFailed,
		fmt.Errorf("%w: the answers of its %d batches cannot be joined: %w; %s",
			ErrContainerFailed, batches, err, freeSizes)
	if errors.Is(err, tensor.ErrBudget) {
		r.outcome, r.Err = OutcomeMemory,
			fmt.Errorf("%w: no memory to join the answers of its %d batches: %w", ErrOverloaded, batches, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.core.stats.outcomes[OutcomeOK]--
	m.core.stats.outcomes[r.outcome]++
}

// finish hands an answered request back to its owner, and then the requests whose answers waited
// for it. The caller must use none of them afterwards.
//
// It loops instead of recursing, since the answers of a stream may go on for ever: while one is
// delivered, other replicas bring the next ones.
func (m *Model) finish(r *Request) {
	s := m.handOver(r)
	if s == nil {
		return
	}
	for next := m.delivered(s); len(next) > 0; {
		r, next = next[0], next[1:]
		m.handOver(r)
		next = append(next, m.delivered(s)...)
	}
}

// handOver hands an answered request back to its owner. It returns the stream whose next answer
// this was; nil: the answer is an error, or the request is no frame of a stream.
func (m *Model) handOver(r *Request) (of *stream) {
	defer m.recoverPanic()
	if r.pieces != nil {
		m.assemble(r)
	}
	if r.Err != nil {
		r.Outputs = r.Outputs[:0]
	}
	if f := m.sched.hooks.Answered; f != nil {
		f(r, r.outcome)
	}
	if f := r.Frame; f != nil && f.leaving {
		of = f.stream
	}
	r.Owner.Complete(r)
	return of
}

// recoverPanic is deferred where owners are called, and logs the panic of an owner. The goroutine
// is often an event loop that serves other requests, and other requests of the same batch are yet
// to be completed. A tensor.Violation, which the strict build raises, still ends the process.
func (m *Model) recoverPanic() {
	p := recover()
	if p == nil {
		return
	}
	if v, is := p.(tensor.Violation); is {
		panic(v)
	}
	m.sched.log.Error("panic in the callback of a request", "model", m.id, "panic", p, "stack", string(debug.Stack()))
}

// delivered is called after an answer of a stream was handed back, and returns the requests to hand
// back next. If they were answered before Complete had returned for the previous one, another
// goroutine could overtake this one.
func (m *Model) delivered(s *stream) []*Request {
	fx, now := m.begin()
	m.core.delivered(s, now, fx)
	m.unlock(now)
	next := slices.Clone(fx.answered)
	for _, r := range next {
		r.Alone = len(next) == 1
	}
	m.conclude(fx)
	return next
}
