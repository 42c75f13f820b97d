package scheduler_test

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
)

// TestRecentPast: counts of more than a minute ago are not recent, and after a pause the recent
// counts are those before it.
func TestRecentPast(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{})
	w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0)}
	model := addTo(t, s, benchID, rowsSpec, w).Model()
	ask := func(n int) {
		rs := make([]*scheduler.Request, n)
		for i := range rs {
			rs[i] = &scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1,
				Owner: ownerFunc(func(*scheduler.Request) {})}
		}
		s.Submit(rs...)
	}
	check := func(when string, submitted uint64, peak int, least, most time.Duration) {
		t.Helper()
		st := model.Stats()
		if st.Recent.Submitted != submitted || st.Recent.Outcomes[scheduler.OutcomeOK] != submitted ||
			st.Recent.Peak != peak || st.Recent.Rows != submitted ||
			st.Span < least || st.Span > most || st.Ago != 0 {
			t.Errorf("%s: in the last %v %d requests were accepted, at most %d at a time, in batches of %d rows, %v; want %d, %d, and %v to %v",
				when, st.Span,
				st.Recent.Submitted, st.Recent.Peak, st.Recent.Rows, st.Recent.Outcomes, submitted, peak, least, most)
		}
	}
	const second = time.Second
	clock.Advance(10 * second)
	check("before anything", 0, 0, 10*second, 10*second)
	ask(30)
	clock.Advance(5 * second)
	check("at first", 30, 30, 5*second, 15*second)
	for range 71 {
		ask(2)
		clock.Advance(second)
	}
	st := model.Stats()
	if n := st.Recent.Submitted; n != 2*uint64(st.Span/second) || n < 100 || n > 120 || st.Recent.Peak != 2 ||
		st.Span > 60*second {
		t.Errorf("later: in the last %v %d requests, at most %d at a time, want two a second", st.Span, n,
			st.Recent.Peak)
	}
	if st.Submitted != 30+2*71 || st.Peak != 30 {
		t.Errorf("in all %d requests, at most %d at a time", st.Submitted, st.Peak)
	}
	clock.Advance(5 * time.Minute)
	if st := model.Stats(); st.Recent.Submitted == 0 || st.Recent.Submitted > 20 ||
		st.Span > 70*second || st.Ago < 4*time.Minute || st.Ago > 5*time.Minute {
		t.Errorf("after a pause: in %v, %v ago, %d requests, want what was last", st.Span, st.Ago, st.Recent.Submitted)
	}
	ask(7)
	clock.Advance(3 * second)
	check("after a pause, anew", 7, 7, 3*second, 3*second)
}
