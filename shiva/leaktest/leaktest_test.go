package leaktest

import (
	"context"
	"runtime/pprof"
	"sync/atomic"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// A goroutine has the label of whichever started the one that started it, also where the one in
// between has ended, until it ends itself.
func TestLabelled(t *testing.T) {
	t.Parallel() // as those are that need it
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
	budgettest.Until(t, "the goroutine to end", func() bool { return !labelled("test") })
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
