package tcp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// sized adds a model that answers each row with as many bytes as the row's first number, in memory
// shared with rows of other requests, whose number is others. declared may be -1.
func sized(r *rig, name string, declared, others int) {
	r.T.Helper()
	spec := scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1, declared}}},
	}
	r.model(name, spec, func(b *scheduler.Batch) error {
		n := int(math.Float32frombits(binary.NativeEndian.Uint32(b.Parts[0].Inputs[0].Data)))
		buf, err := r.Pool.Get((b.Rows + others) * n)
		if err != nil {
			return err
		}
		b.Complete(
			[]tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{b.Rows, n}, Data: buf.Bytes()[:b.Rows*n],
				Buf: buf}}, nil)
		return nil
	})
}

// onlySession calls look with the only session, between two turns of its loop. There may be none
// yet, or none any more.
func onlySession(r *rig, look func(*session)) {
	for _, l := range r.loops() {
		l.turns.Lock()
		for _, s := range l.sessions {
			look(s)
		}
		l.turns.Unlock()
	}
}

// A client's unread answers are bounded from the first one on, long before it counts as stalled,
// and whether or not the model declares the size of its answers. If answers are larger than the
// model's last ones, whole batches of them may be held, and are bounded once the client counts as
// stalled and they have been copied out of their batches.
func TestUnreadAnswersAreBounded(t *testing.T) {
	t.Parallel() // it waits
	for name, c := range map[string]unread{
		"declared":   {declared: 1 << 20},
		"undeclared": {declared: -1},
		"unforeseen": {declared: -1, before: 20, others: 2},
	} {
		t.Run(name, func(t *testing.T) { onAll(t, c.test) })
	}
}

// unread is a case of TestUnreadAnswersAreBounded.
type unread struct {
	declared int
	before   int // small requests that come first
	others   int // rows of other requests in each batch, enough for copying to pay
}

func (c unread) test(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	const limit, answer, asked, input = 4 << 20, 1 << 20, 200, 64
	r := newRig(t, func(c *Config) { c.OutboundBytes, c.StallTimeout = limit, time.Minute })
	bound := int64(limit + 2*answer + asked*input)
	if r.net == nil {
		// Bytes that the kernel takes, megabytes, count as read, and as many may be held of their
		// batch, which is copied only when more than half of it has left.
		bound += 2 * limit
	}
	sized(r, "m", c.declared, c.others)
	greedy := r.dial()
	for range c.before {
		greedy.send(message("m", "", 16, 0, 0, 0))
		if m := greedy.next(); m == nil || m.Namespace != "m" {
			t.Fatal("no answer")
		}
	}
	b, _ := shiva.AppendMessage(nil, message("m", "", answer, 0, 0, 0))
	for range asked {
		if _, err := greedy.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	now, most := int64(0), int64(0)
	sample := func() {
		now = r.Pool.InUse()
		most = max(most, now)
	}
	budgettest.Until(t, "a client that does not read to stand still, with no more than it may have",
		func() (still bool) {
			sample()
			nothing := false
			onlySession(r, func(s *session) {
				still = s.stalled(s.loop.now, unreadGrace) && s.inFlight == 0
				nothing = s.inFlight+s.held == 0 && s.outbound.first == nil
			})
			if nothing { // the kernel took all that the limit allowed; it will be full
				if _, err := greedy.Write(b); err != nil {
					t.Fatal(err)
				}
			}
			return still && now <= bound
		})
	if c.others > 0 {
		most = now
	}
	next := r.door.Settings()
	next.StallTimeout = 2 * time.Second
	r.door.Configure(next)
	budgettest.Until(t, "the connection to be closed", func() bool {
		sample()
		return r.open() == 0
	})
	if most > bound {
		t.Errorf("%d KiB of payload for a client that does not read, whose limit is %d", most>>10, limit>>10)
	}
}

// A client that reads gets every answer, even if together they exceed the limit for unread answers;
// and the more it has read, the more of its requests share a batch.
func TestReaderGetsEverything(t *testing.T) {
	t.Parallel() // it waits
	const limit, answer, asked = 256 << 10, 150 << 10, 40
	for name, declared := range map[string]int{"declared": answer, "undeclared": -1} {
		test := func(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
			r := newRig(t, func(c *Config) { c.OutboundBytes = limit })
			sized(r, "m", declared, 0)
			c := r.dial()
			go func() {
				for i := range asked {
					b, _ := shiva.AppendMessage(nil, message("m", fmt.Sprintf(`{"id":%d}`, i), answer, 0, 0, 0))
					if _, err := c.Write(b); err != nil {
						return
					}
				}
			}()
			for range asked {
				m := c.next()
				if m == nil || m.Namespace != "m" || len(m.Tensors) != 1 || len(m.Tensors[0].Data) != answer {
					t.Fatalf("got %s", describeMessage(m))
				}
				m.Release()
			}
		}
		t.Run(name, func(t *testing.T) { onAll(t, test) })
	}
}

// Refusals wait like answers: a client that sends only invalid requests, each with a long id, is
// disconnected.
func TestUnreadRefusalsAreBounded(t *testing.T) { onAll(t, testUnreadRefusalsAreBounded) }

func testUnreadRefusalsAreBounded(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	const limit = 256 << 10
	r := newRig(t, func(c *Config) { c.OutboundBytes = limit })
	w := make(chan struct{})
	var held sync.WaitGroup // Fail releases the inputs last: the rig would find them in use
	r.model("held", floats("x"), func(b *scheduler.Batch) error {
		held.Go(func() { // ends with w; joined by the test
			<-w
			b.Fail(errNot)
		})
		return nil
	})
	defer held.Wait()
	defer close(w)
	c := r.dial()
	c.send(message("held", "", 1, 2, 3, 4)) // the line waits for this one
	id := make([]byte, 25<<10)
	for i := range id {
		id[i] = 'x'
	}
	for range 100 {
		c.send(message("nobody", `{"id":"`+string(id)+`"}`, 1))
	}
	budgettest.Until(t, "the session to leave", func() (leaves bool) {
		onlySession(r, func(s *session) {
			if leaves = s.phase != reading; s.refusals > limit+2*len(id) {
				t.Errorf("%d KiB of refusals wait", s.refusals>>10)
			}
		})
		return leaves
	})
	_, _ = io.WriteString(c, "x")
}

// Answers that wait for a stalled client take only the memory that is counted for them, not that of
// their batches; and they are unchanged.
func TestStandingAnswersAreUnpinned(t *testing.T) {
	t.Run("uint8", func(t *testing.T) { testUnpinned(t, tensor.Uint8, 4<<10, false) })
	t.Run("swapped", func(t *testing.T) { testUnpinned(t, tensor.Float32, 64<<10, false) })
	t.Run("one memory for all", func(t *testing.T) { testUnpinned(t, tensor.Uint8, 4<<10, true) })
}

// testUnpinned requests several answers at once and others one by one. If they are cached, all lie
// in the same memory.
func testUnpinned(t *testing.T, dtype tensor.DType, row int, cached bool) {
	synctest.Test(t, func(t *testing.T) {
		const batch, asked = 1 << 20, 12
		shape := tensor.Shape{1, row / dtype.Size()}
		pool := tensor.NewPool(1 << 30)
		spec := floats("x")
		spec.Outputs = []tensor.Spec{{Name: "y", DType: dtype, Shape: tensor.Shape{-1, shape[1]}}}
		spec.MaxBatch = 1
		n := byte(0)
		var cache *tensor.Buffer
		s, m := newSessionOf(t, spec, func(b *scheduler.Batch) error {
			buf := cache
			if buf != nil {
				buf.Retain()
			} else {
				var err error
				if buf, err = pool.Get(batch); err != nil { // as if it had rows of other requests as well
					return err
				}
				n++
			}
			if cached && cache == nil {
				cache = buf
				buf.Retain()
			}
			data := buf.Bytes()[:row]
			for i := range data {
				data[i] = n + byte(i%4)
			}
			b.Complete([]tensor.Tensor{{DType: dtype, Shape: shape, Data: data, Buf: buf}}, nil)
			return nil
		}, pool)
		ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		const together = 3
		m.few = 100 // ends inside the first answer
		s.take(bytes.Repeat(ask, together))
		m.full = true
		for range asked - together {
			s.take(ask)
		}
		before := pool.InUse()
		if cached {
			cache.Release() // as a cache does to evict it
		} else if before < asked*batch {
			t.Fatalf("%d KiB are out before", before>>10)
		}
		time.Sleep(2 * unreadGrace)
		s.loop.tick()
		if n := pool.InUse(); n > int64(2*asked*row) {
			t.Errorf("%d KiB are out for %d answers of %d KiB", n>>10, asked, row>>10)
		}
		m.full, m.few = false, 0
		roomFor(s)
		d := shiva.NewDecoder(shiva.DecoderConfig{})
		for k, rest := byte(1), m.out; k <= asked; k++ {
			used, answer, err := d.Push(rest)
			if err != nil || answer == nil {
				t.Fatalf("answer %d: %v", k, err)
			}
			rest = rest[used:]
			want := k
			if cached {
				want = 1
			}
			for i, v := range answer.Tensors[0].Data {
				if v != want+byte(i%4) {
					t.Fatalf("answer %d has %d in it", k, v)
				}
			}
		}
		s.loop.spares.Release() // the memory of the requests
		if n := pool.InUse(); n != 0 {
			t.Errorf("%d bytes are left", n)
		}
	})
}

// A request that waits for room on its connection, and is refused room by a quota once answers have
// left, is answered, and so are those that come after it.
func TestRefusedRoomLater(t *testing.T) {
	s, m := newSession(t, func(b *scheduler.Batch) error {
		b.Complete(
			[]tensor.Tensor{{DType: tensor.Float32, Shape: tensor.Shape{b.Rows, 4}, Data: make([]byte, 16*b.Rows)}},
			nil)
		return nil
	}, nil)
	s.loop.begin()
	s.outbox.SetLimit(20)
	settings := *s.loop.settings
	settings.OutboundBytes = 20
	s.loop.door.settings.Store(&settings)
	s.loop.end()
	ask, err := shiva.AppendMessage(nil, message("m", `{"id":1}`, 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	m.full = true
	s.take(ask)
	s.take(ask)
	if s.held != 1 {
		t.Fatalf("%d requests wait for room", s.held)
	}
	var addresses access.Addresses
	addresses.Configure(access.Limits{Of: [access.Quotas]int64{access.UnreadBytes: 20}}, true)
	payers := access.Payers{addresses.Enter("10.0.0.1", false)}
	var elsewhere access.Use
	if err := cmp.Or(elsewhere.Begin(payers, 0, time.Now()), elsewhere.Promise(1),
		s.firstHeld.use.Begin(payers, 0, time.Now())); err != nil {
		t.Fatal(err)
	}
	elsewhere.Became(100)
	m.full = false
	roomFor(s)
	s.take(ask)
	if answers := bytes.Count(m.out, []byte(`"id":1`)); answers != 3 || s.waiting != 0 ||
		!bytes.Contains(m.out, []byte(shiva.Overloaded)) {
		t.Errorf("%d answers, %d requests wait: %q", answers, s.waiting, m.out)
	}
}
