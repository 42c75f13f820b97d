package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/predict"
)

// headerBytes bounds the head of a request (net/http's MaxHeaderBytes).
const headerBytes = 64 << 10

// Config of the door. All fields must be set, except those whose zero has a meaning.
type Config struct {
	listen.Entrance
	Predict *predict.Service
	// Identities has the identities of clients; nil: none is declared, and every client has all
	// rights.
	Identities *access.Identities

	Settings // initial
}

// Settings can change while the door is open.
type Settings struct {
	Memory gate.Memory // of requests
	// Limits are those of one request: MessageBytes of its body, compressed and uncompressed, and
	// of its tensors; MetadataBytes of its JSON without the tensors' data; Tensors of inputs, and
	// of requested outputs.
	Limits gate.Limits

	listen.Settings
	IdleTimeout   time.Duration // of a connection between two requests; 0: none
	HeaderTimeout time.Duration // for the head of a request to arrive
	// Origins of pages that may read answers in a browser, such as "https://example.org", or "*"
	// for all. Without any, only pages of the server's own address may.
	Origins []string
	// Forward are the names of request headers, in lower case, that reach the model: see
	// [parameter.Forward].
	Forward []string
}

// A Door listens and serves until Shutdown.
type Door struct {
	predict    *predict.Door
	identities *access.Identities
	log        *slog.Logger
	http       http.Server
	listener   *listen.Listener
	failed     chan error
	serving    sync.WaitGroup // the goroutine of Listen

	settings  atomic.Pointer[Settings]
	draining  atomic.Bool
	closing   chan struct{} // closed by Shutdown, to end pauses
	largeJSON sync.Once     // warns once about large tensors as text

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// Listen opens the door. It returns when clients can connect.
func Listen(cfg Config) (*Door, error) {
	d := &Door{predict: cfg.Predict.Door(cfg.Metrics), identities: cmp.Or(cfg.Identities, new(access.Identities)),
		log: cfg.Log, failed: make(chan error, 1), closing: make(chan struct{}), conns: make(map[*conn]struct{})}
	d.Configure(cfg.Settings)
	var err error
	if d.listener, err = listen.Listen(listen.Config{
		Entrance: cfg.Entrance, Door: "rest", Refusal: refuse,
		Settings: func() listen.Settings { return d.settings.Load().Settings },
	}); err != nil {
		return nil, err
	}
	d.http = http.Server{ // conn sets the timeouts
		Handler:                      d,
		MaxHeaderBytes:               headerBytes,
		DisableGeneralOptionsHandler: true, // its answer is not JSON
		ErrorLog:                     slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, below(c))
		},
		ConnState: func(c net.Conn, s http.ConnState) {
			k := below(c)
			if k.state.Store(int32(s)); s == http.StateIdle {
				k.answering.Store(false)
				k.head = time.Time{}
				c.(*listen.HTTPConn).NextRequest()
			}
		},
	}
	d.serving.Go(func() { // ends when Shutdown closes the listener; Shutdown waits for it
		if err := d.http.Serve(&listener{d.listener, d}); !errors.Is(err, http.ErrServerClosed) {
			d.failed <- fmt.Errorf("rest: %w", err)
		}
	})
	return d, nil
}

// Addrs are the addresses on which the door listens.
func (d *Door) Addrs() []net.Addr { return d.listener.All() }

// Failed receives the error that ends serving before Shutdown.
func (d *Door) Failed() <-chan error { return d.failed }

// Configure changes the settings. Limits on connections apply to the next connection, those on
// requests to the next request, and timeouts from the next time they are set. Any goroutine may
// call it.
func (d *Door) Configure(s Settings) { d.settings.Store(&s) }

// Settings returns the current ones.
func (d *Door) Settings() Settings { return *d.settings.Load() }

// Shutdown stops listening, sends the complete answers, and closes every connection. The gate and
// the scheduler must have been drained before; requests whose bodies are still arriving are refused
// at once. If ctx ends first, the connections that are left are cut. Call it once.
func (d *Door) Shutdown(ctx context.Context) error {
	d.mu.Lock()
	d.draining.Store(true) // no connection is added from here on
	close(d.closing)
	for c := range d.conns {
		c.interrupt()
	}
	d.mu.Unlock()
	err := d.http.Shutdown(ctx)
	if err != nil {
		d.http.Close()
	}
	d.serving.Wait()
	if err != nil {
		return fmt.Errorf("rest: shutdown: %w", err)
	}
	return nil
}
