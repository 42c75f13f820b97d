package state

import "testing"

// An update that Redis acknowledged just before it lost its data may reach the mirror after the
// comparison with what is left. Then one more comparison restores it.
func TestLateCommitIsBroughtBack(t *testing.T) {
	s := &redisStore{
		mirror: newMirror(nil), reread: make(chan struct{}, 1), statusChanged: make(chan struct{}),
		applied: newRecent[idHash](10), life: "before",
	}
	empty := stored{life: "after", snapshot: snapshot{revision: 100}}
	if entries, ids, ok := s.adopt(empty, ""); !ok {
		t.Fatalf("nothing to bring back, but: %v %v", entries, ids)
	}
	s.committed("before", commitReply{entry: set("a", "1", 7), time: 1}, "id")
	select {
	case <-s.reread:
	default:
		t.Fatal("nobody is asked to compare again")
	}
	for range 2 { // until Redis has the update, each comparison restores it
		entries, ids, ok := s.adopt(empty, "after")
		if s.late = true; ok || len(entries) != 1 || entries[0].Key != "a" || len(ids) != 1 {
			t.Fatalf("bringing back %v and %v, %v", entries, ids, ok)
		}
	}
	s.late = false
	restored := stored{life: "after", snapshot: snapshot{revision: 100, entries: map[string]Entry{"a": set("a", "1", 7)}}}
	if _, _, ok := s.adopt(restored, "after"); !ok || s.life != "after" {
		t.Error("not done when it is there")
	}
	expectTold(t, s.mirror, "a=1@7")
}
