package load

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// serve accepts connections and runs handle on each until the test ends.
func serve(t *testing.T, handle func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() { handle(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

func echo(c net.Conn) {
	io.Copy(c, c)
	c.Close()
}

// replies answers every n bytes with one answer.
func replies(n int, answer []byte) func(net.Conn) {
	return func(c net.Conn) {
		p := make([]byte, n)
		for {
			if _, err := io.ReadFull(c, p); err != nil {
				return
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	}
}

func same(request, answer []byte) error {
	if string(request) != string(answer) {
		return errors.New("not an echo")
	}
	return nil
}

var small = message("{}", "m", "\x00\x01"+"1234")

// lasting returns how long to drive a closed loop, which takes a whole processor: whole in "make
// unit", a fifth of it in "go test ./..." and under the race detector.
func lasting(whole time.Duration) time.Duration {
	if budgettest.Whole() {
		return whole
	}
	return whole / 5
}

func TestClosedLoop(t *testing.T) {
	for name, frame := range map[string][]byte{
		"small": small,
		// Larger than any socket buffer.
		"large": message("{}", "m", "\x01\x03\x00\x40\x00\x00"+strings.Repeat("x", 4<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			checks := 0
			r, err := Run(t.Context(), Config{Addr: serve(t, echo), Frames: [][]byte{frame}, Conns: 3, InFlight: 4,
				Duration: lasting(150 * time.Millisecond), Grace: time.Minute, CheckEvery: 10,
				Check: func(q, a []byte) error { checks++; return same(q, a) }})
			if err != nil {
				t.Fatal(err)
			}
			// On a slow machine there may be no answer in the measured time, but all arrive
			// within the grace.
			if r.Latency.Count() < 3*4 || r.Answered > r.Latency.Count() || r.Bytes != r.Answered*int64(len(frame)) ||
				r.Failed != 0 || r.Lost != 0 {
				t.Errorf("%d latencies, answered %d with %d bytes, failed %d, lost %d", r.Latency.Count(), r.Answered,
					r.Bytes, r.Failed, r.Lost)
			}
			// The first answer of each connection is checked, then one in ten. An answer
			// chosen for a check may never arrive.
			if want := max(3, int(r.Latency.Count())/10-6); checks < want {
				t.Errorf("%d answers of %d checked, want at least %d", checks, r.Latency.Count(), want)
			}
		})
	}
}

// An open loop sends exactly the requests of its schedule; each is answered and counted once.
func TestOpenLoopKeepsItsRate(t *testing.T) {
	r, err := Run(t.Context(), Config{Addr: serve(t, echo), Frames: [][]byte{small}, Conns: 4, Loops: 2,
		Rate: 2000, Even: true, Duration: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// Two loops of 1000/s: the k-th request of each is due after k ms, the last before 300 ms
	// is the 299th.
	if got := r.Latency.Count(); got != 2*299 || r.Lost != 0 {
		t.Errorf("%d latencies, %d lost, want 598 and none", got, r.Lost)
	}
}

// The point of an open loop: requests continue to fall due while the server stalls, and their
// latencies include the stall. A closed loop with one in flight would report a single slow request.
func TestNoCoordinatedOmission(t *testing.T) {
	const stall = 200 * time.Millisecond
	addr := serve(t, func(c net.Conn) {
		first := bufio.NewReader(c)
		// The stall begins when the first request arrives.
		_, _ = first.Peek(1)
		time.Sleep(stall)
		_, _ = io.Copy(c, first)
	})
	for _, inFlight := range []int{0, 1} {
		r, err := Run(t.Context(),
			Config{Addr: addr, Frames: [][]byte{small}, InFlight: inFlight, Rate: 1000, Even: true,
				Duration: 2 * stall})
		if err != nil {
			t.Fatal(err)
		}
		// The 100 requests due in the first half of the stall wait at least for the other half.
		if got := r.Latency.Quantile(0.75); got < stall/2 {
			t.Errorf("in flight %d: p75 is %v, want at least %v of the stall seen by a quarter of all", inFlight, got,
				stall/2)
		}
	}
}

func TestErrorsAreCounted(t *testing.T) {
	refusal := message(`{"type":"Overloaded"}`, "!error")
	r, err := Run(t.Context(),
		Config{Addr: serve(t, replies(len(small), refusal)), Frames: [][]byte{small}, InFlight: 2,
			Duration: 50 * time.Millisecond, Check: same})
	if err != nil {
		t.Fatal(err)
	}
	if r.Answered != 0 || r.Failed == 0 || r.Latency.Count() != 0 || r.Failure != `Overloaded: {"type":"Overloaded"}` {
		t.Errorf("answered %d, failed %d, %d latencies, failure %q", r.Answered, r.Failed, r.Latency.Count(), r.Failure)
	}
}

// Both loops bound the requests in flight. In an open loop the other due requests wait, and are
// lost as well.
func TestUnansweredAreLost(t *testing.T) {
	for name, c := range map[string]struct {
		rate float64
		lost int64
	}{
		"closed": {0, 2 * 3},
		"open":   {1000, 19}, // due after 1, 2, ... 19 ms
	} {
		t.Run(name, func(t *testing.T) {
			var taken atomic.Int64
			addr := serve(t, func(c net.Conn) {
				n, _ := io.Copy(io.Discard, c)
				taken.Add(n)
			})
			r, err := Run(t.Context(),
				Config{Addr: addr, Frames: [][]byte{small}, Conns: 2, InFlight: 3, Rate: c.rate, Even: true,
					Duration: 20 * time.Millisecond, Grace: 20 * time.Millisecond})
			if err != nil || r.Lost != c.lost || r.Answered != 0 {
				t.Errorf("lost %d, answered %d, error %v, want %d, 0 and none", r.Lost, r.Answered, err, c.lost)
			}
			budgettest.Until(t, "the server has 3 requests of each of 2 connections", func() bool {
				return taken.Load() == int64(2*3*len(small))
			})
		})
	}
}

// A generator that was held up sends late, but its requests still count from their due times.
func TestLatenessCounts(t *testing.T) {
	l, err := newLoop(Config{Frames: [][]byte{small}, Rate: 1000, Even: true, Duration: time.Second, Loops: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	c := &conn{blocked: true} // so that nothing is written
	l.conns = append(l.conns, c)
	if err := l.arrive(3500 * time.Microsecond); err != nil {
		t.Fatal(err)
	}
	for _, want := range []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond} {
		if got := c.due.take(0); got != want {
			t.Errorf("due at %v, want %v", got, want)
		}
	}
	if l.result.Lag.Count() != 3 || l.result.Lag.Max() != 2500*time.Microsecond ||
		l.result.Lag.Quantile(0) < 500*time.Microsecond {
		t.Errorf("it says that it was late %d times, by %v to %v", l.result.Lag.Count(), l.result.Lag.Quantile(0),
			l.result.Lag.Max())
	}
	if c.due.n != 0 || l.pause(3500*time.Microsecond) != 500*time.Microsecond {
		t.Errorf("%d more are due, next look in %v, want none and 500µs", c.due.n, l.pause(3500*time.Microsecond))
	}
}

func TestFailures(t *testing.T) {
	other := message("{}", "m", "\x00\x01"+"1235")
	for name, c := range map[string]struct {
		handle func(net.Conn)
		want   error
		text   string
	}{
		"wrong answer": {replies(len(small), other), nil, "wrong answer: not an echo"},
		"garbage":      {replies(len(small), make([]byte, 64)), errOutOfStep, "expected a Shiva header"},
		"answer twice": {replies(len(small), append(small[:len(small):len(small)], small...)), errOutOfStep, "an answer too many"},
		"closes at once": {func(c net.Conn) { io.CopyN(io.Discard, c, int64(len(small))); c.Close() },
			io.ErrUnexpectedEOF, "1 requests unanswered"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Run(t.Context(),
				Config{Addr: serve(t, c.handle), Frames: [][]byte{small}, Duration: time.Minute, Check: same})
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want it to say %q", err, c.text)
			}
		})
	}
	if _, err := Run(t.Context(), Config{Addr: "127.0.0.1:1", Frames: [][]byte{small}}); err == nil {
		t.Error("nobody listens, and no error")
	}
	if _, err := Run(t.Context(), Config{Addr: "127.0.0.1:1"}); err == nil {
		t.Error("nothing to send, and no error")
	}
}

func TestContextEndsRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := Run(ctx, Config{Addr: serve(t, echo), Frames: [][]byte{small}, Duration: time.Hour}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

func TestArrivals(t *testing.T) {
	const rate, n = 5000, 100_000
	a, b := newArrivals(rate, false, 7, 0), newArrivals(rate, false, 7, 0)
	var last, sum, squares float64
	for range n {
		at := a.next()
		if at != b.next() {
			t.Fatal("the same seed gave another schedule")
		}
		gap := float64(at) - last
		last = float64(at)
		sum += gap
		squares += gap * gap
	}
	mean := sum / n
	if deviation := squares/n - mean*mean; mean < 0.98e9/rate || mean > 1.02e9/rate || deviation < 0.95*mean*mean ||
		deviation > 1.05*mean*mean {
		t.Errorf("gaps have mean %.0f ns and variance %.3g, want %.0f and its square", mean, deviation,
			1e9/float64(rate))
	}
	if newArrivals(rate, false, 7, 1).next() == newArrivals(rate, false, 7, 0).next() {
		t.Error("two loops of one run have the same schedule")
	}
}

func TestDueKeepsOrder(t *testing.T) {
	var q due
	next, want := time.Duration(0), time.Duration(0)
	for round := range 200 {
		for range round % 97 {
			q.push(next)
			next++
		}
		for range q.n / 2 {
			if got := q.take(0); got != want {
				t.Fatalf("popped %d, want %d", got, want)
			}
			want++
		}
	}
	if q.n != int(next-want) {
		t.Errorf("length %d, want %d", q.n, next-want)
	}
}
