package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/shivad/shivad/containers/subset"
)

// A Fleet describes a simulation.
type Fleet struct {
	Servers, Containers, Streams int
	// Subset is the number of servers with which a container has sessions; 0: subset.Default.
	Subset int
	// An execution of n rows takes A + B·n, with normal noise of relative standard deviation Noise.
	// A frame, which is a row, must be answered within SLO.
	A, B  time.Duration
	Noise float64
	SLO   time.Duration
	// Load is the rate of all streams, as a share of the containers' capacity (see
	// [Fleet.Capacity]): frames arrive at random (Poisson), each from a random stream.
	Load float64
	// Delay is the one-way delay of a message, and Jitter the mean of an exponential addition to
	// it.
	Delay, Jitter time.Duration
	// Settle passes without frames, so that containers even out their sessions; Warm with frames
	// that are not counted.
	Settle, Warm, Length time.Duration
	Seed                 uint64

	// Failing is the share of servers and of containers that fail per minute, half of them as
	// processes, which restart, and half with their machines.
	Failing float64
	Rack    float64 // share of servers and of containers whose machines fail at once, at Rise
	Roll    float64 // share of servers that are replaced, a tenth of all at once, from Rise on
	Rise    time.Duration
	Step    float64 // factor on the load from Rise on; 0: none
	Scale   bool    // containers are added as servers report a need for them
}

// Capacity is the number of rows per second that the containers can execute in batches of half the
// SLO, as in package scheduler/sim.
func (f Fleet) Capacity() float64 {
	rows := float64(f.SLO/2-f.A) / float64(f.B)
	return float64(f.Containers) * rows / (f.SLO / 2).Seconds()
}

func (f Fleet) end() time.Duration { return f.Settle + f.Warm + f.Length }

// from is the time from which frames count.
func (f Fleet) from() time.Duration { return f.Settle + f.Warm }

// rise is the time of a fleet's event.
func (f Fleet) rise() time.Duration { return f.from() + f.Rise }

// rate is the number of frames per second at a time.
func (f Fleet) rate(at time.Duration) float64 {
	r := f.Capacity() * f.Load
	if f.Step > 0 && at >= f.rise() {
		r *= f.Step
	}
	return r
}

func (f Fleet) subset() int {
	if f.Subset > 0 {
		return f.Subset
	}
	return subset.Default
}

func (f Fleet) check() error {
	switch {
	case f.Servers < 1 || f.Containers < 1 || f.Streams < 1:
		return fmt.Errorf("scale: %d servers, %d containers, %d streams: expected one of each at least", f.Servers, f.Containers, f.Streams)
	case f.A <= 0 || f.B <= 0 || f.SLO/2 <= f.A+f.B:
		return fmt.Errorf("scale: an execution of %v and %v a row: expected both above 0, and one row to take less than half of %v", f.A, f.B, f.SLO)
	case f.Load <= 0 || f.Length <= 0:
		return fmt.Errorf("scale: load %v for %v: expected both above 0", f.Load, f.Length)
	}
	return nil
}

// arrivals are the arrival times of frames, the same for the fleet and the oracle.
type arrivals struct {
	Fleet
	rng *rand.Rand
	at  float64 // ns, of the latest frame
}

func newArrivals(f Fleet) *arrivals {
	return &arrivals{f, rand.New(rand.NewPCG(f.Seed, 1)), float64(f.Settle)}
}

// next returns the arrival time of the next frame; math.MaxInt64 after the end.
func (a *arrivals) next() int64 {
	a.at += a.rng.ExpFloat64() * 1e9 / a.rate(time.Duration(a.at))
	if a.at >= float64(a.end()) {
		return math.MaxInt64
	}
	return int64(a.at)
}
