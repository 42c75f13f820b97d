package tcp

import (
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
)

// A loop has ticks while a clock of a session runs, or idle connections are to be closed, and none
// otherwise: a server at rest does not wake up.
func TestTicks(t *testing.T) { onAll(t, testTicks) }

func testTicks(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, nil)
	r.model("m", floats("x"), r.echo)
	c := r.dial()
	ticks := func(want bool) func() bool {
		return func() bool {
			some := false
			for _, l := range r.loops() {
				l.turns.Lock()
				some = some || l.armed
				l.turns.Unlock()
			}
			return some == want
		}
	}
	question, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	c.bytes(question)
	values(t, c.next())
	budgettest.Until(t, "a loop at rest", ticks(false))
	c.bytes(question[:20])
	budgettest.Until(t, "the clock of a message to run", ticks(true))
	c.bytes(question[20:])
	values(t, c.next())
	budgettest.Until(t, "a loop at rest after it", ticks(false))
	next := r.door.Settings()
	next.IdleTimeout = 2 * tick
	r.door.Configure(next)
	budgettest.Until(t, "the idle connection to be closed", func() bool { return r.open() == 0 })
	budgettest.Until(t, "a loop at rest without connections", ticks(false))
}
