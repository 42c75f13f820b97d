// Package backoff paces what is tried again: connections, restarts, and accepting without
// descriptors.
package backoff

import (
	"errors"
	"math/rand/v2"
	"net"
	"time"
)

// A Backoff says how long to pause between attempts that fail: First after the first failure, twice
// as long after each further one in a row, and Most at most. It has no state; the caller counts.
type Backoff struct{ First, Most time.Duration }

// After returns the pause after a number of failures in a row; 0 after none. It is jittered: peers
// that failed at the same moment must not come back at the same moment.
func (b Backoff) After(failures int) time.Duration { return Jitter(b.exact(failures)) }

func (b Backoff) exact(failures int) time.Duration {
	n := failures - 1
	switch {
	case n < 0:
		return 0
	case n < 63 && b.First <= b.Most>>n:
		return b.First << n
	default:
		return b.Most
	}
}

// Jitter shortens a pause by a random part of up to half.
func Jitter(d time.Duration) time.Duration { return d - rand.N(d/2+1) }

// Wait waits for d, and reports false if over was closed first. No time has always passed.
func Wait(d time.Duration, over <-chan struct{}) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-over:
		return false
	}
}

// accepting is the pace of Accept.
var accepting = Backoff{5 * time.Millisecond, time.Second}

// Accept passes the connections of a listener to serve, one after the other, until the listener or
// over is closed. When accepting fails, as it does while the process has no descriptor left, it
// tells failed and pauses: spinning would cost a core. The pauses have no jitter, since nobody else
// waits for the same.
func Accept(l net.Listener, over <-chan struct{}, failed func(err error, pause time.Duration), serve func(net.Conn)) {
	for failures := 0; ; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			failures = 0
			serve(conn)
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		failures++
		pause := accepting.exact(failures)
		failed(err, pause)
		if !Wait(pause, over) {
			return
		}
	}
}
