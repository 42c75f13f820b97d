package main

import (
	"math"
	"time"
)

// bin is the length of a Bin.
const bin = 500 * time.Millisecond

// A Result is the outcome of a simulation. Counts cover the counted time, Length, as do Bins.
type Result struct {
	Fleet         Fleet
	Offered, Good int // frames, and those that were answered in time
	P50, P99      time.Duration
	Bins          []Bin // of the counted time
	Best          int   // frames that the oracle answers in time

	Executions, Rows int
	Messages         map[string]int // by kind
	Sessions         Spread         // of servers, when counting began
	Begun            int            // sessions that began since then, except those that ...
	Tried            int            // ... were made to try whether a server has fewer
	Attempts         int            // of containers to connect since then
	Moved            int            // streams that connected to another server since then
	Connected        Spread         // streams of servers at the end

	Redis  []second // its load
	Needed []int    // containers, as reported to KEDA every scaleEvery
	Had    []int    // containers that were up
}

// A Bin counts the frames of a piece of the counted time.
type Bin struct{ Offered, Good, Best int }

// A Spread tells how evenly something is spread over servers.
type Spread struct {
	Least, Most     int
	Mean, Deviation float64
}

// Share is the number of good frames as a share of the oracle's.
func (r *Result) Share() float64 { return float64(r.Good) / float64(max(1, r.Best)) }

// spread returns the Spread of values.
func spread(values []int) (s Spread) {
	s.Least = math.MaxInt
	for _, v := range values {
		s.Least, s.Most = min(s.Least, v), max(s.Most, v)
		s.Mean += float64(v) / float64(len(values))
	}
	for _, v := range values {
		s.Deviation += (float64(v) - s.Mean) * (float64(v) - s.Mean) / float64(len(values))
	}
	s.Deviation = math.Sqrt(s.Deviation)
	return s
}

// latencies is the number of classes of SLO for answer times.
const latencies = 500

// A tally counts during a simulation.
type tally struct {
	res          Result
	from, end    time.Duration
	messages     [kinds]int
	took         [latencies + 1]int
	begun, tried int
	attempts     int
	moved        int
	lives        []life
}

// A life is the time during which a container was up.
type life struct{ from, to time.Duration }

func (t *tally) init(f Fleet) {
	t.res.Fleet = f
	t.from, t.end = f.from(), f.end()
	t.res.Bins = make([]Bin, (f.Length+bin-1)/bin)
}

func (t *tally) counts(at time.Duration) bool { return at >= t.from && at < t.end }

// bin returns the Bin of a counted time.
func (t *tally) bin(at time.Duration) *Bin { return &t.res.Bins[(at-t.from)/bin] }

func (t *tally) message(w *world, k kind) {
	if t.counts(w.clock.since()) {
		t.messages[k]++
	}
}

func (t *tally) execution(w *world, rows int) {
	if t.counts(w.clock.since()) {
		t.res.Executions++
		t.res.Rows += rows
	}
}

func (t *tally) offered(at time.Duration) {
	if t.counts(at) {
		t.res.Offered++
		t.bin(at).Offered++
	}
}

// answered counts the answer to a frame that arrived at a time.
func (t *tally) answered(w *world, at int64, took time.Duration, good bool) {
	if good && t.counts(time.Duration(at)) {
		t.res.Good++
		t.bin(time.Duration(at)).Good++
		t.took[took*latencies/w.SLO]++
	}
}

func (t *tally) came(c *container) {
	c.life = len(t.lives)
	t.lives = append(t.lives, life{c.clock.since(), math.MaxInt64})
}

func (t *tally) went(c *container) { t.lives[c.life].to = c.clock.since() }

// starts starts the counting of sessions and connections.
func (t *tally) starts(w *world) {
	t.begun, t.tried, t.attempts, t.moved = 0, 0, 0, 0
	var sessions []int
	for _, s := range w.servers {
		sessions = append(sessions, len(s.sessions))
	}
	t.res.Sessions = spread(sessions)
}

func (t *tally) result(w *world) *Result {
	r := &t.res
	r.Begun, r.Tried, r.Attempts, r.Moved = t.begun, t.tried, t.attempts, t.moved
	r.Messages = map[string]int{}
	for k, n := range t.messages {
		r.Messages[kindNames[k]] = n
	}
	r.P50, r.P99 = t.quantile(0.5), t.quantile(0.99)
	r.Redis = w.traffic.seconds
	connected := map[*server]int{}
	for _, s := range w.streams {
		connected[s]++
	}
	var each []int
	for _, s := range w.servers {
		if s.state == up {
			each = append(each, connected[s])
		}
	}
	r.Connected = spread(each)
	oracle(w.Fleet, t)
	res := *r // a pointer into the world would keep all of it alive: gigabytes for each fleet
	return &res
}

// quantile is a quantile of the answer times of good frames.
func (t *tally) quantile(share float64) time.Duration {
	n := 0
	for i, m := range t.took {
		if n += m; float64(n) > share*float64(t.res.Good) {
			return time.Duration(i) * t.res.Fleet.SLO / latencies
		}
	}
	return 0
}
