package scheduler

import "time"

// A Picker is a queue with a plan, for benchmarks of picking.
type Picker struct {
	q     queue
	items []*item
	plan  plan
	prof  profile
	Last  int
}

// NewPicker fills a queue with n rows, whose deadlines are 50 ms, plus what spread says, plus a microsecond for
// each that came before.
func NewPicker(n int, spread func() time.Duration) *Picker {
	p := &Picker{prof: newProfile(128)}
	for size := 1; size <= 128; size *= 2 {
		for range 10 {
			p.prof.learn(size, 5_000_000+500_000*int64(size), 0)
		}
	}
	p.plan = plan{max: 128, objective: int64(time.Second), shed: true, prof: &p.prof}
	for i := range n {
		it := &item{req: &Request{Rows: 1}, hi: 1, seq: uint64(i), deadline: int64(50*time.Millisecond+spread()) - int64(n-i)*1000}
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
