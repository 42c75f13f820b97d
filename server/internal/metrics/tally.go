package metrics

import (
	"math/bits"
	"time"
)

// A Tally counts the requests of one goroutine at a door without atomics, until Flush adds its
// counts to the door's. An event loop calls Flush once a turn: a request then costs a few
// nanoseconds instead of seven atomic additions, 50 ns. Only one goroutine may use a Tally.
type Tally struct {
	door     *Door
	began    int64
	ended    int64
	received uint64
	sent     uint64
	last     *modelTally // the model counted last, usually also the next
	models   map[*Model]*modelTally
	seen     uint64 // Metrics.drops when models was last pruned
	dirty    []*modelTally
}

type modelTally struct {
	model    *Model
	dirty    bool
	requests [outcomes]uint32
	duration localHistogram
	wait     localHistogram
	times    times
}

// localHistogram is a histogram of a Tally.
type localHistogram struct {
	sum     int64
	used    uint32 // bit i: bucket i is not 0
	buckets [histogramBuckets]uint32
}

func (h *localHistogram) observe(d time.Duration) {
	i := bucketOf(int64(d), lowestNanos)
	h.buckets[i]++
	h.used |= 1 << i
	h.sum += max(int64(d), 0)
}

func (h *localHistogram) addTo(to *histogram) {
	if h.used == 0 {
		return
	}
	for ; h.used != 0; h.used &= h.used - 1 {
		i := bits.TrailingZeros32(h.used)
		to.buckets[i].Add(uint64(h.buckets[i]))
		h.buckets[i] = 0
	}
	to.sum.Add(h.sum)
	h.sum = 0
}

// Tally returns a tally for requests at the door.
func (d *Door) Tally() *Tally { return &Tally{door: d, models: make(map[*Model]*modelTally)} }

// Received counts bytes from clients, headers included.
func (t *Tally) Received(n int) { t.received += uint64(n) }

// Sent counts bytes to clients, headers included.
func (t *Tally) Sent(n int) { t.sent += uint64(n) }

// Began counts a request that has arrived; exactly one Answered must follow.
func (t *Tally) Began() { t.began++ }

// Answered counts the end of a request: its outcome, and the time since it arrived.
func (t *Tally) Answered(m *Model, o Outcome, took time.Duration) {
	at := t.of(m)
	at.requests[o]++
	at.duration.observe(took)
	at.times.answered(o, took, m.slo.Load())
	t.ended++
}

// Waited records how long a request waited until its first row was in a batch, and how long the
// batch with its last row took.
func (t *Tally) Waited(m *Model, queue, exec time.Duration) {
	at := t.of(m)
	at.wait.observe(queue)
	at.times.executed.add(exec)
}

func (t *Tally) of(m *Model) *modelTally {
	at := t.last
	if at == nil || at.model != m {
		if at = t.models[m]; at == nil {
			at = &modelTally{model: m}
			t.models[m] = at
		}
		t.last = at
	}
	if !at.dirty {
		at.dirty = true
		t.dirty = append(t.dirty, at)
	}
	return at
}

// Flush makes everything counted so far visible.
func (t *Tally) Flush() {
	d := t.door
	if t.began != t.ended {
		d.inFlight.Add(t.began - t.ended)
	}
	if t.received > 0 {
		d.received.Add(t.received)
	}
	if t.sent > 0 {
		d.sent.Add(t.sent)
	}
	t.began, t.ended, t.received, t.sent = 0, 0, 0, 0
	for i, at := range t.dirty {
		to := &at.model.doors[d.index]
		for o, n := range at.requests {
			if n > 0 {
				to.requests[o].Add(uint64(n))
				at.requests[o] = 0
			}
		}
		at.duration.addTo(&to.duration)
		at.wait.addTo(&at.model.queueWait)
		at.model.totals.add(&at.times)
		at.dirty = false
		t.dirty[i] = nil
	}
	t.dirty = t.dirty[:0]
	t.prune()
}
