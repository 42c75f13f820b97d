package main

import (
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva"
)

// A request that must not be sent again is not called worth another try.
func TestContainerLostHint(t *testing.T) {
	for _, retryable := range []bool{false, true} {
		err := &shiva.RemoteError{Type: shiva.ContainerLost, Message: "it ended", Retryable: retryable}
		f := explain(err, "--addr", "a")
		if strings.Contains(f.Hint, "try again") != retryable {
			t.Errorf("retryable %t: %q", retryable, f.Hint)
		}
	}
}
