package scheduler_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestAdmission: nothing is refused by prediction while a replica is cold or idle, or few rows
// wait; a request that cannot be in time is refused at once, with a RetryAfter.
func TestAdmission(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{MaxBatch: 10, Slots: 1}})
	w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(0, time.Millisecond)}
	model := addTo(t, s, benchID, rowsSpec, w).Model()
	var refused, late int
	var last *scheduler.OverloadedError
	submit := func(n int, slo time.Duration) {
		for range n {
			s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1, Deadline: clock.Now().Add(slo),
				Owner: ownerFunc(func(r *scheduler.Request) {
					if errors.As(r.Err, &last) {
						refused++
					} else if r.Err != nil {
						late++
					}
				})})
		}
	}
	submit(100, 20*time.Millisecond)
	if refused > 0 {
		t.Errorf("%d requests were refused when nothing was known", refused)
	}
	clock.Advance(time.Second)
	for range 50 {
		submit(10, 100*time.Millisecond)
		clock.Advance(20 * time.Millisecond)
	}
	if refused > 0 {
		t.Errorf("%d requests were refused at half the load", refused)
	}
	late = 0
	submit(300, 100*time.Millisecond) // 1 ms each
	if refused < 180 || refused > 210 {
		t.Errorf("%d of 300 requests were refused; there was time for about 100", refused)
	}
	if last == nil || last.Limit != "deadline" || last.RetryAfter <= 0 || !errors.Is(last, scheduler.ErrOverloaded) {
		t.Errorf("refused with %+v", last)
	}
	clock.Advance(time.Second)
	if late > 20 {
		t.Errorf("%d requests were admitted and then late", late)
	}
}

// TestFloodStarvesNobody: sources send ten times the capacity, and another source steadily sends
// less than its equal share of the capacity; that one is served.
func TestFloodStarvesNobody(t *testing.T) {
	for _, c := range []struct {
		floods, every int // sources that flood; steps between the other source's requests
	}{{1, 5}, {20, 20}, {50, 50}} {
		s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{MaxBatch: 32}})
		w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(2*time.Millisecond, 250*time.Microsecond)}
		model := addTo(t, s, benchID, rowsSpec, w).Model()
		sent, served, next := map[bool]int{}, map[bool]int{}, 0
		submit := func(source uint64) {
			modest := source == 0
			sent[modest]++
			s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1, Source: source,
				Deadline: clock.Now().Add(50 * time.Millisecond), Owner: ownerFunc(func(r *scheduler.Request) {
					if r.Err == nil {
						served[modest]++
					}
				})})
		}
		steps := 4000
		if !budgettest.Whole() {
			steps = 2000
		}
		for i := range steps {
			for range 15 {
				submit(uint64(1 + next%c.floods))
				next++
			}
			if i%c.every == 0 {
				submit(0)
			}
			clock.Advance(500 * time.Microsecond)
		}
		clock.Advance(time.Second)
		if share := float64(served[true]) / float64(sent[true]); share < 0.8 {
			t.Errorf("beside %d floods, of which %d of %d requests were served, the modest source was served %.2f of its %d requests",
				c.floods, served[false], sent[false], share, sent[true])
		}
	}
}

// admission is a model on a virtual clock, with the number of its requests refused by prediction.
type admission struct {
	t       *testing.T
	s       *scheduler.Scheduler
	clock   *schedtest.Clock
	model   *scheduler.Model
	refused int
}

func newAdmission(t *testing.T, cfg scheduler.ModelConfig, w *schedtest.Worker) *admission {
	a := &admission{t: t}
	a.s, a.clock = newVirtual(t, scheduler.Config{Default: cfg})
	w.Clock = a.clock
	a.model = addTo(t, a.s, benchID, rowsSpec, w).Model()
	return a
}

func (a *admission) submit(n, priority int, within time.Duration) {
	for range n {
		a.s.Submit(&scheduler.Request{Model: a.model, Inputs: rowOf(a.t, 1), Rows: 1, Priority: priority,
			Deadline: a.clock.Now().Add(within), Owner: ownerFunc(func(r *scheduler.Request) {
				var o *scheduler.OverloadedError
				if errors.As(r.Err, &o) && o.Limit == "deadline" {
					a.refused++
				}
			})})
	}
}

// teach lets n batches of at most 10 rows be answered.
func (a *admission) teach(n int) {
	for range n {
		a.submit(10, 0, time.Second)
		for a.model.Stats().Requests > 0 {
			a.clock.Step()
		}
	}
}

// TestAdmissionOfTheUnknown: nothing is refused by prediction while a replica has few
// measurements.
func TestAdmissionOfTheUnknown(t *testing.T) {
	for _, c := range []struct {
		known   int
		refuses bool
	}{{2, false}, {40, true}} {
		a := newAdmission(t, scheduler.ModelConfig{MaxBatch: 10, Slots: 1},
			&schedtest.Worker{Exec: schedtest.Linear(0, time.Millisecond)})
		a.teach(c.known)
		known := a.model.Stats().Replicas[0].Batches
		if known > 15 != c.refuses || a.refused > 0 {
			t.Fatalf("%d batches are known, %d requests were refused", known, a.refused)
		}
		if a.submit(300, 0, 50*time.Millisecond); a.refused > 0 != c.refuses {
			t.Errorf("with %d batches known %d of 300 requests were refused", known, a.refused)
		}
	}
}

// TestAdmissionWithAnIdleReplica: nothing is refused by prediction while a replica is idle, here
// because it is too slow for the waiting rows.
func TestAdmissionWithAnIdleReplica(t *testing.T) {
	a := newAdmission(t, scheduler.ModelConfig{MaxBatch: 10, Slots: 1},
		&schedtest.Worker{Exec: schedtest.Linear(0, time.Millisecond)})
	slow := &schedtest.Worker{Clock: a.clock, Exec: schedtest.Linear(60*time.Millisecond, 0)}
	addTo(t, a.s, benchID, rowsSpec, slow)
	for range 40 { // both are needed
		a.submit(20, 0, time.Second)
		for a.model.Stats().Requests > 0 {
			a.clock.Step()
		}
	}
	if !a.model.Stats().Predictable {
		t.Fatalf("not known well: %+v", a.model.Stats().Replicas)
	}
	a.submit(100, 0, 50*time.Millisecond)
	if n := len(slow.Pending()); n > 0 || a.refused > 0 {
		t.Errorf("the slow replica has %d batches, %d requests were refused", n, a.refused)
	}
}

// TestAdmissionLooksAhead: a prediction counts the rows that would be served before the request,
// but no rows with later deadlines or a lower priority.
func TestAdmissionLooksAhead(t *testing.T) {
	a := newAdmission(t, scheduler.ModelConfig{MaxBatch: 10, Slots: 1},
		&schedtest.Worker{Exec: schedtest.Linear(0, time.Millisecond)})
	a.teach(40)
	a.submit(200, 5, time.Second)
	if a.submit(1, 5, 100*time.Millisecond); a.refused > 0 {
		t.Error("refused for rows of later deadlines")
	}
	if a.submit(1, 0, 100*time.Millisecond); a.refused > 0 {
		t.Error("refused for rows of lower priority")
	}
	if a.submit(200, 9, 100*time.Millisecond); a.refused < 100 {
		t.Errorf("%d of 200 requests were refused that would have waited for rows of a higher priority", a.refused)
	}
}

// TestBatchBytes: batch_bytes bounds a batch by the bytes of its own rows, not of earlier rows of
// that shape: texts differ in length.
func TestBatchBytes(t *testing.T) {
	s, _ := newVirtual(t,
		scheduler.Config{Default: scheduler.ModelConfig{Strategy: "static", Slots: 1, BatchBytes: 100}})
	texts := []tensor.Spec{{Name: "s", DType: tensor.Bytes, Shape: tensor.Shape{-1}}}
	var got []int
	w := &schedtest.Worker{Model: func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
		n := 0
		for _, p := range b.Parts {
			n += len(p.Inputs[0].Data)
		}
		if n > 100 && b.Rows > 1 {
			t.Errorf("a batch of %d rows has %d bytes", b.Rows, n)
		}
		got = append(got, b.Rows)
		return schedtest.Echo(b)
	}}
	model := addTo(t, s, benchID, scheduler.Spec{Inputs: texts, Outputs: texts}, w).Model()
	for _, length := range []int{1, 1, 60, 60, 1, 1, 1, 200, 1} {
		in, err := tensor.FromStrings(tensor.Shape{1}, []string{strings.Repeat("x", length)})
		if err != nil {
			t.Fatal(err)
		}
		s.Submit(&scheduler.Request{Model: model, Inputs: []tensor.Tensor{in}, Rows: 1,
			Owner: ownerFunc(func(*scheduler.Request) {})})
	}
	for w.Answer() == nil {
	}
	rows := 0
	for _, n := range got {
		rows += n
	}
	if rows != 9 || len(got) > 7 {
		t.Errorf("9 rows went in batches of %v", got)
	}
}

// TestDisplacementIsBounded: displacement examines only a few of the newest rows of the heaviest
// source, since it holds the model's lock. A refused request must not cost more because another
// source has many patient rows waiting.
func TestDisplacementIsBounded(t *testing.T) {
	for _, c := range []struct {
		patient int
		gets    bool
	}{{0, true}, {50, true}, {100, false}} {
		a := newAdmission(t, scheduler.ModelConfig{MaxBatch: 10, Slots: 1},
			&schedtest.Worker{Exec: schedtest.Linear(0, time.Millisecond)})
		a.teach(40)
		a.submit(120, 0, 90*time.Millisecond)
		a.submit(c.patient, 0, time.Hour)
		var err error
		for range 20 { // of another source; some are admitted as surplus
			a.s.Submit(&scheduler.Request{Model: a.model, Inputs: rowOf(t, 1), Rows: 1, Source: 7,
				Deadline: a.clock.Now().Add(95 * time.Millisecond), Owner: ownerFunc(func(r *scheduler.Request) {
					if err == nil {
						err = r.Err
					}
				})})
		}
		if refused := errors.Is(err, scheduler.ErrOverloaded); refused == c.gets {
			t.Errorf("behind %d patient rows of the heaviest source: refused is %t (%v)", c.patient, refused, err)
		}
	}
}

// TestAdmissionRecovers: while a container is nearly stopped, predictions are of minutes. A second
// after it has recovered, no request of a modest source is refused alongside a queue of other
// sources: the belief does not last although it refuses the requests that would correct it.
func TestAdmissionRecovers(t *testing.T) {
	slow := true
	quick := schedtest.Linear(300*time.Microsecond, 20*time.Microsecond)
	a := newAdmission(t, scheduler.ModelConfig{MaxBatch: 256}, &schedtest.Worker{Exec: func(rows int) time.Duration {
		if slow {
			return time.Second + time.Duration(rows)*10*time.Millisecond
		}
		return quick(rows)
	}})
	a.teach(40)
	slow = false
	const within = 30 * time.Second
	for source := range uint64(20) {
		for range 250 {
			a.s.Submit(&scheduler.Request{Model: a.model, Inputs: rowOf(t, 1), Rows: 1, Source: 1 + source,
				Deadline: a.clock.Now().Add(within), Owner: ownerFunc(func(*scheduler.Request) {})})
		}
	}
	for i := range 600 {
		if i == 200 { // a second later
			a.refused = 0
		}
		a.submit(1, 0, within)
		a.clock.Advance(5 * time.Millisecond)
	}
	if n := a.model.Stats().Requests; a.refused > 0 || n > 0 {
		t.Errorf("after a second %d requests of a modest source were refused, and %d wait", a.refused, n)
	}
}
