package pipelines

import (
	"errors"
	"math"
	"sync"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
)

// What a request lacks at one stage, it never asks of those after it. If only rows that come were
// counted, a stage would be found to be too small only when all before it are large enough; and a
// request that is refused as its stages together take too long would not count at any of them, so
// that replicas which are slow under load would be taken away for want of load. So rows that would
// have come count as arriving, as many as requests have there.

// yields are what is known of the stages of a pipeline, by name.
type yields struct {
	mu  sync.Mutex
	all map[string]*yield
}

// A yield is how many rows of a stage with Each come of a row of the stage before it.
type yield struct {
	mu         sync.Mutex
	rows, from float64 // sums over requests; each request before the last counts less
	owed       float64 // part of a row that was missed and is not counted yet
}

// yieldFades is by how much a request less counts with each that comes after it.
const yieldFades = 0.99

// of returns those of the stages, and forgets others.
func (ys *yields) of(stages []stage) (list []*yield) {
	ys.mu.Lock()
	defer ys.mu.Unlock()
	now := make(map[string]*yield, len(stages))
	for i := range stages {
		y := ys.all[stages[i].Name]
		if y == nil {
			y = new(yield)
		}
		now[stages[i].Name] = y
		list = append(list, y)
	}
	ys.all = now
	return list
}

func (y *yield) learn(from, rows int) {
	if from == 0 {
		return
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.rows, y.from = yieldFades*y.rows+float64(rows), yieldFades*y.from+float64(from)
}

// each is the mean, and one row as long as nothing is known.
func (y *yield) each() float64 {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.from == 0 {
		return 1
	}
	return y.rows / y.from
}

// miss counts rows at the model of the stage, of which m says the rest.
func (y *yield) miss(rows float64, target *gate.Target, m scheduler.Miss) {
	y.mu.Lock()
	y.owed += rows
	whole := math.Floor(y.owed)
	y.owed -= whole
	y.mu.Unlock()
	m.Rows = int(whole)
	switch {
	case m.Rows == 0:
	case target.Composite != nil:
		target.Composite.Missed(m)
	default:
		target.Model.Missed(m)
	}
}

// lacking reports whether an error says that time or replicas were wanting.
func lacking(err error) bool { return errors.Is(err, scheduler.ErrDeadlineExceeded) || refusing(err) }

// refusing reports whether an error is that of a model that had no room or no replica.
func refusing(err error) bool {
	return errors.Is(err, scheduler.ErrOverloaded) || errors.Is(err, scheduler.ErrUnavailable)
}

// missed counts the rows that a request which ends would have had, if nothing had been wanting.
// sent says that its calls were submitted, which count by themselves.
func (r *run) missed(sent bool) {
	if !r.short || r.err != nil && !lacking(r.err) {
		return
	}
	m := scheduler.Miss{Newest: r.call.Frame != nil && r.call.Keep() > 0, Late: !r.refused}
	for i := range r.stages {
		w := &r.stages[i]
		lost := r.lost(i)
		w.whole = float64(len(w.rows)) + lost
		for k := range w.rows {
			if o := &w.rows[k]; !(o.asked && sent) && (o.err == nil || lacking(o.err)) {
				lost++
			}
		}
		r.p.yields[i].miss(lost, r.p.plan.stages[i].target, m)
	}
}

// lost is how many rows a stage would have beside those that it has.
func (r *run) lost(i int) float64 {
	s := &r.p.plan.stages[i]
	from, all, has := s.scope, float64(r.call.Rows), float64(r.call.Rows)
	if s.Each != "" {
		from = s.stage.each.stage
	}
	if from != request {
		before := &r.stages[from]
		all, has = before.whole, float64(len(before.rows))
		for k := range before.rows {
			if s.Each != "" && lacking(before.rows[k].err) {
				has--
			}
		}
	}
	if !r.stages[i].listed {
		has = 0
	}
	if all -= has; s.Each != "" {
		all *= r.p.yields[i].each()
	}
	return all
}

// Missed implements gate.Composite.
func (p *pipeline) Missed(m scheduler.Miss) {
	if p.plan == nil {
		return
	}
	all := make([]float64, len(p.plan.stages))
	for i := range all {
		s := &p.plan.stages[i]
		switch {
		case s.Each != "":
			all[i] = all[s.stage.each.stage] * p.yields[i].each()
		case s.scope != request:
			all[i] = all[s.scope]
		default:
			all[i] = float64(m.Rows)
		}
		p.yields[i].miss(all[i], s.target, m)
	}
}
