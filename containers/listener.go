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
	"github.com/shivad/shivad/shiva/backoff"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Listener accepts containers and owns their sessions.
type Listener struct {
	// Set once.
	cfg       Config         // its Settings are in settings
	listeners []net.Listener // of Config.Addrs, then of Config.Others
	stopped   chan struct{}  // closed when no more connections are accepted
	empty     chan struct{}  // closed when, after that, the last session has ended

	models   *throttle // log lines about containers, by model
	unknowns *throttle // log lines about peers that have not registered

	areas *tensor.Pool // budget for the segments that containers write outputs to
	looks *tensor.Pool // for pictures that one container has decoded and others look at

	settings atomic.Pointer[Settings]

	wg sync.WaitGroup // accept loops and sessions; joined by Close

	mu       sync.Mutex
	sessions map[*session]struct{}
	fresh    []*session            // sessions that have not registered, oldest first
	waiting  map[*session]struct{} // sessions that wait for a place, see mostWaiting
	parting  map[*session]struct{} // displaced sessions that are told why, see mostParting
	number   uint64
	closed   bool
	counts   Stats
	unserved map[unservedKey]SessionInfo  // see Unserved
	replicas map[scheduler.ModelID]int    // sessions by model
	subsets  map[scheduler.ModelID]Subset // see Subset
}

// Stats counts connections since the start.
type Stats struct {
	Sessions   int    `json:"sessions"`    // open now, registered or not
	Registered int    `json:"registered"`  // open now and registered
	Accepted   uint64 `json:"accepted"`    // in all
	Refused    uint64 `json:"refused"`     // closed at once, above the limit
	Displaced  uint64 `json:"displaced"`   // ended to make room before they registered
	Ended      uint64 `json:"ended"`       // registered sessions that ended
	Strangers  uint64 `json:"strangers"`   // ended without a registration
	AcceptFail uint64 `json:"accept_fail"` // errors of accept, such as no descriptors
}

// Listen opens all addresses and serves the containers that connect, until Shutdown or Close.
// Either all addresses are open when it returns, or none is, and the error says why.
func Listen(cfg Config) (*Listener, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &Listener{cfg: cfg.withDefaults(), sessions: make(map[*session]struct{}), waiting: make(map[*session]struct{}),
		parting: make(map[*session]struct{}), replicas: make(map[scheduler.ModelID]int),
		subsets: make(map[scheduler.ModelID]Subset), stopped: make(chan struct{}), empty: make(chan struct{})}
	l.settings.Store(new(cfg.Settings.withDefaults()))
	l.areas, l.looks = cfg.Pool, cfg.Pool
	if all := cfg.Pool.Budget(); all > 0 {
		l.areas, l.looks = cfg.Pool.Part(all/outputsShare), cfg.Pool.Part(all/looksShare)
	}
	l.models = newThrottle(l.cfg.Log, linesPerModel, linesOfModels)
	l.unknowns = newThrottle(l.cfg.Log, linesOfUnknowns, linesOfUnknowns)
	for _, a := range cfg.addresses() {
		listener, err := listen(a.Addr, l.cfg.Access, l.cfg.Open)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.listeners = append(l.listeners, listener)
	}
	for i, a := range cfg.addresses() {
		l.wg.Go(func() { l.accept(l.listeners[i], a.Dialect) }) // ends with the listener
	}
	return l, nil
}

// Configure changes the settings, for containers that connect from now on. Connected ones retain
// those of their registration, since both sides of a heartbeat must agree on it. An error names
// all faults of s and changes nothing.
func (l *Listener) Configure(s Settings) error {
	s = s.withDefaults()
	if err := s.Faults().Err(); err != nil {
		return fmt.Errorf("containers: %w", err)
	}
	l.settings.Store(&s)
	return nil
}

// Settings returns the settings for the next container.
func (l *Listener) Settings() Settings { return *l.settings.Load() }

// Addrs returns the addresses in use: those of Config.Addrs, then of Config.Others.
func (l *Listener) Addrs() []net.Addr {
	addrs := make([]net.Addr, len(l.listeners))
	for i, listener := range l.listeners {
		addrs[i] = listener.Addr()
	}
	return addrs
}

// AddrsOf returns the addresses in use that are for containers of a dialect.
func (l *Listener) AddrsOf(d Dialect) (addrs []net.Addr) {
	for i, a := range l.cfg.addresses() {
		if a.Dialect == d {
			addrs = append(addrs, l.listeners[i].Addr())
		}
	}
	return addrs
}

// Dialable returns the addresses of Addrs as containers on this machine can dial them: ipc:// and
// tcp://, with the loopback address in place of a wildcard. If there are none of these it returns
// the tls:// ones, for which a container needs certificates to trust, and which old containers
// cannot dial.
func (l *Listener) Dialable() []string {
	var plain, encrypted []string
	for _, a := range l.Addrs() {
		switch a := a.(type) {
		case *net.TCPAddr:
			plain = append(plain, "tcp://"+local(a))
		case tlsAddr:
			encrypted = append(encrypted, "tls://"+local(a.TCPAddr))
		default:
			plain = append(plain, "ipc://"+a.String())
		}
	}
	if len(plain) == 0 {
		return encrypted
	}
	return plain
}

// local returns a as this machine dials it.
func local(a *net.TCPAddr) string {
	if a.IP.IsUnspecified() {
		return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: a.Port}).String()
	}
	return a.String()
}

// accept accepts connections until its listener is closed.
func (l *Listener) accept(listener net.Listener, d Dialect) {
	_, encrypted := listener.(tlsListener)
	backoff.Accept(listener, l.stopped, func(err error, pause time.Duration) {
		l.mu.Lock()
		l.counts.AcceptFail++
		l.mu.Unlock()
		l.warn("cannot accept containers", "err", err.Error(), "again_in", pause)
	}, func(raw net.Conn) { l.add(raw, d, encrypted) })
}

// Add serves a connection that was made elsewhere, such as one in memory. The listener takes
// ownership of it, even when Add returns an error because the listener is closed or at its limit.
func (l *Listener) Add(raw net.Conn) error {
	if !l.add(raw, DialectV3, false) {
		return fmt.Errorf("containers: listener is closed or has reached its limit of %d sessions",
			l.settings.Load().Limits.Sessions)
	}
	return nil
}

// add starts a session, unless the limit is reached.
func (l *Listener) add(raw net.Conn, d Dialect, encrypted bool) bool {
	now := time.Now()
	s := &session{listener: l, raw: raw, remote: raw.RemoteAddr().String(), encrypted: encrypted, dialect: d,
		settings: l.settings.Load(), machine: machine{started: now}}
	limits := s.settings.Limits
	s.machine.clocks.register = s.settings.HandshakeTimeout
	if s.remote == "" || s.remote == "@" {
		s.remote = "ipc" // client ends of Unix sockets have no name
	}
	l.mu.Lock()
	if l.closed || len(l.sessions)-len(l.parting) >= limits.Sessions {
		l.counts.Refused++
		closed := l.closed
		l.mu.Unlock()
		if !closed {
			l.warn("container refused: too many connections",
				"remote", s.remote, "containers.sessions", limits.Sessions)
			s.turnAway(fmt.Errorf("the server has all the connections that containers.sessions = %d allows",
				limits.Sessions))
		}
		raw.Close()
		return false
	}
	var displaced *session
	tell := false
	if len(l.fresh) >= limits.Handshakes {
		displaced = l.displaceLocked()
		if tell = len(l.parting) < mostParting; tell {
			l.parting[displaced] = struct{}{}
		}
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
		const remedy = "raise containers.handshakes if one process serves that many models"
		l.warn("connection ended to make room for others that have not registered",
			"remote", displaced.remote, "containers.handshakes", limits.Handshakes, "remedy", remedy)
		displaced.displace(fmt.Errorf("it had not registered when more than containers.handshakes = %d connections waited to; %s",
			limits.Handshakes, remedy), tell)
	}
	return true
}

// displaceLocked removes a session from the list of those that have not registered: the oldest of
// the host that has the most of them, so that a flood from one host displaces no container of
// another.
func (l *Listener) displaceLocked() *session {
	crowd := make(map[string]int)
	for _, s := range l.fresh {
		crowd[s.host()]++
	}
	oldest := l.fresh[0]
	for _, s := range l.fresh {
		if crowd[s.host()] > crowd[oldest.host()] {
			oldest = s
		}
	}
	l.dropFreshLocked(oldest)
	l.counts.Displaced++
	return oldest
}

// markRegistered removes s from the list of sessions that have not registered.
func (l *Listener) markRegistered(s *session) {
	info := s.snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Registered++
	l.dropFreshLocked(s)
	l.countLocked(info.Model, 1)
	l.recordSubsetLocked(&info)
}

func (l *Listener) dropFreshLocked(s *session) {
	if i := slices.Index(l.fresh, s); i >= 0 {
		l.fresh = slices.Delete(l.fresh, i, i+1)
	}
}

// forget removes a session that has ended.
func (l *Listener) forget(s *session) {
	info := s.snapshot()
	registered := !info.Registered.IsZero()
	l.mu.Lock()
	delete(l.sessions, s)
	delete(l.waiting, s)
	delete(l.parting, s)
	l.dropFreshLocked(s)
	if registered {
		l.counts.Registered--
		l.countLocked(info.Model, -1)
		l.counts.Ended++
	} else {
		l.counts.Strangers++
	}
	if l.closed && len(l.sessions) == 0 {
		close(l.empty)
	}
	l.mu.Unlock()
	if registered {
		if f := l.cfg.Left; f != nil {
			f(info)
		}
		s.log(slog.LevelInfo, "container gone",
			"reason", info.Reason, "batches", info.Batches, "failures", info.Failures)
	} else if info.Waiting != "" {
		s.log(slog.LevelInfo, "container no longer waits", "reason", info.Reason)
	} else {
		s.log(slog.LevelWarn, "connection ended before it registered", "reason", info.Reason)
	}
}

// warn logs a line about no particular container.
func (l *Listener) warn(text string, args ...any) {
	l.unknowns.write(strangers, slog.LevelWarn, text, args...)
}

// strangers is the subject of log lines about peers that have not registered.
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

// Retire dismisses the containers of a model: each gets no more batches, answers those it has, and
// is told not to reconnect. dismissed counts them, except those dismissed before. Containers of v1
// to v3 have no goodbye message: if their connections were closed they would reconnect at once, or
// hang until they are restarted (v1). They stay replicas of the model, and remaining has their
// numbers (see [SessionInfo]).
func (l *Listener) Retire(id scheduler.ModelID, reason string) (dismissed int, remaining []uint64) {
	for _, s := range l.all() {
		i := s.snapshot()
		switch {
		case i.Model != id || i.Registered.IsZero():
		case !s.codec.goodbye(new(zmtp.Outgoing), reason, false):
			remaining = append(remaining, i.Number)
		case s.retire(goodbye{reason: reason}):
			dismissed++
		}
	}
	return dismissed, remaining
}

// Drain stops sending batches to the containers whose connections satisfy among, and returns a
// channel that is closed once they have answered the batches they have. It sends them no message:
// the caller ends them in another way, such as a signal, which works for generations without a
// goodbye, too.
func (l *Listener) Drain(among func(net.Conn) bool) <-chan struct{} {
	var all sync.WaitGroup
	for _, s := range l.all() {
		s.mu.Lock()
		replica := s.replica
		s.mu.Unlock()
		if replica != nil && among(s.raw) {
			all.Add(1)
			replica.Drain(all.Done)
		}
	}
	done := make(chan struct{})
	go func() { // ends with the last answer, or the end of its container
		all.Wait()
		close(done)
	}()
	return done
}

// Review asks [Config].Allow again about every container that has registered, or waits to register,
// and dismisses those that it refuses: they get no more batches, and after the last answer a
// goodbye with the reason. They may reconnect with another token, or once they are allowed again.
// Those of generations without a goodbye lose their connection. Review returns the number of
// containers that it dismissed.
func (l *Listener) Review() (parted int) {
	for _, s := range l.all() {
		i := s.snapshot()
		if i.Registered.IsZero() && i.Waiting == "" {
			continue
		}
		if err := s.allow(i.Model); err != nil {
			s.log(slog.LevelWarn, "container is no longer allowed to serve its model", "reason", errorText(err))
			if s.retire(goodbye{reason: err.Error(), reconnect: true}) {
				parted++
			}
		}
	}
	return parted
}

// Shutdown closes the addresses and ends every session gracefully: no more batches, answers to
// those in flight, goodbye with the request to reconnect. If ctx ends first it closes the remaining
// connections and returns the error of ctx. Drain the scheduler first, so that queued requests are
// served.
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

// Close ends addresses and sessions at once and waits for their goroutines. Batches in flight
// return to the scheduler. It may be called repeatedly, also after Shutdown.
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

// stop stops accepting connections.
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
