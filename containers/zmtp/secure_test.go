package zmtp_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
)

// TestNotTLS: where one side speaks TLS and the other does not, both sides report it.
func TestNotTLS(t *testing.T) {
	for _, tt := range []struct {
		name                   string
		server, client         bool // speak TLS
		serverSays, clientSays string
	}{
		{"a plain client", true, false, `this address speaks TLS (tls://): expected a TLS handshake, got the bytes "\xff`,
			"the peer ended the connection: \"this address speaks TLS (tls://)"},
		{"a plain server", false, true, "the peer speaks TLS, and this address is plain", "the server does not answer in TLS, but with the bytes"},
	} {
		a, b := socketPair(t, "tcp", "127.0.0.1:0")
		server, client := secure(t, a, b)
		ends := [2]net.Conn{a, b}
		if tt.server {
			ends[0] = server
		}
		if tt.client {
			ends[1] = client
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := zmtp.Client(with(ends[1], zmtp.Config{})); !errors.Is(err, zmtp.ErrProtocol) ||
				!strings.Contains(err.Error(), tt.clientSays) {
				t.Errorf("%s: the client says %v, want %s", tt.name, err, tt.clientSays)
			}
		})
		if _, err := zmtp.Server(with(ends[0], zmtp.Config{})); !errors.Is(err, zmtp.ErrProtocol) ||
			!strings.Contains(err.Error(), tt.serverSays) {
			t.Errorf("%s: the server says %v, want %s", tt.name, err, tt.serverSays)
		}
		wg.Wait()
	}
}

// A clogged connection takes nothing once it is full, until it is closed.
type clogged struct {
	net.Conn
	full   atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (c *clogged) Write(p []byte) (int, error) {
	if c.full.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

func (c *clogged) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestCloseOfTLS: closing waits for no peer, although TLS has its closing message to write.
func TestCloseOfTLS(t *testing.T) {
	for name, end := range map[string]func(*zmtp.Conn){
		"CloseWrite": (*zmtp.Conn).CloseWrite,
		"Close":      func(c *zmtp.Conn) { c.Close() },
		"Abort":      func(c *zmtp.Conn) { c.Abort(io.ErrUnexpectedEOF) },
	} {
		synctest.Test(t, func(t *testing.T) {
			a, b := containertest.Pipe()
			clog := &clogged{Conn: a, closed: make(chan struct{})}
			server, client := secure(t, clog, b)
			s, c := open(t, server, client, zmtp.Config{})
			clog.full.Store(true)
			over := make(chan struct{})
			go func() {
				end(s)
				close(over)
			}()
			synctest.Wait()
			select {
			case <-over:
			default:
				t.Errorf("%s waits for a peer that reads nothing", name)
			}
			clog.Close()
			s.Close()
			c.Close()
		})
	}
}
