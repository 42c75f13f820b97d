package budgettest

import (
	"context"
	"runtime/pprof"
	"sync/atomic"
	"testing"
)

// A goroutine inherits the label through the goroutine that started it, even after that one has
// ended, and keeps it until its own end.
func TestLabelled(t *testing.T) {
	t.Parallel() // like the tests that need it
	defer pprof.SetGoroutineLabels(context.Background())
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(label, "test")))
	runs, stop := make(chan struct{}), make(chan struct{})
	go func() {
		go func() {
			close(runs)
			<-stop
		}()
	}()
	<-runs
	pprof.SetGoroutineLabels(context.Background())
	if !labelled("test") || labelled("tes") || labelled("other") {
		t.Errorf("labelled: %v, %v, %v", labelled("test"), labelled("tes"), labelled("other"))
	}
	close(stop)
	Until(t, "the goroutine to end", func() bool { return !labelled("test") })
}

// A test that ends before its goroutine waits for it.
func TestGoroutines(t *testing.T) {
	var ended atomic.Bool
	end := make(chan struct{})
	t.Run("with a goroutine", func(t *testing.T) {
		t.Cleanup(func() {
			if !ended.Load() {
				t.Error("the test did not wait")
			}
		})
		Goroutines(t)
		go func() {
			<-end
			ended.Store(true)
		}()
		t.Cleanup(func() { close(end) })
	})
}
