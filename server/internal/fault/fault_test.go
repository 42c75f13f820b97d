package fault

import (
	"errors"
	"fmt"
	"testing"

	"github.com/shivad/shivad/scheduler"
)

// Every condition of the scheduler has a row, which agrees with the table of errors in
// server/manual/errors.md.
func TestEveryErrorHasARow(t *testing.T) {
	for _, tc := range []struct {
		err       error
		kind      string
		http      int
		grpc      uint32
		retryable bool
	}{
		{ErrProtocol, "Protocol", 400, 3, false},
		{scheduler.ErrTooLarge, "TooLarge", 413, 8, false},
		{scheduler.ErrInvalidInput, "InvalidInput", 400, 3, false},
		{scheduler.ErrNotFound, "NotFound", 404, 5, false},
		{scheduler.ErrOverloaded, "Overloaded", 429, 8, true},
		{&scheduler.OverloadedError{Limit: "queue_rows"}, "Overloaded", 429, 8, true},
		{scheduler.ErrSuperseded, "Superseded", 409, 10, false},
		{scheduler.ErrDeadlineExceeded, "DeadlineExceeded", 504, 4, true},
		{scheduler.ErrUnavailable, "Unavailable", 503, 14, true},
		{scheduler.ErrContainerFailed, "ContainerFailed", 502, 13, false},
		{scheduler.ErrContainerLost, "ContainerLost", 502, 14, true},
		{fmt.Errorf("%w: it hung up; %w", scheduler.ErrContainerLost, scheduler.ErrCulprit), "ContainerLost", 500, 13,
			false},
		{ErrUnauthenticated, "Unauthenticated", 401, 16, false},
		{ErrPermissionDenied, "PermissionDenied", 403, 7, false},
		{scheduler.ErrDraining, "Draining", 503, 14, true},
		{scheduler.ErrCanceled, "Canceled", 499, 1, false},
		{ErrInternal, "Internal", 500, 13, false},
		{errors.New("never heard of"), "Internal", 500, 13, false},
	} {
		s := Of(fmt.Errorf("%w: with detail", tc.err))
		if s.Type != tc.kind || s.HTTP != tc.http || s.GRPC != tc.grpc || s.Retryable != tc.retryable {
			t.Errorf("%v: %+v", tc.err, s)
		}
	}
}

// What a client reads names no package, whether the error is the condition or only wraps it.
func TestTextNamesNoPackage(t *testing.T) {
	missing := fmt.Errorf("%w: no model \"reader\"", scheduler.ErrNotFound)
	if got := Text(missing); got != `not found: no model "reader"` {
		t.Error(got)
	}
	if got := Text(fmt.Errorf(`stage "read": %w`, missing)); got != `stage "read": not found: no model "reader"` {
		t.Error(got)
	}
	const quoted = `row 0: ValueError: config: no such key`
	if got := Text(fmt.Errorf("%w: %s", scheduler.ErrInvalidInput, quoted)); got != "invalid input: "+quoted {
		t.Error(got)
	}
}
