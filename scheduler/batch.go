package scheduler

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Batch is the unit of execution of a replica: rows of one or more requests.
//
// From [Worker.Send] until Complete or Fail it belongs to the worker, which may read all exported
// fields and the inputs' bytes, and must write to none. It holds its own references to the
// inputs, and copies of everything else, so it stays intact when its requests are answered early.
// After Complete or Fail it must not be touched, since it is recycled.
type Batch struct {
	ID       uint64 // unique in the process; the first one is random
	Model    ModelID
	Rows     int       // of all parts together
	Parts    []Part    // in order of the rows
	Deadline time.Time // the tightest; zero: none
	// Pictures has the numbers of the pictures whose regions the rows are, each once, in the order
	// of the first part of each. The inputs of pictures that have regions have as many rows, those
	// of the first parts. nil: the rows are no regions.
	Pictures []uint64
	Grant    Grant // for the container, if several servers share it

	// Static while the batch is out.

	model   *Model
	replica *Replica
	sent    int64
	// When the container could start the batch; notStarted: it is queued in the container.
	began     int64
	due       int64 // the tightest deadline when it was sent
	predicted int64 // upper quantile of its execution time; 0: unknown
	typical   int64 // median
	// Of a trial: the time that as many rows take in batches of the best known size, in ns; else 0.
	bestTime       float64
	medianDeadline int64 // of a trial: the median deadline of its rows
	divides        bool  // of a trial: callers wait for a further batch because of it
	limit          int   // the most rows it could have had, for strategies that learn
	probe          int64 // time allowed for a probe of a suspect replica; 0: no probe
	lead           int64 // dispatch overhead that was planned before it starts; 0 unless idle
	idle           bool  // the replica was not busy when it was sent
	requests       int   // number of requests with rows in it, without padding
	padding        int   // rows added to reach a fixed size
	bytes          int64 // of the inputs, without padding
	crowded        bool  // batch_bytes allows no more
	leftOut        bool  // frames were left out: their streams have one in it
	reason         CloseReason
	oldest         int64 // how long its oldest rows have waited
	executed       struct {
		rows   int   // of the execution, including other servers' rows; 0: only its own
		queued int64 // ns that it waited in the container for another execution
	}
	ready    int64 // when its inputs are predicted to be prepared; 0: when it arrives
	prepared int64 // ns that this took; 0: the container did not say
	tensors  []tensor.Tensor
	opened   []*Opened // of its parts, with references
	shapes   []int
	params   []byte
	places   map[uint64]int // of Pictures, once it has more than one

	// parties counts those that may still touch the batch: the goroutine in Send, and the worker.
	// The last one to leave disposes of it.
	parties atomic.Int32

	// Guarded by the model's mutex; once the batch is done, owned by the goroutine that answers it.

	spans    []span
	retry    *retry // it executes this retry; nil: its rows are from the queue
	tightest int64  // earliest deadline among spans that are still attached
	state    batchState
	outputs  []tensor.Tensor
	cuts     []tensor.Tensor // scratch: the remainder of each output while it is cut into rows
	cutRows  int             // rows cut off so far
}

// A Part is the rows of one request in a batch.
type Part struct {
	// Views, in the order of the model's declaration. Parts that are regions of one picture have
	// the same one: see [Batch.Pieces].
	Inputs     []tensor.Tensor
	Rows       int
	Picture    int     // index of its picture in the batch's Pictures
	Opened     *Opened // of the picture that input OpenedAt has; nil: nobody else needs it
	OpenedAt   int
	Parameters []byte // JSON object, or nil
	Metadata   []byte // the same, of what Parameters lacks
	Priority   int
	Trace      Parent // Trace.Parent of a traced request; zero: it is not traced
	TraceState string // its Trace.State
}

// A RowError is the failure of one row of a batch, whose other rows have answers.
type RowError struct {
	Row     int // of the batch, from 0
	Message string
	// Invalid says that the row itself was wrong, and the container is not to blame: its request
	// gets an [ErrInvalidInput] in place of an [ErrContainerFailed].
	Invalid bool
}

type batchState uint8

const (
	batchOut batchState = iota // with its worker
	// With its worker, but given up: its requests were requeued or answered.
	batchOrphan
	batchRemoved // its replica was removed; the worker may still answer
	batchDone
)

// A span is the rows of a batch, or of a retry, that belong to one request. Padding, and rows
// whose request was answered early, have no request.
type span struct {
	req    *Request
	lo, hi int // rows of the request
	record record
	err    error
	next   *span  // of the same request, in other batches
	retry  *retry // the retry in which it waits; nil: it is in a batch

	late LateReceiver // receives the rows although req is answered already; may be nil
}

// Complete answers the batch. Outputs are in the order of the model's declaration. Each must have
// Shape[0] == b.Rows; the first dimension of a ragged one is the sum over all rows. The
// references to the outputs pass to the batch, also when an error is returned. Only the rows
// named in rowErrors fail.
//
// Outputs that do not fit the declaration fail the batch with an [ErrContainerFailed], as by
// Fail, and that error is returned.
func (b *Batch) Complete(outputs []tensor.Tensor, rowErrors []RowError) error {
	err := b.check(outputs, rowErrors)
	if err != nil {
		for _, t := range outputs {
			t.Release()
		}
		outputs, rowErrors = nil, nil
	}
	b.model.batchAnswered(b, outputs, rowErrors, err)
	return err
}

// Executed reports, before Complete or Fail, that a shared container executed the batch together
// with rows of other servers, how many rows that execution had in all, and how long the batch had
// waited in the container because an earlier execution went without it.
func (b *Batch) Executed(rows int, queued time.Duration) {
	b.executed.rows, b.executed.queued = max(rows, b.Rows), max(0, int64(queued))
}

// Prepared reports, before Complete, how long the container took to prepare the batch's inputs, to
// decode pictures for example, if it does that while it executes the batch before.
func (b *Batch) Prepared(took time.Duration) { b.prepared = max(0, int64(took)) }

// Fail answers the batch with an error of the container for all of its rows. If it has rows of
// several requests, they are tried again in smaller batches until one request is left that fails
// alone, unless the model's configuration forbids retries.
//
// The requests get an [ErrContainerFailed], unless the container is not at fault: an err that is an
// [ErrOverloaded] (no memory for the answer) or an [ErrInvalidInput] (this container's protocol
// cannot carry the rows) is passed on as it is.
func (b *Batch) Fail(err error) {
	if outcomeOfFailure(err) == OutcomeContainerFailed {
		err = fmt.Errorf("%w: %v", ErrContainerFailed, err)
	}
	b.model.batchAnswered(b, nil, nil, err)
}

// outcomeOfFailure is the outcome of the requests of a batch that failed.
func outcomeOfFailure(err error) Outcome {
	switch {
	case errors.Is(err, ErrOverloaded):
		return OutcomeMemory
	case errors.Is(err, ErrInvalidInput):
		return OutcomeInvalidInput
	}
	return OutcomeContainerFailed
}

// check compares the outputs with the declaration.
func (b *Batch) check(outputs []tensor.Tensor, rowErrors []RowError) error {
	spec := &b.model.spec
	if len(outputs) != len(spec.Outputs) {
		return fmt.Errorf("%w: it declared %s and answered with %d",
			ErrContainerFailed, plural.Of(len(spec.Outputs), "output"), len(outputs))
	}
	for i := range outputs {
		t, want := &outputs[i], &spec.Outputs[i]
		ragged := want.Ragged != ""
		if t.Rows() != b.Rows && (!ragged || len(t.Shape) == 0) {
			return fmt.Errorf("%w: output %q has shape %s for a batch of %s",
				ErrContainerFailed, want.Name, t.Shape, plural.Of(b.Rows, "row"))
		}
		if t.DType != want.DType {
			return fmt.Errorf("%w: output %q is declared as %s, got %s",
				ErrContainerFailed, want.Name, want.DType, t.DType)
		}
		if declared := want.Shape; !fits(t.Shape, declared, b.model.batched) {
			return fmt.Errorf("%w: output %q is declared as %s, got %s",
				ErrContainerFailed, want.Name, declared, t.Shape)
		}
		if err := t.Check(); err != nil {
			return fmt.Errorf("%w: output %q: %v", ErrContainerFailed, want.Name, err)
		}
	}
	for i, by := range b.model.ragged {
		if by >= 0 {
			if err := b.checkCounts(&outputs[i], &outputs[by], spec.Outputs[by].Name); err != nil {
				return fmt.Errorf("%w: output %q: %w", ErrContainerFailed, spec.Outputs[i].Name, err)
			}
		}
	}
	for _, e := range rowErrors {
		if e.Row < 0 || e.Row >= b.Rows {
			return fmt.Errorf("%w: it reports an error for row %d in a batch of %s (%s)",
				ErrContainerFailed, e.Row, plural.Of(b.Rows, "row"), e.Message)
		}
	}
	return nil
}

// checkCounts returns an error unless counts, one for each row, add up to the number of values of
// the ragged output t.
func (b *Batch) checkCounts(t, counts *tensor.Tensor, by string) error {
	left := t.Shape[0]
	for row := range b.Rows {
		n := countAt(counts, row)
		if n < 0 || n > int64(left) {
			return fmt.Errorf("%s is %d for row %d, but only %d of its %s left",
				by, n, row, left, plural.Words(t.Shape[0], "value is", "values are"))
		}
		left -= int(n)
	}
	if left > 0 {
		return fmt.Errorf("%s adds up to %s for %s, but it has %d", by, plural.Of(t.Shape[0]-left, "value"),
			plural.Of(b.Rows, "row"), t.Shape[0])
	}
	return nil
}

// countAt is the count for one row.
func countAt(counts *tensor.Tensor, row int) int64 {
	if counts.DType == tensor.Int32 {
		return int64(int32(binary.NativeEndian.Uint32(counts.Data[4*row:])))
	}
	return int64(binary.NativeEndian.Uint64(counts.Data[8*row:]))
}

// length is the part of the first dimension of output i that belongs to rows lo to hi.
func (b *Batch) length(i, lo, hi int) int {
	by := b.model.ragged
	if by == nil || by[i] < 0 {
		return hi - lo
	}
	n := int64(0)
	for row := lo; row < hi; row++ {
		n += countAt(&b.outputs[by[i]], row)
	}
	return int(n)
}

// fits reports whether a shape with a batch dimension matches a declared one. A model that is not
// batched declares its shapes without that dimension.
func fits(got, declared tensor.Shape, batched bool) bool {
	got = got[1:]
	if batched {
		declared = declared[1:]
	}
	if len(got) != len(declared) {
		return false
	}
	for i, d := range declared {
		if d != -1 && d != got[i] {
			return false
		}
	}
	return true
}

// add appends rows of a request.
func (b *Batch) add(s span) {
	b.part(s.req, s.lo, s.hi)
	b.spans = append(b.spans, s)
	b.requests++
	b.bytes += s.req.load(s.lo, s.hi)
}

// pad appends rows of a request whose answers are dropped.
func (b *Batch) pad(r *Request, lo, hi int) {
	b.part(r, lo, hi)
	b.spans = append(b.spans, span{lo: lo, hi: hi})
	b.padding += hi - lo
}

// part appends rows lo to hi of r's inputs as a part, with the batch's own references and copies.
func (b *Batch) part(r *Request, lo, hi int) {
	from := len(b.tensors)
	for i := range r.Inputs {
		t := r.Inputs[i]
		if hi-lo != r.Rows && !r.lacks(i) && !r.shares(i) {
			// Submit has checked the request, so its rows can be cut.
			t, _ = t.RowSlice(lo, hi)
		} else {
			at := len(b.shapes)
			b.shapes = append(b.shapes, t.Shape...)
			t.Shape = b.shapes[at:len(b.shapes):len(b.shapes)]
		}
		t.Retain()
		b.tensors = append(b.tensors, t)
	}
	p := Part{Inputs: b.tensors[from:len(b.tensors):len(b.tensors)], Rows: hi - lo, Priority: r.Priority}
	p.Parameters = b.keep(r.Parameters)
	if rare := r.Rare; rare != nil {
		p.Metadata = b.keep(rare.Metadata)
		if rare.Picture != 0 {
			p.Picture = b.pictureIndex(rare.Picture)
		}
		if p.Opened, p.OpenedAt = rare.Opened, rare.OpenedAt; p.Opened != nil {
			p.Opened.Retain()
			b.opened = append(b.opened, p.Opened)
		}
	}
	if r.Trace != nil {
		p.Trace, p.TraceState = r.Trace.Parent, r.Trace.State
	}
	b.Parts = append(b.Parts, p)
	b.Rows += hi - lo
}

// pictureIndex returns the index of a picture among those of the batch. Parts with the same picture
// are neighbours, as a rule.
func (b *Batch) pictureIndex(picture uint64) int {
	last := len(b.Pictures) - 1
	if last >= 0 && b.Pictures[last] == picture {
		return last
	}
	if last >= 0 {
		if b.places == nil {
			b.places = make(map[uint64]int)
		}
		b.places[b.Pictures[last]] = last
		if at, known := b.places[picture]; known {
			return at
		}
	}
	b.Pictures = append(b.Pictures, picture)
	return last + 1
}

// Whole reports whether the rows are regions of the pictures of input i, which then has
// len(Pictures) rows.
func (b *Batch) Whole(i int) bool {
	if len(b.Pictures) == 0 {
		return false
	}
	by := b.model.regions[i]
	return by >= 0 && len(b.Parts[0].Inputs[by].Shape) > 0
}

// Pieces yields the tensors that make up input i, in their order: those of all parts, or, where
// rows are regions, each picture once.
func (b *Batch) Pieces(i int) iter.Seq[*tensor.Tensor] {
	return func(yield func(*tensor.Tensor) bool) {
		whole, pictures := b.Whole(i), 0
		for k := range b.Parts {
			p := &b.Parts[k]
			if whole && p.Picture < pictures {
				continue // an earlier part has it
			}
			pictures++
			if !yield(&p.Inputs[i]) {
				return
			}
		}
	}
}

// keep returns the batch's own copy of a JSON object; nil: there is none.
func (b *Batch) keep(object []byte) []byte {
	if len(object) == 0 {
		return nil
	}
	at := len(b.params)
	b.params = append(b.params, object...)
	return b.params[at:len(b.params):len(b.params)]
}

// attach links the spans to their requests. The slice of spans must not grow after it.
func (b *Batch) attach(end int64) {
	b.tightest = never
	followed := 0
	for i := range b.spans {
		s := &b.spans[i]
		r := s.req
		if r == nil {
			continue
		}
		s.next, r.spans = r.spans, s
		b.tightest = min(b.tightest, r.deadline)
		if r.Trace != nil {
			followed++
		}
		if r.sent == unsent {
			r.sent = b.sent
			if r.Parts != nil {
				r.Parts.sent(end)
			}
			r.Timing.Queue = time.Duration(b.sent - r.submitted)
		}
	}
	if followed > 0 {
		b.shareTraces(followed)
	}
}

// markLate marks the requests that are late if the answer arrives at end.
func (b *Batch) markLate(end int64) {
	for i := range b.spans {
		if r := b.spans[i].req; r != nil && r.deadline < end {
			r.late = true
		}
	}
}

// detach removes s from its request's list.
func (s *span) detach() {
	for at := &s.req.spans; *at != nil; at = &(*at).next {
		if *at == s {
			*at = s.next
			break
		}
	}
	s.req, s.next = nil, nil
}

var batches = sync.Pool{New: func() any { return new(Batch) }}

func newBatch(m *Model, r *Replica) *Batch {
	b := batches.Get().(*Batch)
	b.model, b.Model, b.replica = m, m.id, r
	b.state = batchOut
	b.parties.Store(2)
	return b
}

// leave is called by each of the two parties when it is done with the batch, and disposes of it
// at the second call. A batch whose replica was removed is left to the garbage collector: a late
// answer of its worker must not reach another batch.
func (b *Batch) leave() {
	if b.parties.Add(-1) > 0 {
		return
	}
	for i := range b.tensors {
		b.tensors[i].Release()
	}
	for _, o := range b.opened {
		o.Release()
	}
	if b.state != batchDone {
		return
	}
	clear(b.tensors)
	clear(b.opened)
	clear(b.Parts)
	clear(b.spans)
	clear(b.outputs)
	clear(b.cuts)
	b.ID, b.Rows, b.Deadline, b.Grant = 0, 0, time.Time{}, Grant{}
	b.executed.rows, b.executed.queued = 0, 0
	b.ready, b.prepared = 0, 0
	b.model, b.replica, b.retry = nil, nil, nil
	b.crowded, b.leftOut, b.probe, b.bestTime = false, false, 0, 0
	b.requests, b.padding, b.bytes, b.oldest = 0, 0, 0, 0
	b.tensors, b.Parts, b.spans = b.tensors[:0], b.Parts[:0], b.spans[:0]
	b.opened = b.opened[:0]
	b.shapes, b.params = b.shapes[:0], b.params[:0]
	b.outputs, b.cuts = b.outputs[:0], b.cuts[:0]
	b.Pictures = b.Pictures[:0]
	clear(b.places)
	batches.Put(b)
}
