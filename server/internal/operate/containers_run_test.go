package operate

import (
	"errors"
	"testing"

	"github.com/shivad/shivad/scheduler"
)

// A caller that waits for a model while the server stops is told that, and not that the model is
// missing, although by then it is.
func TestWaitWhileStopping(t *testing.T) {
	stopping := make(chan struct{})
	ps := &Processes{stopping: stopping}
	look := func() (bool, error) { return false, scheduler.ErrUnavailable }
	if err := ps.poll(look, nil); !errors.Is(err, scheduler.ErrUnavailable) {
		t.Error(err)
	}
	close(stopping)
	if err := ps.poll(look, nil); !errors.Is(err, scheduler.ErrDraining) {
		t.Error(err)
	}
	if err := ps.poll(func() (bool, error) { return true, nil }, nil); err != nil {
		t.Error(err)
	}
}
