package scheduler

import "time"

// Hooks are optional callbacks for metrics and the server. They are called with no lock held, on
// the goroutine that caused the event, and must not block. BatchClosed, BatchDone and Answered
// are on the hot path.
type Hooks struct {
	// Answered is called for every request just before its owner's Complete. Every outcome but
	// [OutcomeOK] is a reason why a request has no result; the list is complete.
	Answered func(r *Request, o Outcome)
	// BatchClosed is called when a batch is cut from the queue, before it is sent: its rows, why it
	// is not larger, and how long its oldest row has waited.
	BatchClosed func(id ModelID, rows int, reason CloseReason, oldestWait time.Duration)
	// BatchDone is called when a batch is answered, fails or is given up (its replica is lost or
	// suspect), before the owners of its requests are called. exec counts from when the container
	// could start the batch; predicted is the planned upper quantile, 0 if nothing was known. err
	// is nil for an answer.
	BatchDone func(id ModelID, rows int, exec, predicted time.Duration, err error)
	// Delivering is called before the owners of a batch of several requests are called. over, if it
	// is not nil, is called after the last of them, on the same goroutine.
	Delivering func() (over func())
	// RowsWasted is called with the number of rows that a container executed after their requests
	// had been answered.
	RowsWasted func(id ModelID, rows int)
	// ModelChanged is called when a model appears, gets another spec or is forgotten, and when
	// the number of its live replicas changes. Read the state from m, since calls may arrive out
	// of order.
	ModelChanged func(m *Model)
}

// An Outcome is how a request ended. String gives the metric label.
type Outcome uint8

// The outcomes. Every request has exactly one.
const (
	OutcomeOK          Outcome = iota
	OutcomeQueueRows           // refused: the queue has its maximum of rows
	OutcomeQueueBytes          // refused: the queue has its maximum of bytes
	OutcomeQueueShapes         // refused: rows of too many different shapes wait
	OutcomeStreams             // refused: its client has too many streams with unanswered frames
	OutcomeMemory              // there was no memory for its answer
	// Refused: judging by queue and profile, it could not be answered in time.
	OutcomePredicted
	OutcomeSuperseded // a newer frame of its stream arrived
	// Displaced from the queue at a limit, by a source with a smaller share of it.
	OutcomeDisplaced
	// The deadline passed, or could no longer be met, before it was sent.
	OutcomeDeadlineNeverSent
	// Late; it was sent although the planned time was beyond its deadline, as nothing better
	// waited.
	OutcomeDeadlineSentLate
	// Late; it was sent in time and the container took longer than predicted.
	OutcomeDeadlineContainer
	OutcomeCanceledQueued    // the caller gave up while it waited
	OutcomeCanceledExecuting // the caller gave up while it was executing
	OutcomeUnavailable       // the model has no live replica
	OutcomeContainerFailed   // the container failed on it or gave an invalid answer
	OutcomeContainerLost     // its replica was lost, and it could not be tried again
	OutcomeDraining          // the scheduler takes no new requests
	// The request is inconsistent, or its container's protocol cannot carry it.
	OutcomeInvalidInput
	OutcomeTooLarge // it exceeds an empty queue
	OutcomeNotFound // it named no model
	outcomes
)

// Outcomes lists all outcomes, for metrics that need every label from the start.
func Outcomes() []Outcome {
	all := make([]Outcome, outcomes)
	for i := range all {
		all[i] = Outcome(i)
	}
	return all
}

var outcomeNames = [outcomes]string{
	"ok", "queue_rows", "queue_bytes", "queue_shapes", "streams", "memory", "predicted", "superseded", "displaced",
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
	CloseFull      CloseReason = iota // it has the maximum number of rows
	CloseIdle                         // a replica was free and no more rows waited
	CloseDeadline                     // with one more row, some rows would be late
	CloseDelay                        // as CloseIdle, after the configured delay
	CloseShape                        // the other waiting rows have another shape or dtype
	CloseLimit                        // the strategy or the exploration of sizes allows no more yet
	CloseObjective                    // with one more row, it would exceed the objective
	CloseBytes                        // batch_bytes allows no more
	CloseFailures                     // the replica fails on larger batches
	CloseRate                         // larger batches have no higher rate
	CloseTrial                        // it has a size other than the best known one, to measure it
	// The other waiting rows are frames of streams that already have a frame in the batch.
	CloseStream
	// It waited for clients that ask again on each answer, or leaves some of their rows to a
	// replica that has fewer of them.
	CloseTogether
	CloseRetry // it is a retry, or a probe of a suspect replica
	closeReasons
)

// CloseReasons lists all reasons.
func CloseReasons() []CloseReason {
	all := make([]CloseReason, closeReasons)
	for i := range all {
		all[i] = CloseReason(i)
	}
	return all
}

var closeNames = [closeReasons]string{"full", "idle", "deadline", "delay", "shape", "limit", "objective", "bytes",
	"failures", "rate", "trial", "stream", "together", "retry"}

func (c CloseReason) String() string {
	if c < closeReasons {
		return closeNames[c]
	}
	return "unknown"
}
