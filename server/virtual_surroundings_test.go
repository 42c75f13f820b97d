package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/operate"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// around returns the surroundings of the server of a scene.
func (s *scene) around() surroundings {
	return surroundings{
		open: s.listen,
		containers: operate.Network{
			Open: func(_, address string) (net.Listener, error) { return s.listenAt(address) },
			Connect: func(ctx context.Context, _, address string) (net.Conn, error) {
				return s.net.Dial(ctx, "tcp", address)
			},
		},
		supervise: s.supervise,
		store: func(at string, opts state.Options) (state.Store, error) {
			var err error
			opts.Now = s.wall.now
			s.store.Store, err = operate.OpenState(at, opts)
			return s.store, err
		},
		clock:     func() (stoppable, error) { return &s.clock, nil },
		wallClock: s.wall.now,
	}
}

// listen opens an address of a door in memory.
func (s *scene) listen(addr string, _ unixsocket.Access) (net.Listener, error) {
	hostport, encrypted := listen.CutTLS(addr)
	if !encrypted {
		return s.net.Listen(hostport)
	}
	l, err := s.listenAt(hostport)
	if err != nil {
		return nil, err
	}
	return listenerAt{l, listen.TLSAddr{TCPAddr: l.Addr().(*net.TCPAddr)}}, nil
}

// listenAt returns a listener with a TCP address.
func (s *scene) listenAt(hostport string) (net.Listener, error) {
	l, err := s.net.Listen(hostport)
	if err != nil {
		return nil, err
	}
	return listenerAt{l, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(hostport))}, nil
}

// A listenerAt has an address of another type than the network's.
type listenerAt struct {
	net.Listener
	addr net.Addr
}

func (l listenerAt) Addr() net.Addr { return l.addr }

// A stallingClock is the scheduler's clock, on that of a synctest bubble. It stands still while the
// server is frozen, and then jumps ahead, as for a process that the system has stopped for a while:
// timers that were due meanwhile fire then.
type stallingClock struct {
	mu     sync.Mutex
	frozen time.Time // start of the freeze
	until  time.Time
}

// freeze stops the clock for d.
func (k *stallingClock) freeze(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.frozen = time.Now()
	k.until = k.frozen.Add(d)
}

func (k *stallingClock) Now() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); !now.Before(k.until) {
		return now
	}
	return k.frozen
}

func (k *stallingClock) AfterFunc(d time.Duration, f func()) scheduler.Timer {
	t := &stallingTimer{clock: k, f: f}
	t.timer.Store(time.AfterFunc(k.left(d), t.fire))
	return t
}

// left returns how long d of this clock lasts in the bubble's time.
func (k *stallingClock) left(d time.Duration) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if !now.Before(k.until) {
		return d
	}
	return max(k.until.Sub(now), d-now.Sub(k.frozen))
}

func (*stallingClock) Close() {}

type stallingTimer struct {
	timer atomic.Pointer[time.Timer]
	clock *stallingClock
	f     func()
}

func (t *stallingTimer) Reset(d time.Duration) bool { return t.timer.Load().Reset(t.clock.left(d)) }
func (t *stallingTimer) Stop() bool                 { return t.timer.Load().Stop() }

// fire waits for the end of a stall that has begun since the timer was set.
func (t *stallingTimer) fire() {
	time.Sleep(t.clock.left(0))
	t.f()
}

// A settableClock is the system clock, which may be set, even back.
type settableClock struct{ ahead atomic.Int64 }

func (k *settableClock) now() time.Time { return time.Now().Add(time.Duration(k.ahead.Load())) }

// set sets it to any time within two hours or, if far, to a time when no certificate was valid yet.
func (k *settableClock) set(r *rand.Rand, far bool) {
	ahead := time.Duration(r.Int64N(int64(4*time.Hour))) - 2*time.Hour
	if far && r.IntN(4) == 0 {
		ahead = -72 * time.Hour
	}
	k.ahead.Store(int64(ahead))
}

// early reports whether certificates are not valid yet.
func (k *settableClock) early() bool { return time.Duration(k.ahead.Load()) < -24*time.Hour }

// A faultyStore fails to write while it is broken.
type faultyStore struct {
	state.Store
	broken atomic.Bool
}

func (f *faultyStore) fault() error {
	if f.broken.Load() {
		return fmt.Errorf("%w: the seed says so", state.ErrUnavailable)
	}
	return nil
}

func (f *faultyStore) Update(ctx context.Context, key, id string,
	change func([]byte) ([]byte, error)) (state.Entry, error) {
	if err := f.fault(); err != nil {
		return state.Entry{}, err
	}
	return f.Store.Update(ctx, key, id, change)
}

func (f *faultyStore) Write(ctx context.Context, entries []state.Entry) error {
	if err := f.fault(); err != nil {
		return err
	}
	return f.Store.Write(ctx, entries)
}

func (f *faultyStore) Health() state.Health {
	return state.Health{Err: f.fault(), Since: time.Now()}
}
