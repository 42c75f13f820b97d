package main

import "time"

// A scale decides on the number of replicas: the highest that the servers have asked for within a
// window of time. So the number rises at once, and falls only when fewer have sufficed throughout
// the window, whatever the fluctuation. A controller that has just started counts the running
// replicas as a number asked for at that moment, so a restart scales nothing down.
type scale struct {
	// The oldest first, each lower than its predecessor: it counts once the predecessor is too old.
	samples []sample
}

type sample struct {
	at     time.Time
	number int32
}

// add records a number that the servers ask for.
func (s *scale) add(now time.Time, number int32) {
	for len(s.samples) > 0 && s.samples[len(s.samples)-1].number <= number {
		s.samples = s.samples[:len(s.samples)-1]
	}
	s.samples = append(s.samples, sample{now, number})
}

// replicas returns the highest number within the window, clamped to r; without samples, running.
func (s *scale) replicas(now time.Time, window time.Duration, r Range, running int32) int32 {
	for len(s.samples) > 1 && now.Sub(s.samples[0].at) >= window {
		s.samples = s.samples[1:]
	}
	number := running
	if len(s.samples) > 0 {
		number = s.samples[0].number
	}
	return min(max(number, r.Min), r.Max)
}
