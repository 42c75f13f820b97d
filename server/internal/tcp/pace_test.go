package tcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A client over its rate is read at intervals: all of its requests are answered, however many
// arrive at once, even input too small to wake a loop, and its end is detected. Once it is no
// longer refused, it is read like any other.
func TestReadInTurns(t *testing.T) {
	onTransports(t, func(t *testing.T, newSocketRig func(testing.TB, func(*Config)) *rig) {
		const turn = 10 * time.Millisecond
		l := access.Limits{Burst: 4 * turn}
		l.Of[access.RequestsPerSecond] = 1
		var who access.Addresses
		who.Configure(l, true)
		r := newSocketRig(t, func(c *Config) { c.Addresses = &who })
		r.model("m", floats("x"), r.Echo)
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
		ask(2 * listen.Lump / len(question))
		who.Configure(access.Limits{}, true)
		if n := ask(60); n != 0 {
			t.Errorf("%d are refused without a quota", n)
		}
		budgettest.Until(t, "the connection to be read as others are", func() bool {
			ask(1)
			usual := true
			onlySession(r, func(s *session) {
				if k, ok := s.transport.(*socket); ok {
					least, err := unix.GetsockoptInt(k.pollable.(*descriptor).fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT)
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

// The messages of a client over its rate of bytes are read at about that rate, however large they
// are. Each has its answer, what is executed is answered while nothing is read, and the end of the
// client's direction is noticed. When the rate is paid, the client is read at full speed.
func TestLargeMessagesOverTheRate(t *testing.T) {
	const (
		rate, size = 2 << 20, 512 << 10
		most       = 200 // messages
	)
	onAll(t, func(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
		var who access.Addresses
		who.Configure(bytesPerSecond(rate), true)
		r := newRig(t, func(c *Config) { c.Addresses, c.MessageTimeout = &who, time.Second/2 })
		batches := make(chan *scheduler.Batch, 1)
		r.model("m", floats("x"), func(b *scheduler.Batch) error { batches <- b; return nil })
		c, began := r.dial(), time.Now()
		c.send(message("m", "", 1, 2, 3, 4))
		b := <-batches
		question := unknown(t, size)
		sent := make(chan int, 1)
		var enough atomic.Bool
		go func() { // until the client has ended its direction
			n := 0
			for ; n < most && !enough.Load(); n++ {
				if _, err := c.Write(question); err != nil {
					t.Error(err)
					break
				}
			}
			_ = c.CloseWrite()
			sent <- n
		}()
		budgettest.Until(t, "the server not to read it", func() bool { return rests(r) })
		time.AfterFunc(time.Second, func() { enough.Store(true) })
		if err := r.Echo(b); err != nil {
			t.Fatal(err)
		}
		values(t, c.next())
		answers := 0
		for m := c.next(); m != nil; m = c.next() {
			if shiva.ParseError(m) == nil {
				t.Errorf("answer %d: %s", answers, describeMessage(m))
			}
			answers++
		}
		if n := <-sent; answers != n {
			t.Errorf("%d messages have %d answers", n, answers)
		}
		took := time.Since(began)
		if n := taken(t, r); n < size || n > 3*rate*took.Seconds()+4*size {
			t.Errorf("%.0f KiB were read in %v, at %d KiB/s", n/1024, took, rate>>10)
		}
		if r.net == nil {
			return
		}
		time.Sleep(3 * time.Second)
		c, began = r.dial(), time.Now()
		c.bytes(unknown(t, 10*size))
		c.fault("NotFound")
		if took := time.Since(began); took > 0 {
			t.Errorf("what it has paid for is read in %v", took)
		}
	})
}

// A message that the server does not read for a while is not late: neither it nor the client's
// silence is the client's doing.
func TestClocksStandStillWhileNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var who access.Addresses
		who.Configure(bytesPerSecond(4<<10), true)
		r := newRig(t, func(c *Config) {
			c.Addresses, c.MessageTimeout, c.IdleTimeout = &who, time.Second, time.Second
		})
		c, began := r.dial(), time.Now()
		c.bytes(unknown(t, 1<<20)) // it pays that for four minutes
		c.fault("NotFound")
		c.bytes(unknown(t, 200<<10))
		c.fault("Overloaded")
		if took := time.Since(began); took < 20*time.Second {
			t.Errorf("it is read in %v", took)
		}
	})
}

// What a client sends before it has said who it is costs its address nothing in the end, so that
// others who come from there are not held back.
func TestFirstMessagesCostTheirAddressNothing(t *testing.T) {
	for _, c := range []struct {
		name  string
		quota access.Limits // of the client
		later string        // how all but the first are answered
	}{
		{"admitted", access.Limits{}, "NotFound"},
		{"refused", bytesPerSecond(1), "Overloaded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var who access.Addresses
				who.Configure(bytesPerSecond(1<<10), true)
				identities := new(access.Identities)
				identities.Replace([]access.Declaration{
					{Name: "camera", Tokens: []string{fmt.Sprintf("%x", sha256.Sum256([]byte("secret")))},
						May: []string{"infer"}, Quota: c.quota}})
				r := newRig(t, func(c *Config) { c.Addresses, c.Identities = &who, identities })
				began, answer := time.Now(), "NotFound"
				for range 5 {
					client := r.dial()
					client.bytes(unknown(t, 1<<20, `{"token":"secret"}`))
					client.fault(answer)
					answer = c.later
				}
				if took := time.Since(began); took > 0 {
					t.Errorf("they are read in %v", took)
				}
			})
		})
	}
}

// Messages that say nothing of their client, as they cannot be decoded, are read at the rate, too:
// only the beginning of a connection's first one does not wait.
func TestFaultsBeforeTheFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, size, faults = 64 << 10, 40_000, 40
		var who access.Addresses
		who.Configure(bytesPerSecond(rate), true)
		r := newRig(t, func(c *Config) { c.Addresses = &who })
		c, began := r.dial(), time.Now()
		c.bytes(bytes.Repeat(unknown(t, size, "{"), faults))
		for range faults {
			c.fault("Protocol")
		}
		if took := time.Since(began); took < (faults*size/rate-2)*time.Second {
			t.Errorf("they are read in %v", took)
		}
	})
}

// The first messages of other connections pay for nothing but themselves.
func TestFirstMessagesPayForNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, debt = 64 << 10, 16 // seconds
		var who access.Addresses
		who.Configure(bytesPerSecond(rate), true)
		r := newRig(t, func(c *Config) { c.Addresses = &who })
		c, began := r.dial(), time.Now()
		c.bytes(unknown(t, 1))
		c.fault("NotFound")
		c.bytes(unknown(t, debt*rate, "{"))
		c.fault("Protocol")
		for range debt - 2 {
			other := r.dial()
			other.bytes(unknown(t, 60_000))
			other.fault("NotFound")
			time.Sleep(time.Second)
		}
		c.bytes(unknown(t, 1))
		c.fault("NotFound")
		if took := time.Since(began); took < (debt-1)*time.Second {
			t.Errorf("the debt is paid in %v", took)
		}
	})
}

// A client that is not read for a while hangs up, or the server shuts down: its connection ends.
func TestEndWhileNotRead(t *testing.T) {
	onTransports(t, func(t *testing.T, newSocketRig func(testing.TB, func(*Config)) *rig) {
		for what, end := range map[string]func(r *rig, c *wire) error{
			"the client": func(_ *rig, c *wire) error { return c.Close() },
			"the server": func(r *rig, _ *wire) error {
				ctx, cancel := context.WithTimeout(t.Context(), doortest.Patience)
				defer cancel()
				return r.close(ctx)
			},
			"the server, at once": func(r *rig, _ *wire) error {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := r.close(ctx); !errors.Is(err, context.Canceled) {
					return fmt.Errorf("it returns %w", err)
				}
				return nil
			},
		} {
			var who access.Addresses
			who.Configure(bytesPerSecond(1<<10), true)
			r := newSocketRig(t, func(c *Config) { c.Addresses = &who })
			c := r.dial()
			question := unknown(t, 1<<20)
			var flood sync.WaitGroup
			flood.Go(func() {
				for _, err := c.Write(question); err == nil; _, err = c.Write(question) {
				}
			})
			budgettest.Until(t, "the server not to read it", func() bool { return rests(r) })
			if err := end(r, c); err != nil {
				t.Errorf("%s ends it: %v", what, err)
			}
			budgettest.Until(t, "the connection to end by "+what, func() bool { return r.open() == 0 })
			c.Close()
			flood.Wait()
		}
	})
}

func bytesPerSecond(rate int64) (l access.Limits) {
	l.Of[access.BytesPerSecond], l.Burst = rate, 100*time.Millisecond
	return l
}

// unknown is a message of that many bytes, and some more, to a model that does not exist.
func unknown(t *testing.T, bytes int, metadata ...string) []byte {
	x := tensor.Tensor{DType: tensor.Uint8, Shape: tensor.Shape{bytes}, Data: make([]byte, bytes)}
	b, err := shiva.AppendMessage(nil,
		&shiva.Message{Namespace: "unknown", Metadata: []byte(strings.Join(metadata, "")), Tensors: []tensor.Tensor{x}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rests reports whether the only connection is not read at the moment.
func rests(r *rig) (rests bool) {
	onlySession(r, func(s *session) {
		_, moved := s.transport.(*socket)
		rests = moved && s.lastInput.After(time.Now())
	})
	return rests
}

// taken is how many bytes the door has read.
func taken(t *testing.T, r *rig) (n float64) {
	const name = `shivad_received_bytes_total{door="tcp"} `
	_, rest, _ := strings.Cut(scrape(r.Metrics), name)
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
