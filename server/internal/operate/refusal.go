package operate

import (
	"errors"
	"net/http"
	"strings"

	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/internal/fault"
)

// refusal returns err as the admin door answers it, with the status that requests get for the same
// condition.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	if errors.Is(err, composite.ErrFixed) {
		return &Error{Status: http.StatusConflict, Text: strings.TrimPrefix(err.Error(), composite.ErrFixed.Error()+": ")}
	}
	if errors.Is(err, composite.ErrExists) {
		return &Error{Status: http.StatusConflict, Text: strings.TrimPrefix(err.Error(), "composite: ")}
	}
	status := fault.Of(composite.Stored(err))
	if status.HTTP == http.StatusInternalServerError {
		return err // the door logs it
	}
	return &Error{Status: status.HTTP, Text: fault.Text(err)}
}
