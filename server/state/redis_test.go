package state_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
)

// quick holds updates back for a shorter time after a restart, still far longer than servers need
// here.
var quick = state.Options{Settle: time.Second}

// inThree selects the database of a proxy's target.
var inThree = []any{"select", "3"}

func healthy(s state.Store) func() bool { return func() bool { return s.Health().Err == nil } }

// A test's Redis outlives the thread on which the test started it: supervisors in other tests of
// the process end threads.
func TestRedisOutlivesThreads(t *testing.T) {
	t.Parallel()                     // it waits
	hosttest.Need(t, "redis-server") // here, since another goroutine cannot skip the test
	budgettest.Goroutines(t)
	var r *statetest.Redis
	tid := os.Getpid()
	for tid == os.Getpid() { // the first thread never ends
		over := make(chan struct{})
		go func() { // its thread stays locked, so it ends with the goroutine
			defer close(over)
			runtime.LockOSThread()
			if tid = syscall.Gettid(); tid == os.Getpid() {
				runtime.UnlockOSThread()
				return
			}
			r = statetest.NewRedis(t)
		}()
		<-over
	}
	budgettest.Until(t, "the thread to end", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
		return errors.Is(err, fs.ErrNotExist)
	})
	if got := strings.TrimSpace(r.Do(t, "PING")); got != "PONG" {
		t.Errorf("it says %q", got)
	}
}

func TestRedisAwayAtStart(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.StoppedRedis(t)
	began := time.Now()
	s := open(t, r.Target(), quick)
	h := s.Health()
	if !errors.Is(h.Err, state.ErrUnavailable) || h.Since.Before(began.Add(-time.Second)) || h.Since.After(time.Now()) {
		t.Errorf("health: %+v", h)
	}
	if _, err := s.Get("a"); !errors.Is(err, state.ErrUnavailable) {
		t.Errorf("get: %v", err)
	}
	if _, err := s.List(""); !errors.Is(err, state.ErrUnavailable) {
		t.Errorf("list: %v", err)
	}
	if _, err := s.Update(statetest.Context(t), "a", "", statetest.Add(1)); !errors.Is(err, state.ErrUnavailable) {
		t.Errorf("update: %v", err)
	}
	changed := make(chan struct{}, 1)
	defer s.Watch("a", changed)()
	<-changed
	r.Start(t)
	budgettest.Until(t, "the store finds the Redis that came later", healthy(s))
	statetest.Put(t, s, "a", "1")
	<-changed
	if h := s.Health(); h.Err != nil || h.Since.Before(began) {
		t.Errorf("health: %+v", h)
	}
}

func TestRedisAwayInTheMiddle(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	a, b := open(t, r.Target(), quick), open(t, r.Target(), quick)
	statetest.Put(t, a, "kept", "1")
	statetest.Put(t, a, "deleted", "1")
	budgettest.Until(t, "the other server sees it", func() bool {
		return statetest.Has(b, "kept", "1") && statetest.Has(b, "deleted", "1")
	})
	statetest.Delete(t, b, "deleted")
	r.Kill()
	for _, s := range []state.Store{a, b} {
		budgettest.Until(t, "health tells that Redis is unreachable", func() bool {
			return errors.Is(s.Health().Err, state.ErrUnavailable)
		})
		if !statetest.Has(s, "kept", "1") {
			t.Error("reading does not go on")
		}
		if _, err := s.Update(statetest.Context(t), "kept", "", statetest.Add(1)); !errors.Is(err,
			state.ErrUnavailable) {
			t.Errorf("update: %v", err)
		}
	}
	// Redis restarts empty, and gets everything from the servers.
	r.Start(t)
	statetest.Put(t, waitFor(t, b), "new", "1")
	budgettest.Until(t, "all is as before", func() bool {
		return statetest.Has(a, "new", "1") && statetest.Has(a, "kept", "1") && statetest.Has(a, "deleted", "")
	})
	c := open(t, r.Target(), quick)
	if !statetest.Has(c, "kept", "1") || !statetest.Has(c, "deleted", "") || !statetest.Has(c, "new", "1") {
		t.Error("a new server does not see what was there before")
	}
}

func waitFor(t *testing.T, s state.Store) state.Store {
	t.Helper()
	budgettest.Until(t, "Redis is in reach", healthy(s))
	return s
}

// A hanging Redis keeps its connections open, and answers nothing.
func TestRedisHangs(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	s := open(t, r.Target(), quick)
	statetest.Put(t, s, "a", "1")
	r.Stop(t)
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Update(short, "a", "", statetest.Add(1)); !errors.Is(err, state.ErrUnavailable) ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("update: %v", err)
	}
	budgettest.Until(t, "health tells that Redis does not answer", func() bool { return s.Health().Err != nil })
	if !statetest.Has(s, "a", "1") {
		t.Error("reading does not go on")
	}
	r.Continue()
	statetest.Put(t, waitFor(t, s), "b", "1")
}

// A Redis that restarts with an older state of itself (its last snapshot) must not win against
// changes acknowledged since.
func TestRedisComesBackWithOldData(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	a, b := open(t, r.Target(), quick), open(t, r.Target(), quick)
	statetest.Put(t, a, "changed", "1")
	statetest.Put(t, a, "deleted", "1")
	if _, err := a.Update(statetest.Context(t), "counted", "early", statetest.Add(1)); err != nil {
		t.Fatal(err)
	}
	r.Do(t, "save")
	statetest.Put(t, a, "changed", "2")
	statetest.Delete(t, b, "deleted")
	statetest.Put(t, b, "made", "1")
	if _, err := b.Update(statetest.Context(t), "counted", "late", statetest.Add(1)); err != nil {
		t.Fatal(err)
	}
	r.Kill()
	for _, s := range []state.Store{a, b} { // otherwise it would be in reach below, until they notice
		budgettest.Until(t, "Redis is out of reach", func() bool { return s.Health().Err != nil })
	}
	r.Start(t)
	waitFor(t, a)
	waitFor(t, b)
	if _, err := a.Update(statetest.Context(t), "counted", "late", statetest.Add(1)); !errors.Is(err,
		state.ErrApplied) {
		t.Errorf("an id that Redis had lost: %v", err)
	}
	if _, err := b.Update(statetest.Context(t), "counted", "early", statetest.Add(1)); !errors.Is(err,
		state.ErrApplied) {
		t.Errorf("an id that Redis had saved: %v", err)
	}
	c := open(t, r.Target(), quick)
	for _, s := range []state.Store{a, b, c} {
		budgettest.Until(t, "all is as acknowledged", func() bool {
			return statetest.Has(s, "changed", "2") && statetest.Has(s, "deleted", "") &&
				statetest.Has(s, "made", "1") && statetest.Has(s, "counted", "2")
		})
	}
}

// Changes made while a server was cut off are newer than the entries that it restores.
func TestRedisLateServer(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	p := newProxy(t, r)
	near, far := open(t, r.Target()+"?db=3", quick), open(t, p.target(""), quick)
	for _, key := range []string{"changed", "deleted", "kept"} {
		statetest.Put(t, near, key, "1")
	}
	for range 20 {
		statetest.Put(t, far, "only far", "1")
	}
	budgettest.Until(t, "far sees all", func() bool { return statetest.Has(far, "kept", "1") })
	p.cut()
	budgettest.Until(t, "far is cut off", func() bool { return far.Health().Err != nil })
	r.Do(t, "flushall")
	statetest.Put(t, near, "changed", "2")
	statetest.Delete(t, near, "deleted")
	if far.Health().Err == nil || !statetest.Has(far, "changed", "1") {
		t.Fatal("far is not cut off")
	}
	p.mend()
	waitFor(t, far)
	for _, s := range []state.Store{near, far} {
		budgettest.Until(t, "what was changed last holds", func() bool {
			return statetest.Has(s, "changed", "2") && statetest.Has(s, "deleted", "") &&
				statetest.Has(s, "kept", "1") && statetest.Has(s, "only far", "1")
		})
	}
}

// After a flush no update builds on the entries of one server before the other servers had time to
// restore theirs.
func TestRedisWaitsForAllServers(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	p, q := newProxy(t, r), newProxy(t, r)
	opts := state.Options{Settle: time.Hour} // the test does not wait for it
	stale, fresh := open(t, p.target(""), opts), open(t, q.target(""), opts)
	settled := func() { r.Session(t, inThree, []any{"hset", "shivad:meta", "hold", "0"}) }
	settled()
	statetest.Put(t, fresh, "n", "1")
	budgettest.Until(t, "both see it", func() bool { return statetest.Has(stale, "n", "1") })
	p.cut()
	budgettest.Until(t, "one is cut off", func() bool { return stale.Health().Err != nil })
	statetest.Put(t, fresh, "n", "2")
	statetest.Put(t, fresh, "made", "1")
	q.cut()
	budgettest.Until(t, "so is the other", func() bool { return fresh.Health().Err != nil })
	r.Do(t, "flushall")
	p.mend()
	waitFor(t, stale)
	if !statetest.Has(stale, "n", "1") {
		t.Fatal("the stale server is not stale")
	}
	// Nor can Redis tell yet that there is nothing to change.
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := stale.Update(short, "made", "", addToOne); !errors.Is(err, state.ErrUnavailable) {
		t.Errorf("an update that would refuse: %v", err)
	}
	q.mend()
	waitFor(t, fresh)
	settled()
	for key, want := range map[string]string{"n": "3", "made": "2"} {
		if e, err := stale.Update(statetest.Context(t), key, "", addToOne); err != nil || string(e.Value) != want {
			t.Errorf("counted %s to %s, want %s; %v", key, e.Value, want, err)
		}
	}
}

// A server that changes a key again and again does not keep another server from changing it.
func TestRedisContended(t *testing.T) {
	t.Parallel() // it waits
	r := statetest.NewRedis(t)
	busy, other := open(t, r.Target(), quick), open(t, r.Target(), quick)
	var changed atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := busy.Update(ctx, "a", "", statetest.Add(1)); err == nil {
				changed.Add(1)
			} else if ctx.Err() == nil {
				t.Errorf("the busy one: %v", err)
				return
			}
		}
	})
	rounds := 3
	if budgettest.Whole() {
		rounds = 10
	}
	for range rounds {
		was := changed.Load()
		budgettest.Until(t, "the busy one goes on", func() bool { return changed.Load() > was || t.Failed() })
		if _, err := other.Update(t.Context(), "a", "", statetest.Add(1)); err != nil {
			t.Fatalf("the other one, beside %d changes: %v", changed.Load()-was, err)
		}
	}
}

// addToOne is a change that increments a number, and refuses if there is none.
func addToOne(old []byte) ([]byte, error) {
	if old == nil {
		return nil, errors.New("nothing was counted")
	}
	return statetest.Add(1)(old)
}

// A server that was cut off catches up on all changes meanwhile, including deletions.
func TestRedisMissedNotifications(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	p := newProxy(t, r)
	near, far := open(t, r.Target()+"?db=3", quick), open(t, p.target(""), quick)
	statetest.Put(t, near, "apps/changed", "1")
	statetest.Put(t, near, "apps/deleted", "1")
	budgettest.Until(t, "far sees all", func() bool { return statetest.Has(far, "apps/deleted", "1") })
	changed := make(chan struct{}, 1)
	defer far.Watch("apps/", changed)()
	<-changed
	p.cut()
	budgettest.Until(t, "far is cut off", func() bool { return far.Health().Err != nil })
	statetest.Put(t, near, "apps/changed", "2")
	statetest.Delete(t, near, "apps/deleted")
	p.mend()
	for !statetest.Has(far, "apps/changed", "2") || !statetest.Has(far, "apps/deleted", "") {
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatal("no signal of what was missed")
		}
	}

	// Only messages are lost, as if a proxy swallowed them: the revision reveals the gap.
	r.Session(t, inThree, []any{"eval", `redis.call('HINCRBY', 'shivad:meta', 'revision', 1)
		redis.call('HSET', 'shivad:entries', 'apps/silent', redis.call('HGET', 'shivad:meta', 'revision') .. ' 1')`, "0"})
	for _, s := range []state.Store{near, far} {
		budgettest.Until(t, "a change without a notification is seen", func() bool {
			return statetest.Has(s, "apps/silent", "1")
		})
	}
}

// trouble counts in a few keys from two servers while something happens to their Redis, and then
// compares. Every acknowledged update must be there; every other update that is there was at least
// tried.
func trouble(t *testing.T, r *statetest.Redis, happen func()) {
	stores := []state.Store{open(t, r.Target(), quick), open(t, r.Target(), quick)}
	const keys = 4
	var acknowledged, unknown [keys]atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 16 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				k := n % keys
				// Each update has an id, and is repeated until it is known to be applied.
				id := fmt.Sprintf("%d.%d", i, n)
				unknown[k].Add(1)
				for {
					_, err := stores[i%2].Update(statetest.Context(t), fmt.Sprintf("count/%d", k), id, statetest.Add(1))
					if err == nil || errors.Is(err, state.ErrApplied) {
						unknown[k].Add(-1)
						acknowledged[k].Add(1)
						break
					}
					if !errors.Is(err, state.ErrUnavailable) {
						t.Errorf("update: %v", err)
						return
					}
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
					}
				}
			}
		})
	}
	progress := func() {
		t.Helper()
		was := acknowledged[0].Load()
		budgettest.Until(t, "updates go on", func() bool { return acknowledged[0].Load() > was+50 })
	}
	for range budgettest.Rounds(3) {
		progress()
		happen()
	}
	progress()
	close(stop)
	wg.Wait()
	third := open(t, r.Target(), quick)
	for k := range keys {
		key := fmt.Sprintf("count/%d", k)
		e, err := third.Get(key)
		count, _ := strconv.ParseInt(string(e.Value), 10, 64)
		if least := acknowledged[k].Load(); err != nil || count < least || count > least+unknown[k].Load() {
			t.Errorf("%s is %d, want from %d to %d more; %v", key, count, least, unknown[k].Load(), err)
		}
		for i, s := range stores {
			budgettest.Until(t, fmt.Sprintf("server %d sees %s as %s", i, key, e.Value), func() bool {
				return statetest.Has(s, key, string(e.Value))
			})
		}
	}
}

func TestRedisFlushedUnderLoad(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	trouble(t, r, func() { r.Do(t, "flushall") })
}

func TestRedisRestartedUnderLoad(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	trouble(t, r, func() { r.Kill(); r.Start(t) })
}

func TestRedisLosesTheLatestUnderLoad(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	trouble(t, r, func() {
		r.Do(t, "save")
		saved := r.Do(t, "hget", "shivad:meta", "revision")
		budgettest.Until(t, "a change after the snapshot", func() bool {
			return r.Do(t, "hget", "shivad:meta", "revision") != saved
		})
		r.Kill()
		r.Start(t)
	})
}

// When a later release changes the format, this one stops reading and writing at once, with a
// reason. Data without a format number, written before the number existed, is format 1.
func TestRedisFormat(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	s := open(t, r.Target(), state.Options{Settle: time.Millisecond})
	statetest.Put(t, s, "a", "1")
	if got := strings.TrimSpace(r.Do(t, "hget", "shivad:meta", "format")); got != "1" {
		t.Errorf("the format is %q, want 1", got)
	}
	r.Do(t, "hset", "shivad:meta", "format", "2")
	before := r.Do(t, "hgetall", "shivad:entries")
	const text = `format "2", want "1": written by another release`
	_, changing := s.Update(statetest.Context(t), "a", "", statetest.Add(1))
	writing := s.Write(statetest.Context(t), []state.Entry{{Key: "a", Value: []byte("3")}})
	for _, err := range []error{changing, writing} {
		if !errors.Is(err, state.ErrUnavailable) || !strings.Contains(err.Error(), text) {
			t.Errorf("an update: %v, want %s", err, text)
		}
	}
	budgettest.Until(t, "the store says so", func() bool { return s.Health().Err != nil })
	if err := s.Health().Err; !strings.Contains(err.Error(), text) {
		t.Errorf("health: %v, want %s", err, text)
	}
	if !statetest.Has(s, "a", "1") {
		t.Error("what was known is not known any more")
	}
	refused(t, r.Target(), text, "run that release, or choose another state.namespace")
	if after := r.Do(t, "hgetall", "shivad:entries"); after != before {
		t.Errorf("the entries were changed from %q to %q", before, after)
	}
	r.Do(t, "hdel", "shivad:meta", "format")
	waitFor(t, s)
	if e, err := s.Update(statetest.Context(t), "a", "", statetest.Add(1)); err != nil || string(e.Value) != "2" {
		t.Errorf("without a number: %s %v", e.Value, err)
	}
}

func TestRedisNamespaces(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	a, b := open(t, r.Target(), state.Options{Namespace: "a", Settle: time.Millisecond}),
		open(t, r.Target(), state.Options{Namespace: "b", Settle: time.Millisecond})
	statetest.Put(t, a, "key", "of a")
	statetest.Put(t, b, "key", "of b")
	statetest.Delete(t, b, "other")
	if _, err := a.Update(statetest.Context(t), "n", "id", statetest.Add(1)); err != nil {
		t.Fatal(err)
	}
	if !statetest.Has(a, "key", "of a") || !statetest.Has(b, "key", "of b") {
		t.Error("namespaces see each other's keys")
	}
	for _, key := range strings.Fields(r.Do(t, "keys", "*")) {
		if !strings.HasPrefix(key, "a:") && !strings.HasPrefix(key, "b:") {
			t.Errorf("key %s outside of the namespaces", key)
		}
	}
}

// An address may have a user, a password and the number of a database. The password is never shown.
func TestRedisAddress(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	r.Do(t, "acl", "setuser", "shivad", "on", ">secret", "allkeys", "allchannels", "allcommands")
	r.Do(t, "acl", "setuser", "default", "resetpass", ">other")
	p := newProxy(t, r)
	statetest.Put(t, open(t, p.target("shivad:secret@"), quick), "a", "1")
	if keys := r.Session(t, []any{"auth", "shivad", "secret"}, inThree, []any{"keys", "*"}); !strings.Contains(keys, "shivad:entries") {
		t.Errorf("database 3 has keys %q", keys)
	}
	s := open(t, p.target("shivad:secrets@"), quick)
	budgettest.Until(t, "health tells that the password is wrong", func() bool {
		err := s.Health().Err
		if !errors.Is(err, state.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
			t.Fatalf("health with a wrong password: %v", err)
		}
		return strings.Contains(err.Error(), "WRONGPASS")
	})
}

// A full Redis refuses updates, and accepts them again when there is room.
func TestRedisFull(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	r := statetest.NewRedis(t)
	s := open(t, r.Target(), quick)
	statetest.Put(t, s, "a", "1")
	r.Do(t, "config", "set", "maxmemory", "1")
	if _, err := s.Update(statetest.Context(t), "a", "", statetest.Add(1)); !errors.Is(err, state.ErrFull) {
		t.Errorf("update of a full Redis: %v", err)
	}
	if !statetest.Has(s, "a", "1") {
		t.Error("reading does not go on")
	}
	r.Do(t, "config", "set", "maxmemory", "0")
	statetest.Put(t, s, "a", "2")
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	for target, want := range map[string]string{
		"":                                  "no target",
		"http://host":                       "redis",
		"redis://user:secret@host:port/0":   "port",
		"redis://user:secret@host:6379/x/y": "path",
		"/nowhere/state.db":                 "/nowhere/state.db",
	} {
		_, err := state.Open(context.Background(), target, state.Options{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want something of %q and no password", target, err, want)
		}
	}
	_, err := state.Open(context.Background(), "x",
		state.Options{Namespace: "a b", IDLifetime: -1, MaxIDs: -1, Settle: -1})
	for _, want := range []string{"namespace", "id lifetime", "ids", "settle"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bad options: %v, want something of %s", err, want)
		}
	}
}
