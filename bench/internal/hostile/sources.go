package hostile

import (
	"context"
	"net"
	"sync/atomic"
)

// Sources are addresses of this machine from which clients connect in turn: a server that counts by
// address sees that many hosts.
type Sources struct {
	Many int // addresses from 127.0.0.2 on, at most 250; 0: the default address for all
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
