package containers

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/tensor"
)

// Config is what a listener is made with. Only Scheduler is required.
type Config struct {
	// Addrs are where containers connect: "tcp://host:port" or "host:port" (port 0 takes a free
	// one), "ipc://path" or, for a name without a file, "ipc://@name". None is allowed:
	// [Listener.Add] takes connections made elsewhere.
	Addrs []string
	// Others are addresses for containers of old generations that cannot be told from those
	// that Addrs serves.
	Others []Address
	// Scheduler gets a replica for each registered session.
	Scheduler *scheduler.Scheduler
	// Pool is where results are received into; nil means ordinary memory without a budget.
	Pool *tensor.Pool
	// Settings hold until [Listener.Configure] is called.
	Settings
	// Admit refuses a registration by its error, which the container is told if its generation
	// has words for that, and the log in any case; nil admits all. It is called on the
	// session's goroutine.
	Admit func(scheduler.ModelID) error
	// Registered is told of every session that has become a replica of its model, before its
	// first batch; nil: nobody is told. It is called on the session's goroutine.
	Registered func(conn net.Conn, i SessionInfo)
	// Dismissed is told of the connection of every container that is told goodbye for good,
	// before it is; nil: nobody is.
	Dismissed func(conn net.Conn)
	// Silent is told of a container whose session is about to end, still open, as it has
	// answered nothing for several execution timeouts: a process that does not answer is to be
	// ended as well, see [Supervisor.Kill]. nil: nobody is told. It is called on a goroutine of
	// its own.
	Silent func(conn net.Conn, reason error)
	// Name is how the server calls itself in welcome. Default "shivad".
	Name string
	// Log gets one line for each session that begins and ends; nil means silent.
	Log *slog.Logger
}

// Settings of a listener can change while it is open. Zero fields take the default.
type Settings struct {
	// Limits bounds what one container may do.
	Limits Limits
	// Heartbeat is how often v4 sessions beat in either direction; a container is dead when
	// nothing is heard of it for three times as long, or no message of an idle one for thirty
	// times as long. Default 1 s. The clocks of v1 to v3 are fixed by their containers: 5 s and
	// 30 s.
	Heartbeat time.Duration
	// HandshakeTimeout is the time from connecting to being registered. Default 10 s.
	HandshakeTimeout time.Duration
	// WriteTimeout ends a session whose container takes not one byte for this long while
	// something is due to it. Default 10 s.
	WriteTimeout time.Duration
}

// An Address is where containers of a dialect connect.
type Address struct {
	Addr    string // as in Config.Addrs
	Dialect Dialect
}

// A Dialect is what an address takes its containers for where they do not say it themselves.
// All serve v4.
type Dialect uint8

const (
	DialectV3  Dialect = iota // v1 and v3, which is what Config.Addrs serves
	DialectV1b                // v1b and v3: containers of v1 and v1b register alike
	DialectV2                 // v1 and v2: containers of v2 and v3 beat alike
	DialectV2a                // v1 and v2a, which is v2 with floats for answers
)

func (d Dialect) String() string { return [...]string{"v3", "v1b", "v2", "v2a"}[d] }

// Limits bounds containers, registered or not. Zero fields take the default.
type Limits struct {
	// MessageBytes is the largest message from a container. Default 256 MiB.
	MessageBytes int64
	// Frames is the largest number of frames in a message; a v3 result has one for each row.
	// Default 8192.
	Frames int
	// Sessions is the largest number of connections; more are closed at once. Default 1024.
	Sessions int
	// Handshakes is the largest number of connections that have not registered yet. One more
	// ends the oldest of them: real containers need milliseconds, so it is strangers who wait.
	// Default 128.
	Handshakes int
}

const (
	defaultHeartbeat        = time.Second
	defaultHandshakeTimeout = 10 * time.Second
	defaultWriteTimeout     = 10 * time.Second
	defaultSessions         = 1024
	defaultHandshakes       = 128

	// missedBeats is how many heartbeats may be missing, and idleBeats how many while the
	// container's ZeroMQ library answers PINGs.
	missedBeats = 3
	idleBeats   = 30
	// lingerTime is how long a session that was told goodbye or refused may take to hang up.
	lingerTime = 2 * time.Second
	// helloLimit is the largest message of a connection that has not registered: enough to
	// read, and refuse with a reason, what is far too long.
	helloLimit = 2 << 20
	// helloFrames is the largest number of frames of its message: no generation registers with
	// more than six.
	helloFrames = 16
	// queueLimit is how many messages may wait for a container to read them: all the batches
	// that it can have, and as much again.
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
		if _, _, err := splitAddr(a.Addr); err != nil {
			faults = append(faults, err)
		}
		if a.Dialect > DialectV2a {
			fault("address %q has dialect %d, which there is not", a.Addr, a.Dialect)
		}
	}
	if err := c.Settings.withDefaults().Faults().Err(); err != nil {
		fault("%w", err)
	}
	return errors.Join(faults...)
}

// maxCount is the most that a setting may count.
const maxCount = 1 << 20

// Faults are all that is wrong with settings in which a zero is a zero and no default, by the
// names that they have in the configuration file.
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

// DefaultSettings are settings with every default in them.
func DefaultSettings() Settings { return Settings{}.withDefaults() }

// addresses are all there are, Addrs first.
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
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}
