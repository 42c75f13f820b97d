package tcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// memory is a transport that keeps written bytes, as far as it has room.
type memory struct {
	out    []byte
	full   bool // has no room
	few    int  // if not 0, the bytes that it takes at a time
	held   int  // the result of Unacknowledged
	acks   int  // calls of Acknowledge
	shut   bool
	closed bool
	broken error // of every write
	later  bool  // closed is called later, as with gnet
	s      *session
}

func (m *memory) Write(vecs [][]byte) (n int, err error) {
	if m.broken != nil {
		return 0, m.broken
	}
	for _, v := range vecs {
		if m.full {
			break
		}
		if m.few > 0 && n+len(v) > m.few {
			v = v[:m.few-n]
		}
		m.out = append(m.out, v...)
		n += len(v)
	}
	return n, nil
}

func (m *memory) Unacknowledged() int { return m.held }
func (m *memory) Read([]byte) int     { return 0 }
func (m *memory) Unread() int         { return 0 }
func (m *memory) Acknowledge()        { m.acks++ }
func (m *memory) Rest(time.Duration)  {}
func (m *memory) CloseWrite()         { m.shut = true }
func (m *memory) Peer() string        { return "memory" }

func (m *memory) Close() {
	if !m.closed {
		m.closed = true
		if !m.later {
			m.s.closed()
		}
	}
}

// newSession makes a session on a loop whose turns only the test takes.
func newSession(t testing.TB, w scheduler.WorkerFunc, pool *tensor.Pool) (*session, *memory) {
	t.Helper()
	return newSessionOf(t, floats("x"), w, pool)
}

func newSessionOf(t testing.TB, spec scheduler.Spec, w scheduler.WorkerFunc, pool *tensor.Pool) (*session, *memory) {
	t.Helper()
	r := doortest.New(t, pool)
	t.Cleanup(r.Sched.Close)
	r.Model("m", spec, w)
	d := newDoor(Config{
		Entrance: r.Entrance("tcp"),
		Gate:     r.Gate, Regions: r.Regions, Pool: pool,
		Settings: Settings{
			Settings: listen.Settings{Bounds: listen.Bounds{MessageTimeout: 10 * time.Second,
				StallTimeout: 10 * time.Second}},
			InFlight: 256, OutboundBytes: 1 << 20, IdleTimeout: time.Minute,
		},
	})
	l := newLoop(d, func() {}, func() {})
	l.begin()
	m := &memory{}
	m.s = l.newSession(1, m)
	l.end()
	return m.s, m
}

// take gives the session bytes as one event of the loop.
func (s *session) take(p []byte) {
	s.loop.begin()
	s.traffic(p)
	s.loop.end()
}

// room tells the session that its transport has room again.
func roomFor(s *session) {
	s.loop.postReport(s, hasRoom)
	s.loop.turn()
}

// Answers arrive whole and in order however little the socket takes at a time, and no memory is
// freed before it was written.
func TestPiecemealAnswers(t *testing.T) {
	pool := tensor.NewPool(1 << 30)
	wide := floats("x")
	wide.Outputs = []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1, 5000}}}
	answers := byte(0)
	s, m := newSessionOf(t, wide, func(b *scheduler.Batch) error {
		buf, err := pool.Get(b.Rows * 5000)
		if err != nil {
			return err
		}
		for i := range b.Rows {
			answers++
			for j := range 5000 {
				buf.Bytes()[i*5000+j] = answers
			}
		}
		b.Complete(
			[]tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{b.Rows, 5000}, Data: buf.Bytes(), Buf: buf}}, nil)
		return nil
	}, pool)
	m.few = 777
	ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	const n = 20
	for range n {
		s.take(ask)
	}
	for turns := 0; s.waiting > 0; turns++ {
		if turns > 1000 {
			t.Fatalf("%d answers are still waiting", s.waiting)
		}
		roomFor(s)
	}
	d := shiva.NewDecoder(shiva.DecoderConfig{})
	for i := range n {
		k, got, err := d.Push(m.out)
		m.out = m.out[k:]
		if err != nil || got == nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		for _, v := range got.Tensors[0].Data {
			if v != byte(i+1) {
				t.Fatalf("answer %d has a byte of answer %d", i+1, v)
			}
		}
	}
	m.Close()
	s.loop.spares.Release()
	if pool.InUse() != 0 {
		t.Errorf("%d bytes are still out", pool.InUse())
	}
}

// Whatever a client sends behind an unanswered request, the line is bounded: beyond the bound the
// request is answered with the reason, and the session stops reading.
func TestLineIsBounded(t *testing.T) {
	for name, ask := range map[string]*shiva.Message{
		"control":  message("!models", ""),
		"metadata": message("m", `{"priority":"x"}`, 1),
		"route":    message("nobody", "", 1),
		"json":     {Namespace: "m", Metadata: []byte("{{{{")},
	} {
		s, m := newSession(t, func(*scheduler.Batch) error { return nil }, nil)
		first, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		s.take(first)
		next, err := shiva.AppendMessage(nil, ask)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 * floodFactor * 256 {
			s.take(next)
		}
		if limit := int32(floodFactor*256 + 1); s.waiting > limit || s.phase == reading {
			t.Errorf("%s: %d questions wait, expected %d at most; it is %v", name, s.waiting, limit, s.phase)
		}
		m.Close()
	}
}

// A request that was refused, or answered at once, holds no payload while its answer waits in the
// line.
func TestRefusedPayload(t *testing.T) {
	for name, ask := range map[string]*shiva.Message{
		"route":    message("nobody", `{"id":"a"}`, make([]float32, 4096)...),
		"metadata": message("m", `{"id":"a","priority":"x"}`, make([]float32, 4096)...),
		"shape":    message("m", `{"id":"a"}`, make([]float32, 4096)...),
		"control":  message("!live", `{"id":"a"}`, make([]float32, 4096)...),
	} {
		pool := tensor.NewPool(1 << 30)
		s, m := newSession(t, func(*scheduler.Batch) error { return nil }, pool)
		first, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		s.take(first)
		next, err := shiva.AppendMessage(nil, ask)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			s.take(next)
		}
		if n := pool.InUse(); n > 100<<10 {
			t.Errorf("%s: %d KiB are held for 100 questions whose answers are known", name, n>>10)
		}
		m.Close()
	}
}

// Nor does it hold values parsed from its metadata, which can be many times as large.
func TestRefusedMetadata(t *testing.T) {
	s, _ := newSession(t, func(*scheduler.Batch) error { return nil }, nil)
	note := strings.Repeat("x", 100<<10)
	for _, metadata := range []string{"", `{"id":"a","inputs":["","",""],"user":"` + note + `","note":"` + note + `","priority":"x"}`} {
		ask, err := shiva.AppendMessage(nil, message("m", metadata, 1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		s.take(ask)
	}
	q := &s.tail.question
	if s.waiting != 2 || string(q.ID) != `"a"` || q.Inputs != nil || q.User != "" || cap(q.forward) > 4<<10 {
		t.Errorf("%d wait; a refused one of id %s has %d texts, %d bytes of user and %d to forward", s.waiting, q.ID,
			len(q.Inputs), len(q.User), cap(q.forward))
	}
}

// A refusal tells what is wrong with a request without quoting all of it: neither while it waits,
// nor to a client that accepts a megabyte of metadata.
func TestRefusalIsShort(t *testing.T) {
	s, m := newSession(t, func(*scheduler.Batch) error { return nil }, nil)
	long := strings.Repeat(`\"`, 300<<10)
	for _, metadata := range []string{`{"__tensors__":["` + long + `"]}`, `{"version":"` + long + `"}`} {
		ask, err := shiva.AppendMessage(nil, message("m", metadata, 1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		s.take(ask)
		_, answer, err := shiva.NewDecoder(shiva.DecoderConfig{}).Push(m.out)
		if err != nil || answer == nil || len(answer.Metadata) > 20<<10 {
			t.Errorf("answered with %d bytes, error %v", len(m.out), err)
		}
		m.out = nil
	}
	first, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	s.take(first)
	ask, err := shiva.AppendMessage(nil, message("m", `{"version":"`+long+`"}`, 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	s.take(ask)
	if n := len(s.tail.err.Error()); n > 5<<10 || s.waiting != 2 || !errors.Is(s.tail.err, scheduler.ErrNotFound) {
		t.Errorf("a refusal of %d bytes is one of %d answers that wait: %v", n, s.waiting,
			errors.Is(s.tail.err, scheduler.ErrNotFound))
	}
}

// A call keeps little memory for the next request, whatever the last one had.
func TestCallsKeepLittle(t *testing.T) {
	s, _ := newSession(t, func(b *scheduler.Batch) error { b.Fail(errNot); return nil }, nil)
	ask, err := shiva.AppendMessage(nil, message("m", `{"note":"`+strings.Repeat("x", 1<<19)+`"}`, 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	s.take(ask)
	if len(s.loop.works.free) != 1 {
		t.Fatalf("%d idle calls, expected that of the question", len(s.loop.works.free))
	}
	if n := cap(s.loop.works.free[0].question.forward); n > 4<<10 {
		t.Errorf("an idle call has %d bytes of what the last one forwarded", n)
	}
}

// Nor does a loop keep the buffer in which one large answer was encoded.
func TestLoopKeepsLittle(t *testing.T) {
	words := floats("x")
	words.Outputs = []tensor.Spec{{Name: "y", DType: tensor.Bytes, Shape: tensor.Shape{-1}}}
	s, m := newSessionOf(t, words, func(b *scheduler.Batch) error {
		out, err := tensor.FromStrings(tensor.Shape{1}, []string{strings.Repeat("x", 9<<20)})
		if err != nil {
			return err
		}
		b.Complete([]tensor.Tensor{out}, nil)
		return nil
	}, nil)
	ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	s.take(ask)
	if len(m.out) < 9<<20 || cap(s.loop.out) > 8<<20 || cap(s.loop.metadata) > 8<<20 {
		t.Errorf("after an answer of %d bytes: %d for answers, %d for metadata", len(m.out), cap(s.loop.out),
			cap(s.loop.metadata))
	}
}

// Free calls that a burst has left behind are dropped within seconds; those that are needed, and a
// few more, are kept.
func TestLoopGivesUpCalls(t *testing.T) {
	s, _ := newSessionOf(t, floats("x"), func(*scheduler.Batch) error { return nil }, nil)
	l := s.loop
	known := make(map[*call]bool)
	crowd := func() {
		for len(l.calls.free) < 4096 {
			c := new(call)
			known[c] = true
			l.calls.give(c)
			l.works.give(new(work))
		}
	}
	crowd()
	ticks := func(needed int) (made int) {
		for range 100 {
			l.tick()
			var taken []*call
			for range needed {
				c := l.newCall(s, nil)
				if taken = append(taken, c); !known[c] {
					made++
				}
			}
			for _, c := range taken {
				c.enter(free)
				l.calls.give(c)
				l.works.give(c.work)
			}
		}
		return made
	}
	if made, n := ticks(1000), len(l.calls.free); made > 0 || n < 1000 || n > 1100 {
		t.Errorf("%d of 4096 are left where 1000 are needed, and %d were made", n, made)
	}
	crowd()
	ticks(0)
	if n := len(l.calls.free); n == 0 || n > 64 {
		t.Errorf("%d of 4096 are left where none is needed", n)
	}
	if n := len(l.works.free); n != len(l.calls.free) {
		t.Errorf("%d of 4096 works are left", n)
	}
	for _, c := range l.calls.free[:cap(l.calls.free)][len(l.calls.free):] {
		if c != nil {
			t.Fatal("one that was given up is held")
		}
	}
}

// Requests of a client that disconnects before they are submitted are dropped.
func TestGoneBeforeItsTurn(t *testing.T) {
	rows := 0
	s, m := newSession(t, func(b *scheduler.Batch) error { rows += b.Rows; b.Fail(errNot); return nil }, nil)
	ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	l := s.loop
	l.deferred = true // as when another session was read just before
	l.input(s, ask)
	l.turns.Lock()
	m.Close()
	l.turns.Unlock()
	l.turn()
	if rows != 0 {
		t.Errorf("%d rows of a client that has gone reached the worker", rows)
	}
}

// Bytes that could not be written to one session's socket are not written to another's.
func TestFailedWriteStaysWithItsSession(t *testing.T) {
	s, m := newSession(t, func(b *scheduler.Batch) error { b.Fail(errNot); return nil }, nil)
	other := &memory{}
	other.s = s.loop.newSession(2, other)
	m.broken, m.later = errors.New("connection reset"), true
	for _, p := range []struct {
		s  *session
		ns string
	}{{s, "mine"}, {other.s, "yours"}} {
		ask, err := shiva.AppendMessage(nil, message(p.ns, "", 1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		p.s.take(ask)
	}
	if !m.closed || bytes.Contains(other.out, []byte("mine")) || !bytes.Contains(other.out, []byte("yours")) {
		t.Errorf("closed %v, the other got %q", m.closed, other.out)
	}
	s.closed()
}

// A small request and its answer make no allocations in this package in steady state; the rest are
// the scheduler's and the worker's.
func TestAllocationsOfARequest(t *testing.T) {
	if budgettest.Race || tensor.Invariants {
		t.Log("counts only in an ordinary build")
		return
	}
	pool := tensor.NewPool(1 << 30)
	outputs := make([]tensor.Tensor, 1)
	s, m := newSession(t, func(b *scheduler.Batch) error {
		in := b.Parts[0].Inputs[0]
		in.Retain()
		outputs[0] = in
		b.Complete(outputs, nil)
		return nil
	}, pool)
	ask, err := shiva.AppendMessage(nil, message("m", `{"id":1}`, 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	const budget = 1
	n := testing.AllocsPerRun(1000, func() {
		m.out = m.out[:0]
		s.take(ask)
		if len(m.out) == 0 {
			t.Fatal("no answer")
		}
	})
	if n > budget {
		t.Errorf("%v allocations for a request, the budget is %d", n, budget)
	}
}

// TestCallSize: requests that wait keep little memory, and those that wait for the newest answer of
// a stream only what is not work. Above these sizes the allocator has 256 and 2304.
func TestCallSize(t *testing.T) {
	if n := unsafe.Sizeof(call{}); n > 240 {
		t.Errorf("a call takes %d bytes, expected at most 240", n)
	}
	if n := unsafe.Sizeof(work{}); n > 2048 {
		t.Errorf("the work of a call takes %d bytes, expected at most 2048", n)
	}
}

// expired checks that half a message was answered, that the server's direction has ended, and that
// the socket is closed a second later.
func expired(t *testing.T, m *memory) {
	t.Helper()
	_, answer, err := shiva.NewDecoder(shiva.DecoderConfig{}).Push(m.out)
	if err != nil || answer == nil || shiva.ParseError(answer) == nil ||
		shiva.ParseError(answer).Type != shiva.DeadlineExceeded {
		t.Errorf("answered %s, %v", describeMessage(answer), err)
	}
	if !m.shut || m.closed || m.s.receiver != nil {
		t.Errorf("our direction is ended: %v; closed: %v; still holds what came: %v", m.shut, m.closed,
			m.s.receiver != nil)
	}
	if later(m.s, time.Second); !m.closed {
		t.Error("still open")
	}
}

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// later takes the ticks of a session and its loop that are due after d.
func later(s *session, d time.Duration) {
	time.Sleep(d)
	s.loop.tick()
}

// hold is a model that never answers.
func hold(*scheduler.Batch) error { return nil }

// The clocks of a session. A message that does not arrive in time ends it.
func TestMessageClock(t *testing.T) {
	ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, "half a message", func(t *testing.T) {
		s, m := newSession(t, hold, nil)
		s.take(ask[:20])
		later(s, 9*time.Second)
		if len(m.out) > 0 || m.closed {
			t.Error("closed before its time")
		}
		later(s, 2*time.Second)
		expired(t, m)
	})
	bubble(t, "a large message that keeps coming", func(t *testing.T) {
		s, m := newSession(t, hold, nil)
		s.take(append(header(0, 1, 1), 1, 3, 0, 0x40, 0, 0))
		s.take(make([]byte, 1<<20))
		later(s, 70*time.Second) // 10 s, and 64 s for a MiB
		if len(m.out) > 0 || m.closed {
			t.Error("closed although it comes faster than 16 KiB/s")
		}
		later(s, 10*time.Second)
		expired(t, m)
	})
	bubble(t, "noise", func(t *testing.T) {
		s, m := newSession(t, hold, nil)
		next := s.loop.door.Settings()
		next.Resync, next.IdleTimeout = true, 0
		s.loop.door.Configure(next)
		s.take([]byte("a lorry goes by outside"))
		m.out = nil // a protocol error for the decoder
		later(s, time.Hour)
		if len(m.out) > 0 || m.closed {
			t.Error("closed for a message that has not begun")
		}
		s.take(ask[:20])
		later(s, 9*time.Second)
		if len(m.out) > 0 || m.closed {
			t.Error("closed before its time")
		}
		later(s, 2*time.Second)
		expired(t, m)
	})
}

// A client that sends nothing, or reads nothing, for too long ends it as well.
func TestReaderClock(t *testing.T) {
	ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, "idle", func(t *testing.T) {
		s, m := newSession(t, hold, nil)
		later(s, 59*time.Second)
		if m.closed {
			t.Error("closed before its time")
		}
		later(s, 2*time.Second)
		if !m.closed {
			t.Error("still open")
		}
	})
	bubble(t, "waiting is not idle", func(t *testing.T) {
		s, m := newSession(t, hold, nil)
		next := s.loop.door.Settings()
		next.IdleTimeout = time.Second
		s.loop.door.Configure(next)
		s.take(ask)
		later(s, 2*time.Second)
		if m.closed {
			t.Error("closed while a request was in flight")
		}
	})
	bubble(t, "a reader that stands still", func(t *testing.T) {
		s, m := newSession(t, func(b *scheduler.Batch) error { b.Fail(errNot); return nil }, nil)
		m.full = true
		s.take(ask)
		if m.closed || s.outbound.bytes == 0 {
			t.Errorf("closed %v, %d bytes unsent", m.closed, s.outbound.bytes)
		}
		later(s, 9*time.Second)
		m.full, m.few = false, 1 // the client reads a byte
		roomFor(s)
		m.full = true
		later(s, 9*time.Second)
		if m.closed {
			t.Error("closed although it reads, slowly")
		}
		later(s, 11*time.Second)
		if !m.closed {
			t.Error("still open")
		}
	})
	bubble(t, "a reader of what the socket has taken", func(t *testing.T) {
		s, m := newSession(t, func(b *scheduler.Batch) error { b.Fail(errNot); return nil }, nil)
		m.full, m.held = true, 4<<20
		s.take(ask)
		for range 10 {
			later(s, 9*time.Second)
			m.held -= 10 << 10
		}
		if m.closed {
			t.Error("closed although it reads, slowly")
		}
		later(s, 9*time.Second)
		later(s, 9*time.Second)
		later(s, 2*time.Second)
		if !m.closed {
			t.Error("still open")
		}
	})
	bubble(t, "lingering", func(t *testing.T) {
		s, m := newSession(t, hold, nil)
		s.take([]byte("GET / HTTP/1.1"))
		if !m.shut || m.closed || len(m.out) == 0 {
			t.Errorf("expected an answer and the end of our direction only: shut %v, closed %v, %d bytes", m.shut,
				m.closed, len(m.out))
		}
		s.take(make([]byte, 1000)) // bytes in transit do not reset the connection
		later(s, 1100*time.Millisecond)
		if !m.closed {
			t.Error("still open")
		}
	})
}

var errNot = scheduler.ErrContainerFailed

func BenchmarkRequest(b *testing.B) { benchmarkRequest(b, nil) }

// BenchmarkRequestOfIdentity is BenchmarkRequest for a client that has shown its token, with
// identities declared.
func BenchmarkRequestOfIdentity(b *testing.B) {
	who := new(access.Identities)
	sum := sha256.Sum256([]byte("t0ken"))
	who.Replace([]access.Declaration{{Name: "a", Tokens: []string{hex.EncodeToString(sum[:])}, May: []string{"infer:m*"}}})
	benchmarkRequest(b, who)
}

func benchmarkRequest(b *testing.B, identities *access.Identities) {
	const burst = 16 // requests per read
	pool := tensor.NewPool(1 << 30)
	var parts []tensor.Tensor
	s, m := newSession(b, func(batch *scheduler.Batch) error {
		parts = parts[:0]
		for i := range batch.Parts {
			parts = append(parts, batch.Parts[i].Inputs[0])
		}
		out, err := tensor.Concat(parts, pool)
		if err != nil {
			return err
		}
		batch.Complete([]tensor.Tensor{out}, nil)
		return nil
	}, pool)
	if identities != nil {
		s.loop.door.identities = identities
		first, _ := shiva.AppendMessage(nil, message("m", `{"token":"t0ken"}`, 1, 2, 3, 4))
		s.take(first)
	}
	var questions []byte
	for range burst {
		questions, _ = shiva.AppendMessage(questions, message("m", `{"id":1}`, 1, 2, 3, 4))
	}
	b.ReportAllocs()
	for b.Loop() {
		m.out = m.out[:0]
		s.take(questions)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*burst), "ns/request")
}
