package operate

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// FleetConfig configures a fleet.
type FleetConfig struct {
	Name      string // of this server, for containers
	Scheduler *scheduler.Scheduler
	Gate      *gate.Gate
	Pool      *tensor.Pool
	Arena     *containers.Arena // of Pool; nil: none

	Network   Network
	Supervise Supervise
	// Identities are the identities that containers can have.
	Identities *access.Identities
	// Secure performs the server's side of the TLS handshake with a container.
	Secure func(net.Conn) (*tls.Conn, error)
	// Trail is told which containers register, are refused, leave and are replaced; nil: nothing is
	// recorded.
	Trail *access.Trail
	// Admit returns an error to refuse a model; the container gets it as the reason.
	Admit func(scheduler.ModelID) error
	// Registered is called for every container that has connected and serves.
	Registered func(conn net.Conn, i containers.SessionInfo)
	// RetireAfter is how long a version of a model stays after a newer one has replaced it; 0:
	// forever.
	RetireAfter func(model string) time.Duration
	// Linked reports whether an application links to that version of a model even when it is not
	// the default.
	Linked func(model, version string) bool

	// Stopping is closed when the server begins to stop: all waits for a model end.
	Stopping <-chan struct{}
	Log      *slog.Logger
}

// A Network is how containers and the server reach each other: see Open of [containers.FleetConfig]
// and Connect of [containers.DialConfig]. The zero Network is the system's.
type Network struct {
	Open    func(network, address string) (net.Listener, error)
	Connect func(ctx context.Context, network, address string) (net.Conn, error)
}

// A Supervisor keeps the processes of a command running: see [containers.Supervisor].
type Supervisor interface {
	Status() []containers.ProcessInfo
	Resume() bool
	Roll(ctx context.Context, seen func(since time.Time) bool) error
	Become(ctx context.Context, cmd containers.Command, seen func(since time.Time) bool) error
	Supersede(ctx context.Context, cmd containers.Command, seen func(since time.Time) bool, leave func()) error
	Adjust(cmd containers.Command) error
	Close() error

	// The following concern the process at the other end of a connection.
	Owns(net.Conn) bool
	Registered(net.Conn) bool
	Served(net.Conn)
	Returns(net.Conn) time.Duration
	Dismiss(net.Conn)
	Kill(c net.Conn, reason error) bool

	// Resize changes how many processes there are.
	Resize(n int, drain func(owned func(net.Conn) bool) <-chan struct{}) bool
}

// Supervise starts the processes of a command.
type Supervise func(containers.Command) (Supervisor, error)

// Command is the Supervise that starts real processes.
func Command(c containers.Command) (Supervisor, error) {
	s, err := containers.Supervise(c)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewFleet returns a fleet without containers.
func NewFleet(cfg FleetConfig) (*Sessions, *Processes) {
	ss, ps := newSessions(cfg),
		&Processes{gate: cfg.Gate, supervise: cfg.Supervise, log: cfg.Log, stopping: cfg.Stopping,
			Grace: 20 * time.Second, Idle: time.Minute, machine: machine()}
	ss.processes, ps.sessions = ps, ss
	cfg.Arena.OnRetire(ss.RetireSegment)
	return ss, ps
}
