package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva/budgettest"
)

var errBroken = errors.New("broken")

// A narrow pollable takes a given number of bytes until it has room again.
type narrow struct {
	pollable
	room   int // bytes that it takes
	broken bool
	took   []byte
	writes int

	roomy bool          // the result of Room
	waits int           // number of waits for room
	told  chan struct{} // reports room
}

func (n *narrow) TryWrite(vecs [][]byte) (int, error) {
	n.writes++
	if n.broken {
		return 0, errBroken
	}
	all := bytes.Join(vecs, nil)
	all = all[:min(len(all), n.room)]
	n.took = append(n.took, all...)
	n.room -= len(all)
	return len(all), nil
}

func (n *narrow) Room() bool { return n.roomy }

func (n *narrow) AwaitRoom(done func() bool) error {
	n.waits++
	for !done() {
		if _, ok := <-n.told; !ok {
			return net.ErrClosed
		}
	}
	return nil
}

// Bytes that TLS writes leave at once as far as the socket takes them, the others at flush,
// together with gathered records. An error of the socket is the error of TLS.
func TestCiphertextInPieces(t *testing.T) {
	n := &narrow{room: 3}
	c := &ciphertext{pollable: n}
	step := func(what string, said int, err error, took, waits string) {
		t.Helper()
		if err != nil || said >= 0 && said != 5 || string(n.took) != took || string(c.pending) != waits {
			t.Errorf("%s: %d, %v, %q was taken and %q waits, expected %q and %q", what, said, err, n.took, c.pending,
				took, waits)
		}
	}
	flush := func(what string, want bool, took, waits string) {
		t.Helper()
		full, err := c.flush()
		if step(what, -1, err, took, waits); full != want {
			t.Errorf("%s: the socket is full: %v", what, full)
		}
	}
	said, err := c.Write([]byte("hello"))
	step("with room for three", said, err, "hel", "lo")
	n.room = 100
	said, err = c.Write([]byte("there"))
	step("behind what waits", said, err, "hel", "lothere")
	n.room = 4
	flush("with room for four", true, "helloth", "ere")
	n.room = 100
	flush("with room", false, "hellothere", "")
	if c.batch != nil {
		t.Error("memory is kept for nothing")
	}
	c.gather(true)
	said, err = c.Write([]byte("again"))
	step("gathered", said, err, "hellothere", "again")
	c.gather(false)
	flush("after it", false, "hellothereagain", "")
	said, err = c.Write([]byte("12345"))
	step("as before", said, err, "hellothereagain12345", "")
	flush("with nothing", false, "hellothereagain12345", "")
	writes := n.writes
	if _, _ = c.flush(); n.writes != writes {
		t.Error("nothing is written")
	}
	n.room = 0
	if _, err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	n.broken = true
	if _, err := c.flush(); err != errBroken {
		t.Errorf("what waits, of a broken socket: %v", err)
	}
	c = &ciphertext{pollable: n}
	if _, err := c.Write([]byte("x")); err != errBroken {
		t.Errorf("of a broken socket: %v", err)
	}
}

// Four records are one write, TLS's own records do not wait for further ones after that, and
// nothing can be written after the end.
func TestBatchesOfRecords(t *testing.T) {
	server, _ := encryptedPair(t)
	n := &narrow{pollable: server.cipher.pollable, room: 1 << 20}
	server.cipher.pollable = n
	all := make([]byte, 3*batchBytes+10)
	if took, err := server.TryWrite([][]byte{all[:100], all[100 : 2*batchBytes], all[2*batchBytes:]}); took !=
		len(all) || err != nil {
		t.Errorf("%d of %d bytes, %v", took, len(all), err)
	}
	if n.writes != 4 {
		t.Errorf("%d writes, expected 4", n.writes)
	}
	if _, err := server.cipher.Write([]byte("own")); err != nil || !bytes.HasSuffix(n.took, []byte("own")) {
		t.Errorf("what TLS writes itself waits: %v", err)
	}
	n.broken = true
	if took, err := server.TryWrite([][]byte{all}); took != 0 || err != errBroken {
		t.Errorf("to a broken socket: %d bytes, %v", took, err)
	}
	server, _ = encryptedPair(t)
	_ = server.CloseWrite()
	if took, err := server.TryWrite([][]byte{all}); took != 0 || err == nil {
		t.Errorf("behind the end: %d bytes, %v", took, err)
	}
}

// A read returns as many records as have arrived and fit. Records that were read ahead count as
// unread, and their buffer is released once all are read. The end is reported after the last bytes.
func TestReadAhead(t *testing.T) {
	server, client := encryptedPair(t)
	_ = client.cipher.Conn.(*net.UnixConn).SetWriteBuffer(1 << 20)
	const record = 16_000
	all := bytes.Repeat([]byte("0123456789abcdef"), 3*record/16)
	for i := range 3 {
		if n, err := client.TryWrite([][]byte{all[i*record : (i+1)*record]}); n != record || err != nil {
			t.Fatal(n, err)
		}
	}
	if n := server.Unread(); n < len(all) || n > len(all)+1000 {
		t.Errorf("%d bytes are unread at first", n)
	}
	got := make([]byte, 64<<10)
	if n, err := server.TryRead(got[:10]); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	if n, below := server.Unread(), server.cipher.pollable.Unread(); n < record || n > 3*record || below != 0 {
		t.Errorf("%d bytes are unread beside the first, of them %d below", n, below)
	}
	if n, err := server.TryRead(got[10:]); n != len(all)-10 || err != nil || !bytes.Equal(got[:len(all)], all) {
		t.Errorf("%d bytes of %d, %v", n, len(all)-10, err)
	}
	if n, err := server.TryRead(got); n > 0 || err != unix.EAGAIN || server.cipher.block != nil ||
		server.cipher.unread != nil || server.Unread() != 0 {
		t.Errorf("%d bytes more, %v, %d unread", n, err, server.Unread())
	}
	if n, err := client.TryWrite([][]byte{all[:500]}); n != 500 || err != nil {
		t.Fatal(n, err)
	}
	_ = client.CloseWrite()
	for _, want := range []int{500, 0, 0} {
		if n, err := server.TryRead(got); n != want || err != nil {
			t.Errorf("%d bytes, %v, expected %d", n, err, want)
		}
	}
}

// A truncated record counts as the end, and bytes that are not a record are an error.
func TestCutRecord(t *testing.T) {
	for name, said := range map[string]string{"cut": "\x17\x03\x03\x00\x20cut off", "rubbish": "rubbish, and more of it"} {
		server, client := encryptedPair(t)
		if _, err := client.cipher.pollable.TryWrite([][]byte{[]byte(said)}); err != nil {
			t.Fatal(err)
		}
		_ = client.cipher.pollable.CloseWrite()
		n, err := server.TryRead(make([]byte, 100))
		if n != 0 || (err == nil) != (name == "cut") || err == unix.EAGAIN {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
}

// CloseWrite sends TLS's close_notify after all pending bytes, and then ends the socket's
// direction.
func TestCloseWriteOfTLS(t *testing.T) {
	for _, waits := range []bool{false, true} {
		server, client := encryptedPair(t)
		sent, got := 0, 0
		hear := func() (end bool) {
			for block := make([]byte, 64<<10); ; {
				n, err := client.cipher.pollable.TryRead(block)
				if n <= 0 {
					return err == nil
				}
				got += n
			}
		}
		for waits && len(server.cipher.pending) == 0 {
			n, err := server.cipher.Write(make([]byte, 1000))
			if err != nil {
				t.Fatal(err)
			}
			sent += n
		}
		if hear() {
			t.Error("the end comes by itself")
		}
		if err := server.CloseWrite(); err != nil {
			t.Error(err)
		}
		if end := hear(); !end || got < sent+10 || got > sent+100 {
			t.Errorf("%d bytes were written and %d have arrived, with the end: %v", sent, got, end)
		}
	}
}

// Read returns the bytes that have arrived; none if none has, and none at the end or on a broken
// socket, which the wait for input reports. All bytes go through the medium, which may be TLS.
func TestSocketReads(t *testing.T) {
	near, far := socketPair(t, "unix", filepath.Join(t.TempDir(), "s"))
	w, err := pollableOf(near)
	if err != nil {
		t.Fatal(err)
	}
	k := &socket{pollable: w, medium: w}
	read := func(want string) {
		t.Helper()
		p := make([]byte, 10)
		if n := k.Read(p); n != len(want) || string(p[:n]) != want {
			t.Errorf("%d bytes, %q, expected %q", n, p, want)
		}
	}
	read("")
	if _, err := far.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if n := k.Unread(); n != 5 {
		t.Errorf("%d bytes are to be read, expected 5", n)
	}
	read("hello")
	far.Close()
	read("")
	above := new(failing)
	k.medium = above
	read("")
	if n := k.Unread(); n != 7 {
		t.Errorf("%d bytes are to be read of a medium that has 7", n)
	}
	if k.CloseWrite(); !above.ended {
		t.Error("the medium does not say the end") // TLS does: otherwise an attacker could truncate the stream
	}
}

// A failing medium reads like a socket whose connection is broken. Its Unread and CloseWrite differ
// from those of the pollable below.
type failing struct {
	medium
	ended bool
}

func (*failing) TryRead([]byte) (int, error) { return -1, unix.ECONNRESET }
func (*failing) Unread() int                 { return 7 }
func (f *failing) CloseWrite() error         { f.ended = true; return nil }

// A writer that finds the socket full is told once that there is room, however often it tries; not
// if there was room all the time, and never for a closed socket.
func TestOneWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		l := newLoop(r.door, func() {}, func() {})
		n := &narrow{told: make(chan struct{})}
		k := &socket{pollable: n, medium: n}
		l.refresh()
		k.session = l.newSession(7, k)
		write := func(room, watches int) {
			t.Helper()
			n.room = room
			if took, err := k.Write([][]byte{[]byte("he"), []byte("llo")}); took != min(room, 5) || err != nil {
				t.Errorf("%d bytes, %v", took, err)
			}
			if synctest.Wait(); n.waits != watches {
				t.Errorf("waits for room %d times, expected %d", n.waits, watches)
			}
		}
		write(5, 0)
		write(2, 1)
		write(2, 1)
		time.Sleep(time.Second)
		began := time.Now()
		n.told <- struct{}{}
		if synctest.Wait(); l.ended.Before(began) {
			t.Error("the session is not told of room")
		}
		write(0, 2)
		n.told <- struct{}{}
		synctest.Wait()
		n.roomy = true
		write(3, 3) // no room is reported for it
		if k.watched.Load() {
			t.Error("room that was there already is waited for")
		}
		n.roomy = false
		write(3, 4)
		time.Sleep(time.Second)
		began = time.Now()
		close(n.told)
		if synctest.Wait(); !l.ended.Before(began) {
			t.Error("the session of a closed socket is told of room")
		}
		n.broken = true
		_, err := k.Write([][]byte{[]byte("x")})
		if synctest.Wait(); err != errBroken || n.waits != 4 {
			t.Errorf("a broken socket: %v, %d", err, n.waits)
		}
	})
}

// An endless medium always has a byte, and the session closes while it is read.
type endless struct {
	medium
	k     *socket
	reads int
}

func (e *endless) TryRead(p []byte) (int, error) {
	if e.reads++; e.reads == 3 {
		e.k.Close()
	}
	if e.reads > 10 {
		return 0, unix.EAGAIN
	}
	return 1, nil
}

// A socket that is being closed is no longer read, however much its client still sends.
func TestNoInputOfWhatCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		l := newLoop(r.door, func() {}, func() {})
		here, there := net.Pipe()
		defer there.Close()
		defer here.Close()
		k := &socket{place: &listen.Conn{Conn: here}}
		e := &endless{k: k}
		k.medium = e
		l.refresh()
		k.session = l.newSession(7, k)
		k.session.phase = ending // so that what is read is nothing to it
		if done := k.input(); !done || e.reads != 3 {
			t.Errorf("%d reads, done %v", e.reads, done)
		}
		if done := k.input(); !done || e.reads != 3 {
			t.Errorf("once more: %d reads, done %v", e.reads, done)
		}
	})
}

// A flood is a medium that always has more input.
type flood struct{ medium }

func (flood) TryRead([]byte) (int, error) { return 1, nil }

// As many clients as may read at a time never stop sending, and another client is still read.
func TestFloodsLeaveOthersTheirTurn(t *testing.T) {
	r := newUnixRig(t, nil)
	l := newLoop(r.door, func() {}, func() {})
	socketOn := func(m medium) *socket {
		here, there := net.Pipe()
		t.Cleanup(func() { here.Close(); there.Close() })
		k := &socket{place: &listen.Conn{Conn: here}, medium: m}
		l.begin()
		k.session = l.newSession(7, k)
		k.session.phase = ending // so that what is read is nothing to it
		l.end()
		return k
	}
	var floods sync.WaitGroup
	defer floods.Wait()
	for range readers {
		k := socketOn(flood{})
		defer k.Close()
		floods.Go(func() { k.input() })
	}
	budgettest.Until(t, "all places to be taken", func() bool { return len(l.readers) == readers })
	e := &endless{reads: 9}
	e.k = socketOn(e)
	read := make(chan bool, 1)
	go func() { read <- e.k.input() }()
	budgettest.Until(t, "another to be read", func() bool { return len(read) > 0 })
	if <-read || e.reads != 11 {
		t.Errorf("%d reads", e.reads)
	}
}

// Every transport counts why a connection ended.
func TestWhyConnectionsEnd(t *testing.T) {
	onTransports(t, func(t *testing.T, newSocketRig func(testing.TB, func(*Config)) *rig) {
		r := newSocketRig(t, nil)
		c := r.dial()
		c.bytes([]byte("rubbish, and more of it"))
		c.fault("Protocol")
		c.endDirection()
		budgettest.Until(t, "the reason", func() bool {
			return strings.Contains(scrape(r.Metrics), `connections_closed_total{door="tcp",reason="protocol"} 1`)
		})
	})
}

// Connections are spread over all loops.
func TestLoopsOfSockets(t *testing.T) {
	r := newRigAt(t, "unix:"+t.TempDir()+"/s", func(c *Config) { c.Loops = 2 })
	r.model("m", floats("x"), r.Echo)
	for range 4 {
		c := r.dial()
		c.send(message("m", "", 1, 2, 3, 4))
		values(t, c.next())
	}
	for _, l := range r.loops() {
		l.turns.Lock()
		if n := len(l.sessions); n != 2 {
			t.Errorf("a loop has %d of 4 connections", n)
		}
		l.turns.Unlock()
	}
}

// stop waits for the current turn of a loop, which could otherwise keep messages whose memory has
// been returned.
func TestStopWaitsForTurns(t *testing.T) {
	r := newRigAt(t, "unix:"+t.TempDir()+"/s", nil)
	s := &sockets{door: r.door, ended: make(chan struct{})}
	l, wake := newLoop(r.door, func() {}, func() {}), make(chan struct{})
	s.loops = []*loop{l}
	s.turns.Go(func() { s.run(l, wake, time.NewTimer(time.Hour)) })
	s.conns.Add(1) // stop waits for it after its own turn
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	budgettest.Until(t, "the turn of stop to be over", func() bool {
		l.turns.Lock()
		if l.ended.IsZero() {
			l.turns.Unlock()
			return false
		}
		return true // holding the lock, for which the loop's turn waits
	})
	wake <- struct{}{}
	s.conns.Done()
	<-s.ended
	select {
	case err := <-stopped:
		t.Error("a turn is not waited for")
		stopped <- err
	case <-time.After(10 * time.Millisecond):
	}
	l.turns.Unlock()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A client that ends its direction gets its outstanding answers: after a close_notify, without one,
// and after a truncated record.
func TestCutBeforeAnswers(t *testing.T) {
	for name, end := range map[string]func(encryptedClient) error{
		"close_notify": encryptedClient.CloseWrite,
		"a socket":     func(c encryptedClient) error { return c.socket.CloseWrite() },
		"half a record": func(c encryptedClient) error {
			_, err := io.Copy(c.socket, strings.NewReader("\x17\x03\x03\x00\x20cut off"))
			return errors.Join(err, c.socket.CloseWrite())
		},
	} {
		r := newTLSRig(t, nil)
		batches := make(chan *scheduler.Batch, 1)
		r.model("m", floats("x"), func(b *scheduler.Batch) error { batches <- b; return nil })
		c := r.dial()
		c.send(message("m", "", 1, 2, 3, 4))
		b := <-batches
		if err := end(c.client.(encryptedClient)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		budgettest.Until(t, "the end to be seen", func() (seen bool) {
			onlySession(r, func(s *session) { seen = s.phase == hungUp })
			return seen || r.open() == 0
		})
		if err := r.Echo(b); err != nil {
			t.Fatal(err)
		}
		values(t, c.next())
	}
}
