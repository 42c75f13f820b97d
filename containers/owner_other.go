//go:build !linux

package containers

import "net"

// groupOf: other systems do not say who holds the other end of a connection.
func groupOf(net.Conn, []int) int { return 0 }
