package listen

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/shivad/shivad/server/internal/access"
)

// A Host is the unit in which connections are counted: an IPv4 address, an IPv6 /64 network (all of
// which one machine may use), or on a Unix socket a user. The zero Host stands for connections of
// which neither is known.
type Host struct {
	addr netip.Addr
	user uint32
	unix bool // user is set
}

// isLocal reports whether the host is this machine.
func (h Host) isLocal() bool { return h.unix || h.addr.IsLoopback() }

// kind says what the host identifies, for errors.
func (h Host) kind() string {
	if h.unix {
		return "user"
	}
	return "address"
}

func (h Host) String() string {
	if h.unix {
		return fmt.Sprintf("uid=%d", h.user)
	}
	if !h.addr.IsValid() {
		return "unknown"
	}
	return h.addr.String()
}

// Enter counts one more connection of the host for its quota account, and returns that.
// Addresses.Leave of its name undoes it.
func (h Host) Enter(a *access.Addresses) *access.Account {
	return a.Enter(h.String(), h == Host{} || h.isLocal())
}

// PeerOf returns the host and the address of the other end of a connection. On a Unix socket the
// address names the client's process, "uid=1000,pid=4711".
func PeerOf(c net.Conn) (Host, net.Addr) {
	if s, ok := c.(*net.UnixConn); ok {
		return userOf(s)
	}
	at := c.RemoteAddr()
	return Host{addr: addrOf(at)}, at
}

// addrOf returns the address that a client counts under; zero if it has no IP address.
func addrOf(a net.Addr) netip.Addr {
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

// A process is the address of a client on a Unix socket.
type process string

func (process) Network() string  { return "unix" }
func (p process) String() string { return string(p) }

// userOf asks the kernel for the user and the process of the client. Client ends of Unix sockets
// have no name.
func userOf(c *net.UnixConn) (Host, net.Addr) {
	var cred *syscall.Ucred
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		})
	}
	if err != nil || cred == nil { // closed meanwhile
		return Host{}, process("uid=unknown")
	}
	h := Host{user: cred.Uid, unix: true}
	return h, process(fmt.Sprintf("%v,pid=%d", h, cred.Pid))
}
