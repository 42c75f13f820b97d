package listen

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// A connection that rests reads all input that arrived meanwhile, and then waits for a single byte
// as usual. Only while it rests does the poller get only lumps.
func TestRest(t *testing.T) {
	for name, encrypted := range map[string]bool{"plain": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			conns := make(chan *Conn, 1)
			var client net.Conn
			if encrypted {
				g := newGuarded(t, "", nil, func(c *Conn) { conns <- c })
				client = tls.Client(g.plain(t), &tls.Config{RootCAs: g.authority.Pool(), ServerName: "localhost"})
				if err := client.(*tls.Conn).Handshake(); err != nil {
					t.Fatal(err)
				}
			} else {
				cfg := config(&Settings{Connections: 1})
				cfg.Addrs = []string{"127.0.0.1:0"}
				client = dial(t, open(t, cfg, func(c *Conn) { conns <- c }))
			}
			c := <-conns
			defer c.Close()
			least := func() (n int) {
				raw, err := c.socket.(*net.TCPConn).SyscallConn()
				if err == nil {
					err = raw.Control(func(fd uintptr) {
						n, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT)
					})
				}
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			over := make(chan struct{})
			p := make([]byte, 100)
			read := func(want string) {
				t.Helper()
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
				if n, err := io.ReadFull(c, p[:len(want)]); err != nil || string(p[:n]) != want {
					t.Fatalf("%q, %v, expected %q", p[:n], err, want)
				}
			}
			send := func(text string) {
				t.Helper()
				if _, err := client.Write([]byte(text)); err != nil {
					t.Error(err)
				}
			}

			send("a")
			c.Rest(10*time.Millisecond, over)
			if n := least(); n != Lump {
				t.Errorf("while it rests it is told of %d bytes, expected %d", n, Lump)
			}
			read("a")
			c.Rest(time.Millisecond, over)
			go send("b")
			read("b") // whether or not it arrived during the rest
			c.Rest(0, over)
			if n := least(); n != 1 {
				t.Errorf("when it does not rest it is told of %d bytes, expected 1", n)
			}
			send("c")
			read("c")

			// There is nothing to read: the deadline applies, and later input is read.
			c.Rest(time.Millisecond, over)
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := c.Read(p); err == nil {
				t.Error("it has read what nobody sent")
			}
			if n := least(); n != 1 {
				t.Errorf("while it waits it is told of %d bytes, expected 1", n)
			}
			if !encrypted { // a timeout ends a TLS connection
				send("d")
				read("d")
			}
			close(over)
			c.Rest(time.Hour, over)
			client.Close()
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := c.Read(p); !encrypted && !errors.Is(err, io.EOF) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}
