package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// told returns the contents of a mirror as text: "a=1@5" is a key, its value and its revision.
func told(m *mirror) string {
	all, err := m.List("")
	if err != nil {
		return err.Error()
	}
	var words []string
	for _, e := range all {
		words = append(words, fmt.Sprintf("%s=%s@%d", e.Key, e.Value, e.Revision))
	}
	return strings.Join(words, " ")
}

func set(key, value string, revision uint64) Entry {
	return Entry{Key: key, Value: []byte(value), Revision: revision}
}

func expectTold(t *testing.T, m *mirror, want string) {
	t.Helper()
	if got := told(m); got != want {
		t.Errorf("mirror has %q, want %q", got, want)
	}
}

// A store gets changes in any order: from its own updates, and from the channel. The newest counts.
func TestMirrorOrder(t *testing.T) {
	m := newMirror(nil)
	m.set(set("a", "new", 5), set("a", "old", 4))
	expectTold(t, m, "a=new@5")
	m.set(Entry{Key: "a", Revision: 7}, set("a", "between", 6))
	expectTold(t, m, "")
	m.set(set("a", "again", 8), Entry{Key: "a", Revision: 7})
	expectTold(t, m, "a=again@8")
}

func TestMirrorAdopts(t *testing.T) {
	m := newMirror(ErrUnavailable)
	m.adopt(snapshot{entries: map[string]Entry{"a": set("a", "1", 1), "b": set("b", "1", 2), "c": set("c", "1", 3)},
		revision: 3})
	expectTold(t, m, "a=1@1 b=1@2 c=1@3")
	m.set(set("own", "1", 9)) // acknowledged after the snapshot below was taken
	m.adopt(snapshot{entries: map[string]Entry{"a": set("a", "2", 7)},
		deleted: map[string]uint64{"b": 6, "never seen": 5}, revision: 8})
	expectTold(t, m, "a=2@7 own=1@9")
	m.set(set("never seen", "late", 4), set("b", "late", 4), set("c", "late", 4))
	expectTold(t, m, "a=2@7 own=1@9")
	m.close()
	m.adopt(snapshot{entries: map[string]Entry{"a": set("a", "3", 9)}, revision: 9})
	expectTold(t, m, ErrClosed.Error())
}

// A Redis that has lost its data gets these entries back.
func TestMirrorNewer(t *testing.T) {
	m := newMirror(nil)
	m.set(set("lost", "1", 10), set("old here", "1", 11), set("new here", "2", 12), set("same", "1", 13),
		set("deleted there", "1", 14),
		set("deleted here", "1", 15), set("forgotten", "1", 3), set("deleted before", "1", 16))
	m.set(Entry{Key: "deleted here", Revision: 17}, Entry{Key: "deleted lately", Revision: 18})
	var words []string
	for _, e := range m.newer(snapshot{
		entries: map[string]Entry{"old here": set("old here", "2", 20), "new here": set("new here", "1", 9),
			"same": set("same", "1", 13), "deleted here": set("deleted here", "1", 15)},
		deleted: map[string]uint64{"deleted there": 19, "deleted before": 8},
		floor:   5,
	}) {
		words = append(words, fmt.Sprintf("%s=%s@%d", e.Key, e.Value, e.Revision))
	}
	slices.Sort(words)
	want := []string{"deleted before=1@16", "deleted here=@17", "deleted lately=@18", "lost=1@10", "new here=2@12"}
	if !slices.Equal(words, want) {
		t.Errorf("newer: %q, want %q", words, want)
	}
}

func TestRecent(t *testing.T) {
	r := newRecent[int](100)
	for i := range 1000 {
		r.add(i, uint64(i))
	}
	if len(r.at) < 100 || len(r.at) > 113 {
		t.Errorf("%d remembered, want about 100", len(r.at))
	}
	for i := 900; i < 1000; i++ {
		if r.at[i] != uint64(i) {
			t.Errorf("%d is forgotten", i)
		}
	}
	if r.floor == 0 || r.at[int(r.floor)] != 0 || r.at[int(r.floor)+1] == 0 {
		t.Errorf("floor %d is not the highest that was forgotten", r.floor)
	}
	r.add(999, 5)
	if r.at[999] != 999 {
		t.Error("a lower number replaced a higher one")
	}
}
