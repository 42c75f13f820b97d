package tcp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/identity"
	"github.com/shivad/shivad/server/internal/intake"
	"github.com/shivad/shivad/server/internal/quota"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/server/internal/secure"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// Config of the door. All fields must be set but those that say what their zero means.
type Config struct {
	Addrs  []string          // as of intake.Config
	Access unixsocket.Access // to its Unix sockets
	Open   intake.Opener     // as of intake.Config
	Gate   *gate.Gate
	// Describe answers the paths of the Predict Protocol that are not inference, for an identity:
	// predict's function of that name. nil: there are none.
	Describe   func(who *identity.Identity, path string, onlyReady bool) (answer []byte, ok bool, err error)
	Identities *identity.Registry
	Addresses  *quota.Addresses  // quotas of where clients are; nil: there are none
	Regions    *regions.Registry // of shared memory
	Pool       *tensor.Pool      // memory of messages
	Log        *slog.Logger

	Metrics *metrics.Door
	Loops   int // event loops; 0: one per core

	Settings // to begin with
}

// Settings of the door are those that can change while it is open.
type Settings struct {
	Connections    intake.Limits
	TLS            *secure.Config // of the addresses of TLS; nil: there is none
	InFlight       int            // most requests of one connection in flight
	IdleTimeout    time.Duration  // without a question or a waiting answer; 0: none
	MessageTimeout time.Duration  // for a message that has begun, and a second more per 16 KiB
	OutboundBytes  int            // of unread answers, beyond which requests wait; see gate.Outbox
	OutboundStall  time.Duration  // a client that takes none of them for this long is closed
	Limits         shiva.Limits
	Resync         bool         // look for the next header after rubbish, instead of closing
	ResyncBytes    int          // how far
	Streams        bool         // a connection is a stream of the requests that name no other
	Keep           setting.Keep // of that stream; 0: as the application or the model is configured
}

// A Door listens and serves until Shutdown.
type Door struct {
	// Set once.
	gate *gate.Gate
	// describe: see Config.Describe.
	describe   func(who *identity.Identity, path string, onlyReady bool) (answer []byte, ok bool, err error)
	identities *identity.Registry
	regions    *regions.Registry
	pool       *tensor.Pool
	metrics    *metrics.Door
	log        *slog.Logger
	listener   *intake.Listener
	carriers   map[string]carrier // by the network of the address

	accepting sync.WaitGroup // the goroutine that accepts
	copies    sync.WaitGroup // from and to shared memory
	settings  atomic.Pointer[Settings]
	opened    atomic.Uint64 // connections let in, ever
}

// Listen opens the door. It returns when clients can connect.
func Listen(cfg Config) (*Door, error) {
	d := newDoor(cfg)
	var err error
	if d.listener, err = intake.Listen(intake.Config{
		Addrs: cfg.Addrs, Access: cfg.Access, Open: cfg.Open, Door: "tcp", Metrics: cfg.Metrics, Log: cfg.Log, Addresses: cfg.Addresses, Refusal: refuse,
		Limits: func() intake.Limits { return d.settings.Load().Connections },
		TLS:    func() *secure.Config { return d.settings.Load().TLS },
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

// A carrier has the loops of the sessions on transports of one kind.
type carrier interface {
	enroll(*intake.Conn) // makes a session of a connection
	each(func(l *loop))  // has each loop do it, soon; what it does takes a turn
	stop() error         // ends the loops, with the connections that are left
}

// carry starts the carrier for connections of a network, unless there is one.
func (d *Door) carry(network string, loops int) error {
	if d.carriers[network] != nil {
		return nil
	}
	if network != "tcp" { // Unix sockets, TLS, and a network in memory
		d.carriers[network] = newSockets(d, loops)
		return nil
	}
	e, err := newEngine(d, loops)
	if err == nil {
		d.carriers[network] = e
	}
	return err
}

// newDoor is a door without a way in.
func newDoor(cfg Config) *Door {
	d := &Door{gate: cfg.Gate, describe: cfg.Describe, identities: cfg.Identities, regions: cfg.Regions, pool: cfg.Pool, metrics: cfg.Metrics, log: cfg.Log,
		carriers: make(map[string]carrier)}
	if d.identities == nil {
		d.identities = new(identity.Registry)
	}
	d.Configure(cfg.Settings)
	return d
}

// refuse is what a connection above a limit is sent.
func refuse(err error) []byte {
	var m shiva.Message
	new(loop).refusal(new(call), &m, err)
	answer, _ := shiva.AppendMessage(nil, &m) // its parts are all ours, and fit
	return answer
}

// Addrs are the addresses that the door listens on.
func (d *Door) Addrs() []net.Addr { return d.listener.All() }

// Configure returns the door other settings. Those about connections hold for the next that
// comes, those about messages for the next that begins on any connection, and clocks from the
// next look at them on. Any goroutine may call it.
func (d *Door) Configure(s Settings) {
	d.settings.Store(&s)
	for _, c := range d.carriers {
		c.each((*loop).turn) // the clock of idle_timeout runs from here, if there was none
	}
}

// Settings are those that hold.
func (d *Door) Settings() Settings { return *d.settings.Load() }

// Shutdown lets the waiting answers leave, ends every connection and stops the event loops. The
// requests inside must have been completed before (gate drained, scheduler drained), since
// their answers have nowhere to go afterwards. A client that is still asking is answered (by a
// gate that drains: ErrDraining) until it has been quiet for a moment, or for a second at most.
// When ctx ends first, the connections that are left are cut, and it returns the context's
// error.
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
		c.each((*loop).turn) // of clients that have gone
		if err := c.stop(); err != nil {
			return fmt.Errorf("tcp: stop: %w", err)
		}
	}
	return ctx.Err()
}
