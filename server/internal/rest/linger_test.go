package rest

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// A client whose request is refused while it is still sending reads the refusal, even if it was
// announced as the last: the network resets a connection that is closed with unread data.
func TestRefusalBeforeClose(t *testing.T) {
	const path, size = "POST /v2/repository/index ", "Content-Length: 99999999\r\n\r\n"
	for name, head := range map[string]string{
		"HTTP/1.0":          path + "HTTP/1.0\r\n" + size,
		"Connection: close": path + "HTTP/1.1\r\nHost: server\r\nConnection: close\r\n" + size,
		"keep-alive":        path + "HTTP/1.1\r\nHost: server\r\n" + size,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := shivatest.Net{Resets: true}
				newRig(t, func(c *Config) {
					c.Addrs = []string{"server:80"}
					c.Open = func(addr string, _ unixsocket.Access) (net.Listener, error) { return n.Listen(addr) }
				})
				c, err := n.Dial(t.Context(), "memory", "server:80")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				sent := make(chan error, 1)
				go func() {
					_, err := c.Write(append([]byte(head), make([]byte, 1<<20)...))
					sent <- err
				}()
				text, err := io.ReadAll(c)
				if err != nil || !strings.Contains(string(text), " 413 ") || !strings.HasSuffix(string(text), "limits.message_bytes is 16777216\"}\n") {
					t.Errorf("it reads %q, %v", text, err)
				}
				if err := <-sent; err != nil {
					t.Errorf("it sends: %v", err)
				}
			})
		})
	}
}

// A client that sends all of its body before it reads, as http.client does, reads why it is
// refused, however large the body is.
func TestRefusalAfterTheBody(t *testing.T) {
	const size = 40 << 20 // limits.message_bytes is 16 MiB
	whole := fmt.Sprintf("Content-Length: %d\r\n\r\n", size)
	const chunked = "Transfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct{ path, length, want string }{
		"too large":              {"/v2/models/m/infer", whole, " 413 "},
		"too large, in chunks":   {"/v2/models/m/infer", chunked, " 413 "},
		"no model":               {"/v2/models/none/infer", whole, " 404 "},
		"no model, in chunks":    {"/v2/models/none/infer", chunked, " 404 "},
		"no path":                {"/none", whole, " 404 "},
		"no path, in chunks":     {"/none", chunked, " 404 "},
		"health takes no upload": {"/v2/health/live", whole, " 405 "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := shivatest.Net{Resets: true}
				r := newRig(t, func(c *Config) {
					c.Addrs = []string{"server:80"}
					c.Open = func(addr string, _ unixsocket.Access) (net.Listener, error) { return n.Listen(addr) }
				})
				r.floats("m")
				conn, err := n.Dial(t.Context(), "memory", "server:80")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if _, err := io.WriteString(conn, "POST "+c.path+" HTTP/1.1\r\nHost: server\r\n"+c.length); err != nil {
					t.Fatal(err)
				}
				piece := make([]byte, 1<<20)
				if c.length == chunked {
					piece = append(fmt.Appendf(nil, "%x\r\n", len(piece)), append(piece, "\r\n"...)...)
				}
				for at := 0; at < size; at += 1 << 20 {
					if _, err := conn.Write(piece); err != nil {
						t.Fatalf("after %d bytes: %v", at, err)
					}
				}
				if c.length == chunked {
					if _, err := io.WriteString(conn, "0\r\n\r\n"); err != nil {
						t.Fatal(err)
					}
				}
				text, err := io.ReadAll(conn)
				if err != nil || !strings.Contains(string(text), c.want) {
					t.Errorf("it reads %q, %v", text, err)
				}
			})
		})
	}
}

// A client that waits for 100 Continue and is refused instead reads that the connection ends, and
// its end, at once; so does one whose answer needed no body.
func TestRefusalInsteadOfContinue(t *testing.T) {
	for _, head := range []string{"POST /none", "POST /v2/models/none/infer", "GET /v2/health/live", "GET /v2/models/none"} {
		for _, length := range []string{"Content-Length: 10", "Transfer-Encoding: chunked"} {
			synctest.Test(t, func(t *testing.T) {
				var n shivatest.Net
				newRig(t, func(c *Config) {
					c.Addrs = []string{"server:80"}
					c.Open = func(addr string, _ unixsocket.Access) (net.Listener, error) { return n.Listen(addr) }
				})
				c, err := n.Dial(t.Context(), "memory", "server:80")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				began := time.Now()
				if _, err := io.WriteString(c, head+" HTTP/1.1\r\nHost: server\r\nExpect: 100-continue\r\n"+length+
					"\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(c)
				if err != nil || !strings.Contains(string(text), "Connection: close\r\n") ||
					strings.Contains(string(text), " 100 ") || time.Since(began) > 0 {
					t.Errorf("%s, %s: after %v it reads %q, %v", head, length, time.Since(began), text, err)
				}
			})
		}
	}
}
