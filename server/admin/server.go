package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxConnections bounds the descriptors that the door may hold: it must not be what keeps clients out.
const maxConnections = 16

// A Server serves a handler on one address.
type Server struct {
	http     http.Server
	listener net.Listener
	failed   chan error
	serving  sync.WaitGroup // the goroutine of Listen
}

// Listen opens the address and begins to serve. The caller ends it with Shutdown. A nil log is silent.
func Listen(addr string, h http.Handler, log *slog.Logger) (*Server, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("admin: listen: %w", err)
	}
	l = &bounded{Listener: l, slots: make(chan struct{}, maxConnections), closed: make(chan struct{})}
	s := &Server{listener: l, failed: make(chan error, 1), http: http.Server{
		Handler: h,
		// Nobody sends more than a few header lines here. How long an answer may take is set for each
		// request, in get: a profile takes as long as it was asked to.
		ReadTimeout:    10 * time.Second,
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	s.serving.Go(func() { // ends when Shutdown closes the listener, and Shutdown waits for it
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("admin: %w", err)
		}
	})
	return s, nil
}

// Addr is the address in use.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Failed receives the error if serving ends before Shutdown.
func (s *Server) Failed() <-chan error { return s.failed }

// Shutdown stops listening and waits for the requests in hand; what is left when ctx ends is cut off.
// It may be called more than once.
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

// bounded is a listener that accepts no more than cap(slots) connections at a time. The next ones wait in
// the kernel.
type bounded struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.slots <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.slots
		return nil, err
	}
	return &boundedConn{Conn: c, free: func() { <-b.slots }}, nil
}

func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

// boundedConn gives its slot back when it is closed.
type boundedConn struct {
	net.Conn
	once sync.Once
	free func()
}

func (c *boundedConn) Close() error {
	c.once.Do(c.free)
	return c.Conn.Close()
}
