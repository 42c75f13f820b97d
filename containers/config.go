package containers

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/shivad/shivad/containers/internal/arena"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// Config configures a Listener. Only Scheduler is required.
type Config struct {
	// Addrs are the addresses to which containers connect: "tcp://host:port" or "host:port" (port
	// 0 picks a free one), "tls://host:port", "ipc://path" or, for a name without a file,
	// "ipc://@name". It may be empty: [Listener.Add] accepts connections made elsewhere.
	Addrs []string
	// Access restricts who may connect to the sockets of "ipc://path" in Addrs and Others.
	Access unixsocket.Access
	// Others are addresses for containers of old generations whose first message does not tell them
	// apart from those that Addrs serves.
	Others []Address
	// Open listens on TCP addresses, those of TLS included; nil means net.Listen.
	Open func(network, address string) (net.Listener, error)
	// Secure performs the server's TLS handshake on a connection to a tls:// address, within the
	// connection's deadline. Many goroutines may call it at once. It is required if there is such
	// an address.
	Secure func(net.Conn) (*tls.Conn, error)
	// Scheduler gets a replica for each registered session.
	Scheduler *scheduler.Scheduler
	// Pool provides the memory into which results are received; nil means the heap, without a
	// budget.
	Pool *tensor.Pool
	// Arena is the shared memory of Pool, for containers on this machine; nil disables it.
	Arena *arena.Arena
	// Settings apply until [Listener.Configure] is called.
	Settings
	// Allow refuses a registration by returning an error. It decides by who the container is, and
	// its error must disclose nothing else. It is called before Admit, and again by
	// [Listener.Review]. It may be nil.
	Allow func(Applicant) (Party, error)
	// Admit refuses a registration by returning an error, which is logged, and sent to the
	// container if its generation has a message for it; nil admits all. It is called on the
	// session's goroutine.
	Admit func(scheduler.ModelID) error
	// Refused is called for a container that is refused, or waits for a place, unless Allow has
	// refused it or the server is draining. A hello that cannot be read names no model. It may be
	// nil.
	Refused func(conn net.Conn, i SessionInfo, reason error)
	// Registered is called for every session that has become a replica of its model, before its
	// first batch, on the session's goroutine. It may be nil.
	Registered func(conn net.Conn, i SessionInfo)
	// Returns is asked when a container registers: how long after its end a successor may be
	// expected, 0 if none; see [scheduler.ReplicaOptions]. nil: always 0.
	Returns func(conn net.Conn) time.Duration
	// Served is called when a container has answered its first batch. It may be nil.
	Served func(conn net.Conn)
	// Left is called when a registered session has ended. It may be nil.
	Left func(i SessionInfo)
	// Dismissed is called with the connection of a container just before the goodbye that asks it
	// not to reconnect. It may be nil.
	Dismissed func(conn net.Conn)
	// Silent is called, on a goroutine of its own, when a container has answered nothing for
	// several execution timeouts. Its session ends after the call, so conn is still open. The
	// process should be ended as well, see [Supervisor.Kill]. It may be nil.
	Silent func(conn net.Conn, reason error)
	// Name is the server's name in welcome. Default "shivad".
	Name string
	// Log gets one line for each session that begins and ends; nil disables it.
	Log *slog.Logger
}

// An Applicant is a container that is registering or has registered.
type Applicant struct {
	Conn  net.Conn  // the socket
	TLS   *tls.Conn // on Conn; nil: the connection is plain
	Model scheduler.ModelID
	Token string // shown by the container; "": none

	Registered bool  // it serves already, and is under review
	Party      Party // what Allow returned before; zero when it has not been called yet
}

// A Party is who a container is, as [Config].Allow has found out.
type Party struct {
	Identity string // its name; "": none
	Process  string // the name of the supervised container whose process it is; "": none
}

// Settings are the part of a Config that can change while the listener is open. Zero fields mean
// the default.
type Settings struct {
	// Limits bounds each container.
	Limits Limits
	// Heartbeat is the interval of heartbeats of v4, in both directions. A container is dead
	// after three intervals without a byte, or, if it is idle, thirty without a message. Default
	// 1 s. The times of v1 to v3 are fixed by their containers: 5 s and 30 s.
	Heartbeat time.Duration
	// HandshakeTimeout is the time from connecting to being registered. Default 10 s.
	HandshakeTimeout time.Duration
	// WriteTimeout ends a session whose container reads no byte for this long while data waits
	// for it. Default 10 s.
	WriteTimeout time.Duration
	// Bytes sends all tensors to containers as bytes, even where shared memory is available.
	Bytes bool
}

// An Address is an address for containers of one dialect.
type Address struct {
	Addr    string // as in Config.Addrs
	Dialect Dialect
}

// A Dialect is the generation that an address assumes where a container's first message is
// ambiguous. All dialects serve v4.
type Dialect uint8

const (
	DialectV3  Dialect = iota // v1 and v3, as served by Config.Addrs
	DialectV1b                // v1b and v3: registrations of v1 and v1b look alike
	DialectV2                 // v1 and v2: heartbeats of v2 and v3 look alike
	DialectV2a                // v1 and v2a, which is v2 with floats for answers
)

func (d Dialect) String() string { return [...]string{"v3", "v1b", "v2", "v2a"}[d] }

// Limits bounds containers, registered or not. Zero fields mean the default.
type Limits struct {
	// MessageBytes is the largest message from a container. Default 256 MiB.
	MessageBytes int64
	// Frames is the largest number of frames in a message; a v3 result has one for each row.
	// Default 8192.
	Frames int
	// Sessions is the largest number of connections; further ones are closed at once. Default 1024.
	Sessions int
	// Handshakes is the largest number of connections that have not registered yet. A further one
	// ends the oldest of those from the host that has the most: real containers register within
	// milliseconds. Default 128.
	Handshakes int
}

const (
	defaultHeartbeat        = time.Second
	defaultHandshakeTimeout = 10 * time.Second
	defaultWriteTimeout     = 10 * time.Second
	defaultSessions         = 1024
	defaultHandshakes       = 128

	// missedBeats is the number of heartbeats that may be missing, and idleBeats the number while
	// the container's ZeroMQ library answers PINGs.
	missedBeats = 3
	idleBeats   = 30
	// lingerTime is how long a container may take to hang up after goodbye or refused.
	lingerTime = 2 * time.Second
	// helloLimit is the largest message of a connection that has not registered: enough to read a
	// hello that is far too long and refuse it with a reason.
	helloLimit = 2 << 20
	// helloFrames is the largest number of frames of that message: no generation registers with
	// more than six.
	helloFrames = 16
	// queueLimit is the number of messages that may wait for a container to read them: twice the
	// batches that it can have.
	queueLimit = 2 * scheduler.MaxSlots
)

// Validate reports all faults in one error.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("containers: "+format, args...))
	}
	if c.Scheduler == nil {
		fault("no scheduler")
	}
	for _, a := range c.addresses() {
		if network, _, err := splitAddr(a.Addr); err != nil {
			faults = append(faults, err)
		} else if network == "tls" && c.Secure == nil {
			fault("address %q needs Config.Secure", a.Addr)
		}
		if a.Dialect > DialectV2a {
			fault("address %q has the unknown dialect %d", a.Addr, a.Dialect)
		}
	}
	if err := c.Settings.withDefaults().Faults().Err(); err != nil {
		fault("%w", err)
	}
	return errors.Join(faults...)
}

// maxCount is the upper bound of settings that count something.
const maxCount = 1 << 20

// Faults validates settings in which zero means zero, not the default. It returns all faults by
// their names in the configuration file.
func (s Settings) Faults() (fs setting.Faults) {
	setting.Between(&fs, "heartbeat", s.Heartbeat, 10*time.Millisecond, setting.MaxWait)
	setting.Between(&fs, "handshake_timeout", s.HandshakeTimeout, 10*time.Millisecond, setting.MaxWait)
	setting.Between(&fs, "write_timeout", s.WriteTimeout, 10*time.Millisecond, setting.MaxWait)
	setting.Between(&fs, "message_bytes", setting.Bytes(s.Limits.MessageBytes), 64<<10, setting.MaxBytes)
	setting.Between(&fs, "frames", s.Limits.Frames, 8, maxCount)
	setting.Between(&fs, "sessions", s.Limits.Sessions, 1, maxCount)
	setting.Between(&fs, "handshakes", s.Limits.Handshakes, 1, maxCount)
	return fs
}

// DefaultSettings returns Settings with every default set.
func DefaultSettings() Settings { return Settings{}.withDefaults() }

// addresses returns all addresses, Addrs first.
func (c Config) addresses() []Address {
	var list []Address
	for _, a := range c.Addrs {
		list = append(list, Address{Addr: a})
	}
	return append(list, c.Others...)
}

func (s Settings) withDefaults() Settings {
	wire := zmtp.Limits{MessageBytes: s.Limits.MessageBytes, Frames: s.Limits.Frames}.WithDefaults()
	s.Limits.MessageBytes, s.Limits.Frames = wire.MessageBytes, wire.Frames
	s.Heartbeat = cmp.Or(s.Heartbeat, defaultHeartbeat)
	s.HandshakeTimeout = cmp.Or(s.HandshakeTimeout, defaultHandshakeTimeout)
	s.WriteTimeout = cmp.Or(s.WriteTimeout, defaultWriteTimeout)
	s.Limits.Sessions = cmp.Or(s.Limits.Sessions, defaultSessions)
	s.Limits.Handshakes = cmp.Or(s.Limits.Handshakes, defaultHandshakes)
	return s
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "shivad"
	}
	if c.Open == nil {
		c.Open = net.Listen
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}
