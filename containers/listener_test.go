package containers

import (
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// An exhausted listener has no descriptors for a while, and then accepts again.
type exhausted struct {
	net.Listener
	calls atomic.Int32
	until time.Time
	conns chan net.Conn
	once  sync.Once
}

func (e *exhausted) Accept() (net.Conn, error) {
	e.calls.Add(1)
	if time.Now().Before(e.until) {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	if c, ok := <-e.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (e *exhausted) Close() error {
	e.once.Do(func() { close(e.conns) })
	return nil
}

// TestNoDescriptors: without descriptors the accept loop pauses instead of spinning, logs it, and
// recovers by itself.
func TestNoDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sched, err := scheduler.New(scheduler.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer sched.Close()
		var log strings.Builder
		l, err := Listen(Config{Scheduler: sched, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ear := &exhausted{until: time.Now().Add(3 * time.Second), conns: make(chan net.Conn, 1)}
		l.listeners = append(l.listeners, ear)
		l.wg.Go(func() { l.accept(ear, DialectV3) })
		time.Sleep(5 * time.Second)
		if n := ear.calls.Load(); n > 12 {
			t.Errorf("%d calls of Accept in 5 s", n)
		}
		mine, theirs := containertest.Pipe()
		ear.conns <- theirs
		c, err := containertest.Start(mine,
			containertest.Model{Name: "m", Version: "1", Inputs: specs("x"), Outputs: specs("y")})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		l.Close()
		if !strings.Contains(log.String(), "cannot accept") || l.Stats().AcceptFail == 0 {
			t.Errorf("log %s", &log)
		}
	})
}

// TestDisplaced: one unregistered connection too many ends the oldest of the host that has the
// most, so that a flood displaces itself and no other host; among hosts with equally many, the
// oldest.
func TestDisplaced(t *testing.T) {
	for _, c := range []struct {
		fresh []string
		want  int
	}{
		{[]string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"}, 0},
		{[]string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2"}, 1},
		{[]string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:2", "10.0.0.2:2", "10.0.0.2:3"}, 1},
		{[]string{"10.0.0.1:1", "ipc", "ipc", "10.0.0.1:2"}, 0},
		{[]string{"10.0.0.1:1", "ipc", "10.0.0.2:1", "ipc"}, 1},
		{[]string{"[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::2]:2"}, 1},
	} {
		l := new(Listener)
		for _, remote := range c.fresh {
			l.fresh = append(l.fresh, &session{remote: remote})
		}
		oldest := l.fresh[c.want]
		if got := l.displaceLocked(); got != oldest || len(l.fresh) != len(c.fresh)-1 ||
			slices.Contains(l.fresh, got) || l.counts.Displaced != 1 {
			t.Errorf("of %q %s is displaced, %d are left", c.fresh, got.remote, len(l.fresh))
		}
	}
}

// TestSocketFile: the file of a killed server is replaced. The file of a listening server is not,
// even if that server is stopped or too busy to accept connections.
func TestSocketFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for { // until the backlog is full
		c, err := net.Dial("unix", path)
		if err != nil {
			break
		}
		defer c.Close()
	}
	if l, err := listen("ipc://"+path, unixsocket.Access{}, net.Listen); err == nil {
		l.Close()
		t.Error("the socket of a server that lives was taken over")
	}
	syscall.Close(fd)
	l, err := listen("ipc://"+path, unixsocket.Access{}, net.Listen)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
