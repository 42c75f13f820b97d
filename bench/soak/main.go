// Command soak runs shivad at 70 % of its capacity while clients, containers and versions of
// models come and go. It checks for leaks of memory, goroutines and descriptors, and that the
// last requests are as fast as the first.
//
//	soak [-length 2h] [-rate N] [-dir DIR]
//
// -rate bounds the offered load, on a machine that has other work.
//
// It exits with 1 if a promise is broken; verdict.go has the promises.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
)

const (
	windows    = 12 // of equal length; the last is compared with the first
	samples    = 10 // in a window
	clients    = 64 // connections of the steady load
	ofCapacity = 0.7
	settle     = 30 * time.Second // for connections that close at the end
	fillFrom   = 5 * time.Minute  // length of a run before which the server is filled
)

func main() {
	length := flag.Duration("length", 2*time.Hour, "`time` of the load")
	rate := flag.Float64("rate", 0, "offer at most this many `requests/s`; 0: 70 % of the capacity, whatever that is")
	dir := flag.String("dir", "", "`directory` for logs and a heap profile at the end; empty: a temporary one, which is removed if the run passes")
	flag.Parse()
	process.Main("soak", func(ctx context.Context) (broken []string, err error) {
		if least := windows * time.Second; *length < least {
			return nil, fmt.Errorf("-length is %v, expected %v or more", *length, least)
		}
		at, keep := *dir, *dir != ""
		if !keep {
			if at, err = os.MkdirTemp("", "soak-"); err != nil {
				return nil, err
			}
		}
		r, err := soak(ctx, at, *length, *rate)
		if err != nil {
			return nil, fmt.Errorf("%w\nlogs are in %s", err, at)
		}
		if broken = r.broken(); len(broken) > 0 {
			fmt.Println("logs and a heap profile are in", at)
		} else if !keep {
			os.RemoveAll(at)
		}
		return broken, nil
	})
}

// soak runs everything, and prints a line for each window. most bounds the requests per second; 0:
// no bound.
func soak(ctx context.Context, dir string, length time.Duration, most float64) (_ *report, err error) {
	s, err := start(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	capacity, err := s.capacity(ctx)
	if err != nil {
		return nil, err
	}
	rate := ofCapacity * capacity
	if most > 0 {
		rate = min(rate, most)
	}
	c := &churn{system: s}
	if length >= fillFrom {
		if err := c.fill(ctx); err != nil {
			return nil, err
		}
	}
	r := &report{Length: length}
	if r.Before, err = s.settled(ctx, nil); err != nil {
		return nil, err
	}
	fmt.Printf("capacity %.0f requests/s, offered %.0f; %s\n", capacity, rate, r.Before)

	churning, quit := context.WithCancel(ctx)
	var all sync.WaitGroup
	end := func() { quit(); all.Wait() }
	defer end()
	all.Go(func() { c.clients(churning) })
	all.Go(func() { c.containers(churning) })
	all.Go(func() { c.versions(churning) })
	var watched error
	all.Go(func() { r.Samples, watched = s.watch(churning, length/windows/samples) })

	window := length / windows
	for i := range windows {
		got, err := load.Run(ctx,
			load.Config{Addr: s.TCP, Frames: s.frames, Conns: clients, Rate: rate, Seed: uint64(i),
				Duration: window, Grace: time.Minute, Check: load.SameTensors})
		if err != nil {
			return nil, err
		}
		now, err := s.look(ctx)
		if err != nil {
			return nil, err
		}
		r.count(got)
		fmt.Printf("%8v  p50 %-8v p99 %-8v of %d, %d refused, %d lost; %s; %s\n", window*time.Duration(i+1),
			got.Latency.Quantile(0.5).Round(10*time.Microsecond),
			got.Latency.Quantile(0.99).Round(10*time.Microsecond), got.Answered+got.Failed, got.Failed, got.Lost, now,
			c)
	}
	end()
	if watched != nil {
		return nil, watched
	}
	r.Churn = c.counts()
	if r.After, err = s.settled(ctx, &r.Before); err != nil {
		return nil, err
	}
	fmt.Printf("in the end: %s; the heap grew by %.2f MiB an hour\n", r.After, slope(r.filled())/(1<<20))
	return r, s.profile(ctx, filepath.Join(dir, "heap.pprof"))
}
