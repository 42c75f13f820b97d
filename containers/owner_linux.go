package containers

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// groupOf returns the group, among the given process groups, of the process that holds the other
// end of conn; 0: none. The kernel knows that for containers of every generation, whereas a token
// in the environment would need their cooperation.
func groupOf(conn net.Conn, groups []int) int {
	if len(groups) == 0 {
		return 0
	}
	if c, ok := conn.(*net.UnixConn); ok {
		return match(groups, unixPeer(c))
	}
	inode := tcpInode(conn.RemoteAddr(), conn.LocalAddr())
	if inode == "" {
		return 0
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if g := match(groups, pid); g != 0 && holds(pid, inode) {
			return g
		}
	}
	return 0
}

// match returns the group of a process if it is one of groups, else 0.
func match(groups []int, pid int) int {
	if pid <= 0 {
		return 0
	}
	own, err := syscall.Getpgid(pid)
	if err != nil {
		return 0
	}
	for _, g := range groups {
		if g == own {
			return g
		}
	}
	return 0
}

func unixPeer(c *net.UnixConn) (pid int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// tcpInode is the inode of the socket on this machine that is bound to local and connected to
// remote; "": none.
func tcpInode(local, remote net.Addr) string {
	l, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return ""
	}
	r, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return ""
	}
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		inode := findSocket(bufio.NewScanner(f), l, r)
		f.Close()
		if inode != "" {
			return inode
		}
	}
	return ""
}

// findSocket searches the kernel's table: number, local and remote address, state, four more
// columns, uid, timeout, inode.
func findSocket(lines *bufio.Scanner, local, remote netip.AddrPort) string {
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) > 9 && sameAddr(f[1], local) && sameAddr(f[2], remote) {
			return f[9]
		}
	}
	return ""
}

// sameAddr compares an address as the kernel prints it: words of 32 bits in host order, in
// hexadecimal, and the port.
func sameAddr(text string, want netip.AddrPort) bool {
	host, port, ok := strings.Cut(text, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || uint16(n) != want.Port() || len(host)%8 != 0 {
		return false
	}
	var b []byte
	for ; host != ""; host = host[8:] {
		word, err := strconv.ParseUint(host[:8], 16, 32)
		if err != nil {
			return false
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(word))
	}
	addr, ok := netip.AddrFromSlice(b)
	return ok && addr.Unmap() == want.Addr().Unmap().WithZone("")
}

// holds reports whether a process has the socket open.
func holds(pid int, inode string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	all, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range all {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}
