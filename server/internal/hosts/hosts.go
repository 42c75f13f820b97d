// Package hosts bounds how many connections of one host a door has, so that one cannot fill it.
package hosts

import (
	"net"
	"net/netip"
	"sync"
)

// Of is the host that an address is counted as: the IP address, or of IPv6 the network of 64 bits, all of which one host may
// use. It is the zero Addr for what is no address of the Internet.
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

// A Limit counts the connections of each host. It is safe for use by several goroutines at once.
type Limit struct {
	most     int
	loopback bool

	mu   sync.Mutex
	open map[netip.Addr]int
}

// NewLimit lets each host have so many connections at a time; 0 means half of all there may be, at least one. This machine's own
// are only bounded if loopback says so.
func NewLimit(most, all int, loopback bool) *Limit {
	if most == 0 {
		most = max(all/2, 1)
	}
	return &Limit{most: most, loopback: loopback, open: make(map[netip.Addr]int)}
}

// Most is how many connections a host may have.
func (l *Limit) Most() int { return l.most }

// Enter counts a connection, if its host may have one more. Leave takes it off again.
func (l *Limit) Enter(host netip.Addr) bool {
	if l.free(host) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[host] >= l.most {
		return false
	}
	l.open[host]++
	return true
}

// Leave is called once for each Enter that was true.
func (l *Limit) Leave(host netip.Addr) {
	if l.free(host) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[host]--; l.open[host] <= 0 {
		delete(l.open, host)
	}
}

func (l *Limit) free(host netip.Addr) bool {
	return !host.IsValid() || host.IsLoopback() && !l.loopback
}
