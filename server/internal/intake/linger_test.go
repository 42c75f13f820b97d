package intake

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/shiva/shivatest"
)

// lingeringNow is how many connections linger.
func (l *Listener) lingeringNow() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lingering)
}

// A client that neither sends nor goes is closed when its time is over. While as many linger as
// may, and where a connection cannot end one direction alone, a refused one is closed at once.
func TestLingeringEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(&Limits{})
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
		for what, far := range map[string]*shivatest.Link{"one too many": refused(plain), "one without directions": refused(whole)} {
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

// A connection that lingers has left the counts, and its client reads the last bytes and may go on
// sending, although nothing of that is read. Close does not cut that short.
func TestLingerOfAnAdmittedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(&Limits{Total: 1})
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
