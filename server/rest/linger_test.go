package rest

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

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
