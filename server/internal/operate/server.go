package operate

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// A Server serves a handler on one address.
type Server struct {
	http     http.Server
	listener net.Listener
	failed   chan error
	serving  sync.WaitGroup // the goroutine of Listen
}

// Listen opens the address, "host:port", "tls://host:port" or "unix:PATH", and begins to serve. The
// caller ends it with Shutdown. A nil open is listen.Open. config returns the TLS configuration for
// the next connection to a TLS address. A nil log is silent.
func Listen(addr string, access unixsocket.Access, open listen.Opener, config func() *listen.TLS, h http.Handler,
	log *slog.Logger) (*Server, error) {
	if open == nil {
		open = listen.Open
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	l, err := open(addr, access)
	if err != nil {
		return nil, fmt.Errorf("admin: listen: %w", err)
	}
	if _, encrypted := l.Addr().(listen.TLSAddr); encrypted {
		l = handshakes{l, config}
	}
	stopped := make(chan struct{})
	l = &boundedListener{Listener: l, log: log, stopped: stopped, held: make(map[*boundedConn]struct{})}
	s := &Server{listener: l, failed: make(chan error, 1), http: http.Server{
		Handler:     markBusy(h),
		ConnContext: withConn,
		ConnState: func(c net.Conn, s http.ConnState) {
			if s == http.StateIdle {
				c.(*boundedConn).NextRequest()
			}
		},
		// Clients send only a few header lines here. How long an answer may take is set for each
		// request, in serve: a profile takes as long as was asked.
		ReadTimeout:    10 * time.Second,
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	s.http.RegisterOnShutdown(sync.OnceFunc(func() { close(stopped) }))
	s.serving.Go(func() { // ends when Shutdown closes the listener, and Shutdown waits for it
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("admin: %w", err)
		}
	})
	return s, nil
}

// handshakes adds TLS to connections. The handshake is part of reading the first request, and
// shares its time limit.
type handshakes struct {
	net.Listener
	config func() *listen.TLS
}

func (h handshakes) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tls.Server(c, h.config().Config), nil
}

// Addr is the address in use.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Failed receives the error if serving ends before Shutdown.
func (s *Server) Failed() <-chan error { return s.failed }

// Shutdown stops listening and waits for the requests in progress; those that remain when ctx ends
// are cut off. It may be called more than once.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		s.http.Close()
	}
	s.serving.Wait()
	if err != nil {
		return fmt.Errorf("admin: shutdown: %w", err)
	}
	return nil
}
