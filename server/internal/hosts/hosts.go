// Package hosts bounds how many connections of one host a door has, so that one cannot fill it.
package hosts

import (
	"net"
	"net/netip"
	"sync"
)

// Of is the host that an address is counted as: the IP address, or of IPv6 the network of 64
// bits, all of which one host may use. It is the zero Addr for what is no address of the
// Internet.
func Of(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	host := at.Addr().Unmap().WithZone("")
	if host.Is6() && !host.IsLoopback() {
		network, _ := host.Prefix(64)
		return network.Addr()
	}
	return host
}

// A Limit is how many connections of a door one host may have at a time.
type Limit struct {
	Most     int
	Loopback bool // this machine's own hosts have it, too
}

// NewLimit is a limit of that many; 0 means half of all there may be, at least one.
func NewLimit(most, all int, loopback bool) Limit {
	if most == 0 {
		most = max(all/2, 1)
	}
	return Limit{most, loopback}
}

// free reports whether a host may have as many connections as it likes.
func (l Limit) free(host netip.Addr) bool {
	return !host.IsValid() || host.IsLoopback() && !l.Loopback
}

// A Count is of the connections of each host, also of those without a limit, who may get one.
// The zero Count is ready. It is safe for use by several goroutines at once.
type Count struct {
	mu   sync.Mutex
	open map[netip.Addr]int
}

// Enter counts a connection, if its host may have one more. Leave takes it off again.
func (c *Count) Enter(host netip.Addr, limit Limit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[host] >= limit.Most && !limit.free(host) {
		return false
	}
	if c.open == nil {
		c.open = make(map[netip.Addr]int)
	}
	c.open[host]++
	return true
}

// Leave is called once for each Enter that was true.
func (c *Count) Leave(host netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[host]--; c.open[host] <= 0 {
		delete(c.open, host)
	}
}
