package main

import "time"

// A scale decides how many replicas there are, from the numbers that the servers have given lately:
// the highest of them. So there are more at once, and fewer when fewer have been enough for all of
// the time after which the Model wants that, however the numbers go up and down meanwhile. What
// began at fifty replicas and is not known any more does not fall at once either: those that run
// when the controller starts count as a number of that moment.
type scale struct {
	// The oldest first, each lower than the one before: it counts when those before are too old.
	samples []sample
}

type sample struct {
	at     time.Time
	number int32
}

// add notes a number.
func (s *scale) add(now time.Time, number int32) {
	for len(s.samples) > 0 && s.samples[len(s.samples)-1].number <= number {
		s.samples = s.samples[:len(s.samples)-1]
	}
	s.samples = append(s.samples, sample{now, number})
}

// replicas is the highest number since then, within a range. Without any it is what runs.
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
