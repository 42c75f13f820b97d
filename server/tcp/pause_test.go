package tcp

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/server/internal/intake"
	"github.com/shivad/shivad/server/internal/quota"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
)

// A client over its rate is read at intervals: all of its requests are answered, however many
// arrive at once, even input too small to wake a loop, and its end is detected. Once it is no
// longer refused, it is read like any other.
func TestReadInTurns(t *testing.T) {
	onTransports(t, func(t *testing.T, newSocketRig func(testing.TB, func(*Config)) *rig) {
		const turn = 10 * time.Millisecond
		l := quota.Limits{Burst: 4 * turn}
		l.Of[quota.RequestsPerSecond] = 1
		var who quota.Addresses
		who.Configure(l, true)
		r := newSocketRig(t, func(c *Config) { c.Addresses = &who })
		r.model("m", floats("x"), r.echo)
		c := r.dial()
		question, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		ask := func(n int) (refused int) {
			all := make([]byte, 0, n*len(question))
			for range n {
				all = append(all, question...)
			}
			c.bytes(all)
			for range n {
				if m := c.next(); m == nil {
					t.Fatal("the connection ends")
				} else if shiva.ParseError(m) != nil {
					refused++
				}
			}
			return refused
		}
		if n := ask(60); n != 59 {
			t.Fatalf("%d of 60 are refused", n)
		}
		const turns = 10
		began := time.Now()
		for range turns {
			ask(1)
		}
		if took := time.Since(began); took < (turns-1)*turn {
			t.Errorf("it was read %d times in %v", turns, took)
		}
		ask(20)
		ask(2 * intake.Lump / len(question))
		who.Configure(quota.Limits{}, true)
		if n := ask(60); n != 0 {
			t.Errorf("%d are refused without a quota", n)
		}
		budgettest.Until(t, "the connection to be read as others are", func() bool {
			ask(1)
			usual := true
			onlySession(r, func(s *session) {
				if k, ok := s.transport.(*conn); ok {
					least, err := unix.GetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT)
					usual = err == nil && least == 1
				}
			})
			return usual
		})
		who.Configure(l, true)
		ask(60)
		c.bytes(question)
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if m := c.next(); m == nil || shiva.ParseError(m) == nil {
			t.Error("what came before the end has no answer")
		}
		if m := c.next(); m != nil {
			t.Error("another answer")
		}
		budgettest.Until(t, "the connection to end", func() bool { return r.open() == 0 })
	})
}
