package listen

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/backoff"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// Settings are those that all doors have. They can change while a Listener is open, and bound the
// connections of a door, so that its clients cannot exhaust the descriptors of the process.
type Settings struct {
	Connections int  // open at one time
	Loopback    bool // ConnectionsPerAddress applies to clients on this machine, too
	Bounds

	TLS *TLS // of the TLS addresses; nil: there are none
	// Handshakes is how many TLS handshakes may be under way at one time, and HandshakeTimeout how
	// long one may take.
	Handshakes       int
	HandshakeTimeout time.Duration
}

// Bounds are the settings in the file that all doors have, each for itself. The fields are those of
// config.DoorBounds, which becomes this type.
type Bounds struct {
	ConnectionsPerAddress int // of Connections, from one Host; 0: half of them, at least one

	// The door itself applies these: MessageTimeout is for a message that has begun, plus a second
	// per 16 KiB, 0: none; a client that takes nothing of its answers for StallTimeout is closed.
	MessageTimeout, StallTimeout time.Duration
}

// perAddress returns the limit of one host; free means that the host has none.
func (l Settings) perAddress(host Host) (most int, free bool) {
	return cmp.Or(l.ConnectionsPerAddress, max(l.Connections/2, 1)), host == Host{} || host.isLocal() && !l.Loopback
}

// An Opener listens on an address of an Entrance. A listener for TLS has an Addr of type
// [TLSAddr].
type Opener func(addr string, access unixsocket.Access) (net.Listener, error)

// An Entrance holds the settings that all doors are opened with. All fields except Access, Open and
// Addresses must be set.
type Entrance struct {
	// Addrs are "host:port", with port 0 for any free one, "tls://host:port", or "unix:PATH" (see
	// CutTLS and package unixsocket).
	Addrs   []string
	Access  unixsocket.Access // to its Unix sockets
	Open    Opener            // nil: Open
	Metrics *metrics.Door
	Log     *slog.Logger // with a bound on lines of a kind, since any peer can cause them
	// Addresses has the quota accounts of client addresses; nil: there are no quotas.
	Addresses *access.Addresses
}

// Config configures a Listener. All fields except Refusal must be set.
type Config struct {
	Entrance
	Door     string          // its section of the configuration, such as "tcp"
	Settings func() Settings // for the next connection
	// Refusal encodes the error that is sent on a connection above a limit before it is closed.
	// nil: nothing is sent.
	Refusal func(error) []byte
}

// A Listener admits connections up to the limits.
type Listener struct {
	Config
	listeners []net.Listener
	accepted  chan *Conn
	closing   chan struct{} // closed by Close
	accepting sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	open      int          // admitted connections
	hosts     map[Host]int // the same by host, including hosts without a limit
	lingering map[net.Conn]struct{}
	lingers   sync.WaitGroup

	unfinished []*Conn // connections in their handshake, in order of arrival
}

// Listen opens all addresses, or none.
func Listen(cfg Config) (*Listener, error) {
	if cfg.Open == nil {
		cfg.Open = Open
	}
	l := newListener(cfg)
	for _, addr := range cfg.Addrs {
		one, err := cfg.Open(addr, cfg.Access)
		if err != nil {
			l.Close()
			return nil, fmt.Errorf("%s: %w", cfg.Door, err)
		}
		l.listeners = append(l.listeners, one)
	}
	l.start()
	return l, nil
}

func newListener(cfg Config, listeners ...net.Listener) *Listener {
	return &Listener{
		Config: cfg, listeners: listeners, accepted: make(chan *Conn), closing: make(chan struct{}),
		hosts: make(map[Host]int), lingering: make(map[net.Conn]struct{}),
	}
}

// start begins accepting connections.
func (l *Listener) start() {
	for _, one := range l.listeners {
		l.accepting.Go(func() { l.accept(one) }) // ends with the listener, and Close waits for it
	}
}

// All returns the addresses in use, in the order of Config.Addrs.
func (l *Listener) All() []net.Addr {
	list := make([]net.Addr, len(l.listeners))
	for i, one := range l.listeners {
		list[i] = one.Addr()
	}
	return list
}

// Addr returns the first of All, for net.Listener.
func (l *Listener) Addr() net.Addr { return l.listeners[0].Addr() }

// Open returns how many admitted connections are open.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Accept waits for the next admitted connection on any of the addresses. It fails only when the
// listener is closed.
func (l *Listener) Accept() (*Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closing:
		return nil, net.ErrClosed
	}
}

// accept admits the connections of one address, and refuses those above a limit.
func (l *Listener) accept(from net.Listener) {
	backoff.Accept(from, l.closing, func(err error, pause time.Duration) {
		l.Log.Warn("cannot accept a connection", "door", l.Door, "error", err, "again in", pause)
	}, func(raw net.Conn) { l.admit(raw, from.Addr()) })
}

// admit offers a connection that came to an address, unless it is above a limit.
func (l *Listener) admit(raw net.Conn, door net.Addr) {
	l.Metrics.Opened()
	c := &Conn{Conn: raw, listener: l, door: door, socket: raw}
	c.host, c.peer = PeerOf(raw)
	_, encrypted := door.(TLSAddr)
	if why, err := l.enter(c.host); err != nil {
		l.Metrics.Closed(why)
		if encrypted {
			l.refuseEncrypted(raw, err)
		} else {
			l.refuse(raw, err)
		}
		return
	}
	if l.Addresses != nil {
		c.account = c.host.Enter(l.Addresses)
	}
	switch {
	case !encrypted:
		l.offer(c)
	case l.begin(c):
		l.accepting.Go(func() { // ends after HandshakeTimeout and with the listener
			if l.shake(c) {
				l.offer(c)
			}
		})
	default: // the listener is closing
		c.Because(metrics.ClosedDraining)
		c.Close()
	}
}

// offer passes a connection to Accept.
func (l *Listener) offer(c *Conn) {
	select {
	case l.accepted <- c:
	case <-l.closing:
		c.Because(metrics.ClosedDraining)
		c.Close()
	}
}

// enter counts a connection, or returns which limit it is above.
func (l *Listener) enter(host Host) (why metrics.Closed, err error) {
	limits := l.Settings()
	l.mu.Lock()
	defer l.mu.Unlock()
	if most, free := limits.perAddress(host); !free && l.hosts[host] >= most {
		return metrics.ClosedAddressLimit, fmt.Errorf("%w: too many connections from your %s (%s.connections_per_address = %d)",
			scheduler.ErrOverloaded, host.kind(), l.Door, most)
	}
	if l.open >= limits.Connections {
		return metrics.ClosedConnectionLimit, fmt.Errorf("%w: too many connections (%s.connections = %d)",
			scheduler.ErrOverloaded, l.Door, limits.Connections)
	}
	l.open++
	l.hosts[host]++
	return 0, nil
}

// leave removes a connection from the counts.
func (l *Listener) leave(host Host) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.hosts[host]--; l.hosts[host] == 0 {
		delete(l.hosts, host)
	}
}

// Close closes the listener, the connections in their handshake and the lingering ones. Connections
// that Accept has returned stay open.
func (l *Listener) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	for c := range l.lingering {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // linger closes it
	}
	for _, c := range l.unfinished {
		c.Because(metrics.ClosedDraining)
		c.socket.Close()
	}
	l.mu.Unlock()
	var err error
	for _, one := range l.listeners {
		err = errors.Join(err, one.Close())
	}
	l.accepting.Wait()
	l.lingers.Wait()
	return err
}
