package cache

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestHit(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	q := g.ask(5)
	g.answer()
	q.want(5)
	for range 3 {
		if q := g.ask(5); !q.answered() {
			t.Error("an equal request was not answered at once")
		} else {
			q.want(5)
		}
	}
	if q := g.ask(6); q.answered() {
		t.Error("another request was answered without being executed")
	} else {
		g.answer()
		q.want(6)
	}
	if n := g.executed(); n != 2 {
		t.Errorf("%d executions for two different questions", n)
	}
	if c := g.counts.Counts(); c.Hits != 3 || c.Misses != 2 || c.Shared != 0 || c.Entries != 2 {
		t.Errorf("counted %+v", c)
	}
}

// An entry takes memory of its own size: the batch's memory, of which the model takes 4 KiB for 8
// bytes of answer, is free.
func TestEntriesPinNoBatch(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	q := g.ask(1)
	g.answer()
	q.want(1)
	const class = 64 // the pool's smallest class
	if n := g.pool.InUse(); n != class {
		t.Errorf("an answer of 8 bytes takes %d of the pool", n)
	}
	if u := g.cache.Usage(); u.Entries != 1 || u.Bytes <= class || u.Bytes > 1024 || u.Limit != 1<<20 {
		t.Errorf("usage %+v", u)
	}
}

// An answer outlives its entry for as long as a client reads it.
func TestAnswersOutliveEntries(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	q := g.ask(1)
	g.answer()
	q.want(1)
	q = g.ask(1)
	if n, bytes := g.cache.Clear(); n != 1 || bytes == 0 {
		t.Errorf("cleared %d entries of %d bytes", n, bytes)
	}
	if u := g.cache.Usage(); u.Entries != 0 || u.Bytes != 0 {
		t.Errorf("a cleared cache holds %+v", u)
	}
	q.want(1)
}

// A caller that has found an entry cannot reach the memory once the entry is evicted.
func TestAcquireAfterTheEnd(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	e := g.cache.newEntry(g.version,
		[]tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{3}, Data: []byte{1, 2, 3}}})
	if !e.acquire() {
		t.Error("an entry that is there was not to be had")
	}
	e.release()
	e.release()
	if e.acquire() {
		t.Error("an entry that has gone was to be had")
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{TTL: time.Minute}, nil)
		q := g.ask(1)
		g.answer()
		q.want(1)
		time.Sleep(time.Minute - time.Millisecond)
		if q := g.ask(1); !q.answered() {
			t.Error("not kept for as long as it should be")
			g.answer()
		} else {
			q.want(1)
		}
		time.Sleep(2 * time.Millisecond) // a read does not make it younger
		q = g.ask(1)
		if q.answered() {
			t.Error("answered with what has expired")
		} else {
			g.answer()
		}
		q.want(1)
		if n := g.executed(); n != 2 {
			t.Errorf("%d executions, want 2", n)
		}
		// The memory is returned without any request.
		time.Sleep(time.Minute + 3*time.Second)
		synctest.Wait()
		if n, u := g.pool.InUse(), g.cache.Usage(); n != 0 || u.Entries != 0 {
			t.Errorf("after expiry %d bytes of the pool are out, usage %+v", n, u)
		}
		if c := g.counts.Counts(); c.Expired != 2 {
			t.Errorf("%d entries expired, want 2", c.Expired)
		}
		g.end()
	})
}

func TestBound(t *testing.T) {
	const limit = 64 << 10
	g := newRig(t, Config{Bytes: limit}, nil)
	defer g.end()
	for v := range int32(1000) {
		q := g.ask(v)
		if q.answered() {
			t.Fatal("a new question was answered with what was kept")
		}
		g.answer()
		q.want(v)
		if u := g.cache.Usage(); u.Bytes > limit || g.pool.InUse() > u.Bytes {
			t.Fatalf("after %d answers %+v, and %d bytes of the pool", v+1, u, g.pool.InUse())
		}
	}
	u := g.cache.Usage()
	if u.Bytes < limit/2 {
		t.Errorf("a cache that should be full holds %+v", u)
	}
	if c := g.counts.Counts(); c.Evicted == 0 || int64(c.Evicted)+u.Entries != 1000 {
		t.Errorf("%d entries evicted and %d kept of 1000", c.Evicted, u.Entries)
	}
	g.cache.Resize(limit / 8)
	if u := g.cache.Usage(); u.Bytes > limit/8 || u.Limit != limit/8 || u.Entries == 0 {
		t.Errorf("made smaller it holds %+v", u)
	}
}

// Requests that occur once do not flush those that occur often.
func TestScanLeavesTheUseful(t *testing.T) {
	g := newRig(t, Config{Bytes: 64 << 10}, nil)
	defer g.end()
	ask := func(v int32) bool {
		q := g.ask(v)
		hit := q.answered()
		if !hit {
			g.answer()
		}
		q.want(v)
		return hit
	}
	// Between two occurrences of a frequent request there are 300 others, more than fit: the least
	// recently used entry is always a frequent one.
	once, hits := int32(1000), 0
	for round := range 40 {
		for v := range int32(10) {
			if ask(v) && round >= 20 {
				hits++
			}
			for range 30 {
				ask(once)
				once++
			}
		}
	}
	t.Logf("%d hits", hits)
	if hits < 100 {
		t.Errorf("%d hits when frequent questions were asked 200 times", hits)
	}
}

func TestWhatIsNotKept(t *testing.T) {
	g := newRig(t, Config{Bytes: 200}, nil) // less than any entry takes
	defer g.end()
	for range 2 {
		q := g.ask(1)
		follower := g.ask(1)
		g.answer()
		q.want(1)
		q.Outputs[0].Shape[0] = 99 // the first request is reused
		follower.want(1)
	}
	if c := g.counts.Counts(); c.NotKept != 2 || c.Entries != 0 || c.Shared != 2 || g.executed() != 2 {
		t.Errorf("%d executions, counted %+v", g.executed(), c)
	}
}

// An answer without memory to store it is still delivered.
func TestExhaustedPool(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	q, follower := g.ask(1), g.ask(1)
	g.cache.pool = tensor.NewPool(1)
	g.answer()
	q.want(1)
	follower.want(1)
	if c := g.counts.Counts(); c.NotKept != 1 || c.Entries != 0 {
		t.Errorf("counted %+v", c)
	}
}

func TestErrorsAreSharedAndNotKept(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	q, follower := g.ask(1), g.ask(1)
	if err := g.worker.Fail(errors.New("cold feet")); err != nil {
		t.Fatal(err)
	}
	for _, q := range []*question{q, follower} {
		if _, err := q.close(); !errors.Is(err, scheduler.ErrContainerFailed) {
			t.Errorf("error %v, want that of the container", err)
		}
	}
	q = g.ask(1)
	if q.answered() {
		t.Error("an error was kept")
	}
	g.answer()
	q.want(1)
	if n := g.executed(); n != 2 {
		t.Errorf("%d executions, want one for the error and one for the answer", n)
	}
}

// A version's answers belong to it and are dropped with it; answers under way are not stored.
func TestVersions(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	one, two := g.version, g.cache.Version(g.counts)
	ask := func(v *Version) *question {
		q := g.question(1)
		q.call.Version = v
		return q.ask()
	}
	q := ask(one)
	g.answer()
	q.want(1)
	q = ask(two)
	if q.answered() {
		t.Fatal("answered with what another version said")
	}
	if other := ask(one); !other.answered() {
		t.Error("the first version's answer is not kept")
	} else {
		other.want(1)
	}
	g.answer()
	q.want(1)
	if u := g.cache.Usage(); u.Entries != 2 {
		t.Errorf("%d entries of two versions", u.Entries)
	}

	one.Drop()
	if u := g.cache.Usage(); u.Entries != 1 {
		t.Errorf("%d entries after one of two versions was dropped", u.Entries)
	}
	q = ask(two)
	if !q.answered() {
		t.Error("the other version's answers went as well")
	}
	q.want(1)
	q = ask(one) // which found its route before
	g.answer()
	q.want(1)
	if u := g.cache.Usage(); u.Entries != 1 {
		t.Errorf("an answer of a version that was dropped is kept: %d entries", u.Entries)
	}

	q = g.question(2)
	q.call.Version = two
	q.ask()
	two.Drop()
	g.answer()
	q.want(2)
	if u := g.cache.Usage(); u.Entries != 0 {
		t.Errorf("an answer that was under way when its version was dropped is kept")
	}
}

func TestClearWhileExecuting(t *testing.T) {
	g := newRig(t, Config{}, nil)
	defer g.end()
	q, follower := g.ask(1), g.ask(1)
	g.cache.Clear()
	g.answer()
	q.want(1)
	follower.want(1)
	if q := g.ask(1); q.answered() {
		t.Error("an answer from before the clearing is given after it")
		q.want(1)
	} else {
		g.answer()
		q.want(1)
	}
	if u := g.cache.Usage(); u.Entries != 1 {
		t.Errorf("%d entries, want that of after the clearing", u.Entries)
	}
}

// A closed cache does not interfere with requests.
func TestClosed(t *testing.T) {
	g := newRig(t, Config{TTL: time.Hour}, nil)
	defer g.end()
	q, follower := g.ask(1), g.ask(1)
	g.cache.Close()
	g.answer()
	q.want(1)
	follower.want(1)
	for range 2 {
		q := g.ask(1)
		g.answer()
		q.want(1)
	}
	if n := g.executed(); n != 3 {
		t.Errorf("%d executions, want 3", n)
	}
}
