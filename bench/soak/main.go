// Command soak runs shivad at 70 % of its capacity while clients, containers and versions of
// models come and go. It checks for leaks of memory, goroutines and descriptors, and that the
// last requests are as fast as the first.
//
//	soak [-length 2h] [-dir DIR]
//
// It exits with 1 if a promise is broken; verdict.go has the promises.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
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
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("soak: ")
	length := flag.Duration("length", 2*time.Hour, "`time` of the load")
	dir := flag.String("dir", "", "`directory` for logs and a heap profile of the end; empty: a new one, which is removed if all is well")
	flag.Parse()
	if err := process.AtTop(); err != nil {
		log.Fatal(err)
	}
	if *length < windows*time.Second {
		log.Fatalf("-length is %v, expected %v or more", *length, windows*time.Second)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	at, keep := *dir, *dir != ""
	if !keep {
		var err error
		if at, err = os.MkdirTemp("", "soak-"); err != nil {
			log.Fatal(err)
		}
	}
	r, err := soak(ctx, at, *length)
	if err != nil {
		log.Fatalf("%v\nlogs are in %s", err, at)
	}
	if broken := r.broken(); len(broken) > 0 {
		for _, b := range broken {
			fmt.Println("BROKEN:", b)
		}
		fmt.Println("logs and a heap profile are in", at)
		os.Exit(1)
	}
	if !keep {
		os.RemoveAll(at)
	}
}

// soak runs everything, and prints a line for each window.
func soak(ctx context.Context, dir string, length time.Duration) (_ *report, err error) {
	s, err := start(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	capacity, err := s.capacity(ctx)
	if err != nil {
		return nil, err
	}
	r := &report{length: length}
	if r.before, err = s.settled(ctx, nil); err != nil {
		return nil, err
	}
	fmt.Printf("capacity %.0f requests/s, offered %.0f; %s\n", capacity, ofCapacity*capacity, r.before)

	churning, quit := context.WithCancel(ctx)
	c := &churn{system: s}
	var all sync.WaitGroup
	end := func() { quit(); all.Wait() }
	defer end()
	all.Go(func() { c.clients(churning) })
	all.Go(func() { c.containers(churning) })
	all.Go(func() { c.versions(churning) })
	var watched error
	all.Go(func() { r.samples, watched = s.watch(churning, length/windows/samples) })

	window := length / windows
	for i := range windows {
		got, err := load.Run(ctx, load.Config{Addr: s.tcp, Frames: s.frames, Conns: clients, Rate: ofCapacity * capacity, Seed: uint64(i),
			Duration: window, Grace: time.Minute, Check: load.SameTensors})
		if err != nil {
			return nil, err
		}
		now, err := s.look(ctx)
		if err != nil {
			return nil, err
		}
		r.add(got)
		fmt.Printf("%8v  p50 %-8v p99 %-8v of %d, %d refused, %d lost; %s; %s\n", window*time.Duration(i+1), got.Latency.Quantile(0.5).Round(10*time.Microsecond),
			got.Latency.Quantile(0.99).Round(10*time.Microsecond), got.Answered+got.Failed, got.Failed, got.Lost, now, c)
	}
	end()
	if watched != nil {
		return nil, watched
	}
	r.churn = c.counts()
	if r.after, err = s.settled(ctx, &r.before); err != nil {
		return nil, err
	}
	fmt.Printf("in the end: %s; the heap grew by %.2f MiB an hour\n", r.after, slope(r.filled())/(1<<20))
	return r, s.profile(ctx, filepath.Join(dir, "heap.pprof"))
}
