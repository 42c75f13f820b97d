//go:build !linux

// Package clock is a clock whose timers are as exact as the system's: here, those of Go's runtime.
package clock

import (
	"time"

	"github.com/shivad/shivad/scheduler"
)

// A Clock is a [scheduler.Clock].
type Clock struct{}

// New makes a clock.
func New() (*Clock, error) { return new(Clock), nil }

// Close does nothing.
func (*Clock) Close() {}

// Now is [time.Now].
func (*Clock) Now() time.Time { return time.Now() }

// AfterFunc is [time.AfterFunc].
func (*Clock) AfterFunc(d time.Duration, f func()) scheduler.Timer { return time.AfterFunc(d, f) }
