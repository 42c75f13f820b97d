package state_test

import (
	"slices"
	"testing"

	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/server/state/statetest"
)

func TestKey(t *testing.T) {
	for _, segments := range [][]string{{"apps"}, {"selection", "app", "user"}, {"a/b", "c"}, {"a", "b/c"}, {"", ""},
		{"é %2F", "\x00\xff"}} {
		key := state.Key(segments...)
		if got, err := state.Segments(key); err != nil || !slices.Equal(got, segments) {
			t.Errorf("%q became %q, and that %q, %v", segments, key, got, err)
		}
	}
	if state.Key("a/b", "c") == state.Key("a", "b/c") {
		t.Error("different segments make the same key")
	}
	if _, err := state.Segments("a%zz"); err == nil {
		t.Error("a key that Key did not make has segments")
	}
}

// Requests read the state, so reading must not allocate.
func TestGetAllocatesNothing(t *testing.T) {
	s, err := state.NewMemory(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	statetest.Put(t, s, "selection/app/user", "weights")
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := s.Get("selection/app/user"); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
