package server

import (
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/clock"
	"github.com/shivad/shivad/server/internal/intake"
	"github.com/shivad/shivad/server/internal/manage"
	"github.com/shivad/shivad/server/internal/secure"
)

// Surroundings are what a server has from outside, beside its configuration. Tests on virtual time
// have a network in memory, a clock of that time, and a store that fails when they say so.
// Containers need none: a connection that was made elsewhere is given to their listener.
type surroundings struct {
	open  intake.Opener // of the addresses of clients
	store manage.Opener
	clock func() (stoppable, error) // of the scheduler
}

// A stoppable clock is ended by Close: after that no timer fires.
type stoppable interface {
	scheduler.Clock
	Close()
}

// system is the surroundings of a server by itself.
var system = surroundings{
	open:  secure.Open,
	store: manage.OpenState,
	clock: func() (stoppable, error) { return clock.New() },
}
