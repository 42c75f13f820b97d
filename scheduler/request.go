package scheduler

import (
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

// A ModelID names one version of one model.
type ModelID struct {
	Name, Version string
}

// String is name/version.
func (id ModelID) String() string { return id.Name + "/" + id.Version }

// A Request asks one model for the outputs of one or more rows.
//
// The submitter fills the first group of fields and calls [Scheduler.Submit]. From then on
// until Owner.Complete is called the request belongs to the scheduler, and the submitter must
// not touch it, but for handing it to [Scheduler.Cancel]. After Complete it is the submitter's
// again, which may submit it once more. The submitter keeps its references to the inputs until
// Complete; nothing of the request, its slices or its inputs' memory is used after that
// (batches that are still executing have references and copies of their own). The names of
// inputs must be ordinary strings, not views of reused memory.
//
// A request takes 512 bytes, and 18 more in the queue while it waits, plus its inputs.
type Request struct {
	// Set by the submitter.

	Model      *Model
	Inputs     []tensor.Tensor // each with Shape[0] == Rows, in the order of the model's declaration; an optional one that was left out has no Shape
	Rows       int             // at least 1
	Deadline   time.Time       // hard; zero: none
	Priority   int             // 0 (first) to 9; see DESIGN.md for what it promises
	Source     uint64          // whose request it is, for fairness: a connection's number. 0: all who give none
	Parameters []byte          // JSON object passed to the container with this request's rows, or nil
	Owner      Completer

	// Set by the scheduler before Owner.Complete.

	// Outputs has Shape[0] == Rows each, but for ragged ones; it is empty if Err is set. The
	// owner must release each; the slice and the shapes live as long as the request. A slice
	// left here from an earlier use is overwritten.
	Outputs []tensor.Tensor
	Err     error
	Timing  Timing
	Alone   bool // no other request is answered with this one: who gathers answers need not wait for more

	// Guarded by the model's mutex between Submit and the answer.

	state     requestState
	outcome   Outcome
	deadline  int64 // on the scheduler's clock; never if there is none
	submitted int64
	sent      int64 // when its first row went to a container, or unsent
	late      bool  // it was predicted to be late when it was sent
	bytes     int64 // of the inputs
	left      int   // rows not yet answered
	item      item  // its waiting rows
	extra     *item // more of them: what came back from a lost replica while others waited
	spans     *span // its rows that are executing, or to be tried again
	pieces    []piece
	source    *source

	// Storage of Outputs for models with one output of rank 4 or less, so that an answer
	// allocates nothing.
	out  [1]tensor.Tensor
	dims [4]int
}

// executing reports whether rows of it are with a container.
func (r *Request) executing() bool {
	for s := r.spans; s != nil; s = s.next {
		if s.retry == nil {
			return true
		}
	}
	return false
}

// leaveWord notes who wants the answer that a container is about to give although the request
// ends without it.
func (r *Request) leaveWord() {
	s := r.spans
	if s == nil || s.next != nil || s.retry != nil || s.hi-s.lo != r.Rows {
		return
	}
	if o, ok := r.Owner.(Latecomer); ok {
		s.late = o.Late()
	}
}

// bytesOf is the share of rows lo to hi in the inputs' bytes; the shares of adjoining runs add up.
func (r *Request) bytesOf(lo, hi int) int64 {
	if hi-lo == r.Rows {
		return r.bytes
	}
	return r.bytes*int64(hi)/int64(r.Rows) - r.bytes*int64(lo)/int64(r.Rows)
}

// Timing says where a request's time went.
type Timing struct {
	Queue     time.Duration // from Submit until its first row was sent to a container
	Exec      time.Duration // of the batch that its last row was in: from when the container could start on it to the answer
	BatchRows int           // rows of that batch
}

// A Completer is told that a request is answered: by Outputs, or by Err.
//
// Complete is called exactly once for each submitted request, from any goroutine and with no
// lock held: often from that of the worker that answered, and before Submit returns if the
// request is refused. It must not block. It may submit other requests, and this one again
// unless it was refused at once.
type Completer interface{ Complete(*Request) }

// A Latecomer is a Completer that has a use for the answer of a container also when it comes
// after the request has ended without one, at its deadline or because it was cancelled.
//
// Late is called before Complete, with the model's lock held, for a request all of whose rows
// are with one container. The function that it gives is called once with the outputs if these
// come: with no lock held, perhaps long after Complete, so that it may refer to nothing of the
// request. The outputs, their shapes and memory, are lent until it returns.
type Latecomer interface {
	Completer
	Late() func(outputs []tensor.Tensor)
}

const unsent = -1

type requestState uint8

const (
	stateIdle    requestState = iota // the submitter's
	stateWaiting                     // the scheduler's, unanswered
)

// A piece is the answer to some rows of a request that went out in more than one batch. It holds a
// reference to each output.
type piece struct {
	lo      int
	outputs []tensor.Tensor
}
