// Package wake provides what goroutines of the server wait for: signals and ticks, until the end.
package wake

import (
	"iter"
	"time"
)

// Up signals c without waiting. c must have room for one signal: a signal that is still in c stands
// for this one, too.
func Up(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Each yields the values from c until over is closed.
func Each[T any](c <-chan T, over <-chan struct{}) iter.Seq[T] {
	return func(yield func(T) bool) {
		for {
			select {
			case v := <-c:
				if !yield(v) {
					return
				}
			case <-over:
				return
			}
		}
	}
}

// Every yields the time every d, the first after d, until over is closed.
func Every(d time.Duration, over <-chan struct{}) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		ticker := time.NewTicker(d)
		defer ticker.Stop()
		Each(ticker.C, over)(yield)
	}
}
