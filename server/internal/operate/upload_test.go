package operate

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// opened opens a door, and returns a function that connects to it.
func opened(t *testing.T, s Sources) (connect func() *net.TCPConn) {
	t.Helper()
	l, err := Listen("127.0.0.1:0", unixsocket.Access{}, nil, nil, Handler(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.Shutdown(ctx)
	})
	return func() *net.TCPConn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
}

// A client that sends all of its body before it reads, as http.client does, reads why it is
// refused, however large the body is.
func TestRefusalAfterTheBody(t *testing.T) {
	open := sources(admin.Serving)
	closed := sources(admin.Serving)
	closed.Identities = new(access.Identities)
	closed.Identities.Replace([]access.Declaration{
		{Name: "ops", Tokens: []string{strings.Repeat("a", 64)}, May: []string{"admin:write"}}})
	const size = 32 << 20 // more than sockets hold
	for name, c := range map[string]struct {
		sources Sources
		head    string
		want    string
	}{
		"no token": {closed, "PATCH /v1/models/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
			" 401 "},
		"another site": {open, "PATCH /v1/models/a HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\n",
			" 403 "},
		"no such path": {open, "POST /nosuch HTTP/1.1\r\nHost: localhost\r\n", " 404 "},
		"not by POST":  {open, "POST /livez HTTP/1.1\r\nHost: localhost\r\n", " 405 "},
		"too large": {open, "PATCH /v1/models/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
			" 413 "},
		"not JSON":          {open, "PATCH /v1/models/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n", " 415 "},
		"a body for health": {open, "GET /livez HTTP/1.1\r\nHost: localhost\r\n", " 200 "},
	} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, chunked=%t", name, chunked), func(t *testing.T) {
				conn := opened(t, c.sources)()
				length, piece, end := fmt.Sprintf("Content-Length: %d\r\n\r\n", size), make([]byte, 1<<20), ""
				if chunked {
					length, end = "Transfer-Encoding: chunked\r\n\r\n", "0\r\n\r\n"
					piece = append(fmt.Appendf(nil, "%x\r\n", len(piece)), append(piece, "\r\n"...)...)
				}
				if _, err := io.WriteString(conn, c.head+length); err != nil {
					t.Fatal(err)
				}
				for at := 0; at < size; at += 1 << 20 {
					if _, err := conn.Write(piece); err != nil {
						t.Fatalf("after %d bytes: %v", at, err)
					}
				}
				if _, err := io.WriteString(conn, end); err != nil {
					t.Fatal(err)
				}
				if text, err := io.ReadAll(conn); err != nil || !strings.Contains(string(text), c.want) {
					t.Errorf("it reads %q, %v", text, err)
				}
			})
		}
	}
}

// A refusal of a body that is not large keeps the connection, and one that was awaited with Expect
// is not asked for.
func TestRefusalKeepsTheConnection(t *testing.T) {
	c := opened(t, sources(admin.Serving))()
	in := bufio.NewReader(c)
	for _, body := range []string{"", strings.Repeat("x", 100_000), "{}"} {
		fmt.Fprintf(c, "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		a, err := http.ReadResponse(in, nil)
		if err != nil || a.StatusCode != http.StatusMethodNotAllowed || a.Close {
			t.Fatalf("a body of %d bytes: %v, %v", len(body), a, err)
		}
		_, _ = io.Copy(io.Discard, a.Body)
	}
	fmt.Fprint(c, "POST /livez HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n")
	if text, err := io.ReadAll(in); err != nil || !strings.Contains(string(text), " 405 ") ||
		strings.Contains(string(text), " 100 ") {
		t.Errorf("it reads %q, %v", text, err)
	}
}

// A client that ends its sending side gets its answers; one that has closed its connection is given
// up.
func TestHalfClosedClientGetsItsAnswers(t *testing.T) {
	asked, goOn, gaveUp := make(chan struct{}, 2), make(chan struct{}, 2), make(chan struct{}, 1)
	s := sources(admin.Serving)
	s.Await = func(ctx context.Context) error {
		asked <- struct{}{}
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			gaveUp <- struct{}{}
			return refuse(http.StatusServiceUnavailable, "it was given up")
		}
	}
	connect := opened(t, s)
	const ask = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"

	c := connect()
	if _, err := io.WriteString(c, ask+ask); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for i := range 2 {
		<-asked
		if one, err := in.Peek(2); err != nil || string(one) != "HT" { // sent ahead
			t.Fatalf("before answer %d: %q, %v", i, one, err)
		}
		goOn <- struct{}{}
		a, err := http.ReadResponse(in, nil)
		if err != nil || a.StatusCode != http.StatusOK {
			t.Fatalf("answer %d: %v, %v", i, a, err)
		}
		_, _ = io.Copy(io.Discard, a.Body)
	}
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Errorf("after the answers: %q, %v", rest, err)
	}

	c = connect()
	if _, err := io.WriteString(c, ask); err != nil {
		t.Fatal(err)
	}
	<-asked
	c.Close()
	budgettest.Until(t, "the request to be given up", func() bool { return len(gaveUp) == 1 })
}
