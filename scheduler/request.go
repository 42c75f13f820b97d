package scheduler

import (
	"encoding/hex"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

// A ModelID names one version of one model.
type ModelID struct {
	Name, Version string
}

// String returns name/version.
func (id ModelID) String() string { return id.Name + "/" + id.Version }

// A Request asks a model for the outputs of one or more rows.
//
// The submitter fills the first group of fields and calls [Scheduler.Submit]. From then on until
// Owner.Complete is called the request belongs to the scheduler, and the submitter must not touch
// it, except to pass it to [Scheduler.Cancel]. After Complete the request is the submitter's again,
// which may submit it once more. The submitter must hold its references to the inputs until
// Complete. After that the scheduler uses nothing of the request, its slices or its inputs' memory
// (batches that still execute have references and copies of their own). The names of inputs must be
// ordinary strings, not views of reused memory.
//
// A request takes 512 bytes plus its inputs, and 18 more bytes in the queue while it waits.
type Request struct {
	// Set by the submitter.

	Model *Model
	// Each with Shape[0] == Rows, in the order of the declaration; an absent optional input has
	// no Shape. Empty for a model without inputs. Where the rows are regions (tensor.Spec.Regions),
	// the input of pictures has one picture, which all rows share.
	Inputs   []tensor.Tensor
	Rows     int       // at least 1
	Deadline time.Time // hard; zero: none
	Priority int       // 0 (first) to 9; see DESIGN.md for what it promises
	// For fairness: the number of the connection. 0: shared by all requests without a source.
	Source uint64
	// JSON object passed to the container with this request's rows, or nil.
	Parameters []byte
	Rare       *Rare  // what few requests have; nil: nothing of that
	Frame      *Frame // its place in a stream; nil: none
	Trace      *Trace // record of its way; nil: it is not traced
	Parts      *Parts // its client's request became several ones; nil: it is that itself
	Owner      Completer

	// Set by the scheduler before Owner.Complete.

	// Outputs each have Shape[0] == Rows, except ragged ones; the slice is empty if Err is set. The
	// owner must release each output. The slice and the shapes live as long as the request. A slice
	// left here from an earlier use is overwritten.
	Outputs []tensor.Tensor
	Err     error
	Timing  Timing
	// No other request is answered with this one, so an owner that collects answers need not wait
	// for more.
	Alone bool

	// Guarded by the model's mutex between Submit and the answer.

	state     requestState
	outcome   Outcome
	late      bool  // it was predicted to be late when it was sent
	left      int32 // rows not yet answered
	deadline  int64 // on the scheduler's clock; never if there is none
	submitted int64 // in stateUntold: when it was answered
	sent      int64 // when its first row went to a container, or unsent
	bytes     int64 // of the inputs
	item      item  // its waiting rows, as a rule
	extra     *item // further waiting rows, returned from a lost replica while others waited
	spans     *span // its rows that are executing or in retries
	pieces    []piece
	source    *source

	// Storage of Outputs for models with one output of rank 4 or less, so that an answer
	// allocates nothing.
	out  [1]tensor.Tensor
	dims [4]int
}

// Rare is what few requests have. It belongs to the scheduler as long as the request.
type Rare struct {
	// Set by the submitter.

	// Metadata has the members that Parameters lacks, for a model whose Spec has it; nil: none.
	Metadata []byte
	// Picture numbers the pictures of a request whose rows are regions: see [NewPicture]. Requests
	// with the same picture may have the same number. 0 for all other requests.
	Picture uint64
	// Opened is what containers hand on of the picture that input OpenedAt has; nil: nobody else
	// needs it. The submitter has a reference until Complete.
	Opened   *Opened
	OpenedAt int
	// Holes: a row that the container fails does not fail the request. Its outputs are what the
	// container returned for it, and Failed names it.
	Holes bool

	// Failed has the failed rows of a request with Holes and without Err, in their order. Set by
	// the scheduler; the slice is the submitter's from Owner.Complete on.
	Failed []RowError
}

// fail adds a failed row, unless it is there already.
func (r *Rare) fail(e RowError) {
	at, known := slices.BinarySearchFunc(r.Failed, e, func(a, b RowError) int { return a.Row - b.Row })
	if !known {
		r.Failed = slices.Insert(r.Failed, at, e)
	}
}

var lastPicture atomic.Uint64

// NewPicture returns a number that no other picture has. Containers keep what they have decoded of
// a picture under its number, for the next batch with regions of it.
func NewPicture() uint64 { return lastPicture.Add(1) }

// shares reports whether all rows of the request share input i, since they are regions of it.
func (r *Request) shares(i int) bool {
	by := r.Model.regions
	return by != nil && by[i] >= 0 && by[i] < len(r.Inputs) && len(r.Inputs[by[i]].Shape) > 0
}

// shared is the size of the inputs that all rows share, in bytes.
func (r *Request) shared() (bytes int64) {
	if r.Rare == nil || r.Rare.Picture == 0 {
		return 0
	}
	for i := range r.Inputs {
		if r.shares(i) {
			bytes += int64(len(r.Inputs[i].Data))
		}
	}
	return bytes
}

// load is the size in bytes of what a batch needs for rows lo to hi, if it has no other rows of the
// request: their own inputs, and all of those that they share with others.
func (r *Request) load(lo, hi int) int64 {
	shared := r.shared()
	if shared == 0 || hi-lo == r.Rows {
		return r.bytesOf(lo, hi)
	}
	own := r.bytes - shared
	return shared + own*int64(hi)/int64(r.Rows) - own*int64(lo)/int64(r.Rows)
}

// A Trace records the way of a traced request. The scheduler sets all fields except Parent and
// State before Owner.Complete, for the last batch that had rows of the request.
type Trace struct {
	Parent Parent // passed on with the rows (see [Part]), to name them to the container
	State  string // passed on with Parent: state that other programs keep for the trace; "": none

	Sent      bool // some of its rows were in a batch; else the rest is not set
	Reason    CloseReason
	BatchRows int
	Replica   string // its label
	// Batch has the Parents of all traced requests in the batch, in the order of their rows, up to
	// a limit. These requests share the slice. nil: this is the only one.
	Batch []Parent
}

// A Parent is a span whose children are the spans of a container. The zero Parent is none.
type Parent struct {
	Trace [16]byte
	Span  [8]byte // all zeros: none
}

// Append appends the Parent in the form of W3C's traceparent, with the flag for a sampled trace.
func (p *Parent) Append(b []byte) []byte {
	b = hex.AppendEncode(append(b, "00-"...), p.Trace[:])
	b = hex.AppendEncode(append(b, '-'), p.Span[:])
	return append(b, "-01"...)
}

// executing reports whether a container has any rows of the request.
func (r *Request) executing() bool {
	for s := r.spans; s != nil; s = s.next {
		if s.retry == nil {
			return true
		}
	}
	return false
}

// registerLate has the batch remember the owner for a late answer, if it is a LateReceiver.
func (r *Request) registerLate() {
	s := r.spans
	if s == nil || s.next != nil || s.retry != nil || s.hi-s.lo != r.Rows {
		return
	}
	s.late, _ = r.Owner.(LateReceiver)
}

// bytesOf is the share of rows lo to hi in the bytes of the inputs. The shares of adjacent runs
// add up exactly.
func (r *Request) bytesOf(lo, hi int) int64 {
	if hi-lo == r.Rows {
		return r.bytes
	}
	return r.bytes*int64(hi)/int64(r.Rows) - r.bytes*int64(lo)/int64(r.Rows)
}

// Timing tells where the time of a request went.
type Timing struct {
	Queue time.Duration // from Submit until its first row was sent to a container
	// Of the batch with its last row: from when the container could start that batch to the answer.
	Exec      time.Duration
	BatchRows int // rows of that batch
}

// A Completer receives an answered request, which has either Outputs or Err.
//
// Complete is called exactly once for each submitted request, on any goroutine and with no lock
// held: often that of the worker that answered, and before Submit returns if the request is
// refused. It must not block. It may submit other requests, and this one again unless that was
// refused at once.
type Completer interface{ Complete(*Request) }

// A LateReceiver is a Completer that can use the answer of a container even if it arrives after the
// request has ended without one, at its deadline or by a cancel.
//
// ReceiveLate is called at most once for each submitted request, with the outputs if they arrive,
// and only if one container had all rows of the request: on any goroutine and with no lock held, as
// a rule after Complete and perhaps long after it, so it must not refer to the request. The
// outputs, with their shapes and memory, are valid until it returns.
type LateReceiver interface {
	Completer
	ReceiveLate(outputs []tensor.Tensor)
}

const unsent = -1

type requestState uint8

const (
	stateIdle    requestState = iota // the submitter's
	stateWaiting                     // the scheduler's, unanswered
	stateUntold                      // the submitter's, and its client waits for other parts
)

// A piece is the answer to some rows of a request that was split over several batches. It holds a
// reference to each output.
type piece struct {
	lo      int
	outputs []tensor.Tensor
}
