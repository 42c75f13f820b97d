package scheduler

import (
	"math"
	"math/rand/v2"
	"time"
)

// A Picker is a queue with a plan, for benchmarks of picking.
type Picker struct {
	q     queue
	items []*item
	plan  plan
	prof  profile
	Last  int
}

// NewPicker fills a queue with n rows, whose deadlines are 50 ms, plus spread(), plus a
// microsecond for each row before.
func NewPicker(n int, spread func() time.Duration) *Picker {
	p := &Picker{prof: newProfile(128)}
	for size := 1; size <= 128; size *= 2 {
		for i := range 10 {
			p.prof.learn(size, (5_000_000+500_000*int64(size))*int64(90+2*i)/100, 0)
		}
	}
	p.plan = plan{max: 128, objective: int64(time.Second), shed: true, prof: &p.prof}
	for i := range n {
		it := &item{req: &Request{Rows: 1}, hi: 1,
			place: place{seq: uint64(i), deadline: int64(50*time.Millisecond+spread()) - int64(n-i)*1000}}
		p.items = append(p.items, it)
		p.q.insert(it)
	}
	return p
}

// Pick chooses a window.
func (p *Picker) Pick() {
	w, ok := deadline{}.pick(&p.q, &p.plan)
	if !ok {
		panic("nothing to pick")
	}
	p.Last = w.rows
}

// A Learner is a profile that learns, for benchmarks: a batch of each size in turn, each of a
// millisecond, so that each causes an update.
type Learner struct {
	prof profile
	n    int
	now  int64
}

// NewLearner makes a Learner for batches of at most 128 rows.
func NewLearner() *Learner { return &Learner{prof: newProfile(128)} }

// Learn adds one measurement.
func (l *Learner) Learn() {
	l.n = l.n%128 + 1
	l.now += 1_000_000
	l.prof.learn(l.n, 500_000+4_000*int64(l.n)+int64(l.n*7919%100)*500, l.now)
}

// Believe gives a replica a random profile: for random sizes, times from 10 µs to 10 s as if
// measured up to 40 times each.
func Believe(r *Replica, rng *rand.Rand) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	now := r.m.sched.now()
	sizes := 1 + rng.IntN(12)
	any := func() float64 { return 1e4 * math.Pow(1e6, rng.Float64()) }
	level, spread := any(), rng.Float64()*3
	wild := rng.IntN(2) == 0
	r.profile.learn(1, int64(level), now)
	for range sizes {
		n := 1 + rng.IntN(1+rng.IntN(r.max))
		ns := level * (1 + rng.Float64()*float64(n)/8)
		if wild {
			ns = any()
		}
		for range 1 + rng.IntN(40) {
			r.profile.learn(n, int64(ns*math.Exp(spread*rng.NormFloat64())), now)
		}
	}
	r.m.core.measure()
}

// Locked reports whether a model's mutex is held. In a test with one goroutine, that goroutine
// holds it.
func Locked(m *Model) bool {
	if !m.mu.TryLock() {
		return true
	}
	m.mu.Unlock()
	return false
}
