package zmtp

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

const patience = time.Minute

// A patient socket takes a given number of bytes at each call, which its deadline then ends, and
// lets its peer take some of the bytes that it holds.
type patient struct {
	net.Conn
	takes   []int // bytes that each call takes; after them, none
	reads   int   // pieces that the peer takes before each of the first calls
	peer    func()
	calls   int
	renewed int // its deadline
	broken  error
}

func (p *patient) SetWriteDeadline(t time.Time) error {
	if left := time.Until(t); left > patience/2 && left <= patience {
		p.renewed++
	}
	return p.broken
}

func (p *patient) Write(b []byte) (int, error) {
	n := 0
	if p.calls < len(p.takes) {
		n = min(p.takes[p.calls], len(b))
	}
	p.calls++
	if p.reads > 0 {
		p.reads--
		p.peer()
	}
	if n == len(b) {
		return n, nil
	}
	return n, os.ErrDeadlineExceeded
}

// TestPatienceOfTLS: a write of TLS may last as long as the peer takes some bytes in each timeout:
// of the write itself, or of those that the socket holds. A peer that takes none of either is given
// up, and so is a broken socket.
func TestPatienceOfTLS(t *testing.T) {
	const piece = 1000
	for name, c := range map[string]struct {
		patient patient
		held    int // pieces that the socket holds at first
		forever bool
		n       int
		calls   int
		fails   bool
	}{
		"at once":                     {patient{takes: []int{10}}, 0, false, 10, 1, false},
		"in three pieces":             {patient{takes: []int{3, 3, 4}}, 0, false, 10, 3, false},
		"a pause at once":             {patient{takes: []int{0, 10}}, 0, false, 0, 1, true},
		"a pause later":               {patient{takes: []int{3, 0, 7}}, 0, false, 3, 2, true},
		"a peer that reads":           {patient{takes: []int{0, 0, 10}, reads: 3}, 3, false, 10, 3, false},
		"a peer that reads no more":   {patient{takes: []int{0, 0, 0, 10}, reads: 2}, 3, false, 0, 3, true},
		"by the connection's own":     {patient{takes: []int{3, 7}}, 0, true, 3, 1, true},
		"a socket that has no clocks": {patient{takes: []int{10}, broken: errors.ErrUnsupported}, 0, false, 0, 0, true},
	} {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fds[0]), "")
		raw, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for range c.held {
			if _, err := syscall.Write(fds[0], make([]byte, piece)); err != nil {
				t.Fatal(err)
			}
		}
		c.patient.peer = func() {
			if n, err := syscall.Read(fds[1], make([]byte, piece)); n != piece {
				t.Errorf("%s: the peer has read %d bytes, %v", name, n, err)
			}
		}
		k := &carrier{Conn: &c.patient, fd: raw, timeout: patience}
		if c.forever {
			k.timeout = 0
		}
		n, err := k.Write(make([]byte, 10))
		if n != c.n || (err != nil) != c.fails || c.patient.calls != c.calls {
			t.Errorf("%s: %d bytes, %v, in %d calls", name, n, err, c.patient.calls)
		}
		if c.fails && c.patient.broken == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		if want := c.calls; !c.forever && c.patient.broken == nil && c.patient.renewed != want {
			t.Errorf("%s: its deadline was set %d times, expected %d", name, c.patient.renewed, want)
		}
		if c.forever && c.patient.renewed > 0 {
			t.Errorf("%s: its deadline was set", name)
		}
		f.Close()
		syscall.Close(fds[1])
	}
	lost := &carrier{}
	if n := lost.unsent(); n != 0 {
		t.Errorf("%d bytes are unsent where nobody can tell", n)
	}
}

// A reader has unread bytes, and then the end.
type reader struct {
	net.Conn
	unread int
	ended  bool          // our direction
	left   time.Duration // for reading
	told   []byte        // what was written, each time within its deadline
	write  time.Duration
}

func (r *reader) SetWriteDeadline(t time.Time) error {
	r.write = time.Until(t)
	return nil
}

func (r *reader) Write(p []byte) (int, error) {
	if r.write > 0 && r.write <= lingerTime {
		r.told = append(r.told, p...)
	}
	return len(p), nil
}

func (r *reader) CloseWrite() error {
	r.ended = true
	return nil
}

func (r *reader) SetReadDeadline(t time.Time) error {
	r.left = time.Until(t)
	return nil
}

func (r *reader) Read(p []byte) (int, error) {
	n := min(len(p), r.unread)
	if r.unread -= n; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// TestEndOfAFailedHandshake: a server whose handshake has failed reads what the peer still sends,
// up to a limit of bytes and time, so that the peer learns why. It does not if there was nothing to
// tell, as to a peer that has sent nothing; nor does a client.
func TestEndOfAFailedHandshake(t *testing.T) {
	for _, c := range []struct {
		err    error
		server bool
		unread int
		reads  int
	}{
		{errors.New("no certificate"), true, 10_000, 10_000},
		{errors.New("no certificate"), true, 1 << 20, lingerBytes},
		{fmt.Errorf("read: %w", os.ErrDeadlineExceeded), true, 10_000, 0},
		{errors.New("unknown authority"), false, 10_000, 0},
	} {
		peer := &reader{unread: c.unread}
		conn, err := encrypt(&carrier{Conn: peer}, func(net.Conn) (net.Conn, error) { return nil, c.err }, c.server)
		if conn != nil || !errors.Is(err, c.err) {
			t.Errorf("%v: %v", c.err, err)
		}
		if heard := c.reads > 0; peer.ended != heard || c.unread-peer.unread != c.reads ||
			heard && (peer.left <= 0 || peer.left > lingerTime) {
			t.Errorf("%v, to a server %v: its direction has ended %v, %d of %d bytes are unread, within %v", c.err,
				c.server, peer.ended, peer.unread, c.unread, peer.left)
		}
	}
}

// TestForeignHandshake: a peer that speaks ZMTP without TLS is told so in ZMTP, other peers are
// not; and the carrier of a socket can count the bytes that it holds.
func TestForeignHandshake(t *testing.T) {
	for first, told := range map[byte]bool{greetingMark: true, 'G': false} {
		peer := &reader{unread: 100}
		_, err := encrypt(&carrier{Conn: peer}, func(net.Conn) (net.Conn, error) {
			return nil, tls.RecordHeaderError{RecordHeader: [5]byte{first}}
		}, true)
		if !errors.Is(err, ErrProtocol) || bytes.Contains(peer.told, []byte("this address speaks TLS")) != told ||
			peer.ended != told {
			t.Errorf("%q: %v, told %q", first, err, peer.told)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Client(c, Config{Secure: func(k net.Conn) (net.Conn, error) {
		if k.(*carrier).fd == nil {
			t.Error("the carrier knows no descriptor")
		}
		return nil, io.ErrUnexpectedEOF
	}}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}
