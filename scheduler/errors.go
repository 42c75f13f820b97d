package scheduler

import (
	"errors"
	"fmt"
	"time"
)

// The conditions under which a request ends without a result. Every error of a request is one of
// these by [errors.Is], with a text for the client that says what happened.
var (
	ErrOverloaded       = errors.New("scheduler: overloaded")
	ErrDeadlineExceeded = errors.New("scheduler: deadline exceeded")
	ErrUnavailable      = errors.New("scheduler: no live replica")
	ErrContainerFailed  = errors.New("scheduler: container failed")
	ErrContainerLost    = errors.New("scheduler: container lost")
	ErrDraining         = errors.New("scheduler: draining")
	ErrCanceled         = errors.New("scheduler: canceled")
	ErrInvalidInput     = errors.New("scheduler: invalid input")
	ErrNotFound         = errors.New("scheduler: not found")
	ErrSuperseded       = errors.New("scheduler: superseded")
	ErrTooLarge         = errors.New("scheduler: too large")
)

// An OverloadedError is an [ErrOverloaded] with the limit that was reached.
type OverloadedError struct {
	Limit string // queue_rows, queue_bytes, queue_shapes, streams_per_client, deadline or share
	// The setting of the limit; deadline: the time that the request had left, in ns; share: rows of
	// the source that the request made room for.
	Value int64
	// The amount that the request needed; deadline: the time until the predicted answer, in ns;
	// share: rows of its own source.
	Needed     int64
	RetryAfter time.Duration // when it is worth trying again

	met string // the limit at which shares were compared
}

func (e *OverloadedError) Error() string {
	switch e.Limit {
	case limitShare:
		return fmt.Sprintf("scheduler: overloaded: displaced at the limit %s: %d rows of its connection wait, and %d of the one that displaced it",
			e.met, e.Needed, e.Value)
	case limitDeadline:
		return fmt.Sprintf("scheduler: overloaded: behind the requests already waiting the answer would take about %v; the request's deadline is in %v",
			time.Duration(e.Needed).Round(10*time.Microsecond), time.Duration(e.Value).Round(10*time.Microsecond))
	}
	return fmt.Sprintf("scheduler: overloaded: the limit %s is %d, this request would need %d",
		e.Limit, e.Value, e.Needed)
}

// Unwrap makes the error an [ErrOverloaded].
func (e *OverloadedError) Unwrap() error { return ErrOverloaded }

// Names of the limits in an [OverloadedError], as the configuration calls them.
const (
	limitRows     = "queue_rows"
	limitBytes    = "queue_bytes"
	limitShapes   = "queue_shapes"
	limitStreams  = "streams_per_client"
	limitDeadline = "deadline"
	limitShare    = "share"
)

// Errors without details are made once: under overload they are returned thousands of times a
// second.
var (
	errNeverSent = fmt.Errorf("%w: it passed while the request waited in the queue", ErrDeadlineExceeded)
	errHopeless  = fmt.Errorf("%w: no replica could have answered in the time left", ErrDeadlineExceeded)
	errSentLate  = fmt.Errorf("%w: it passed while the request was executing, after a long wait in the queue",
		ErrDeadlineExceeded)
	errRetryLate     = fmt.Errorf("%w: it passed while the request waited to be tried again", ErrDeadlineExceeded)
	errContainerLate = fmt.Errorf("%w: it passed while the request was executing; the container took longer than predicted",
		ErrDeadlineExceeded)
	errHeld = fmt.Errorf("%w: it passed while the answer waited for that of an older frame of its stream",
		ErrDeadlineExceeded)
	errPastDeadline = fmt.Errorf("%w: it had passed when the request arrived", ErrDeadlineExceeded)
	errCanceled     = fmt.Errorf("%w: the caller gave up", ErrCanceled)
	errDraining     = fmt.Errorf("%w: no new requests are accepted", ErrDraining)
	errNoModel      = fmt.Errorf("%w: the request names no model", ErrNotFound)
)
