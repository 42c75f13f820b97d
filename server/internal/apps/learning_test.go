package apps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/budgettest"
)

var ab = []selection.Model{{Name: "a", Version: "1"}, {Name: "b", Version: "1"}}

// policy makes the application "app" with a policy of that name, or gives it that policy.
func policy(t *testing.T, r *Registry, name string) *App {
	t.Helper()
	a, err := r.Put(t.Context(), Definition{Name: "app", Models: []string{"a", "b"}, Policy: name})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// learn teaches that a was right and b wrong.
func learn(t *testing.T, r *Registry, a *App, user, id string) selection.State {
	t.Helper()
	reply := []selection.Prediction{{Ask: selection.Ask{Model: ab[0], Probability: 0.5}}}
	s, _, err := r.Learn(t.Context(), a, ab,
		Judged{user, id, reply, selection.ByLosses(map[selection.Model]float64{ab[0]: 0, ab[1]: 1})})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStaleDefinitionLearnsForItself: feedback that was opened before the policy was changed, here
// or at a server that does not know of the change yet, overwrote the new policy's state with the
// old one's.
func TestStaleDefinitionLearnsForItself(t *testing.T) {
	r := registry(t, memory(t))
	before, after := policy(t, r, "exp4"), policy(t, r, "exp3")
	for i := range 10 {
		learn(t, r, before, "u", fmt.Sprint("before", i))
	}
	for i := range 30 {
		learn(t, r, after, "u", fmt.Sprint("after", i))
	}
	learn(t, r, before, "u", "late")
	if s, err := r.State(after, "u", ab); err != nil || s.Policy != "exp3" || s.Rounds != 30 {
		t.Errorf("the new policy has %d rounds of %s, want 30 (%v)", s.Rounds, s.Policy, err)
	}
	if s := learn(t, r, after, "u", "again"); s.Rounds != 31 {
		t.Errorf("after one more it has %d rounds, want 31", s.Rounds)
	}
	if s, err := r.State(before, "u", ab); err != nil || s.Rounds != 11 {
		t.Errorf("the policy of before, changed back to, has %d rounds, want 11 (%v)", s.Rounds, err)
	}
	if list, _, err := r.Learned(before, 10); err != nil || len(list) != 1 || list[0].State.Rounds != 11 {
		t.Errorf("changed back to, it shows %+v (%v)", list, err)
	}
}

// TestUnreadableIsNotWrittenOver: the state has a later format, or a policy that only another
// server knows.
func TestUnreadableIsNotWrittenOver(t *testing.T) {
	store := memory(t)
	r := registry(t, store)
	a := policy(t, r, "exp4")
	later := []byte(`{"format":99}`)
	if _, err := store.Update(t.Context(), PolicyKey("app", "u"), "", func([]byte) ([]byte, error) {
		return later, nil
	}); err != nil {
		t.Fatal(err)
	}
	if s, err := r.State(a, "u", ab); err != nil || s.Rounds != 0 {
		t.Errorf("serving with what cannot be read: %+v (%v)", s, err)
	}
	reply := []selection.Prediction{{Ask: selection.Ask{Model: ab[0], Probability: 1}}}
	_, _, err := r.Learn(t.Context(), a, ab,
		Judged{"u", "", reply, selection.ByLosses(map[selection.Model]float64{ab[0]: 0})})
	if err == nil || !strings.Contains(err.Error(), "format 99") {
		t.Errorf("learning over it: %v", err)
	}
	if e, _ := store.Get(PolicyKey("app", "u")); string(e.Value) != string(later) {
		t.Errorf("it became %s", e.Value)
	}
}

// TestFeedbackAfterDeletion: state that is learned for an application deleted meanwhile belongs to
// no application. It used to produce an export that no server could import, and was the initial
// state of the next application of that name.
func TestFeedbackAfterDeletion(t *testing.T) {
	store := memory(t)
	r := registry(t, store)
	d := Definition{Name: "app", Models: []string{"a", "b"}, Policy: "exp4"}
	stale, err := r.Create(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	learn(t, r, stale, "u", "1")
	again, err := r.Create(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := r.State(again, "u", ab); err != nil || s.Rounds != 0 {
		t.Errorf("a new application of the name begins with %d rounds (%v)", s.Rounds, err)
	}
	learn(t, r, again, "u", "2")
	r.tidy(t.Context())
	if s, err := r.State(again, "u", ab); err != nil || s.Rounds != 1 {
		t.Errorf("what is learned for an application that is there went: %d rounds (%v)", s.Rounds, err)
	}
	if err := r.Delete(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	learn(t, r, again, "u", "3")
	r.tidy(t.Context())
	if left, err := store.List(policyPrefix); err != nil || len(left) > 0 {
		t.Errorf("%d states are left of no application (%v)", len(left), err)
	}
}

// TestUsersOfAnApplicationAreBounded: clients name users, and the state of each would stay in the
// memory of every server forever.
func TestUsersOfAnApplicationAreBounded(t *testing.T) {
	store := memory(t)
	r := Open(Config{Store: store, Changed: func() {}, Users: 20})
	t.Cleanup(r.Close)
	a, err := r.Create(t.Context(), Definition{Name: "app", Models: []string{"a", "b"}, Policy: "exp4"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := r.Create(t.Context(), Definition{Name: "other", Models: []string{"a", "b"}, Policy: "exp4"})
	if err != nil {
		t.Fatal(err)
	}
	learn(t, r, other, "u0", "")
	for i := range 50 {
		learn(t, r, a, fmt.Sprint("u", i), "")
		// Users that send requests, or give feedback, stay in memory.
		if _, err := r.State(a, "u3", ab); err != nil {
			t.Fatal(err)
		}
		if i > 7 {
			learn(t, r, a, "u7", "")
		}
	}
	budgettest.Until(t, "the users beyond the bound to go", func() bool { return r.Users("app").Forgotten == 30 })
	list, _, err := r.Learned(a, 100)
	if err != nil || len(list) != 20 || r.Users("app").Kept != 20 || r.Users("other").Kept != 1 {
		t.Fatalf("%d users, counted as %+v, and %+v of the other application (%v)", len(list), r.Users("app"), r.Users("other"), err)
	}
	have := map[string]bool{}
	for _, l := range list {
		have[l.User] = true
	}
	if !have["u3"] || !have["u7"] || !have["u49"] || have["u4"] {
		t.Errorf("kept %v", have)
	}
}

// unlisted is a store that lists nothing once told so.
type unlisted struct {
	state.Store
	denies atomic.Bool
}

func (s *unlisted) List(prefix string) ([]state.Entry, error) {
	if s.denies.Load() {
		return nil, errors.New("nothing is listed")
	}
	return s.Store.List(prefix)
}

// TestFirst: the state of the first user is found without reading all of them; requests without a
// user come first, and an unreadable state does not hide the others.
func TestFirst(t *testing.T) {
	store := &unlisted{Store: memory(t)}
	r := registry(t, store)
	a := policy(t, r, "exp4")
	for i := range 30 {
		learn(t, r, a, fmt.Sprint("u", i), "")
	}
	expect := func(what, user string) {
		t.Helper()
		var l Learned
		budgettest.Until(t, fmt.Sprintf("the first to be %q %s", user, what), func() bool {
			r.tidy(t.Context()) // as keepTidy does, which may have looked earlier
			store.denies.Store(true)
			defer store.denies.Store(false)
			var ok bool
			var err error
			l, ok, err = r.First(a)
			return ok && err == nil && l.User == user
		})
		if len(l.Shares) != len(ab) || l.State.Rounds != 1 {
			t.Errorf("%+v", l)
		}
	}
	expect("of thirty", "u0")
	learn(t, r, a, "", "")
	expect("beside them", "")
	if _, err := store.Update(t.Context(), PolicyKey("app", ""), "", func([]byte) ([]byte, error) {
		return []byte("rubbish"), nil
	}); err != nil {
		t.Fatal(err)
	}
	expect("beside rubbish", "u0")
	if _, ok, err := r.LearnedFor(a, "stranger"); ok || err != nil {
		t.Errorf("for a stranger: %v, %v", ok, err)
	}
	if err := r.Reset(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	if l, ok, err := r.First(a); ok || err != nil {
		t.Errorf("after all was forgotten: %+v, %v", l, err)
	}
}

// TestTidyLeavesWhatChanges: a state that changes while it is chosen for deletion stays.
func TestTidyLeavesWhatChanges(t *testing.T) {
	store := memory(t)
	r := registry(t, store)
	a := policy(t, r, "exp4")
	learn(t, r, a, "u", "")
	old, err := store.Get(PolicyKey("app", "u"))
	if err != nil {
		t.Fatal(err)
	}
	learn(t, r, a, "u", "")
	if n := r.discard(context.Background(), []state.Entry{old}); n != 0 {
		t.Errorf("%d discarded", n)
	}
	if e, _ := store.Get(PolicyKey("app", "u")); e.Value == nil {
		t.Error("it has gone")
	}
}

// TestCheckState: an imported state must be one that learning could have written.
func TestCheckState(t *testing.T) {
	r := registry(t, memory(t))
	good, err := json.Marshal(learn(t, r, policy(t, r, "exp4"), "u", ""))
	if err != nil {
		t.Fatal(err)
	}
	if value, err := CheckState(good); err != nil || string(value) != string(good) {
		t.Errorf("%s became %s (%v)", good, value, err)
	}
	for _, text := range []string{
		`{"format":2}`,
		`{"format":1,"policy":"exp4","models":[{"model":"a/1"}],"others":[{"format":1,"policy":"exp4","models":[{"model":"a/1"}]}]}`,
		`{"format":1,"policy":"exp4","models":[{"model":"a/1"}],"aside":[{"model":"a/1"}]}`,
	} {
		if _, err := CheckState([]byte(text)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	if lost := Lost(good, []byte(`{"format":1,"policy":"exp4","models":[{"model":"a/1"}]}`)); !strings.Contains(lost, "exp4 learned from 1 feedbacks (0 in the document)") {
		t.Errorf("lost: %q", lost)
	}
	if lost := Lost(good, good); lost != "" {
		t.Errorf("nothing is lost, and it says %q", lost)
	}
}
