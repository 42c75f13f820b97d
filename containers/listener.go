package containers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
)

// A Listener accepts containers and owns their sessions.
type Listener struct {
	// Set once.
	cfg       Config         // without what is in settings
	listeners []net.Listener // of Config.Addrs, then of Config.Others
	stopped   chan struct{}  // closed when no more connections are taken
	empty     chan struct{}  // closed when, after that, no session is left

	models   *throttle // log lines about containers, by their models
	unknowns *throttle // about peers that have not registered

	settings atomic.Pointer[Settings]

	wg sync.WaitGroup // accept loops and sessions; joined by Close

	mu       sync.Mutex
	sessions map[*session]struct{}
	fresh    []*session // those that have not registered, oldest first
	number   uint64
	closed   bool
	counts   Stats
	unserved map[unservedKey]SessionInfo // see Unserved
}

// Stats counts what happened to connections since the start.
type Stats struct {
	Sessions   int    `json:"sessions"`    // open now, registered or not
	Registered int    `json:"registered"`  // of them
	Accepted   uint64 `json:"accepted"`    // in all
	Refused    uint64 `json:"refused"`     // closed at once: too many
	Displaced  uint64 `json:"displaced"`   // ended before they registered, to make room for newer ones
	Ended      uint64 `json:"ended"`       // of those that had registered
	Strangers  uint64 `json:"strangers"`   // ended without having registered
	AcceptFail uint64 `json:"accept_fail"` // errors of accept, such as no descriptors
}

// Listen opens all addresses and serves the containers that connect, until Shutdown or Close.
// Either all addresses are open when it returns, or none.
func Listen(cfg Config) (*Listener, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &Listener{cfg: cfg.withDefaults(), sessions: make(map[*session]struct{}), stopped: make(chan struct{}), empty: make(chan struct{})}
	l.settings.Store(new(cfg.Settings.withDefaults()))
	l.models = newThrottle(l.cfg.Log, linesPerModel, linesOfModels)
	l.unknowns = newThrottle(l.cfg.Log, linesOfUnknowns, linesOfUnknowns)
	for _, a := range cfg.addresses() {
		listener, err := listen(a.Addr)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.listeners = append(l.listeners, listener)
	}
	for i, a := range cfg.addresses() {
		l.wg.Go(func() { l.accept(l.listeners[i], a.Dialect) }) // ends when Close closes the listener
	}
	return l, nil
}

// Configure returns the listener other settings, which hold for containers that connect afterwards.
// Those that are there keep what they were told when they registered: both sides of a heartbeat
// must agree on it.
func (l *Listener) Configure(s Settings) error {
	s = s.withDefaults()
	if err := s.Faults().Err(); err != nil {
		return fmt.Errorf("containers: %w", err)
	}
	l.settings.Store(&s)
	return nil
}

// Settings are those that hold for the next container.
func (l *Listener) Settings() Settings { return *l.settings.Load() }

// Addrs returns the addresses in use, in the order of Config.Addrs.
func (l *Listener) Addrs() []net.Addr { return addrsOf(l.listeners[:len(l.cfg.Addrs)]) }

// Others returns the addresses in use, in the order of Config.Others.
func (l *Listener) Others() []net.Addr { return addrsOf(l.listeners[len(l.cfg.Addrs):]) }

func addrsOf(listeners []net.Listener) []net.Addr {
	addrs := make([]net.Addr, len(listeners))
	for i, listener := range listeners {
		addrs[i] = listener.Addr()
	}
	return addrs
}

// Dialable returns the addresses of Addrs as containers on this machine can dial them: ipc://
// and tcp://, with the loopback address where the listener takes any.
func (l *Listener) Dialable() []string {
	var list []string
	for _, a := range l.Addrs() {
		switch a := a.(type) {
		case *net.TCPAddr:
			if a.IP.IsUnspecified() {
				ip := net.IPv4(127, 0, 0, 1)
				list = append(list, (&net.TCPAddr{IP: ip, Port: a.Port}).String())
			} else {
				list = append(list, a.String())
			}
			list[len(list)-1] = "tcp://" + list[len(list)-1]
		default:
			list = append(list, "ipc://"+a.String())
		}
	}
	return list
}

const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// accept takes connections until its listener is closed. When there are no descriptors it waits
// for some, longer each time: spinning would cost a core.
func (l *Listener) accept(listener net.Listener, d Dialect) {
	pause := minAcceptPause
	for {
		raw, err := listener.Accept()
		if err == nil {
			pause = minAcceptPause
			l.add(raw, d)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		l.mu.Lock()
		l.counts.AcceptFail++
		l.mu.Unlock()
		l.complain("cannot accept containers", "err", err.Error(), "again_in", pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.stopped:
			timer.Stop()
			return
		}
		pause = min(2*pause, maxAcceptPause)
	}
}

// Add serves a connection that was made elsewhere, such as one in memory. The listener owns it
// from now on.
func (l *Listener) Add(raw net.Conn) error {
	if !l.add(raw, DialectV3) {
		return fmt.Errorf("containers: listener is closed or has its %d sessions", l.settings.Load().Limits.Sessions)
	}
	return nil
}

// add starts a session, unless there are too many.
func (l *Listener) add(raw net.Conn, d Dialect) bool {
	now := time.Now()
	s := &session{listener: l, raw: raw, remote: raw.RemoteAddr().String(), dialect: d, settings: l.settings.Load(), machine: machine{started: now}}
	limits := s.settings.Limits
	s.machine.clocks.register = s.settings.HandshakeTimeout
	if s.remote == "" || s.remote == "@" {
		s.remote = "ipc" // Unix sockets of clients have no name
	}
	l.mu.Lock()
	if l.closed || len(l.sessions) >= limits.Sessions {
		l.counts.Refused++
		closed := l.closed
		l.mu.Unlock()
		raw.Close()
		if !closed {
			l.complain("container refused: too many connections", "remote", s.remote, "limit", limits.Sessions)
		}
		return false
	}
	var displaced *session
	if len(l.fresh) >= limits.Handshakes {
		displaced = l.fresh[0]
		l.fresh = l.fresh[1:]
		l.counts.Displaced++
	}
	l.number++
	l.counts.Accepted++
	s.number = l.number
	s.info = SessionInfo{Number: s.number, Remote: s.remote, Since: now, LastSeen: now}
	l.sessions[s] = struct{}{}
	l.fresh = append(l.fresh, s)
	l.wg.Go(s.run) // ends with its connection, which Close ends
	l.mu.Unlock()
	if displaced != nil {
		displaced.kill(fmt.Errorf("not registered while %d newer connections came", limits.Handshakes))
	}
	return true
}

// registered takes s off the list of those that have not.
func (l *Listener) registered(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Registered++
	l.dropFreshLocked(s)
}

func (l *Listener) dropFreshLocked(s *session) {
	if i := slices.Index(l.fresh, s); i >= 0 {
		l.fresh = slices.Delete(l.fresh, i, i+1)
	}
}

// forget is the last that a session does.
func (l *Listener) forget(s *session) {
	info := s.snapshot()
	registered := !info.Registered.IsZero()
	l.mu.Lock()
	delete(l.sessions, s)
	l.dropFreshLocked(s)
	if registered {
		l.counts.Registered--
		l.counts.Ended++
	} else {
		l.counts.Strangers++
	}
	if l.closed && len(l.sessions) == 0 {
		close(l.empty)
	}
	l.mu.Unlock()
	if registered {
		s.log(slog.LevelInfo, "container gone", "reason", info.Reason, "batches", info.Batches, "failures", info.Failures)
	} else {
		s.log(slog.LevelWarn, "connection ended before it registered", "reason", info.Reason)
	}
}

// complain logs what is about no container in particular.
func (l *Listener) complain(text string, args ...any) {
	l.unknowns.write(strangers, slog.LevelWarn, text, args...)
}

// strangers is what log lines about peers that have not registered are about.
const strangers = "strangers"

// Sessions returns a snapshot of all connections, oldest first.
func (l *Listener) Sessions() []SessionInfo {
	var list []SessionInfo
	for _, s := range l.all() {
		list = append(list, s.snapshot())
	}
	return list
}

// Stats returns the counters.
func (l *Listener) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.counts
	st.Sessions = len(l.sessions)
	return st
}

func (l *Listener) all() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]*session, 0, len(l.sessions))
	for s := range l.sessions {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *session) int { return int(a.number) - int(b.number) })
	return list
}

// Retire says goodbye to the containers of a model: each gets no more batches, answers those it
// has, and is told to go and not to come back. told is how many; those that have been told
// before are not counted again. Containers of a generation without a word for goodbye (v1 to
// v3) would be back at once if they were hung up on, or hang until somebody restarts them (v1):
// they stay replicas of the model, and kept has their numbers (see [SessionInfo]).
func (l *Listener) Retire(id scheduler.ModelID, reason string) (told int, kept []uint64) {
	for _, s := range l.all() {
		i := s.snapshot()
		switch {
		case i.Model != id || i.Registered.IsZero():
		case !s.codec.goodbye(new(zmtp.Outgoing), reason, false):
			kept = append(kept, i.Number)
		case s.retire(goodbye{reason: reason}):
			told++
		}
	}
	return told, kept
}

// Shutdown closes the addresses and parts from every container in good order: no more batches,
// an answer to those that are out, goodbye with the request to reconnect. When ctx ends before
// all have left, the rest are cut off, and ctx's error is returned. The scheduler should be
// drained first, if queued requests are to be served.
func (l *Listener) Shutdown(ctx context.Context) error {
	l.stop()
	for _, s := range l.all() {
		s.retire(goodbye{reason: "server shuts down", reconnect: true})
	}
	var err error
	select {
	case <-l.empty:
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.Close()
	return err
}

// Close ends everything at once and waits for it: addresses, sessions, goroutines. Batches that
// are out go back to the scheduler. It may be called repeatedly, also after Shutdown.
func (l *Listener) Close() error {
	l.stop()
	for _, s := range l.all() {
		s.kill(errors.New("server stops"))
	}
	l.wg.Wait()
	l.models.tell()
	l.unknowns.tell()
	return nil
}

// stop takes no more connections.
func (l *Listener) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	close(l.stopped)
	if len(l.sessions) == 0 {
		close(l.empty)
	}
	for _, listener := range l.listeners {
		listener.Close()
	}
}
