package apps

import (
	"fmt"
	"testing"
)

// TestChangesHoldWhenTheyReturn: the caller that made, changed or deleted an application sees the
// result at once.
func TestChangesHoldWhenTheyReturn(t *testing.T) {
	r := registry(t, memory(t))
	for i := range 50 {
		name := fmt.Sprint("app", i)
		if _, err := r.Create(t.Context(), Definition{Name: name, Models: []string{"a"}}); err != nil ||
			r.Find(name) == nil {
			t.Fatalf("made %s: found %v, error %v", name, r.Find(name), err)
		}
		_, err := r.Change(t.Context(), name, func(d *Definition) error { d.Models = []string{"b"}; return nil })
		if a := r.Find(name); err != nil || a.Models[0] != "b" {
			t.Fatalf("changed %s: found %v, error %v", name, a.Models, err)
		}
		if err := r.Delete(t.Context(), name); err != nil || r.Find(name) != nil {
			t.Fatalf("deleted %s: found %v, error %v", name, r.Find(name), err)
		}
	}
}
