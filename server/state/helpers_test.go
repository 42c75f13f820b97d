package state_test

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// noLeaks checks at the end of the test, after all that it has closed, that goroutines and
// descriptors are as before.
func noLeaks(t *testing.T) {
	t.Helper()
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			g, d := runtime.NumGoroutine(), openDescriptors(t)
			if g <= goroutines && d <= descriptors {
				return
			}
			if time.Now().After(end) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines before, %d after; %d descriptors before, %d after\n%s", goroutines, g, descriptors, d, stacks[:runtime.Stack(stacks, true)])
			}
		}
	})
}

func openDescriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
