package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/panjf2000/gnet/v2"
)

// rowBytes is the size of the row at the end of a request: 64 floats.
const rowBytes = 256

// A grouping is the least that a server with a model in another process does: one event loop passes
// the rows of several requests to a peer on a Unix socket at once, and answers each of them with
// its own bytes once the peer has returned as many bytes as rows. Requests are small, and each
// connection has one at a time.
type grouping struct {
	gnet.BuiltinEventEngine
	listen, path string
	size         int // requests of a group
	stop         <-chan os.Signal

	clients int
	peer    gnet.Conn
	rows    []byte      // of the group that is not complete
	waiting []gnet.Conn // clients without an answer, in order; the peer has the rows of the first
	passed  int         // ... of them
	back    int         // bytes that the peer has returned
}

func (g *grouping) run() error {
	return gnet.Rotate(g, []string{"tcp://" + g.listen, "unix://" + g.path}, gnet.WithNumEventLoop(1))
}

func (g *grouping) OnBoot(e gnet.Engine) gnet.Action {
	fmt.Println(g.listen)
	go stopOn(g.stop, e) // ends with the process
	return gnet.None
}

func (g *grouping) OnOpen(c gnet.Conn) (out []byte, action gnet.Action) {
	if c.LocalAddr().Network() == "unix" {
		g.peer = c
	} else {
		g.clients++
	}
	return nil, gnet.None
}

// OnClose takes the request of a client that has left before its group was complete.
func (g *grouping) OnClose(c gnet.Conn, _ error) gnet.Action {
	if c == g.peer {
		return gnet.Shutdown
	}
	g.clients--
	if i := slices.Index(g.waiting, c); i >= g.passed {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		g.rows = g.rows[rowBytes:] // all are alike
	}
	return gnet.None
}

func (g *grouping) OnTraffic(c gnet.Conn) gnet.Action {
	if c == g.peer {
		return g.answer()
	}
	p, err := c.Peek(-1) // they stay until the answer
	if err != nil || len(p) < rowBytes || g.peer == nil {
		return gnet.Close
	}
	g.rows, g.waiting = append(g.rows, p[len(p)-rowBytes:]...), append(g.waiting, c)
	if len(g.waiting)-g.passed < min(g.size, g.clients) {
		return gnet.None
	}
	g.passed = len(g.waiting)
	if _, err := g.peer.Write(g.rows); err != nil {
		return gnet.Shutdown
	}
	g.rows = g.rows[:0]
	return gnet.None
}

// answer answers the requests whose rows are back.
func (g *grouping) answer() gnet.Action {
	n, err := g.peer.Discard(-1)
	if err != nil {
		return gnet.Shutdown
	}
	done := min((g.back+n)/rowBytes, g.passed)
	g.back += n - done*rowBytes
	for _, c := range g.waiting[:done] {
		if p, err := c.Next(-1); err == nil {
			_, _ = c.Write(p) // a client that has left needs none
		}
	}
	g.waiting = slices.Delete(g.waiting, 0, done)
	g.passed -= done
	return gnet.None
}
