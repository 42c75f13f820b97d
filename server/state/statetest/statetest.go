// Package statetest has the conformance test of state.Store, and a real Redis for tests that need
// one.
package statetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/budgettest"
)

// patience is how long a test waits for events that take milliseconds on an idle machine.
const patience = 20 * time.Second

// Stores makes the stores of one test. Each call opens one; the stores of one test share their data
// if they can, like servers with one Redis. The maker closes them.
type Stores func(t *testing.T, opts state.Options) state.Store

// Conformance tests what every store promises. Shared: a second store sees what the first one
// wrote.
func Conformance(t *testing.T, shared bool, fresh func(t *testing.T) Stores) {
	for name, test := range map[string]func(*testing.T, Stores){
		"values": values, "listing": listing, "refusals": refusals, "limits": limits, "ids": ids,
		"idsEnd": idsEnd, "watching": watching, "writers": func(t *testing.T, open Stores) { writers(t, open, shared) },
		"contexts": contexts, "panics": panics, "closed": closed,
		"writes": func(t *testing.T, open Stores) { writes(t, open, shared) },
	} {
		t.Run(name, func(t *testing.T) { test(t, fresh(t)) })
	}
	if shared {
		t.Run("notified", func(t *testing.T) { notified(t, fresh(t)) })
	}
}

// Context ends with the test's patience.
func Context(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Put sets a key, whatever its old value.
func Put(t *testing.T, s state.Store, key, value string) state.Entry {
	t.Helper()
	e, err := s.Update(Context(t), key, "", func([]byte) ([]byte, error) { return []byte(value), nil })
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return e
}

// Delete deletes a key.
func Delete(t *testing.T, s state.Store, key string) {
	t.Helper()
	if _, err := s.Update(Context(t), key, "", func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatalf("delete %s: %v", key, err)
	}
}

// Has reports whether a store reads this value; "" stands for no value.
func Has(s state.Store, key, value string) bool {
	e, err := s.Get(key)
	return err == nil && (e.Value != nil) == (value != "") && string(e.Value) == value
}

// Add is a change that increments a number.
func Add(n int) func([]byte) ([]byte, error) {
	return func(old []byte) ([]byte, error) {
		if old == nil {
			old = []byte("0")
		}
		was, err := strconv.Atoi(string(old))
		return strconv.AppendInt(nil, int64(was+n), 10), err
	}
}

func expect(t *testing.T, s state.Store, key, value string) state.Entry {
	t.Helper()
	e, err := s.Get(key)
	if err != nil || e.Key != key || string(e.Value) != value || e.Value == nil {
		t.Fatalf("get %s: %q %q %v, want %q", key, e.Key, e.Value, err, value)
	}
	return e
}

func expectNone(t *testing.T, s state.Store, key string) {
	t.Helper()
	if e, err := s.Get(key); err != nil || e.Value != nil || e.Revision != 0 || e.Key != key {
		t.Fatalf("get %s: %+v %v, want an entry without value", key, e, err)
	}
}

func values(t *testing.T, open Stores) {
	s := open(t, state.Options{})
	expectNone(t, s, "apps/a")
	first := Put(t, s, "apps/a", "one")
	if e := expect(t, s, "apps/a", "one"); e.Revision == 0 || e.Revision != first.Revision {
		t.Errorf("revision %d read, %d written", e.Revision, first.Revision)
	}
	if second := Put(t, s, "apps/a", "two"); second.Revision == first.Revision || string(second.Value) != "two" {
		t.Errorf("a change gave %+v after %+v", second, first)
	}
	if string(first.Value) != "one" {
		t.Errorf("an entry that was read has become %q", first.Value)
	}
	Put(t, s, "apps/empty", "")
	expect(t, s, "apps/empty", "")
	odd := "\x00 é\xff\r\n"
	Put(t, s, state.Key("users", odd), odd)
	expect(t, s, state.Key("users", odd), odd)
	Put(t, s, odd, odd+"1")
	expect(t, s, odd, odd+"1")
	Delete(t, s, "apps/a")
	expectNone(t, s, "apps/a")
	Delete(t, s, "apps/never")
	expectNone(t, s, "apps/never")
	if e := Put(t, s, "apps/a", "again"); e.Revision == first.Revision {
		t.Errorf("a key made anew has its old revision %d", e.Revision)
	}
	if s.Health().Err != nil || s.Health().Since.IsZero() {
		t.Errorf("health: %+v", s.Health())
	}
}

func listing(t *testing.T, open Stores) {
	s := open(t, state.Options{})
	for _, key := range []string{"b/2", "a/x/1", "b/10", "ab", "a/y", "b/1"} {
		Put(t, s, key, "of "+key)
	}
	Delete(t, s, "b/1")
	for prefix, want := range map[string][]string{
		"":     {"a/x/1", "a/y", "ab", "b/10", "b/2"},
		"a":    {"a/x/1", "a/y", "ab"},
		"a/":   {"a/x/1", "a/y"},
		"a/x/": {"a/x/1"},
		"b/1":  {"b/10"},
		"c/":   nil,
	} {
		all, err := s.List(prefix)
		var keys []string
		for _, e := range all {
			keys = append(keys, e.Key)
			if string(e.Value) != "of "+e.Key || e.Revision == 0 {
				t.Errorf("list %q: %+v", prefix, e)
			}
		}
		if err != nil || !slices.Equal(keys, want) {
			t.Errorf("list %q: %q %v, want %q", prefix, keys, err, want)
		}
	}
}

func refusals(t *testing.T, open Stores) {
	s := open(t, state.Options{})
	Put(t, s, "apps/a", "one")
	no := errors.New("no")
	_, err := s.Update(Context(t), "apps/a", "id", func(old []byte) ([]byte, error) {
		if string(old) != "one" {
			t.Errorf("change got %q", old)
		}
		return []byte("two"), no
	})
	if err != no {
		t.Errorf("error %v, want that of the change", err)
	}
	expect(t, s, "apps/a", "one")
	if _, err := s.Update(Context(t), "apps/a", "id",
		func(old []byte) ([]byte, error) { return append(old[:len(old):len(old)], '!'), nil }); err != nil {
		t.Errorf("after a refusal, with the same id: %v", err)
	}
	expect(t, s, "apps/a", "one!")
}

func limits(t *testing.T, open Stores) {
	s := open(t, state.Options{})
	put := func(key, value string) error {
		_, err := s.Update(Context(t), key, "", func([]byte) ([]byte, error) { return []byte(value), nil })
		return err
	}
	key, value := strings.Repeat("k", state.MaxKeyBytes), strings.Repeat("v", state.MaxValueBytes)
	if err := put(key, value); err != nil {
		t.Errorf("at the limits: %v", err)
	}
	expect(t, s, key, value)
	if err := put(key+"k", "v"); !errors.Is(err, state.ErrTooLarge) {
		t.Errorf("key above the limit: %v", err)
	}
	if err := put("k", value+"v"); !errors.Is(err, state.ErrTooLarge) ||
		!strings.Contains(err.Error(), fmt.Sprint(state.MaxValueBytes)) {
		t.Errorf("value above the limit: %v", err)
	}
	expectNone(t, s, "k")
	if err := put("", "v"); err == nil {
		t.Error("an empty key was accepted")
	}
}

func ids(t *testing.T, open Stores) {
	s := open(t, state.Options{})
	update := func(s state.Store, key, id string) (state.Entry, error) { return s.Update(Context(t), key, id, Add(1)) }
	if _, err := update(s, "n", "first"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if e, err := update(s, "n", "first"); !errors.Is(err, state.ErrApplied) || string(e.Value) != "1" {
			t.Fatalf("applied again: %q %v", e.Value, err)
		}
	}
	no := func([]byte) ([]byte, error) { return nil, errors.New("no") }
	if e, err := s.Update(Context(t), "n", "first", no); !errors.Is(err, state.ErrApplied) || string(e.Value) != "1" {
		t.Errorf("applied before, and refused by now: %q %v", e.Value, err)
	}
	for _, other := range [][2]string{{"n", "second"}, {"m", "first"}, {"n", ""}, {"n", ""}} {
		if _, err := update(s, other[0], other[1]); err != nil {
			t.Errorf("update of %s with id %q: %v", other[0], other[1], err)
		}
	}
	expect(t, s, "n", "4")
	expect(t, s, "m", "1")
	Delete(t, s, "m")
	if e, err := update(s, "m", "first"); !errors.Is(err, state.ErrApplied) || e.Value != nil || e.Revision != 0 {
		t.Errorf("of a key that was deleted since: %+v %v", e, err)
	}

	// Many at once, each twice: every id counts once.
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if _, err := update(s, "many", fmt.Sprint(i/2)); err != nil && !errors.Is(err, state.ErrApplied) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	expect(t, s, "many", "8")
}

func idsEnd(t *testing.T, open Stores) {
	s := open(t, state.Options{IDLifetime: 50 * time.Millisecond, MaxIDs: 16})
	if _, err := s.Update(Context(t), "old", "id", Add(1)); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the id is forgotten after its lifetime", func() bool {
		_, err := s.Update(Context(t), "old", "id", Add(1))
		return err == nil
	})
	many := open(t, state.Options{MaxIDs: 16})
	update := func(i int) error {
		_, err := many.Update(Context(t), "many", fmt.Sprint(i), Add(1))
		return err
	}
	for i := range 40 {
		if err := update(i); err != nil {
			t.Fatal(err)
		}
		// Ids of one millisecond are not in order.
		time.Sleep(2 * time.Millisecond)
	}
	for i := 39; i > 24; i-- {
		if err := update(i); !errors.Is(err, state.ErrApplied) {
			t.Errorf("id %d of 40, with 16 remembered: %v", i, err)
		}
	}
	if err := update(0); err != nil {
		t.Errorf("the oldest of 40 ids, with 16 remembered: %v", err)
	}
}

func watching(t *testing.T, open Stores) {
	s := open(t, state.Options{})
	changed := make(chan struct{}, 1)
	stop := s.Watch("apps/", changed)
	told := func() bool {
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	if !told() || told() {
		t.Error("want one signal at the start")
	}
	Put(t, s, "apps/a", "1")
	if !told() {
		t.Error("no signal of an own change when Update returned")
	}
	Put(t, s, "apps/a", "2")
	Put(t, s, "apps/b", "2")
	Delete(t, s, "apps/a")
	if !told() {
		t.Error("no signal of several changes")
	}
	stop()
	told()
	Put(t, s, "apps/a", "3")
	if told() {
		t.Error("a signal after stop")
	}
	defer s.Watch("models/", changed)()
	told()
	Put(t, s, "apps/a", "4")
	if told() {
		t.Error("a signal of another prefix")
	}
}

// writers: two servers with eight writers each, or one with sixteen, count in a few keys. No
// update may be lost.
func writers(t *testing.T, open Stores, shared bool) {
	stores := []state.Store{open(t, state.Options{})}
	if shared {
		stores = append(stores, open(t, state.Options{}))
	} else {
		stores = append(stores, stores[0])
	}
	const each = 25
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range each {
				key := fmt.Sprintf("count/%d", n%2)
				e, err := stores[i%2].Update(Context(t), key, "", Add(1))
				if err != nil {
					t.Errorf("writer %d: %v", i, err)
					return
				}
				if now, err := stores[i%2].Get(key); err != nil || now.Revision < e.Revision {
					t.Errorf("writer %d does not see its own revision %d, but %d, %v", i, e.Revision, now.Revision, err)
				}
			}
		})
	}
	wg.Wait()
	for _, s := range stores {
		budgettest.Until(t, "both see all updates", func() bool {
			return Has(s, "count/0", fmt.Sprint(16*(each/2+1))) && Has(s, "count/1", fmt.Sprint(16*(each/2)))
		})
	}
}

func contexts(t *testing.T, open Stores) {
	s := open(t, state.Options{})
	Put(t, s, "a", "1")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Update(ctx, "a", "", Add(1))
	if !errors.Is(err, context.Canceled) || !errors.Is(err, state.ErrUnavailable) {
		t.Errorf("with a context that has ended: %v", err)
	}

	// A slow change makes other updates of the key wait, but not beyond their contexts.
	release, entered := make(chan struct{}), make(chan struct{}, maxCalls)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Update(Context(t), "a", "", func(old []byte) ([]byte, error) {
			entered <- struct{}{}
			<-release
			return Add(1)(old)
		}); err != nil {
			t.Error(err)
		}
	})
	<-entered
	short, done := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer done()
	if _, err := s.Update(short, "a", "", Add(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for a slow change: %v", err)
	}
	close(release)
	wg.Wait()
}

// maxCalls is above how often a store calls a change.
const maxCalls = 1000

func panics(t *testing.T, open Stores) {
	s := open(t, state.Options{})
	func() {
		defer func() {
			if p := recover(); p != "oh" {
				t.Errorf("recovered %v, want what the change panicked with", p)
			}
		}()
		_, _ = s.Update(Context(t), "a", "", func([]byte) ([]byte, error) { panic("oh") })
	}()
	Put(t, s, "a", "1")
	expect(t, s, "a", "1")
}

func closed(t *testing.T, open Stores) {
	var log bytes.Buffer
	s := open(t, state.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	Put(t, s, "a", "1")
	changed := make(chan struct{}, 1)
	stop := s.Watch("", changed)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if _, err := s.Get("a"); !errors.Is(err, state.ErrClosed) {
		t.Errorf("get: %v", err)
	}
	if _, err := s.List(""); !errors.Is(err, state.ErrClosed) {
		t.Errorf("list: %v", err)
	}
	if _, err := s.Update(Context(t), "a", "", Add(1)); !errors.Is(err, state.ErrClosed) {
		t.Errorf("update: %v", err)
	}
	if err := s.Health().Err; !errors.Is(err, state.ErrClosed) {
		t.Errorf("health: %v", err)
	}
	if strings.Contains(log.String(), "closed") {
		t.Errorf("closing is in the log as if it were a fault: %s", &log)
	}
}

// notified: a change of one server reaches the watchers of another.
func notified(t *testing.T, open Stores) {
	a, b := open(t, state.Options{}), open(t, state.Options{})
	changed := make(chan struct{}, 1)
	defer b.Watch("apps/", changed)()
	<-changed
	wait := func() {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(patience):
			t.Fatalf("no signal within %v", patience)
		}
	}
	value := bytes.Repeat([]byte("large "), 1000)
	Put(t, a, "apps/a", string(value))
	wait()
	expect(t, b, "apps/a", string(value))
	Delete(t, a, "apps/a")
	wait()
	expectNone(t, b, "apps/a")
	if _, err := a.Update(Context(t), "apps/a", "id", Add(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Update(Context(t), "apps/a", "id", Add(1)); !errors.Is(err, state.ErrApplied) {
		t.Errorf("id that was applied by another server: %v", err)
	}
}

// A Write is visible whole or not at all, for every reader and alongside updates.
func writes(t *testing.T, open Stores, shared bool) {
	s := open(t, state.Options{})
	other := s
	if shared {
		other = open(t, state.Options{})
	}
	Put(t, s, "a/gone", "x")
	Put(t, s, "a/kept", "x")
	if err := s.Write(Context(t), nil); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	if err := s.Write(Context(t),
		[]state.Entry{{Key: "a/gone"}, {Key: "a/1", Value: []byte("1")}, {Key: "b/1", Value: []byte{}},
			{Key: "a/absent"}}); err != nil {
		t.Fatal(err)
	}
	expectNone(t, s, "a/gone")
	expect(t, s, "a/1", "1")
	expect(t, s, "b/1", "")
	first := expect(t, s, "a/kept", "x")
	if e := Put(t, s, "a/1", "2"); e.Revision <= first.Revision {
		t.Errorf("revision %d after %d", e.Revision, first.Revision)
	}
	budgettest.Until(t, "the other store has it",
		func() bool { return Has(other, "a/1", "2") && Has(other, "a/gone", "") })

	for what, wrong := range map[string]state.Entry{
		"a value too large": {Key: "z", Value: make([]byte, state.MaxValueBytes+1)},
		"a key too large":   {Key: strings.Repeat("k", state.MaxKeyBytes+1), Value: []byte("x")},
		"no key":            {Value: []byte("x")},
		"a key twice":       {Key: "c/1", Value: []byte("x")},
	} {
		if err := s.Write(Context(t), []state.Entry{{Key: "c/1", Value: []byte("1")}, wrong}); err == nil {
			t.Errorf("%s was taken", what)
		}
		expectNone(t, s, "c/1")
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Write(ended, []state.Entry{{Key: "c/1", Value: []byte("1")}}); !errors.Is(err, state.ErrUnavailable) {
		t.Errorf("with a context that has ended: %v", err)
	}
	expectNone(t, s, "c/1")

	// At any moment all of a write is visible, or none of it; and an update never rests on the
	// state before the write.
	const keys, rounds = 20, 10
	all := func(value int) (list []state.Entry) {
		for k := range keys {
			list = append(list, state.Entry{Key: fmt.Sprintf("d/%02d", k), Value: []byte(strconv.Itoa(value))})
		}
		return list
	}
	if err := s.Write(Context(t), all(0)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() {
		for {
			list, err := s.List("d/")
			if err != nil || len(list) != keys || string(list[0].Value) != string(list[keys-1].Value) {
				t.Errorf("a reader saw %d keys, the first %q, the last %q, %v",
					len(list), list[0].Value, list[len(list)-1].Value, err)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	readers.Go(func() {
		for range rounds {
			if _, err := other.Update(Context(t), "e", "", Add(1)); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range rounds {
		if err := s.Write(Context(t), append(all(i), state.Entry{Key: "e", Value: []byte("1000")})); err != nil {
			t.Error(err)
		}
	}
	close(done)
	readers.Wait()
	if e, err := s.Update(Context(t), "e", "", Add(0)); err != nil || len(e.Value) != 4 {
		t.Errorf("an update beside writes left %q, %v", e.Value, err)
	}
}
