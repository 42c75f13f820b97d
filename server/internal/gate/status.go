package gate

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/identity"
	"github.com/shivad/shivad/server/internal/quota"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/shiva"
)

// Conditions that arise before a request reaches the scheduler.
var (
	ErrProtocol         = errors.New("gate: malformed message")
	ErrUnauthenticated  = identity.ErrUnauthenticated
	ErrPermissionDenied = identity.ErrPermissionDenied
	ErrInternal         = errors.New("gate: internal error")
)

// A Status is how one condition is shown on every wire.
type Status struct {
	Err       error  // the condition, for errors.Is
	Type      string // Shiva: metadata "type" of an "!error" message
	HTTP      int    // HTTP status, and Shiva's metadata "code"
	GRPC      uint32 // google.golang.org/grpc/codes
	Retryable bool   // the same request may succeed if it is sent again
	Outcome   metrics.Outcome
}

// The one table of errors, for all doors. Order matters only where an error wraps two conditions:
// the first matching row wins.
var statuses = []Status{
	{ErrProtocol, shiva.Protocol, http.StatusBadRequest, 3, false, metrics.Protocol},
	{scheduler.ErrTooLarge, shiva.TooLarge, http.StatusRequestEntityTooLarge, 8, false, metrics.TooLarge},
	{scheduler.ErrInvalidInput, shiva.InvalidInput, http.StatusBadRequest, 3, false, metrics.InvalidInput},
	{scheduler.ErrNotFound, shiva.NotFound, http.StatusNotFound, 5, false, metrics.NotFound},
	{scheduler.ErrOverloaded, shiva.Overloaded, http.StatusTooManyRequests, 8, true, metrics.Overloaded},
	{scheduler.ErrSuperseded, shiva.Superseded, http.StatusConflict, 10, false, metrics.Superseded},
	{scheduler.ErrDeadlineExceeded, shiva.DeadlineExceeded, http.StatusGatewayTimeout, 4, true, metrics.DeadlineExceeded},
	{scheduler.ErrUnavailable, shiva.Unavailable, http.StatusServiceUnavailable, 14, true, metrics.Unavailable},
	{scheduler.ErrContainerFailed, shiva.ContainerFailed, http.StatusBadGateway, 13, false, metrics.ContainerFailed},
	// Programs send again what was answered 502 or UNAVAILABLE.
	{scheduler.ErrCulprit, shiva.ContainerLost, http.StatusInternalServerError, 13, false, metrics.ContainerLost},
	{scheduler.ErrContainerLost, shiva.ContainerLost, http.StatusBadGateway, 14, true, metrics.ContainerLost},
	{ErrUnauthenticated, shiva.Unauthenticated, http.StatusUnauthorized, 16, false, metrics.Unauthenticated},
	{ErrPermissionDenied, shiva.PermissionDenied, http.StatusForbidden, 7, false, metrics.PermissionDenied},
	{scheduler.ErrDraining, shiva.Draining, http.StatusServiceUnavailable, 14, true, metrics.Draining},
	{scheduler.ErrCanceled, shiva.Canceled, 499, 1, false, metrics.Canceled},
	{ErrInternal, shiva.Internal, http.StatusInternalServerError, 13, false, metrics.Internal},
}

// Invalid is an ErrInvalidInput.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", scheduler.ErrInvalidInput, fmt.Errorf(format, args...))
}

// Malformed is an ErrProtocol.
func Malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrProtocol, fmt.Errorf(format, args...))
}

// TooLarge is an ErrTooLarge.
func TooLarge(format string, args ...any) error {
	return fmt.Errorf("%w: %w", scheduler.ErrTooLarge, fmt.Errorf(format, args...))
}

// StatusOf returns the row of err. An error without a row is a bug, and is answered as one.
func StatusOf(err error) Status {
	for _, s := range statuses {
		if errors.Is(err, s.Err) {
			return s
		}
	}
	return statuses[len(statuses)-1]
}

// Bare returns err without its text, as far as StatusOf and By distinguish errors.
func Bare(err error) error {
	if e, ok := errors.AsType[*scheduler.SupersededError](err); ok {
		return e
	}
	return StatusOf(err).Err
}

// Again returns how long to wait before a refused request is worth repeating; 0: unknown.
func Again(err error) time.Duration {
	if e, ok := errors.AsType[*scheduler.OverloadedError](err); ok {
		return e.RetryAfter
	}
	if e, ok := errors.AsType[*quota.Error](err); ok {
		return e.Again
	}
	return 0
}

// Outcome classifies how a request ended, for the metrics. c is nil for a model.
func Outcome(err error, c *Choice) metrics.Outcome {
	switch {
	case err != nil:
		return StatusOf(err).Outcome
	case c != nil && c.Default:
		return metrics.Default
	}
	return metrics.OK
}

// maxText bounds what Text returns: errors can quote a client at any length.
const maxText = 4 << 10

// Text returns what the client reads: err without the name of the package that it comes from.
func Text(err error) string {
	s := err.Error()
	for _, room := range [...]string{"gate: ", "scheduler: ", "shiva: "} {
		s = strings.TrimPrefix(s, room)
	}
	return Cut(s, maxText)
}

// An unknownModel is the error of a request for a model or a version that does not exist.
type unknownModel struct {
	name string
	error
}

func (e *unknownModel) Unwrap() error { return e.error }

// PredictText is Text in the Predict Protocol: programs recognise an unknown model by Triton's
// words at the beginning.
func PredictText(err error) string {
	if e, ok := errors.AsType[*unknownModel](err); ok {
		return Cut(fmt.Sprintf("Request for unknown model: '%s': %s", e.name, Text(err)), maxText)
	}
	return Text(err)
}

// Cut shortens s to at most that many bytes, and marks the omission.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}
