package listen

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/shiva/shivatest"
)

// lingeringNow returns how many connections linger.
func (l *Listener) lingeringNow() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lingering)
}

// A lingering connection whose client neither sends nor closes is closed after lingerTime. While
// the most connections linger, and if a connection cannot close only its writing side, a refused
// one is closed at once.
func TestLingeringEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(&Settings{})
		cfg.Refusal = func(err error) []byte { return []byte(err.Error()) }
		l := newListener(cfg)
		var wire shivatest.Net
		refused := func(wrap func(net.Conn) net.Conn) *shivatest.Link {
			near, far := wire.Pair("near", "far")
			l.refuse(wrap(near), errors.New("no"))
			text, err := io.ReadAll(far)
			if string(text) != "no" || err != nil {
				t.Errorf("the refused client reads %q, %v", text, err)
			}
			return far
		}
		plain := func(c net.Conn) net.Conn { return c }
		whole := func(c net.Conn) net.Conn { return struct{ net.Conn }{c} } // without CloseWrite
		var all []*shivatest.Link
		for range maxLingering {
			all = append(all, refused(plain))
		}
		for what, far := range map[string]*shivatest.Link{"one too many": refused(plain),
			"one without directions": refused(whole)} {
			if !far.Gone() {
				t.Errorf("%s is not closed", what)
			}
		}
		time.Sleep(lingerTime - time.Millisecond)
		synctest.Wait()
		if n := l.lingeringNow(); n != maxLingering || all[0].Gone() {
			t.Errorf("%d linger for a second, expected %d", n, maxLingering)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n := l.lingeringNow(); n != 0 || !all[0].Gone() {
			t.Errorf("%d linger after a second", n)
		}
	})
}

// A standstill is a connection of a machine that stalls past the deadlines of its first writes.
type standstill struct {
	*shivatest.Link
	times int
}

func (s *standstill) Write(p []byte) (int, error) {
	if s.times--; s.times >= 0 {
		return 0, os.ErrDeadlineExceeded
	}
	return s.Link.Write(p)
}

// A refusal is read even if the machine stalled; a client that reads nothing is not waited for.
func TestRefusalAfterAStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(&Settings{})
		cfg.Refusal = func(error) []byte { return []byte("no") }
		l := newListener(cfg)
		var wire shivatest.Net
		for times, want := range map[int]string{0: "no", 2: "no", 1000: ""} {
			near, far := wire.Pair("near", "far")
			l.refuse(&standstill{near, times}, errors.New("no"))
			if text, err := io.ReadAll(far); string(text) != want || err != nil {
				t.Errorf("after %d: %q, %v", times, text, err)
			}
		}
		near, far := wire.Pair("near", "far")
		if _, err := near.Write(make([]byte, 64<<10)); err != nil { // fill the buffer
			t.Fatal(err)
		}
		began := time.Now()
		if l.refuse(near, errors.New("no")); time.Since(began) != 30*time.Millisecond {
			t.Errorf("it has waited for %v", time.Since(began))
		}
		far.Close()
		time.Sleep(2 * lingerTime)
	})
}

// A lingering connection has left the counts; its client can read the last bytes and keep sending,
// although the server ignores the input. Close does not cut that short.
func TestLingerOfAnAdmittedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(&Settings{Connections: 1})
		l := newListener(cfg)
		if _, err := l.enter(Host{}); err != nil {
			t.Fatal(err)
		}
		var wire shivatest.Net
		near, client := wire.Pair("near", "far")
		c := &Conn{Conn: near, listener: l}
		if _, err := c.Write([]byte("bye")); err != nil {
			t.Fatal(err)
		}
		c.Linger()
		if err := c.Close(); err != nil || l.Open() != 0 {
			t.Errorf("%v; %d open", err, l.Open())
		}
		if text, err := io.ReadAll(client); string(text) != "bye" || err != nil {
			t.Errorf("the client reads %q, %v", text, err)
		}
		if n, err := client.Write(make([]byte, lingerBytes/2)); err != nil {
			t.Errorf("the client has sent %d bytes: %v", n, err)
		}
		if client.Gone() {
			t.Error("the connection was closed at once")
		}
		time.Sleep(lingerTime + time.Millisecond)
		if synctest.Wait(); !client.Gone() {
			t.Error("the connection is open after a second")
		}
	})
}
