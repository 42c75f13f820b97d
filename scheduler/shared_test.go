package scheduler_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A sharedOne is a replica whose container is shared, with the offers that it receives.
type sharedOne struct {
	t      *testing.T
	clock  *schedtest.Clock
	sched  *scheduler.Scheduler
	worker *schedtest.Worker
	rep    *scheduler.Replica
	offers []scheduler.Offer
	grants []scheduler.Grant
	silent error
	errs   []error
}

func newShared(t *testing.T, slots int) *sharedOne {
	x := &sharedOne{t: t, clock: schedtest.NewClock()}
	var err error
	x.sched, err = scheduler.New(scheduler.Config{Clock: x.clock,
		Default: scheduler.ModelConfig{ExecTimeout: 10 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.sched.Close)
	x.worker = &schedtest.Worker{Clock: x.clock,
		Seen: func(b *scheduler.Batch) { x.grants = append(x.grants, b.Grant) }}
	x.rep, err = x.sched.AddReplica(benchID, rowsSpec, x.worker, scheduler.ReplicaOptions{
		Slots: slots, Offer: func(o scheduler.Offer) { x.offers = append(x.offers, o) }, Silent: func(reason error) {
			x.silent = reason
		}})
	if err != nil {
		t.Fatal(err)
	}
	x.rep.Share(true)
	return x
}

// ask submits a row with a deadline; 0: none.
func (x *sharedOne) ask(within time.Duration) {
	r := &scheduler.Request{Model: x.rep.Model(), Inputs: rowOf(x.t, 1), Rows: 1,
		Owner: ownerFunc(func(r *scheduler.Request) { x.errs = append(x.errs, r.Err) })}
	if within > 0 {
		r.Deadline = x.clock.Now().Add(within)
	}
	x.sched.Submit(r)
}

// sent checks how many batches have been sent and how many offers made since the last call.
func (x *sharedOne) sent(batches, offers int) {
	x.t.Helper()
	if len(x.grants) != batches || len(x.offers) != offers {
		x.t.Fatalf("batches %+v and offers %+v, expected %d and %d", x.grants, x.offers, batches, offers)
	}
	x.grants, x.offers = nil, nil
	if err := x.rep.Model().Check(); err != nil {
		x.t.Fatal(err)
	}
}

// TestBatchAtTheGrant: rows for a shared container wait, and are offered once; its batch is made at
// the grant, of the rows that wait then, and a grant that no row needs is given back.
func TestBatchAtTheGrant(t *testing.T) {
	x := newShared(t, 0)
	x.ask(50 * time.Millisecond)
	if o := x.offers[0]; o.Rows != 1 || o.Grant != 0 || o.Due != 50*time.Millisecond {
		t.Errorf("offered %+v", o)
	}
	x.sent(0, 1)
	x.ask(60 * time.Millisecond)
	x.sent(0, 0)
	x.rep.Grant(7, 2, 0, 0)
	if len(x.grants) != 1 || x.grants[0].ID != 7 || x.grants[0].Left != 1 {
		t.Fatalf("sent %+v, expected one row of two, as nothing is known of its time", x.grants)
	}
	x.sent(1, 0)
	x.rep.Grant(8, 1, 0, 0)
	x.sent(1, 0)
	x.rep.Grant(9, 1, 0, 0)
	if len(x.offers) != 1 || x.offers[0] != (scheduler.Offer{Grant: 9}) {
		t.Fatalf("offers %+v, expected grant 9 back", x.offers)
	}
	x.sent(0, 1)
	for range 2 {
		if err := x.worker.Answer(); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.errs) != 2 || errors.Join(x.errs...) != nil {
		t.Errorf("answers %v", x.errs)
	}
}

// TestGrantBeforeTheAnswer: a container grants its next execution before it answers this one. The
// batch is sent, even if only one may be in flight, and its time counts from the grant.
func TestGrantBeforeTheAnswer(t *testing.T) {
	x := newShared(t, 1)
	for id := range uint64(40) {
		x.ask(0)
		x.rep.Grant(id+1, 1, 0, 0)
		if len(x.grants) != 1 || x.grants[0].ID != id+1 {
			t.Fatalf("grant %d: sent %+v, offered %+v", id+1, x.grants, x.offers)
		}
		x.grants, x.offers = nil, nil
		x.clock.Advance(time.Millisecond)
		if id > 0 { // answers the batch of the grant before
			if err := x.worker.Answer(); err != nil {
				t.Fatal(err)
			}
		}
		x.clock.Advance(9 * time.Millisecond)
	}
	if got := x.rep.Stats().Profile[0].Typical; got != 11*time.Millisecond {
		t.Errorf("a row is believed to take %v, it is answered 11 ms after the grant", got)
	}
}

// TestShareEnds: once the container is this server's alone, batches are sent without grants again.
func TestShareEnds(t *testing.T) {
	x := newShared(t, 0)
	x.ask(0)
	x.sent(0, 1)
	x.rep.Share(false)
	x.sent(1, 0)
	x.ask(0)
	x.rep.Grant(3, 1, 1, 1) // a grant that crossed the change
	if len(x.offers) != 1 || x.offers[0].Grant != 3 {
		t.Errorf("offers %+v, expected grant 3 back", x.offers)
	}
}

// TestLostOffer: an offer that is not answered is made again, and a container that never grants is
// reported after three execution timeouts.
func TestLostOffer(t *testing.T) {
	x := newShared(t, 0)
	x.ask(0)
	x.sent(0, 1)
	x.clock.Advance(time.Second)
	x.sent(0, 1)
	x.clock.Advance(28 * time.Second)
	if x.silent != nil {
		t.Fatalf("reported as silent after 29 s: %v", x.silent)
	}
	x.clock.Advance(2 * time.Second)
	if x.silent == nil {
		t.Fatal("not reported as silent")
	}
	x.rep.Remove(x.silent)
	if len(x.errs) != 1 || !errors.Is(x.errs[0], scheduler.ErrUnavailable) {
		t.Errorf("answers %v", x.errs)
	}
}

// TestShareOfExecution: with three times as many rows elsewhere, a batch has a quarter of the rows
// of an execution, and its time is learned as that of the whole execution.
func TestShareOfExecution(t *testing.T) {
	x := newShared(t, 0)
	for range 40 {
		for range 8 {
			x.ask(50 * time.Millisecond)
		}
		x.rep.Grant(1, 8, 24, 0)
		if n := x.worker.Pending(); len(n) != 1 || n[0] > 8 {
			t.Fatalf("batches %v", n)
		}
		rows := 4 * x.worker.Pending()[0]
		x.worker.Model = func(b *scheduler.Batch) (outputs []tensor.Tensor, errs []scheduler.RowError, err error) {
			b.Executed(rows, 0)
			return schedtest.Echo(b)
		}
		x.clock.Advance(time.Duration(5_000_000 + 500_000*rows))
		if err := x.worker.Answer(); err != nil {
			t.Fatal(err)
		}
		x.clock.Advance(time.Second)
	}
	s := x.rep.Stats()
	last := s.Profile[len(s.Profile)-1]
	want := time.Duration(5_000_000 + 500_000*last.Rows)
	if last.Rows < 16 || last.Typical < want*9/10 || last.Typical > want*11/10 {
		t.Errorf("%d rows are believed to take %v, they take %v", last.Rows, last.Typical, want)
	}
}

// TestNeedOfShared: a shared container is worth the rows that it executes for all servers. By the
// rows of this server alone, N servers would start N times the containers.
func TestNeedOfShared(t *testing.T) {
	x := newShared(t, 0)
	seen := x.worker.Seen
	x.worker.Seen = func(b *scheduler.Batch) {
		seen(b)
		b.Executed(10, 0)
	}
	for id := range uint64(100) {
		x.ask(100 * time.Millisecond)
		x.rep.Grant(id+1, 1, 9, 10)
		x.clock.Advance(20 * time.Millisecond)
		if err := x.worker.Answer(); err != nil {
			t.Fatal(err)
		}
	}
	// It executes 10 rows in 20 ms, and more rows in at most proportionally longer.
	n := x.rep.Model().Need()
	if n.Worth < 490 || n.Worth > 1000 {
		t.Errorf("a container that executes 10 rows in 20 ms is worth %.0f rows a second", n.Worth)
	}
	if n.Group < 32 {
		t.Errorf("a container that executes 10 rows in 20 ms answers groups of %.0f within 100 ms", n.Group)
	}
}

// TestOfferWaitsForCallers: rows of clients that ask again on each answer are offered once the last
// of these clients has asked, or while a batch of others executes, after its answer.
func TestOfferWaitsForCallers(t *testing.T) {
	x := newShared(t, 0)
	grant := uint64(0)
	askFrom := func(sources ...uint64) {
		for _, source := range sources {
			x.clock.Advance(200 * time.Microsecond)
			x.sched.Submit(&scheduler.Request{Model: x.rep.Model(), Inputs: rowOf(t, 1), Rows: 1, Source: source,
				Owner: ownerFunc(func(*scheduler.Request) {})})
		}
	}
	execute := func(rows int, meanwhile ...uint64) {
		t.Helper()
		grant++
		x.offers = nil
		x.rep.Grant(grant, rows, 0, 0)
		if n := x.worker.Pending(); len(n) != 1 || n[0] != rows {
			t.Fatalf("batches %v, want one of %d rows", n, rows)
		}
		askFrom(meanwhile...)
		x.clock.Advance(20 * time.Millisecond)
		if err := x.worker.Answer(); err != nil {
			t.Fatal(err)
		}
	}
	askFrom(1) // ... and 2 while that executes, and so on
	for range 8 {
		execute(1, 2)
		execute(1, 1)
	}
	execute(1, 2)
	x.sent(17, 0) // what waits is offered after the answer
	askFrom(1)
	x.sent(0, 1)
	for range 5 {
		execute(2)
		askFrom(1)
		x.sent(1, 0)
		askFrom(2)
		x.sent(0, 1)
	}
	execute(2)
	askFrom(2) // in vain: source 1 is gone
	x.sent(1, 0)
	x.clock.Advance(5 * time.Millisecond)
	x.sent(0, 1)
}
