package server

import (
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/clock"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/operate"
)

// Surroundings are the parts of the system that a server depends on. Tests on virtual time replace
// them with a network in memory, processes that are goroutines, a virtual clock, and a store that
// fails on command.
type surroundings struct {
	open       listen.Opener // listens on the addresses for clients and operators
	containers operate.Network
	supervise  operate.Supervise
	store      operate.Opener
	clock      func() (stoppable, error) // the scheduler's
	wallClock  func() time.Time          // may be set back; decides whether certificates are valid
}

// A stoppable clock fires no timers after Close.
type stoppable interface {
	scheduler.Clock
	Close()
}

// system is the real operating system.
var system = surroundings{
	open:      listen.Open,
	supervise: operate.Command,
	store:     operate.OpenState,
	clock:     func() (stoppable, error) { return clock.New() },
	wallClock: time.Now,
}
