// Package fault is the table of errors: each condition with which a request can end, its name on
// the Shiva wire, its HTTP and gRPC status, and its outcome in the metrics. It lies below all other
// packages of the server, so that each can name a condition, and no door has one of its own.
//
// An error of a condition wraps it ([Invalid], or fmt.Errorf with %w); a door looks up the row with
// [Of], and shows the client [Text] or [PredictText].
package fault

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva"
)

// Conditions that arise before a request reaches the scheduler.
var (
	ErrProtocol         = errors.New("malformed message")
	ErrUnauthenticated  = errors.New("unauthenticated")
	ErrPermissionDenied = errors.New("permission denied")
	ErrInternal         = errors.New("internal error")
)

// A Row is one condition, and how every wire shows it.
type Row struct {
	Err       error  // the condition, for errors.Is
	Type      string // Shiva: metadata "type" of an "!error" message
	HTTP      int    // HTTP status, and Shiva's metadata "code"
	GRPC      uint32 // google.golang.org/grpc/codes
	Retryable bool   // the same request may succeed if it is sent again
	Outcome   metrics.Outcome
}

// The one table of errors, for all doors. Order matters only where an error wraps two conditions:
// the first matching row wins.
var table = []Row{
	{ErrProtocol, shiva.Protocol, http.StatusBadRequest, 3, false, metrics.Protocol},
	{scheduler.ErrTooLarge, shiva.TooLarge, http.StatusRequestEntityTooLarge, 8, false, metrics.TooLarge},
	{scheduler.ErrInvalidInput, shiva.InvalidInput, http.StatusBadRequest, 3, false, metrics.InvalidInput},
	{scheduler.ErrNotFound, shiva.NotFound, http.StatusNotFound, 5, false, metrics.NotFound},
	{scheduler.ErrOverloaded, shiva.Overloaded, http.StatusTooManyRequests, 8, true, metrics.Overloaded},
	{scheduler.ErrSuperseded, shiva.Superseded, http.StatusConflict, 10, false, metrics.Superseded},
	{scheduler.ErrDeadlineExceeded, shiva.DeadlineExceeded, http.StatusGatewayTimeout, 4, true,
		metrics.DeadlineExceeded},
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

// Of returns the row of err. An error without a row is a bug, and is answered as one.
func Of(err error) Row {
	for _, r := range table {
		if errors.Is(err, r.Err) {
			return r
		}
	}
	return table[len(table)-1]
}

// Outcome is how a request ended, for the metrics: [metrics.OK] without an error.
func Outcome(err error) metrics.Outcome {
	if err == nil {
		return metrics.OK
	}
	return Of(err).Outcome
}

// Bare returns err without its text, as far as Of and By distinguish errors.
func Bare(err error) error {
	if e, ok := errors.AsType[*scheduler.SupersededError](err); ok {
		return e
	}
	return Of(err).Err
}

// Again returns how long to wait before a refused request is worth repeating; 0: unknown.
func Again(err error) time.Duration {
	if e, ok := errors.AsType[*scheduler.OverloadedError](err); ok {
		return e.RetryAfter
	}
	if e, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err); ok { // of a quota
		return e.RetryAfter()
	}
	return 0
}

// By names the frame that superseded the one with the error err, as JSON text: its number, or the
// request's id if it has no number; "" if it has neither, or if err is another error.
func By(err error) string {
	e, ok := errors.AsType[*scheduler.SupersededError](err)
	if ok && e.Seq >= 0 {
		return strconv.FormatInt(e.Seq, 10)
	} else if ok {
		return e.ID
	}
	return ""
}

// maxText bounds what Text returns: errors can quote a client at any length.
const maxText = 4 << 10

// Text returns what the client reads: err without the names of the packages that it and the errors
// that it wraps come from. What an error quotes is left as it is.
func Text(err error) string {
	s := err.Error()
	for ; err != nil; err = errors.Unwrap(err) {
		before, found := strings.CutSuffix(s, err.Error())
		for _, room := range [...]string{"scheduler: ", "shiva: ", "config: "} {
			if rest, named := strings.CutPrefix(err.Error(), room); found && named {
				s = before + rest
				break
			}
		}
	}
	return Cut(s, maxText)
}

// An unknownModel is the error of a request for a model or a version that does not exist.
type unknownModel struct {
	name string
	error
}

// UnknownModel is an ErrNotFound for the model of that name.
func UnknownModel(name, format string, args ...any) error {
	return &unknownModel{name, fmt.Errorf("%w: %w", scheduler.ErrNotFound, fmt.Errorf(format, args...))}
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
