package listen

import (
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/plural"
)

// A Clock times the arrival of one message. The zero Clock has not begun.
type Clock struct {
	Began time.Time // when the first byte arrived
	Bytes int64     // received so far, or the size of the message if known
}

// Due returns when the message must be complete under a door's message_timeout; zero: never.
func (c Clock) Due(timeout time.Duration) time.Time {
	if timeout <= 0 || c.Began.IsZero() {
		return time.Time{}
	}
	return c.Began.Add(setting.Allowance(timeout, c.Bytes))
}

// Late reports whether the message should have been complete by now.
func (c Clock) Late(now time.Time, timeout time.Duration) bool {
	due := c.Due(timeout)
	return !due.IsZero() && !now.Before(due)
}

// Error returns the refusal of a late message.
func (c Clock) Error(door string, now time.Time, timeout time.Duration) error {
	return fmt.Errorf("%w: %s of the message arrived in %v (%s.message_timeout = %v, and a second for each 16 KiB)",
		scheduler.ErrDeadlineExceeded, plural.Of(c.Bytes, "byte"), now.Sub(c.Began).Round(time.Millisecond), door,
		timeout)
}
