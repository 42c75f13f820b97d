package backoff

import (
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The pause doubles from First to Most, for any number of failures, less at most half of it.
func TestAfter(t *testing.T) {
	const never = 1<<63 - 1
	for _, c := range []struct {
		b        Backoff
		failures int
		want     time.Duration
	}{
		{Backoff{time.Second, time.Minute}, 0, 0},
		{Backoff{time.Second, time.Minute}, -1, 0},
		{Backoff{time.Second, time.Minute}, 1, time.Second},
		{Backoff{time.Second, time.Minute}, 2, 2 * time.Second},
		{Backoff{time.Second, time.Minute}, 6, 32 * time.Second},
		{Backoff{time.Second, time.Minute}, 7, time.Minute},
		{Backoff{time.Second, time.Minute}, never, time.Minute},
		{Backoff{time.Nanosecond, never - 1}, 64, never - 1},
		{Backoff{time.Hour, time.Minute}, 1, time.Minute},
		{Backoff{}, 3, 0},
	} {
		least, most := time.Duration(never), time.Duration(0)
		for range 1000 {
			d := c.b.After(c.failures)
			least, most = min(least, d), max(most, d)
		}
		if least < c.want/2 || most > c.want || most < c.want*9/10 || least > c.want/10*6 {
			t.Errorf("%v after %d: %v to %v, want up to %v", c.b, c.failures, least, most, c.want)
		}
	}
}

// ear fails a number of times before each connection.
type ear struct {
	net.Listener
	fails int
	conns []net.Conn
	calls []time.Time
}

func (e *ear) Accept() (net.Conn, error) {
	e.calls = append(e.calls, time.Now())
	switch {
	case len(e.calls)%(e.fails+1) != 0:
		return nil, errors.New("no descriptors")
	case len(e.conns) == 0:
		return nil, net.ErrClosed
	}
	conn := e.conns[0]
	e.conns = e.conns[1:]
	return conn, nil
}

// While accepting fails it is tried less and less often, and after a success as at first.
func TestAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := net.Pipe()
		e := &ear{fails: 20, conns: []net.Conn{one, two}}
		var served []net.Conn
		var told []time.Duration
		Accept(e, nil, func(_ error, pause time.Duration) { told = append(told, pause) }, func(c net.Conn) {
			served = append(served, c)
		})
		if !slices.Equal(served, []net.Conn{one, two}) || len(told) != 60 {
			t.Fatalf("%d connections, %d failures", len(served), len(told))
		}
		gap := func(i int) time.Duration { return e.calls[i+1].Sub(e.calls[i]) }
		for _, first := range []int{0, 21, 42} {
			if gap(first) != accepting.First || gap(first+1) != 2*accepting.First || gap(first+19) != accepting.Most {
				t.Errorf("pauses of %v, %v to %v", gap(first), gap(first+1), gap(first+19))
			}
		}
	})
}

// A pause ends when the loop is over.
func TestAcceptIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over, began := make(chan struct{}), time.Now()
		close(over)
		Accept(&ear{fails: 1 << 30}, over, func(error, time.Duration) {}, nil)
		if time.Since(began) != 0 {
			t.Error("it paused")
		}
	})
}

func TestWaitEndsWithItsTimeOrBefore(t *testing.T) {
	for _, c := range []struct {
		name    string
		d, over time.Duration // over 0: never
		want    bool
		took    time.Duration
	}{
		{"the time passes", time.Second, 0, true, time.Second},
		{"all is over before", time.Minute, time.Second, false, time.Second},
		{"all is over later", time.Second, time.Minute, true, time.Second},
		{"no time", 0, 0, true, 0},
		{"less than none", -time.Second, time.Second, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over := make(chan struct{})
				if c.over > 0 {
					time.AfterFunc(c.over, func() { close(over) })
				}
				began := time.Now()
				got := Wait(c.d, over)
				if took := time.Since(began); got != c.want || took != c.took {
					t.Errorf("Wait(%v) = %t in %v, expected %t in %v", c.d, got, took, c.want, c.took)
				}
				time.Sleep(2 * time.Minute) // no goroutine of a case outlives it
			})
		})
	}
}
