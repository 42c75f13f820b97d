package load

import (
	"math/rand/v2"
	"time"
)

// arrivals is the schedule of an open loop: when each request is due, as time since the start.
// It does not depend on anything that the server does.
type arrivals struct {
	gap  float64 // mean, ns
	even bool
	r    *rand.Rand
	at   float64 // ns
}

// newArrivals schedules rate requests per second; share is the number of the loop within the run.
func newArrivals(rate float64, even bool, seed uint64, share int) *arrivals {
	return &arrivals{gap: 1e9 / rate, even: even, r: rand.New(rand.NewPCG(seed, uint64(share)))}
}

// next is when the next request is due.
func (a *arrivals) next() time.Duration {
	if a.even {
		a.at += a.gap
	} else {
		a.at += a.r.ExpFloat64() * a.gap
	}
	return time.Duration(a.at)
}

// due is a queue of the times of a connection's unanswered requests, oldest first. It grows as
// needed; in a closed loop its length is the number of requests in flight.
type due struct {
	times []time.Duration // a ring; its length is a power of two
	head  int
	n     int
}

func (q *due) push(t time.Duration) {
	if q.n == len(q.times) {
		bigger := make([]time.Duration, max(64, 2*q.n))
		for i := range q.n {
			bigger[i] = q.times[(q.head+i)&(len(q.times)-1)]
		}
		q.times, q.head = bigger, 0
	}
	q.times[(q.head+q.n)&(len(q.times)-1)] = t
	q.n++
}

// at is the time at place, 0 for the oldest.
func (q *due) at(place int) time.Duration { return q.times[(q.head+place)&(len(q.times)-1)] }

// take removes and returns the time at place, 0 for the oldest.
func (q *due) take(place int) time.Duration {
	mask := len(q.times) - 1
	t := q.times[(q.head+place)&mask]
	for ; place > 0; place-- {
		q.times[(q.head+place)&mask] = q.times[(q.head+place-1)&mask]
	}
	q.head = (q.head + 1) & mask
	q.n--
	return t
}
