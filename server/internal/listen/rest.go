package listen

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/shivad/shivad/shiva/backoff"
)

// Lump is how many unread bytes the kernel reports even on a resting connection, so that it need
// not hold all of a large message.
const Lump = 16 << 10

// Rest waits until d has passed or over is closed, before the next Read. With d of 0 it returns at
// once. Only the goroutine that reads the connection may call it.
//
// Each segment that arrives wakes Go's poller, even if no goroutine waits for it: 2,000 times a
// second for a client whose connections were read 400 times. So the kernel reports less than a lump
// (SO_RCVLOWAT) only on connections that are read without a rest.
func (c *Conn) Rest(d time.Duration, over <-chan struct{}) {
	c.Lumps(d > 0)
	backoff.Wait(d, over)
}

// Lumps makes the kernel report lumps only, or each byte, for a door that waits by itself.
func (c *Conn) Lumps(only bool) {
	if t, ok := c.socket.(*net.TCPConn); ok && c.rests != only {
		c.rests = only
		report(t, only)
	}
}

// report makes the kernel report lumps only, or each byte.
func report(t *net.TCPConn, lumps bool) {
	least := 1
	if lumps {
		least = Lump
	}
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, least)
		})
	}
}

// readAfterRest reads what arrived during a rest. If nothing arrived, it waits as Read does.
func (c *Conn) readAfterRest(p []byte) (int, error) {
	t := c.socket.(*net.TCPConn)
	if c.encryption == nil {
		if n, err := readNow(t, p); err != syscall.EAGAIN {
			return n, err
		}
	}
	c.rests = false
	report(t, false)
	return c.Conn.Read(p)
}

// readNow reads without waiting: [net.Conn.Read] would wait for a lump.
func readNow(t *net.TCPConn, p []byte) (n int, err error) {
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) (done bool) {
		n, failed = syscall.Read(int(fd), p)
		return true
	})
	switch {
	case err != nil:
		return 0, err
	case failed == syscall.EAGAIN:
		return 0, failed
	case failed != nil:
		return 0, os.NewSyscallError("read", failed)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}
