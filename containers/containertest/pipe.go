package containertest

import (
	"net"

	"github.com/shivad/shivad/shiva/shivatest"
)

// Pipe returns the two ends of a connection in memory. Unlike net.Pipe it is buffered, as sockets
// are, since both sides of a ZMTP handshake write before they read. Deadlines and half-closing
// work, and inside a testing/synctest bubble it runs on the bubble's clock.
func Pipe() (a, b net.Conn) {
	n := shivatest.Net{Buffer: 256 << 10} // about the capacity of a socket pair
	return n.Pair("a", "b")
}
