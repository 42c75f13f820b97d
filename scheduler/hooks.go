package scheduler

import "time"

// Hooks are optional functions through which metrics and the server listen. They are called
// with no lock held, from the goroutine that made the event happen, and must not block.
// BatchClosed, BatchDone and Answered are on the hot path.
type Hooks struct {
	// Answered is called for every request just before its owner's Complete. All but
	// [OutcomeOK] are reasons why a request has no result; the list is closed.
	Answered func(r *Request, o Outcome)
	// BatchClosed is called when a batch is cut from the queue, before it is sent: its rows,
	// why it is not larger, and how long its oldest row has waited.
	BatchClosed func(id ModelID, rows int, reason CloseReason, oldestWait time.Duration)
	// BatchDone is called when a batch is answered, before the owners of its requests are told,
	// fails or is given up (its replica lost or suspect). exec counts from when the container
	// could start on it; predicted is the upper quantile that was planned with, 0 if nothing
	// was known. err is nil for an answer.
	BatchDone func(id ModelID, rows int, exec, predicted time.Duration, err error)
	// RowsWasted is called with rows that a container computed in vain: they had been answered
	// already.
	RowsWasted func(id ModelID, rows int)
	// ModelChanged is called when a model appears, gets another spec or is forgotten, and when
	// the number of its live replicas changes. Read the state from m; calls may overtake each
	// other.
	ModelChanged func(m *Model)
}

// An Outcome is how a request ended. String gives the metric label.
type Outcome uint8

// The outcomes. Every request has exactly one.
const (
	OutcomeOK                Outcome = iota
	OutcomeQueueRows                 // refused: the queue has its maximum of rows
	OutcomeQueueBytes                // refused: the queue has its maximum of bytes
	OutcomeQueueShapes               // refused: rows of too many different shapes wait
	OutcomeMemory                    // there was no memory for its answer
	OutcomePredicted                 // refused: by queue and profile it could not be answered in time
	OutcomeDisplaced                 // had waited, but gave its place at a limit to a source with fewer rows
	OutcomeDeadlineNeverSent         // the deadline passed, or could not be met, before any replica took it
	OutcomeDeadlineSentLate          // it was sent although the planned time was beyond its deadline, as nothing better waited, and it was late
	OutcomeDeadlineContainer         // it was sent in time and the container took longer than predicted
	OutcomeCanceledQueued            // the caller gave up while it waited
	OutcomeCanceledExecuting         // the caller gave up while it was executing
	OutcomeUnavailable               // the model has no live replica
	OutcomeContainerFailed           // the container failed on it or answered nonsense
	OutcomeContainerLost             // its replica went, and it could not be tried again
	OutcomeDraining                  // the scheduler takes no new requests
	OutcomeInvalidInput              // the request contradicts itself, or its container cannot be told it
	OutcomeTooLarge                  // no empty queue could hold it
	OutcomeNotFound                  // it named no model
	outcomes
)

// Outcomes are all there are, for metrics that want every label from the start.
func Outcomes() []Outcome {
	all := make([]Outcome, outcomes)
	for i := range all {
		all[i] = Outcome(i)
	}
	return all
}

var outcomeNames = [outcomes]string{
	"ok", "queue_rows", "queue_bytes", "queue_shapes", "memory", "predicted", "displaced",
	"deadline_never_sent", "deadline_sent_late", "deadline_container",
	"canceled_queued", "canceled_executing", "unavailable", "container_failed", "container_lost",
	"draining", "invalid_input", "too_large", "not_found",
}

func (o Outcome) String() string {
	if o < outcomes {
		return outcomeNames[o]
	}
	return "unknown"
}

// A CloseReason is why a batch is not larger than it is. String gives the metric label.
type CloseReason uint8

// The reasons why a batch was closed.
const (
	CloseFull      CloseReason = iota // it has the most rows that the model or the container takes
	CloseIdle                         // a replica was free and no more rows waited
	CloseDeadline                     // one row more, and rows of it would be late
	CloseDelay                        // as idle, after the configured delay
	CloseShape                        // the other waiting rows have another shape or dtype
	CloseLimit                        // the strategy or the exploration of sizes allows no more yet
	CloseObjective                    // one row more, and it would take longer than the objective
	CloseBytes                        // it has as many bytes as batch_bytes allows
	CloseFailures                     // the replica fails on larger ones
	CloseRate                         // larger ones answer no more rows per second
	CloseTrial                        // it has another size than looks best, to measure that
	CloseRetry                        // it is rows of a failed batch, or probes a suspect replica
	closeReasons
)

// CloseReasons are all there are.
func CloseReasons() []CloseReason {
	all := make([]CloseReason, closeReasons)
	for i := range all {
		all[i] = CloseReason(i)
	}
	return all
}

var closeNames = [closeReasons]string{"full", "idle", "deadline", "delay", "shape", "limit", "objective", "bytes", "failures", "rate", "trial", "retry"}

func (c CloseReason) String() string {
	if c < closeReasons {
		return closeNames[c]
	}
	return "unknown"
}
