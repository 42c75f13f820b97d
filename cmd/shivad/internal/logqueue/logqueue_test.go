package logqueue

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A reader is a log's destination that stops, fails and goes on.
type reader struct {
	mu    sync.Mutex
	text  strings.Builder
	gate  chan struct{} // a write waits until it is closed; nil: none waits
	fails error
	most  int // bytes that the failing writes take together
}

func (r *reader) Write(p []byte) (int, error) {
	r.mu.Lock()
	gate := r.gate
	r.mu.Unlock()
	if gate != nil {
		<-gate
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil {
		n := min(r.most, len(p))
		r.text.Write(p[:n])
		r.most -= n
		return n, r.fails
	}
	return r.text.Write(p)
}

func (r *reader) set(gate chan struct{}, fails error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gate, r.fails = gate, fails
}

func (r *reader) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

const line = "a line of the log that is not short, so that the queue is soon full: 0123456789\n"

// A reader that stops delays no Write. What the queue has room for is written when it goes on, the
// rest is counted, and reported once; every line is either there or counted.
func TestReaderStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		r := &reader{gate: gate}
		q := New(r)
		var reports []uint64
		q.Recovered(func(lost uint64) {
			reports = append(reports, lost)
			fmt.Fprintf(q, "lost %d\n", lost)
		})
		const all = uint64(4 * mostBytes / len(line))
		for range all { // waiting would be a deadlock here
			q.Write([]byte(line))
		}
		synctest.Wait()
		lost := q.Lost()
		close(gate)
		synctest.Wait()
		there := uint64(strings.Count(r.String(), line))
		if there+lost != all || lost == 0 || there < mostBytes/uint64(len(line)) {
			t.Errorf("%d lines are there and %d lost, of %d", there, lost, all)
		}
		if len(reports) != 1 || reports[0] != lost || !strings.HasSuffix(r.String(), fmt.Sprintf("lost %d\n", lost)) {
			t.Errorf("reported %d, lost %d", reports, lost)
		}
		q.Close(time.Hour)
		if q.Write([]byte(line)); q.Lost() != lost+1 {
			t.Error("a line after the end is not lost")
		}
	})
}

// A write that fails, as on a full disk or after the reader has gone, loses its lines and no later
// ones; a line that was cut does not run into the next.
func TestReaderFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{fails: errors.New("no space left on device"), most: 3}
		q := New(r)
		var reports []uint64
		q.Recovered(func(lost uint64) { reports = append(reports, lost) })
		for range 5 {
			q.Write([]byte(line))
			synctest.Wait()
		}
		r.set(nil, nil)
		for range 2 {
			q.Write([]byte("fine\n"))
			synctest.Wait()
		}
		if want := line[:3] + "\nfine\nfine\n"; r.String() != want {
			t.Errorf("got %q, expected %q", r, want)
		}
		if q.Lost() != 5 || len(reports) != 1 || reports[0] != 5 {
			t.Errorf("%d lost, reported %d", q.Lost(), reports)
		}
		q.Close(time.Hour)
	})
}

// Close writes what waits, and does not wait longer than it may.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{}
		q := New(r)
		for range 100 {
			q.Write([]byte(line))
		}
		q.Close(time.Hour)
		if n := strings.Count(r.String(), line); n != 100 {
			t.Errorf("%d lines", n)
		}
		gate := make(chan struct{})
		q = New(&reader{gate: gate})
		q.Write([]byte(line))
		began := time.Now()
		q.Close(time.Second)
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v", took)
		}
		close(gate)
	})
}
