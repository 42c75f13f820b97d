package frigate

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/server/internal/unfinished"
	"github.com/shivad/shivad/shiva/tensor"
)

// Config of the door. All fields must be set, except those whose zero has a meaning.
type Config struct {
	listen.Entrance
	Predict *predict.Service
	// Identities has the identities of clients; nil: none is declared, and all have all rights.
	Identities *access.Identities
	Trail      *access.Trail    // nil: nothing is recorded
	Pool       *tensor.Pool     // for images
	Room       *unfinished.Room // of Pool, for messages that are arriving; nil: all of it

	ModelDirectory string // for the model files of detectors; "": files are refused

	Settings // initial
}

// Settings can change while the door is open.
type Settings struct {
	// Limits are those of one message: MessageBytes of the whole, MetadataBytes and JSONDepth of
	// its header, Rank of the image.
	Limits gate.Limits

	listen.Settings
	RequestTimeout time.Duration // of the detectors
	Models         Models
	ModelBytes     int64 // the largest model file
	ModelFiles     int   // how many may be in ModelDirectory
}

// A Door listens and serves until Shutdown.
type Door struct {
	predict    *predict.Door
	identities *access.Identities
	trail      *access.Trail
	pool       *tensor.Pool
	room       *unfinished.Room
	log        *slog.Logger
	listener   *listen.Listener
	store      *store // nil: model files are refused

	settings atomic.Pointer[Settings]
	closing  context.Context // ends with Shutdown, which calls shut
	shut     context.CancelFunc
	serving  sync.WaitGroup // a goroutine for Accept, and those of connections

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// Listen opens the door. It returns when clients can connect.
func Listen(cfg Config) (*Door, error) {
	d := &Door{
		predict: cfg.Predict.Door(cfg.Metrics), identities: cmp.Or(cfg.Identities, new(access.Identities)),
		trail: cfg.Trail, pool: cfg.Pool, room: cfg.Room, log: cfg.Log,
		conns: make(map[*conn]struct{}),
	}
	d.closing, d.shut = context.WithCancel(context.Background())
	d.Configure(cfg.Settings)
	var err error
	if cfg.ModelDirectory != "" {
		if d.store, err = openStore(cfg.ModelDirectory); err != nil {
			return nil, fmt.Errorf("frigate: model_directory: %w", err)
		}
	}
	if d.listener, err = listen.Listen(listen.Config{
		Entrance: cfg.Entrance, Door: "frigate", Refusal: zmtp.Refusal,
		Settings: func() listen.Settings { return d.settings.Load().Settings },
	}); err != nil {
		d.store.close()
		return nil, err
	}
	d.serving.Go(d.accept) // ends when Shutdown closes the listener, and Shutdown waits for it
	return d, nil
}

// accept starts a goroutine for each connection, which ends with it. Shutdown waits for them.
func (d *Door) accept() {
	for {
		in, err := d.listener.Accept()
		if err != nil {
			return
		}
		c := &conn{Conn: in, door: d, source: d.predict.NewSource(), client: gate.ClientOf(in.RemoteAddr().String())}
		c.ctx, c.cancel = context.WithCancel(context.Background())
		c.credentials.Certificate = access.NewCertificate(in.PeerCertificate())
		c.sender = c.credentials
		d.serving.Go(c.serve)
	}
}

// Addrs are the addresses that the door listens on.
func (d *Door) Addrs() []net.Addr { return d.listener.All() }

// Configure changes the settings. Limits on connections apply to the next connection, all others to
// the next message. Any goroutine may call it.
func (d *Door) Configure(s Settings) { d.settings.Store(&s) }

// Settings returns the current ones.
func (d *Door) Settings() Settings { return *d.settings.Load() }

// Shutdown stops listening, sends the answers that are complete, and closes every connection. The
// gate and the scheduler must have been drained before. When ctx ends first, the connections that
// are left are cut. Call it once.
func (d *Door) Shutdown(ctx context.Context) error {
	d.shut()
	err := d.listener.Close()
	d.each(func(c *conn) {
		if c.shaking {
			c.cut()
		}
	})
	done := make(chan struct{})
	go func() { // ends with the connections, which are cut if need be
		d.serving.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		d.each((*conn).cut)
		<-done
		err = fmt.Errorf("frigate: shutdown: %w", ctx.Err())
	}
	d.store.close()
	return err
}

// each calls do for every connection, with mu held.
func (d *Door) each(do func(*conn)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		do(c)
	}
}
