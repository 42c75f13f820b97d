package pipelines

import (
	"fmt"
	"math"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// begin makes the rows of a stage, and returns their calls, opened. Rows that have none are
// settled; if there is no call at all, the stage is done. The caller has the lock.
func (r *run) begin(i int) (calls []*gate.Call) {
	w, s := &r.stages[i], &r.p.plan.stages[i]
	w.begun, w.sent = true, math.MaxInt64
	if now := time.Now(); w.since.IsZero() {
		w.since = now
	}
	defer func() {
		if what := recover(); what != nil {
			calls = nil
			r.fail(s, r.p.panicked(what))
		}
	}()
	w.trace = r.request.Trace.Stage(s.Name, s.target.ID, w.since, r.within)
	if err := r.makeRows(i); err != nil {
		r.fail(s, err)
		return nil
	}
	w.listed = true
	if r.unbegun--; r.unbegun == 0 {
		defer r.parts.Add(-1)
	}
	if w.left = len(w.rows); w.left == 0 {
		r.finished(i)
		return nil
	}
	deadline, late := r.deadline(i)
	q := r.request
	if q.Timeout = deadline.Sub(q.Arrived); !s.first || len(w.rows) > 1 {
		q.Stream, q.Own = "", nil // the line of the stage orders its frames
	}
	r.asker.Target, r.asker.Stage = r.p.askers[i], w.trace
	for k := range w.rows {
		o := &w.rows[k]
		o.run, o.stage = r, int32(i)
		err := late
		if err == nil {
			err = o.err // a box that is none, or a row of another stage that failed
		}
		if err == nil {
			err = r.openRow(i, k, &q)
		}
		if err != nil {
			r.recordEnd(o, err)
			continue
		}
		o.asked = true
		o.call.Owner, q.Trace = o, nil // a stage's first row is traced as an example
		calls = append(calls, &o.call)
	}
	if late != nil {
		w.notBegun = len(w.rows)
	}
	return calls
}

// fail ends the request because of a stage that cannot begin.
func (r *run) fail(s *step, err error) {
	if r.err == nil {
		r.err = fmt.Errorf("%w (stage %q of pipeline %q)", err, s.Name, r.p.Name)
	}
}

// deadline returns when the rows of a stage must be answered, so that those after it have the time
// that they take at least; late says why the stage is not begun.
func (r *run) deadline(i int) (by time.Time, late error) {
	w, s := &r.stages[i], &r.p.plan.stages[i]
	by = r.call.Deadline.Add(-w.rest)
	now := time.Now()
	if s.timeout > 0 && now.Add(s.timeout).Before(by) {
		by = now.Add(s.timeout)
	}
	if left := by.Sub(now); left <= 0 || left < w.fastest {
		return by, fmt.Errorf("%w: stage %q is not begun: it takes at least %v, those after it %v, and %v are left",
			scheduler.ErrDeadlineExceeded, s.Name, w.fastest.Round(time.Microsecond), w.rest.Round(time.Microsecond),
			max(0, r.call.Deadline.Sub(now)).Round(time.Microsecond))
	}
	return by, nil
}

// makeRows lists the rows of a stage: those of its scope, or the elements of Each that are kept.
func (r *run) makeRows(i int) error {
	w, s := &r.stages[i], &r.p.plan.stages[i]
	if s.Each != "" {
		return r.elements(i)
	}
	n := r.call.Rows
	if s.scope != request {
		n = len(r.stages[s.scope].rows)
	}
	if n > mostRows {
		return tooMany(n, "send fewer rows")
	}
	w.rows = rowsFor(w.rows, n)
	for k := range w.rows {
		w.rows[k].parent = int32(k)
	}
	return nil
}

func tooMany(n int, cure string) error {
	return fault.TooLarge("%d rows, and a stage takes at most %d of a request: %s", n, mostRows, cure)
}

// rowsFor returns n rows in the memory of old ones.
func rowsFor(old []row, n int) []row {
	if cap(old) < n {
		return make([]row, n)
	}
	return old[:n]
}

// scopeOf is the scope of what a stage makes, or of the request's inputs.
func (r *run) scopeOf(from int) int {
	if from == request {
		return request
	}
	return r.p.plan.stages[from].scope
}

// openRow opens the call of a row.
func (r *run) openRow(i, k int, q *gate.Request) error {
	s, o := &r.p.plan.stages[i], &r.stages[i].rows[k]
	spec := &s.target.Spec
	if r.asker.Picture = 0; s.cuts >= 0 {
		p, err := r.picture(i, &s.feeds[s.cuts], r.above(s.scope, k, r.scopeOf(s.feeds[s.cuts].from)))
		if err != nil {
			return err
		}
		r.asker.Picture = p.number
	}
	r.opens(i, k)
	inputs := make([]tensor.Tensor, 0, len(s.feeds)+1)
	for n := range s.feeds {
		fed := &s.feeds[n]
		t, err := r.value(fed, i, k)
		if err != nil {
			return err
		}
		if !spec.Batched() {
			t.Shape = t.Shape[1:]
		}
		t.Name = spec.Inputs[fed.input].Name
		if inputs = append(inputs, t); fed.regions != "" {
			region, err := r.region(i, k)
			if err != nil {
				return err
			}
			inputs = append(inputs, region)
		}
	}
	q.Inputs = inputs
	if err := r.p.gate.OpenTarget(&o.call, s.target, q); err != nil {
		return err
	}
	o.call.PartOf(&r.parts)
	return nil
}

// value returns what an input of a row gets, with a leading dimension of 1 for the row. It refers
// to the memory of the request, or of the stage that made it.
func (r *run) value(fed *feed, i, k int) (t tensor.Tensor, err error) {
	if fed.element {
		o := &r.stages[i].rows[k]
		whole, err := r.made(fed.from, fed.output, int(o.parent))
		if err != nil {
			return t, err
		}
		if int(o.element) >= whole.Rows() {
			return t, r.paired(fed.from, fed.output, whole.Rows(), int(o.element)+1)
		}
		return whole.RowSlice(int(o.element), int(o.element)+1)
	}
	return r.given(fed, r.above(r.p.stages[i].scope, k, r.scopeOf(fed.from)))
}

// above returns the row of scope to that row k of scope from is in.
func (r *run) above(from, k, to int) int {
	for from != to {
		k = int(r.stages[from].rows[k].parent)
		from = r.p.parent(from)
	}
	return k
}

// asked returns a row of an input of the request.
func (r *run) asked(input, k int) (tensor.Tensor, error) {
	t := r.call.Inputs[input]
	if r.call.Rows == 1 {
		return t, nil
	}
	return t.RowSlice(k, k+1)
}

// made returns what a stage has made of one row, without the dimension for rows; the error is that
// of the row.
func (r *run) made(stage, output, k int) (t tensor.Tensor, err error) {
	o := &r.stages[stage].rows[k]
	if o.err != nil {
		return t, o.err
	}
	t = o.call.Outputs[output]
	if r.p.plan.stages[stage].target.Spec.Outputs[output].Ragged == "" {
		t.Shape = t.Shape[1:]
	}
	return t, nil
}
