package fleet

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/arena"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/audit"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/identity"
	"github.com/shivad/shivad/shiva/tensor"
)

// Config of a fleet.
type Config struct {
	Name      string // of this server, for containers
	Scheduler *scheduler.Scheduler
	Gate      *gate.Gate
	Pool      *tensor.Pool
	Arena     *arena.Arena // of Pool; nil: none

	Network   Network
	Supervise Supervise
	// Identities are who containers can be.
	Identities *identity.Registry
	// Secure makes the server's handshake of TLS with a container.
	Secure func(net.Conn) (*tls.Conn, error)
	// Trail is told who registers, is refused, leaves and is replaced; nil: nobody is noted.
	Trail *audit.Trail
	// Admit refuses a model; its error is the container's reason.
	Admit func(scheduler.ModelID) error
	// Registered is told of every container that connected and serves.
	Registered func(conn net.Conn, i containers.SessionInfo)
	// RetireAfter is how long a version of a model stays after a newer one has replaced it; 0 is
	// for ever.
	RetireAfter func(model string) time.Duration
	// Linked reports whether an application asks that version of a model even if it is not the
	// default.
	Linked func(model, version string) bool

	// Stopping is closed when the server begins to stop: nobody waits for a model any more.
	Stopping <-chan struct{}
	Log      *slog.Logger
}

// A Network is how containers and the server reach each other: see Open of [containers.Config] and
// Connect of [containers.DialConfig]. The zero Network is the system's.
type Network struct {
	Open    func(network, address string) (net.Listener, error)
	Connect func(ctx context.Context, network, address string) (net.Conn, error)
}

// A Supervisor keeps the processes of a command running: see [containers.Supervisor].
type Supervisor interface {
	Status() []containers.ProcessInfo
	Resume() bool
	Roll(ctx context.Context, seen func(since time.Time) bool) error
	Close() error

	// These are about the process at the other end of a connection.
	Owns(net.Conn) bool
	Registered(net.Conn) bool
	Dismiss(net.Conn)
	Kill(c net.Conn, reason error) bool

	// Resize changes how many processes there are.
	Resize(n int, drain func(owned func(net.Conn) bool) <-chan struct{}) bool
}

// Supervise starts the processes of a command.
type Supervise func(containers.Command) (Supervisor, error)

// Command is Supervise by the system.
func Command(c containers.Command) (Supervisor, error) {
	s, err := containers.Supervise(c)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// New makes a fleet without containers.
func New(cfg Config) (*Sessions, *Processes) {
	ss, ps := newSessions(cfg), &Processes{gate: cfg.Gate, supervise: cfg.Supervise, log: cfg.Log, stopping: cfg.Stopping, Grace: 20 * time.Second, machine: machine()}
	ss.processes, ps.sessions = ps, ss
	return ss, ps
}
