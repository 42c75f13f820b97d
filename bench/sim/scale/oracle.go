package main

import (
	"math"
	"slices"
	"sort"
	"time"
)

// headShares are thresholds: the oldest frames go first if their batch has this share of the best
// rate. The oracle uses the best threshold.
var headShares = []float64{0, 0.9, 0.97}

// oracle counts the frames that would be answered in time by one queue for all containers, which
// knows when they start and end, whose executions take exactly A + B·n, and which waits for no
// message. All frames have equal time until their deadlines, so the oldest is the most urgent.
func oracle(f Fleet, t *tally) {
	best := -1
	for _, share := range headShares {
		bins := make([]int, len(t.res.Bins))
		good := newIdeal(f, t.lives, share).run(func(at time.Duration) {
			if t.counts(at) {
				bins[(at-t.from)/bin]++
			}
		})
		if good <= best {
			continue
		}
		best, t.res.Best = good, 0
		for i, n := range bins {
			t.res.Bins[i].Best = n
			t.res.Best += n
		}
	}
}

// An ideal is the state of an oracle.
type ideal struct {
	Fleet
	share   float64
	lives   []life // in the order of their beginnings
	idle    []int  // containers, as indices into lives
	busy    []release
	waiting []int64 // arrival times of frames, from head on
	head    int
	good    int
	count   func(at time.Duration)
}

// A release is the time at which a container becomes free.
type release struct {
	at   int64
	life int
}

func newIdeal(f Fleet, lives []life, share float64) *ideal {
	lives = slices.Clone(lives)
	slices.SortStableFunc(lives, func(a, b life) int { return int(a.from - b.from) })
	return &ideal{Fleet: f, share: share, lives: lives}
}

func (o *ideal) run(count func(at time.Duration)) int {
	o.count = count
	source := newArrivals(o.Fleet)
	next, come := source.next(), 0
	for {
		at := next
		if len(o.busy) > 0 {
			at = min(at, o.busy[0].at)
		}
		if come < len(o.lives) {
			at = min(at, int64(o.lives[come].from))
		}
		if at == math.MaxInt64 || at == next && next == math.MaxInt64 && len(o.busy) == 0 {
			return o.good
		}
		for ; come < len(o.lives) && int64(o.lives[come].from) <= at; come++ {
			o.idle = append(o.idle, come)
		}
		for len(o.busy) > 0 && o.busy[0].at <= at {
			o.idle = append(o.idle, o.pop())
		}
		for ; next <= at && next != math.MaxInt64; next = source.next() {
			o.waiting = append(o.waiting, next)
		}
		o.feed(at)
	}
}

// feed gives waiting frames to containers that are idle.
func (o *ideal) feed(now int64) {
	kept := o.idle[:0]
	for i := len(o.idle) - 1; i >= 0; i-- {
		n := o.idle[i]
		left := int64(o.lives[n].to) - now
		if left < int64(o.A+o.B) {
			continue
		}
		rows, took := o.pick(now, left)
		if rows == 0 {
			kept = append(kept, o.idle[:i+1]...)
			break
		}
		for _, at := range o.waiting[o.head : o.head+rows] {
			o.count(time.Duration(at))
		}
		o.good += rows
		o.head += rows
		o.push(release{now + took, n})
	}
	o.idle = kept
	if o.head > 1<<16 {
		o.waiting = append(o.waiting[:0], o.waiting[o.head:]...)
		o.head = 0
	}
}

// pick skips the frames that are not worth serving, and returns the number of following frames that
// a container executes which is up for the time left. Later frames have more time until their
// deadlines, so more of them fit into one execution: the best one begins where as many wait as fit.
func (o *ideal) pick(now, left int64) (rows int, took int64) {
	a, b := int64(o.A), int64(o.B)
	until := func(i int) int64 { return min(o.waiting[i]+int64(o.SLO)-now, left) }
	fits := func(i int) int { return int(min(max(0, (until(i)-a)/b), maxBatch)) }
	for o.head < len(o.waiting) && o.waiting[o.head]+int64(o.SLO)-now < a+b {
		o.head++
	}
	most := len(o.waiting)
	if o.head == most {
		return 0, 0
	}
	rows = min(fits(o.head), most-o.head)
	rate := func(n int) float64 { return float64(n) / float64(a+b*int64(n)) }
	if rows < most-o.head {
		at := o.head + sort.Search(most-o.head-1, func(i int) bool { return fits(o.head+i) >= most-o.head-i })
		if n := min(fits(at), most-at); rate(rows) < o.share*rate(n) {
			o.head, rows = at, n
		}
	}
	return rows, a + b*int64(rows)
}

func (o *ideal) push(r release) {
	o.busy = append(o.busy, r)
	i := len(o.busy) - 1
	for ; i > 0 && r.at < o.busy[(i-1)/2].at; i = (i - 1) / 2 {
		o.busy[i] = o.busy[(i-1)/2]
	}
	o.busy[i] = r
}

func (o *ideal) pop() (life int) {
	life = o.busy[0].life
	last := o.busy[len(o.busy)-1]
	o.busy = o.busy[:len(o.busy)-1]
	i := 0
	for {
		child := 2*i + 1
		if child >= len(o.busy) {
			break
		}
		if child+1 < len(o.busy) && o.busy[child+1].at < o.busy[child].at {
			child++
		}
		if last.at <= o.busy[child].at {
			break
		}
		o.busy[i] = o.busy[child]
		i = child
	}
	if len(o.busy) > 0 {
		o.busy[i] = last
	}
	return life
}
