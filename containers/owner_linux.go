package containers

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel tells which process holds the other end of a connection, for containers of every
// generation, whereas a token in the environment would need their cooperation, and could be read by
// every process of the same user.
//
// What counts is descent: a process cannot leave its ancestors. Its process group it can choose,
// within its session, and so pass for another container. Descendants whose parents have ended
// become children of this process, which is their subreaper (see family), so none of them ever
// looks like a stranger.

// errHidden means that no process could be found at the other end of a connection from this
// machine: it belongs to another PID namespace, such as another container of the same pod, or
// hides.
var errHidden = errors.New("the server cannot see which process of this machine has this connection")

// originOf returns the child of this process from which the process at the other end of conn
// descends, or is; 0: it is no descendant, or on another machine. An error means that it is on
// this machine, and may be one.
func originOf(conn net.Conn) (child int, err error) {
	if i, ok := conn.(identified); ok {
		return i.origin()
	}
	if c, ok := conn.(*net.UnixConn); ok {
		pid, err := unixPeer(c)
		if err != nil || pid == 0 {
			return 0, err
		}
		return ancestor(pid)
	}
	inode, uid := tcpSocket(conn.RemoteAddr(), conn.LocalAddr())
	if inode == "" {
		return 0, nil
	}
	// A program that connects to a server of its own starts processes, too, and until such a child
	// executes its command, it holds what the program holds.
	self := os.Getpid()
	if holds(self, inode) {
		return 0, nil
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	found := false
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == self || !holds(pid, inode) {
			continue
		}
		found = true
		if child, err := ancestor(pid); child != 0 || err != nil {
			return child, err // also if a stranger holds it, too
		}
	}
	// Without the rights of root, the descriptors of other users cannot be seen, but then no
	// process of this server belongs to another user.
	if found || os.Geteuid() != 0 && uid != os.Geteuid() {
		return 0, nil
	}
	return 0, errHidden
}

// A procStat is what the kernel's file stat says about a process.
type procStat struct {
	zombie          bool
	parent, session int
}

func readStat(pid int) (s procStat, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return s, false
	}
	// PID (NAME) STATE PARENT GROUP SESSION: the name may contain anything.
	f := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(f) < 4 {
		return s, false
	}
	s.zombie = f[0][0] == 'Z' || f[0][0] == 'X'
	s.parent, err = strconv.Atoi(string(f[1]))
	session, err2 := strconv.Atoi(string(f[3]))
	s.session = session
	return s, err == nil && err2 == nil
}

// errPeerEnded means that the process that has connected is gone, so nobody can tell whose it was.
var errPeerEnded = errors.New("the process that has connected has ended")

// ancestor returns the child of this process from which a process descends, or is; 0: none.
func ancestor(pid int) (child int, err error) {
	self := os.Getpid()
	for range 10 { // an ancestor may end meanwhile: its children get another parent
		at := pid
		for at != self {
			s, ok := readStat(at)
			if !ok && at == pid {
				return 0, errPeerEnded
			}
			if !ok {
				break
			}
			if s.parent == self {
				return at, nil
			}
			if s.parent <= 1 {
				return 0, nil
			}
			at = s.parent
		}
		if at == self {
			return 0, nil // this process itself: a library's caller
		}
	}
	return 0, errHidden
}

// Stray returns an error if the process at the other end of conn is, or may be, a descendant of a
// supervised process. Call it when no [Supervisor] owns the connection: such a process has lost its
// parents, or hides, and nobody can tell which container it belongs to.
func Stray(conn net.Conn) error {
	child, err := originOf(conn)
	if err != nil || child == 0 {
		return err
	}
	if s, ok := readStat(child); ok && !foreign(s) {
		return nil // a program that uses this package has started it
	}
	return errors.New("the supervised process that started this one has ended, or runs no longer as a [[container]]")
}

// foreign reports whether a child of this process belongs to a supervised process: those, and no
// other children, have sessions of their own, and a process cannot return to an earlier session.
func foreign(s procStat) bool {
	own, err := unix.Getsid(0)
	return err == nil && s.session != own
}

// unixPeer returns the process that has connected; 0: one in another PID namespace.
func unixPeer(c *net.UnixConn) (pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) { pid, err = socketPeer(int(fd)) })
	return pid, errors.Join(err, failed)
}

// soPeerPIDFD is the socket option for a descriptor of the peer (Linux 6.5). Unlike a number, it
// never denotes a later process.
const soPeerPIDFD = 77

func socketPeer(fd int) (pid int, err error) {
	handle, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPIDFD)
	switch {
	case errors.Is(err, unix.ENOPROTOOPT):
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return 0, os.NewSyscallError("getsockopt", err)
		}
		return int(cred.Pid), nil
	case err != nil:
		return 0, errPeerEnded
	}
	defer unix.Close(handle)
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", handle))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "Pid:"); ok {
			if pid, err = strconv.Atoi(strings.TrimSpace(n)); pid < 0 {
				return 0, errPeerEnded
			}
			return pid, err
		}
	}
	return 0, errHidden
}

// tcpSocket returns the inode and the user of the socket on this machine that is bound to local and
// connected to remote; "": there is none.
func tcpSocket(local, remote net.Addr) (inode string, uid int) {
	l, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return "", 0
	}
	r, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return "", 0
	}
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		inode, uid = findSocket(bufio.NewScanner(f), l, r)
		f.Close()
		if inode != "" {
			return inode, uid
		}
	}
	return "", 0
}

// findSocket searches the kernel's table: number, local and remote address, state, three more
// columns, uid, timeout, inode.
func findSocket(lines *bufio.Scanner, local, remote netip.AddrPort) (inode string, uid int) {
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) > 9 && sameAddr(f[1], local) && sameAddr(f[2], remote) {
			uid, _ = strconv.Atoi(f[7])
			return f[9], uid
		}
	}
	return "", 0
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
