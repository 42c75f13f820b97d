package unfinished

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/tensor"
)

// A reader is a message with its reader, which releases memory only when the test says so.
type reader struct {
	Message
	mu  sync.Mutex
	why error // guarded by mu
}

func (r *reader) EndMessage(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = why
}

// told returns why the message was ended; nil: it was not.
func (r *reader) told() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

// A hall has a room of 1024 bytes: 640 for those who are known, 128 for strangers.
type hall struct {
	*Room
	pool    *tensor.Pool
	all     access.Addresses
	readers []*reader
}

func newHall() *hall {
	h := &hall{pool: tensor.NewPool(1024)}
	h.Room = NewRoom(h.pool)
	return h
}

// message begins a message of a payer, "?" at the end of whose name marks a stranger.
func (h *hall) message(payer string) *reader {
	r := new(reader)
	h.Begin(&r.Message,
		Sender{Payers: access.Payers{h.all.Enter(payer, false)}, Stranger: strings.HasSuffix(payer, "?"),
			InFlight: true, Reader: r})
	h.readers = append(h.readers, r)
	return r
}

// take is Take of a message that has announced as much as it takes.
func (r *reader) take(t *testing.T, held int64) {
	t.Helper()
	if err := r.Take(held, held); err != nil {
		t.Fatal(err)
	}
}

// finish finishes all messages, and checks that nothing is left.
func (h *hall) finish(t *testing.T) {
	t.Helper()
	for _, r := range h.readers {
		r.Finish()
	}
	if s := h.Stats(); s.Held != 0 || s.Strangers != 0 || h.known.ending+h.strangers.ending != 0 ||
		len(h.known.of)+len(h.strangers.of)+len(h.known.parties)+len(h.strangers.parties) != 0 {
		t.Errorf("in the end %+v, %+v, %+v are left", s, h.known, h.strangers)
	}
	for _, u := range h.all.Top(10) {
		if u.Has[access.BytesInFlight] != 0 {
			t.Errorf("%s still has %v", u.Payer, u.Has)
		}
	}
}

// Whoever holds most makes room for those who hold less, and for nobody else.
func TestWhoeverHoldsMostEnds(t *testing.T) {
	h := newHall()
	defer h.finish(t)
	greedy := []*reader{h.message("a"), h.message("a"), h.message("a")}
	greedy[0].take(t, 200)
	greedy[1].take(t, 300)
	if err := greedy[2].Take(200, 200); !errors.Is(err, scheduler.ErrOverloaded) {
		t.Errorf("room of a payer for itself: %v", err)
	}
	h.message("b").take(t, 140)
	if greedy[0].told() != nil || greedy[1].told() != nil {
		t.Fatal("a message ended while there was room")
	}
	modest := h.message("c")
	modest.take(t, 100)
	if err := greedy[1].told(); !errors.Is(err, scheduler.ErrOverloaded) || !strings.Contains(err.Error(), "address a held most of it, 500B") {
		t.Errorf("the largest message of whoever held most ended with %v", err)
	}
	if greedy[0].told() != nil || greedy[1].Ended() != greedy[1].told() {
		t.Errorf("ended: %v, %v", greedy[0].told(), greedy[1].Ended())
	}
	if err := greedy[1].Take(301, 301); err != greedy[1].told() {
		t.Errorf("an ended message takes more: %v", err)
	}
	if s := h.Stats(); s.Held != 740 || s.Most != 1 {
		t.Errorf("%+v; memory counts until it is released", s)
	}
	greedy[1].Finish()
	if s := h.Stats(); s.Held != 440 {
		t.Errorf("after its release: %+v", s)
	}
}

// What a message will need counts, not what it has: equal clients do not end each other's messages
// just before these are complete.
func TestNewcomersDoNotThrash(t *testing.T) {
	h := newHall()
	defer h.finish(t)
	for i := range 6 {
		h.message(fmt.Sprint(i)).take(t, 100)
	}
	if err := h.message("new").Take(50, 100); !errors.Is(err, scheduler.ErrOverloaded) {
		t.Errorf("a seventh of the same size: %v", err)
	}
	for _, r := range h.readers {
		if r.told() != nil {
			t.Errorf("a message ended for one that needs as much: %v", r.told())
		}
	}
	// A liar gets no further with less.
	liar := h.message("liar")
	liar.take(t, 20)
	if err := liar.Take(110, 20); !errors.Is(err, scheduler.ErrOverloaded) {
		t.Errorf("a message larger than announced: %v", err)
	}
}

// A message that nobody else has memory beside may have any size that the pool has.
func TestAnySizeAlone(t *testing.T) {
	h := newHall()
	defer h.finish(t)
	h.message("a").take(t, 1000)
	h.message("b").take(t, 10)
	if h.readers[0].told() == nil {
		t.Error("it stays when another needs room")
	}
}

// Strangers share a small room, end for each other there, and take nothing from those who are
// known.
func TestStrangersHaveARoomOfTheirOwn(t *testing.T) {
	h := newHall()
	defer h.finish(t)
	if r := NewRoom(tensor.NewPool(0)); r.strangers.limit != strangersBytes {
		t.Errorf("strangers have %d bytes where payloads have no limit", r.strangers.limit)
	}
	for i := range 128 {
		h.message(fmt.Sprintf("%d?", i)).take(t, 1)
	}
	h.message("big?")
	big := h.readers[128]
	if err := big.Take(60, 60); !errors.Is(err, scheduler.ErrOverloaded) || !strings.Contains(err.Error(), "!whoami") {
		t.Errorf("more room for a stranger: %v", err)
	}
	for _, r := range h.readers[:90] {
		r.Finish()
	}
	h.message("90 bytes?").take(t, 90)
	h.message("small?").take(t, 2)
	if err := h.readers[129].told(); err == nil || !strings.Contains(err.Error(), "!whoami") {
		t.Errorf("the stranger with most ended with %v", err)
	}
	h.message("known").take(t, 640)
	if s := h.Stats(); s.Strangers != 130 || s.Held != 770 {
		t.Errorf("%+v", s)
	}
}

// If complete requests fill the pool, only as much ends as a newcomer needs; strangers go first.
func TestFullPool(t *testing.T) {
	h := newHall()
	defer h.finish(t)
	h.message("stranger?").take(t, 30)
	h.message("a").take(t, 100)
	h.message("b").take(t, 100)
	if err := h.pool.Reserve(1000); err != nil {
		t.Fatal(err)
	}
	defer h.pool.Unreserve(1000)
	h.message("c").take(t, 40)
	if h.readers[0].told() == nil || h.readers[1].told() == nil && h.readers[2].told() == nil ||
		h.readers[1].told() != nil && h.readers[2].told() != nil {
		t.Errorf("ended: %v, %v, %v; expected the stranger and one of the others", h.readers[0].told(),
			h.readers[1].told(), h.readers[2].told())
	}
}

// What arrives counts in the quota of bytes in flight before it is complete.
func TestQuotaSeesWhatArrives(t *testing.T) {
	h := newHall()
	defer h.finish(t)
	var l access.Limits
	l.Of[access.BytesInFlight] = 50
	h.all.Configure(l, false)
	first := h.message("a")
	first.take(t, 200) // alone it may have any size
	var e *access.QuotaError
	if err := h.message("a").Take(1, 1); !errors.As(err, &e) || e.Kind != access.BytesInFlight || e.Has != 200 {
		t.Errorf("beside it: %v", err)
	}
	h.message("b").take(t, 1)
	first.Finish()
	h.readers[1].take(t, 1)
	var u access.Use
	if err := u.Begin(access.Payers{h.all.Enter("a", false)}, 60, time.Now()); !errors.As(err, &e) ||
		e.Kind != access.BytesInFlight {
		t.Errorf("a request beside it: %v", err)
	}
}

// The fuller the room, the less time a message has; in an empty one the door decides.
func TestPatienceFallsWithRoom(t *testing.T) {
	for _, c := range []struct {
		others int64 // bytes that another message holds
		at     time.Duration
	}{
		{0, 0},
		{270, 0},                            // less than half of 640, with the slow one's
		{437, 6 * time.Second},              // 0.7 used
		{640 - 11, 1500 * time.Millisecond}, // full
		{640 - 11, 1500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHall()
			slow := h.message("a")
			slow.take(t, 11)
			other := h.message("b")
			if c.others > 0 {
				other.Arrived(1 << 40)
				other.take(t, c.others)
			}
			began := time.Now()
			for slow.told() == nil && time.Since(began) < time.Minute {
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
			}
			took := time.Since(began).Truncate(100 * time.Millisecond)
			if slow.told() == nil {
				took = 0
			}
			if took != c.at {
				t.Errorf("beside %d bytes a slow message ended after %v with %v, expected %v", c.others, took,
					slow.told(), c.at)
			}
			if other.told() != nil {
				t.Errorf("so did one that arrives fast: %v", other.told())
			}
			h.finish(t)
			time.Sleep(time.Second)
			synctest.Wait()
			if h.watching {
				t.Error("an empty room is watched")
			}
		})
	}
}

// When the pool has no memory for what is complete, unfinished messages end, even if no other
// begins.
func TestPoolNeedsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall()
		defer h.finish(t)
		if err := h.pool.Reserve(1000); err != nil {
			t.Fatal(err)
		}
		holds := h.message("a")
		holds.Arrived(1 << 40)
		holds.take(t, 100)
		time.Sleep(time.Second)
		synctest.Wait()
		if holds.told() != nil {
			t.Fatal("ended before anything was refused")
		}
		if err := h.pool.Reserve(100); err == nil {
			t.Fatal("the pool is not full")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if holds.told() == nil {
			t.Error("it stays, and requests are refused for it")
		}
	})
}

// A message costs no allocation once the room has seen some.
func TestAllocs(t *testing.T) {
	h := newHall()
	a := h.all.Enter("a", false)
	r := new(reader)
	if n := testing.AllocsPerRun(100, func() {
		h.Begin(&r.Message, Sender{Payers: access.Payers{a}, InFlight: true, Reader: r})
		if r.Take(10, 10) != nil || r.Take(100, 100) != nil {
			t.Fatal("refused")
		}
		r.Finish()
	}); n != 0 {
		t.Errorf("%v allocations for each message", n)
	}
}
