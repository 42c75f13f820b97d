//go:build e2e

package e2e

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A stopwatch measures the time in which this machine runs the test: moments in which it stalls or
// runs other work are not the server's delay.
type stopwatch struct{ ran atomic.Int64 }

func newStopwatch(t *testing.T) *stopwatch {
	t.Helper()
	const step = 2 * time.Millisecond
	w := new(stopwatch)
	var running sync.WaitGroup
	running.Go(func() {
		for t.Context().Err() == nil {
			began := time.Now()
			time.Sleep(step)
			w.ran.Add(int64(min(time.Since(began), 2*step)))
		}
	})
	t.Cleanup(running.Wait)
	return w
}

// read returns the time since the start.
func (w *stopwatch) read() time.Duration { return time.Duration(w.ran.Load()) }
