package tcp

import (
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A loop has ticks while a clock of a session runs or while idle_timeout is set and there are
// connections, and none otherwise: an idle server does not wake up.
func TestTicks(t *testing.T) { onAll(t, testTicks) }

func testTicks(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, nil)
	r.model("m", floats("x"), r.Echo)
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

// Gathered answers leave in one turn: of the goroutine that gathers them if they are all of one
// loop, otherwise of their loops.
func TestGather(t *testing.T) {
	var batch *scheduler.Batch
	s, m := newSession(t, func(b *scheduler.Batch) error { batch = b; return nil }, nil)
	l, woken := s.loop, 0
	l.wake = func() { woken++ }
	question, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	// answered sends a request that is answered between Gather and over.
	answered := func() (over func()) {
		m.out, batch = nil, nil
		s.take(question)
		if batch == nil {
			t.Fatal("no batch is out")
		}
		x, err := tensor.FromSlice(tensor.Shape{1, 4}, make([]float32, 4))
		if err != nil {
			t.Fatal(err)
		}
		over = l.door.Gather()
		if err := batch.Complete([]tensor.Tensor{x}, nil); err != nil {
			t.Fatal(err)
		}
		if len(m.out) > 0 || woken > 0 {
			t.Fatalf("%d bytes are written, and the loop is woken %d times, before all is there", len(m.out), woken)
		}
		return over
	}
	whole := func() bool { return s.waiting == 0 && len(m.out) > 0 }

	over := answered()
	if over(); !whole() || woken != 0 {
		t.Errorf("after all is there %d answers wait, and the loop was woken %d times", s.waiting, woken)
	}

	over = answered()
	l.turns.Lock()
	over()
	l.turns.Unlock()
	if woken != 1 || whole() {
		t.Errorf("in a turn of the loop it was woken %d times, expected 1, and all was written: %t", woken, whole())
	}
	if l.turn(); !whole() {
		t.Errorf("after the turn %d answers wait", s.waiting)
	}

	woken = 0
	others := 0
	other := newLoop(l.door, func() { others++ }, func() {})
	other.begin()
	second := other.newSession(2, &memory{})
	other.end()
	over = answered()
	other.postReport(second, hasRoom)
	if over(); woken != 1 || others != 1 || whole() {
		t.Errorf("of two loops one was woken %d times and the other %d times, expected once each, and all was written: %t",
			woken, others, whole())
	}
	l.turn()
	other.turn()
	woken = 0
	if over = l.door.Gather(); !l.deliver(mail{session: s}) {
		over()
	} else {
		t.Error("what is delivered while answers are gathered wakes a loop")
	}
	if l.postReport(s, hasRoom); woken != 1 {
		t.Errorf("what is delivered after it wakes the loop %d times", woken)
	}
}

// A trickle is a transport that takes a byte at a time, and has room again at once.
type trickle struct{ *memory }

func (w trickle) Write(vecs [][]byte) (int, error) {
	n, err := w.memory.Write(vecs)
	w.s.loop.postReport(w.s, hasRoom)
	return n, err
}

// A turn that another goroutine takes ends after two rounds, although there is more to do by then,
// and the loop does the rest.
func TestBorrowedTurnEnds(t *testing.T) {
	s, m := newSession(t, func(b *scheduler.Batch) error { b.Fail(errNot); return nil }, nil)
	l, woken := s.loop, 0
	l.wake = func() { woken++ }
	question, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	m.full = true
	s.take(question)
	m.full, m.few, s.transport = false, 1, trickle{m}
	if !l.deliver(mail{session: s, report: hasRoom}) {
		t.Fatal("the loop is in a turn")
	}
	l.takeTurn()
	if len(m.out) != 2 || woken != 1 {
		t.Errorf("%d rounds, and the loop was woken %d times; expected 2 and 1", len(m.out), woken)
	}
	if l.postReport(s, hasRoom); woken != 1 {
		t.Errorf("what comes before the loop's turn wakes it again, %d times", woken)
	}
	l.turn()
	if _, answer, err := shiva.NewDecoder(shiva.DecoderConfig{}).Push(m.out); err != nil || answer == nil {
		t.Errorf("after the loop's turn %d bytes of the answer are written: %v", len(m.out), err)
	}
	if l.postReport(s, hasRoom); woken != 2 {
		t.Errorf("after its turn the loop is woken %d times in all, expected 2", woken)
	}
}
