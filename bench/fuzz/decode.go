package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// streams makes streams of frames and has them decoded, for one goroutine.
type streams interface {
	// one decodes a stream, and counts its contents.
	one() (stream, error)
}

// A stream counts what was decoded of one stream, or of several.
type stream struct{ frames, bytes, messages, faults int }

func (s *stream) add(o stream) {
	s.frames += o.frames
	s.bytes += o.bytes
	s.messages += o.messages
	s.faults += o.faults
}

const (
	longest = time.Second      // for decoding 100 streams
	hung    = 20 * time.Second // after which the process gives up and panics
	// The limit of memory is twice the bytes received, plus this for each stream.
	perStream = 64 << 10
)

// decode decodes a number of frames on all cores, and prints the outcomes.
func decode(ctx context.Context, name string, frames int, seed uint64, begin func(seed uint64) (streams, error)) error {
	if frames == 0 {
		return nil
	}
	workers := runtime.GOMAXPROCS(0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	var mu sync.Mutex
	var all stream
	var count int
	var slowest time.Duration
	var left atomic.Int64
	left.Store(int64(frames))
	errs := make([]error, workers)
	var working sync.WaitGroup
	for i := range workers {
		working.Go(func() {
			s, err := begin(seed + uint64(i)<<32)
			var own stream
			n, slow := 0, time.Duration(0)
			for err == nil && ctx.Err() == nil && left.Load() > 0 {
				watch := time.AfterFunc(hung, func() { panic(name + ": a stream is not decoded after " + hung.String()) })
				start := time.Now()
				var got stream
				for range 100 {
					if got, err = s.one(); err != nil {
						break
					}
					own.add(got)
					n++
					left.Add(-int64(got.frames))
				}
				slow = max(slow, time.Since(start))
				watch.Stop()
			}
			mu.Lock()
			defer mu.Unlock()
			errs[i] = err
			all.add(own)
			count += n
			slowest = max(slowest, slow)
		})
	}
	working.Wait()
	took := time.Since(began)
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	runtime.ReadMemStats(&after)
	taken := int64(after.TotalAlloc - before.TotalAlloc)
	fmt.Printf("%s: %d frames in %v, %s on %d cores: %d streams of %d MB, %d messages, %d faults; 100 streams took %v at most; %d MB allocated, %d MB in use by the process\n",
		name, all.frames, took.Round(time.Millisecond), rate(all.frames, took), workers, count, all.bytes/1e6, all.messages, all.faults,
		slowest.Round(time.Millisecond), taken/1e6, after.Sys/1e6)
	if most := 2*int64(all.bytes) + perStream*int64(count); taken > most {
		return fmt.Errorf("%s: %d bytes allocated for %d streams of %d bytes, expected %d at most", name, taken, count, all.bytes, most)
	}
	if slowest > longest {
		return fmt.Errorf("%s: %v for 100 streams, expected %v at most", name, slowest, longest)
	}
	return ctx.Err()
}
