package composite

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/state"
)

// TestFixed: a definition of the configuration is in force instead of one of the store, which is
// back when the configuration has it no more, and cannot be changed meanwhile.
func TestFixed(t *testing.T) {
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var gone []string
	same := func(thing string) (string, error) { return thing, nil }
	d := New(Config[string, string]{
		Store: store, Key: "things", Kind: gate.Pipeline, New: same, Check: same,
		Name: func(thing string) string { return thing[:1] }, Of: func(thing string) string { return thing },
		Changed: func(names []string) { gone = names },
	})
	d.Follow()
	defer d.Close()
	expect := func(want ...string) {
		t.Helper()
		if got := d.All(); !slices.Equal(got, want) {
			t.Errorf("got %q, expected %q", got, want)
		}
	}
	for _, name := range []string{"a", "b"} {
		if _, err := d.Create(t.Context(), name+" stored"); err != nil {
			t.Fatal(err)
		}
	}
	d.Fix(map[string]string{"a": "a fixed", "c": "c fixed"})
	expect("a fixed", "b stored", "c fixed")
	_, put := d.Put(t.Context(), "a new")
	_, change := d.Change(t.Context(), "a", func(*string) error { return fmt.Errorf("asked") })
	for what, err := range map[string]error{
		"put": put, "change": change, "delete": d.Delete(t.Context(), "c"),
	} {
		if !errors.Is(err, ErrFixed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	d.Refresh()
	expect("a fixed", "b stored", "c fixed")
	if d.Fix(map[string]string{}); !slices.Equal(gone, []string{"c"}) {
		t.Errorf("gone: %q", gone)
	}
	expect("a stored", "b stored")
}
