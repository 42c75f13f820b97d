package state_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// noLeaks checks at the end of the test, after all that it has closed, that goroutines and
// descriptors are as before.
func noLeaks(t *testing.T) {
	t.Helper()
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	t.Cleanup(func() {
		budgettest.Until(t, "all goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
		budgettest.Until(t, "all descriptors are closed", func() bool { return openDescriptors(t) <= descriptors })
	})
}

func openDescriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
