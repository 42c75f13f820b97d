package statetest

import (
	"runtime"
	"testing"
)

// A Redis stays when the thread ends on which a test has started it.
func TestRedisOutlivesAThread(t *testing.T) {
	r := StoppedRedis(t)
	over := make(chan struct{})
	go func() { // ends at once, with its thread
		defer close(over)
		runtime.LockOSThread()
		r.Start(t)
	}()
	<-over
	for range 20 {
		if answer := r.Do(t, "PING"); answer != "PONG\n" {
			t.Fatalf("got %q", answer)
		}
	}
}
