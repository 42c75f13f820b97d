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
	d := New(Config[string]{
		Store: store, Key: "things", Kind: gate.Pipeline,
		Parse: func(value []byte) (string, string, error) {
			return string(value[:1]), string(value), nil
		},
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
		if err := d.Put(t.Context(), name, []byte(name+" stored"), false); err != nil {
			t.Fatal(err)
		}
	}
	d.Fix(map[string]string{"a": "a fixed", "c": "c fixed"})
	expect("a fixed", "b stored", "c fixed")
	for what, err := range map[string]error{
		"put":    d.Put(t.Context(), "a", []byte("a new"), true),
		"change": d.Change(t.Context(), "a", func([]byte) ([]byte, error) { return nil, fmt.Errorf("asked") }),
		"delete": d.Delete(t.Context(), "c"),
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
