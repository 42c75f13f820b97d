package hostile

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Burn takes a share of the processors until ctx ends, 1.5 being one and a half of them. It does so
// in pieces of some 100 µs at random times: a process measured alongside loses as much as to any
// work of that size, and nothing else.
func Burn(ctx context.Context, share float64) {
	done := make(chan struct{})
	threads := 0
	for ; share > 0; share-- {
		go func() {
			burn(ctx, min(share, 1))
			done <- struct{}{}
		}()
		threads++
	}
	runtime.GOMAXPROCS(max(threads, 1))
	for range threads {
		<-done
	}
}

// burn burns a share on one thread. It makes up later for time in which other processes had the
// processor: clients that are due wait in the same way.
func burn(ctx context.Context, share float64) {
	const nap = 250 * time.Microsecond // on average
	runtime.LockOSThread()
	used := func() time.Duration {
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // every Linux has this clock
		return time.Duration(t.Nano())
	}
	before := used()
	for began := time.Now(); ctx.Err() == nil; {
		for due := time.Duration(share * float64(time.Since(began))); used()-before < due; {
		}
		t := unix.NsecToTimespec(int64(rand.ExpFloat64() * float64(nap)))
		_ = unix.Nanosleep(&t, nil) // an interrupted nap is a shorter one
	}
}
