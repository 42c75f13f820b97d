// Package schedtest has test doubles for a scheduler: a scripted worker and a manual clock.
package schedtest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Worker is a [scheduler.Worker] that follows a script. The zero value holds its batches until
// Answer or Fail is called. With Exec it answers by itself as a container does, Concurrency
// batches at once, each after its execution time.
//
// Its methods may be called from any goroutine. The exported fields must be set before it is
// used.
type Worker struct {
	Clock scheduler.Clock              // for Exec; nil: the real one
	Exec  func(rows int) time.Duration // execution time of a batch; nil: until Answer or Fail
	Model Model                        // computes its answers; nil: Echo
	Seen  func(b *scheduler.Batch)     // called in Send with each batch, before anything else

	Concurrency int                           // with Exec; 0 means 1
	Hangs       func(b *scheduler.Batch) bool // with Exec: never answered; nil: none

	mu      sync.Mutex
	pending []*pendingBatch
	broken  error
	paused  bool
	sent    int
	rows    int
}

// pendingBatch is a batch without an answer.
type pendingBatch struct {
	*scheduler.Batch
	running bool
}

// A Model computes the outputs of a batch. The references of the outputs pass to the caller. It
// must not call the worker's methods.
type Model func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error)

// Send accepts a batch, or returns the error of Break.
func (w *Worker) Send(b *scheduler.Batch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		w.pending = nil // the error removes the replica: none of its batches may be read any more
		return w.broken
	}
	if w.Seen != nil {
		w.Seen(b)
	}
	w.pending = append(w.pending, &pendingBatch{Batch: b})
	w.sent++
	w.rows += b.Rows
	w.startLocked()
	return nil
}

func (w *Worker) startLocked() {
	if w.Exec == nil || w.paused {
		return
	}
	for _, h := range w.pending[:min(max(1, w.Concurrency), len(w.pending))] {
		if h.running {
			continue
		}
		h.running = true
		if w.Hangs != nil && w.Hangs(h.Batch) {
			continue
		}
		d, finish := w.Exec(h.Rows), func() { w.finish(h) }
		if w.Clock != nil {
			w.Clock.AfterFunc(d, finish)
		} else {
			time.AfterFunc(d, finish)
		}
	}
}

// finish answers a batch that was executing.
func (w *Worker) finish(h *pendingBatch) {
	w.mu.Lock()
	h.running = false
	i := slices.Index(w.pending, h)
	if w.paused || i < 0 {
		w.mu.Unlock()
		return
	}
	answer := w.computeLocked(i)
	w.mu.Unlock()
	answer()
	w.mu.Lock()
	w.startLocked()
	w.mu.Unlock()
}

func (w *Worker) takeLocked(i int) *scheduler.Batch {
	b := w.pending[i].Batch
	w.pending = slices.Delete(w.pending, i, i+1)
	return b
}

// computeLocked has the model compute a batch, and returns a function that answers it. It
// computes under the lock so that the replica is not removed meanwhile, by an error of Send or
// after Drop.
func (w *Worker) computeLocked(i int) (answer func()) {
	b := w.takeLocked(i)
	model := w.Model
	if model == nil {
		model = Echo
	}
	outputs, rowErrors, err := model(b)
	if err != nil {
		return func() { b.Fail(err) }
	}
	return func() { b.Complete(outputs, rowErrors) }
}

// ErrNothingPending is returned by Answer and Fail when the worker has no batch.
var ErrNothingPending = errors.New("schedtest: the worker has no batch")

// Answer answers the oldest batch with the model's outputs.
func (w *Worker) Answer() error { return w.AnswerAt(0) }

// AnswerAt answers batch i, counted from the oldest, 0, with the model's outputs.
func (w *Worker) AnswerAt(i int) error {
	w.mu.Lock()
	if i >= len(w.pending) {
		w.mu.Unlock()
		return ErrNothingPending
	}
	answer := w.computeLocked(i)
	w.mu.Unlock()
	answer()
	return nil
}

// Fail fails the oldest batch.
func (w *Worker) Fail(err error) error {
	w.mu.Lock()
	if len(w.pending) == 0 {
		w.mu.Unlock()
		return ErrNothingPending
	}
	b := w.takeLocked(0)
	w.mu.Unlock()
	b.Fail(err)
	return nil
}

// Break makes Send fail from now on.
func (w *Worker) Break(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = err
}

// Pause stops a worker with Exec, as SIGSTOP does a container.
func (w *Worker) Pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused = true
}

// Resume continues a paused worker: the batches that were executing start again.
func (w *Worker) Resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused = false
	w.startLocked()
}

// Drop forgets all batches without an answer, as a container that dies does. Call it before the
// replica's Remove, after which a worker must not read its batches.
func (w *Worker) Drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = nil
}

// Pending returns the rows of each unanswered batch, oldest first.
func (w *Worker) Pending() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	rows := make([]int, len(w.pending))
	for i, b := range w.pending {
		rows[i] = b.Rows
	}
	return rows
}

// Sent returns the number of batches that have arrived, and the number of their rows.
func (w *Worker) Sent() (batches, rows int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent, w.rows
}

// Echo is the model that answers with its inputs.
func Echo(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
	var outputs []tensor.Tensor
	for i := range b.Parts[0].Inputs {
		parts := make([]tensor.Tensor, len(b.Parts))
		for k, p := range b.Parts {
			parts[k] = p.Inputs[i]
		}
		whole, err := tensor.Concat(parts, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("schedtest: echo: %w", err)
		}
		outputs = append(outputs, whole)
	}
	return outputs, nil, nil
}

// Linear returns the execution time a + b·rows of most models, for Exec.
func Linear(a, b time.Duration) func(rows int) time.Duration {
	return func(rows int) time.Duration { return a + b*time.Duration(rows) }
}
