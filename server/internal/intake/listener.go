// Package intake is what every door does before it serves a connection, and while a message
// arrives on it.
//
//	Listener.Accept ──┬──→ Conn, counted until it is closed or Leave is called
//	                  └──→ above a limit: told why on its wire, and closed so that the client
//	                       can read it
//	Clock                  when a message that has begun must be complete
//
// A door supplies its name, which errors use for its settings, its limits, and the form that an
// error has on its wire.
//
// Concurrency: Accept is for one goroutine. Everything else may be called from any.
package intake

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/metrics"
)

// Limits bound the connections of a door, so that neither all clients together nor one of them
// take the descriptors of the process.
type Limits struct {
	Total      int  // open at one time
	PerAddress int  // of these, of one address; 0: half of Total, at least one
	Loopback   bool // PerAddress holds for the addresses of this machine, too
}

// perAddress is the limit of one address; free tells that it has none.
func (l Limits) perAddress(host netip.Addr) (most int, free bool) {
	if most = l.PerAddress; most == 0 {
		most = max(l.Total/2, 1)
	}
	return most, !host.IsValid() || host.IsLoopback() && !l.Loopback
}

// Config of a Listener. All fields must be set but Refusal.
type Config struct {
	Door    string        // its section of the configuration, such as "tcp"
	Limits  func() Limits // those that hold for the next connection
	Metrics *metrics.Door
	Log     *slog.Logger
	// Refusal returns the bytes that a connection above a limit is sent before it is closed. nil:
	// it is sent nothing.
	Refusal func(error) []byte
}

// A Listener lets connections in, up to the limits.
type Listener struct {
	Config
	listener net.Listener
	closing  chan struct{} // closed by Close

	mu        sync.Mutex
	closed    bool
	open      int                // connections that were let in
	hosts     map[netip.Addr]int // of these, by host, those without a limit among them
	lingering map[net.Conn]struct{}
	lingers   sync.WaitGroup
}

// Listen opens a TCP address, "host:port", with port 0 for any free one.
func Listen(addr string, cfg Config) (*Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Door, err)
	}
	return newListener(l, cfg), nil
}

func newListener(l net.Listener, cfg Config) *Listener {
	return &Listener{
		Config: cfg, listener: l, closing: make(chan struct{}),
		hosts: make(map[netip.Addr]int), lingering: make(map[net.Conn]struct{}),
	}
}

// Addr is the address in use.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Open returns how many connections are let in.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Accept waits for a connection that may be let in, and refuses the others. It fails only when
// the listener is closed. When the process has no descriptor left it tries again after a growing
// pause: trying without one would occupy a core.
func (l *Listener) Accept() (*Conn, error) {
	const first, longest = 5 * time.Millisecond, time.Second
	for pause := first; ; {
		raw, err := l.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil, err
		case err != nil:
			l.Log.Warn("cannot accept a connection", "door", l.Door, "error", err, "again in", pause)
			again := time.NewTimer(pause)
			select {
			case <-l.closing:
				again.Stop()
				return nil, net.ErrClosed
			case <-again.C:
			}
			pause = min(2*pause, longest)
			continue
		}
		pause = first
		l.Metrics.Opened()
		c := &Conn{Conn: raw, listener: l, host: hostOf(raw.RemoteAddr())}
		why, err := l.enter(c.host)
		if err == nil {
			return c, nil
		}
		l.Metrics.Closed(why)
		l.refuse(raw, err)
	}
}

// enter counts a connection, unless it is above a limit.
func (l *Listener) enter(host netip.Addr) (why metrics.Closed, err error) {
	limits := l.Limits()
	l.mu.Lock()
	defer l.mu.Unlock()
	if most, free := limits.perAddress(host); !free && l.hosts[host] >= most {
		return metrics.ClosedAddressLimit, fmt.Errorf("%w: too many connections from your address (%s.connections_per_address = %d)", scheduler.ErrOverloaded, l.Door, most)
	}
	if l.open >= limits.Total {
		return metrics.ClosedConnectionLimit, fmt.Errorf("%w: too many connections (%s.connections = %d)", scheduler.ErrOverloaded, l.Door, limits.Total)
	}
	l.open++
	l.hosts[host]++
	return 0, nil
}

// leave takes a connection off the count.
func (l *Listener) leave(host netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.hosts[host]--; l.hosts[host] == 0 {
		delete(l.hosts, host)
	}
}

// Close closes the listener, and the connections that linger. Those that were let in stay open.
func (l *Listener) Close() error {
	err := l.listener.Close()
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	for c := range l.lingering {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // linger closes it
	}
	l.mu.Unlock()
	l.lingers.Wait()
	return err
}
