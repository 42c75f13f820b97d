package hostile

import (
	"context"
	"net"
	"sync/atomic"
)

// Sources are addresses of this machine that clients come from, the next connection from the next
// one: whoever counts by address has to do with that many hosts.
type Sources struct {
	Many int // 127.0.0.2 and those after it, at most 250; 0: the usual one, for all
	next atomic.Uint32
}

// Dial connects to a TCP address.
func (s *Sources) Dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	if s.Many > 0 {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+int(s.next.Add(1))%s.Many))}
	}
	return d.DialContext(ctx, "tcp", addr)
}
