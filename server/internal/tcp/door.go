package tcp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/server/internal/unfinished"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Config of the door. All fields must be set, except those whose zero has a meaning.
type Config struct {
	listen.Entrance
	Gate *gate.Gate
	// Describe answers the paths of the Predict Protocol other than inference, for an identity:
	// predict's function of that name. nil: the door has none.
	Describe   func(who *access.Identity, path string, onlyReady bool) (answer []byte, ok bool, err error)
	Identities *access.Identities
	Regions    *regions.Registry // of shared memory
	Pool       *tensor.Pool      // memory of messages
	Room       *unfinished.Room  // of Pool, for messages that are arriving; nil: all of it
	// Loops is the number of event loops; 0: DefaultLoops for TCP, and one per core for Unix
	// sockets and TLS.
	Loops int

	Settings // the initial ones
}

// Settings of the door can change while it is open.
type Settings struct {
	listen.Settings
	InFlight      int           // maximum number of requests in flight per connection
	IdleTimeout   time.Duration // without input or waiting answers; 0: no limit
	OutboundBytes int           // of unread answers, beyond which requests wait; see gate.Outbox
	CancelOnClose bool          // cancel requests of clients that have closed the connection
	Limits        shiva.Limits
	Resync        bool         // look for the next header after invalid bytes instead of closing
	ResyncBytes   int          // how many bytes are searched
	Streams       bool         // a request that names no stream is a frame of its connection's own
	Keep          setting.Keep // of that stream; 0: as the application or the model is configured
}

// A Door listens and serves until Shutdown.
type Door struct {
	// Set once.
	gate *gate.Gate
	// describe: see Config.Describe.
	describe   func(who *access.Identity, path string, onlyReady bool) (answer []byte, ok bool, err error)
	identities *access.Identities
	regions    *regions.Registry
	pool       *tensor.Pool
	room       *unfinished.Room
	metrics    *metrics.Door
	log        *slog.Logger
	listener   *listen.Listener
	carriers   map[string]carrier // by the network of the address

	accepting     sync.WaitGroup // the goroutine that accepts
	copies        sync.WaitGroup // to and from shared memory
	settings      atomic.Pointer[Settings]
	opened        atomic.Uint64 // connections ever accepted
	loops         atomic.Pointer[[]*loop]
	gathering     atomic.Int32 // how many goroutines gather
	endGatherFunc func()       // endGather, bound once
}

// Listen opens the door. It returns when clients can connect.
func Listen(cfg Config) (*Door, error) {
	d := newDoor(cfg)
	var err error
	if d.listener, err = listen.Listen(listen.Config{
		Entrance: cfg.Entrance, Door: "tcp", Refusal: refuse,
		Settings: func() listen.Settings { return d.settings.Load().Settings },
	}); err != nil {
		return nil, err
	}
	for _, addr := range d.listener.All() {
		if err := d.carry(addr.Network(), cfg.Loops); err != nil {
			_ = d.Shutdown(context.Background())
			return nil, err
		}
	}
	d.accepting.Go(func() { // until Shutdown closes the listener, and Shutdown waits for it
		for c, err := d.listener.Accept(); err == nil; c, err = d.listener.Accept() {
			d.carriers[c.Door().Network()].enroll(c)
		}
	})
	return d, nil
}

// A carrier runs the loops of sessions whose transports are of one kind.
type carrier interface {
	enroll(*listen.Conn) // makes a session of a connection
	each(func(l *loop))  // runs f with each loop, now or soon; f takes the turn itself
	stop() error         // ends the loops and the remaining connections
}

// carry starts the carrier for the connections of a network, unless it is already running.
func (d *Door) carry(network string, loops int) error {
	if d.carriers[network] != nil {
		return nil
	}
	if network != "tcp" { // Unix sockets, TLS, and the network in memory
		d.carriers[network] = newSockets(d, loops)
		return nil
	}
	e, err := newEngine(d, loops)
	if err == nil {
		d.carriers[network] = e
	}
	return err
}

// newDoor makes a door that does not listen.
func newDoor(cfg Config) *Door {
	d := &Door{gate: cfg.Gate, describe: cfg.Describe, identities: cmp.Or(cfg.Identities, new(access.Identities)),
		regions: cfg.Regions, pool: cfg.Pool, room: cfg.Room, metrics: cfg.Metrics, log: cfg.Log,
		carriers: make(map[string]carrier)}
	d.endGatherFunc = d.endGather
	d.Configure(cfg.Settings)
	return d
}

// Gather makes calls that complete from now on wait in their loops' mailboxes until over is called,
// so that the answers of a batch are written in one turn. Any goroutine may gather.
func (d *Door) Gather() (over func()) {
	d.gathering.Add(1)
	return d.endGatherFunc
}

// endGather ends Gather. If all answers are of one loop that is idle, this goroutine takes its
// turn: waking the loop costs more than most batches, and its thread may have to wait for a core.
func (d *Door) endGather() {
	d.gathering.Add(-1) // first: a call delivered from here on is seen below, or wakes its loop
	loops := d.loops.Load()
	if loops == nil {
		return
	}
	var first *loop
	several := false
	for _, l := range *loops {
		switch {
		case !l.needsTurn():
		case first == nil:
			first = l
		default:
			several = true
			l.wake()
		}
	}
	switch {
	case several:
		first.wake()
	case first != nil:
		first.takeTurn()
	}
}

// enlist adds a loop to those that endGather checks.
func (d *Door) enlist(l *loop) {
	for {
		before := d.loops.Load()
		var all []*loop
		if before != nil {
			all = slices.Clone(*before)
		}
		all = append(all, l)
		if d.loops.CompareAndSwap(before, &all) {
			return
		}
	}
}

// refuse returns the answer to a connection above a limit.
func refuse(err error) []byte {
	var m shiva.Message
	new(loop).refusal(nil, &m, err)
	answer, _ := shiva.AppendMessage(nil, &m) // cannot fail: the server made all parts
	return answer
}

// Addrs are the addresses on which the door listens.
func (d *Door) Addrs() []net.Addr { return d.listener.All() }

// Configure changes the door's settings. Those about connections apply to new ones, those about
// messages to the next message that begins on any connection, and timeouts from the next time they
// are checked. Any goroutine may call it.
func (d *Door) Configure(s Settings) {
	d.settings.Store(&s)
	for _, c := range d.carriers {
		c.each((*loop).turn) // starts the clock of a new idle_timeout
	}
}

// Settings are those that apply now.
func (d *Door) Settings() Settings { return *d.settings.Load() }

// Shutdown sends the waiting answers, ends every connection and stops the event loops. All requests
// must have been completed before (gate drained, scheduler drained): afterwards their answers
// cannot be delivered. A client that keeps sending requests is answered (by a draining gate:
// ErrDraining) until it has been quiet for a moment, or for a second at most. If ctx ends first,
// the remaining connections are cut, and Shutdown returns the context's error.
func (d *Door) Shutdown(ctx context.Context) error {
	const longest = time.Second
	d.listener.Close()
	d.accepting.Wait()
	began := time.Now()
	wait := time.NewTicker(5 * time.Millisecond)
	defer wait.Stop()
	for d.listener.Open() > 0 && ctx.Err() == nil {
		for _, c := range d.carriers {
			c.each(func(l *loop) { l.leave(time.Since(began) >= longest) })
		}
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
	}
	d.copies.Wait()
	for _, c := range d.carriers {
		c.each((*loop).turn) // frees the calls of clients that have disconnected
		if err := c.stop(); err != nil {
			return fmt.Errorf("tcp: stop: %w", err)
		}
	}
	return ctx.Err()
}
