package main

import "time"

// Fleets of the page: an execution takes 200 ms plus 20 ms per row, frames have two seconds, each
// server has five containers and a hundred streams, a container has sessions with four servers, and
// the load is 0.8, which is 1.6 frames a second from each stream.
const (
	perServer = 5
	streams   = 100
	sessions  = 4
)

// fleetOf returns a fleet with a number of servers.
func fleetOf(servers int, seed uint64) Fleet {
	const ms = time.Millisecond
	return Fleet{
		Servers: servers, Containers: perServer * servers, Streams: streams * servers, Subset: sessions,
		A: 200 * ms, B: 20 * ms, Noise: 0.05, SLO: 2000 * ms, Load: 0.8,
		Delay: ms / 10, Jitter: ms / 20,
		Settle: 2 * time.Minute, Warm: 10 * time.Second, Length: 10 * time.Second, Seed: seed,
	}
}

// An act is a fleet with the name of its event.
type act struct {
	name  string
	fleet Fleet
}

// curve returns fleets of all sizes without events, below and above their capacity. Above it, the
// time of the largest executions has to be learned first. Small fleets are watched for longer: one
// execution that takes too long is a hundredth of what four servers answer in ten seconds.
func curve(sizes []int, seed uint64) (all []act) {
	for _, n := range sizes {
		f := fleetOf(n, seed)
		f.Length *= time.Duration(max(1, 64/n))
		over := f
		over.Load, over.Warm = 1.2, 40*time.Second
		all = append(all, act{"load 0.8", f}, act{"load 1.2", over})
	}
	return all
}

// events returns the acts with events.
func events(servers int, seed uint64) []act {
	at := func(name string, length time.Duration, change func(f *Fleet)) act {
		f := fleetOf(servers, seed)
		f.Settle, f.Length, f.Rise = time.Minute, length, 5*time.Second
		change(&f)
		return act{name, f}
	}
	return []act{
		at("1 % of all fail in a minute", 30*time.Second, func(f *Fleet) { f.Failing = 0.01 }),
		at("a rack of twenty goes", 20*time.Second, func(f *Fleet) { f.Rack = 1.0 / racks }),
		at("all servers are replaced", 130*time.Second, func(f *Fleet) { f.Roll = 1 }),
		at("half as much load again", 35*time.Second, func(f *Fleet) { f.Step, f.Scale = 1.5, true }),
	}
}
