package state_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/server/state/statetest"
)

// A proxy stands between a store and its Redis, and can be cut.
type proxy struct {
	redis    string // the path of its socket
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

func newProxy(t *testing.T, r *statetest.Redis) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{redis: strings.TrimPrefix(r.Target(), "unix://"), listener: l}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

// target is the address of the proxy, with a user's name and password if there are any
// ("user:password@").
func (p *proxy) target(user string) string {
	return fmt.Sprintf("redis://%s%s/3", user, p.listener.Addr())
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", p.redis)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		if p.conns = append(p.conns, client, server); p.isCut {
			_, _ = client.Close(), server.Close()
		}
		p.mu.Unlock()
		for _, c := range [][2]net.Conn{{client, server}, {server, client}} {
			p.wg.Go(func() {
				// As plain reader and writer: splicing would leave pipes in a pool, which look
				// like a leak.
				_, _ = io.Copy(struct{ io.Writer }{c[0]}, struct{ io.Reader }{c[1]})
				_, _ = c[0].Close(), c[1].Close()
			})
		}
	}
}

// cut breaks all connections, and new ones at once.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCut = true
	for _, c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCut, p.conns = false, nil
}
