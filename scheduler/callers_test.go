package scheduler

import (
	"testing"
	"time"
)

// TestDelayClasses: each time is in the class with the smallest edge that is not below it.
func TestDelayClasses(t *testing.T) {
	for class := 1; class < delayClasses-1; class++ {
		edge, before := delayEdge(class), delayEdge(class-1)
		if edge <= before || delayClass(edge) != class || delayClass(before+1) != class ||
			delayClass(edge+1) != class+1 {
			t.Errorf("class %d ends at %d, the one before at %d: %d is in class %d, %d in %d",
				class, edge, before, edge, delayClass(edge), before+1, delayClass(before+1))
		}
	}
	if delayClass(0) != 0 || delayClass(1<<62) != delayClasses-1 {
		t.Error("the shortest and the longest time have no class")
	}
}

// TestHabits: who is a caller, by when a source asks a model that takes 10 ms.
func TestHabits(t *testing.T) {
	const ms = int64(time.Millisecond)
	for _, c := range []struct {
		name string
		// The time from an answer to the next request, and whether one comes before it.
		gap    func(i int) int64
		early  func(i int) bool
		caller bool
	}{
		{"after each answer", func(int) int64 { return ms }, nil, true},
		{"after each answer, but later than a row takes", func(int) int64 { return 11 * ms }, nil, false},
		{"five times, then a pause", func(i int) int64 {
			if i%5 == 4 {
				return 1000 * ms
			}
			return ms
		}, nil, true},
		{"without regard to answers", func(int) int64 { return ms }, func(i int) bool { return i%3 == 0 }, false},
	} {
		cs, s := &callers{horizon: 10 * ms}, &source{id: 1}
		now := int64(0)
		for i := range 100 {
			cs.begin(now)
			cs.asked(s, 1)
			if c.early != nil && c.early(i) {
				now += ms
				cs.begin(now)
				cs.asked(s, 1)
				cs.answered(s, 1)
			}
			now += 10 * ms
			cs.begin(now)
			cs.answered(s, 1)
			now += c.gap(i)
			cs.begin(now)
			cs.expire()
		}
		if s.caller != c.caller {
			t.Errorf("%s: hits %.2f, extra requests %.2f, caller: %v", c.name, s.hits.value, s.extras.value, s.caller)
		}
	}
}

// TestSourcesAreEvicted: connections that come and go leave a bounded number of sources, and new
// ones are remembered all the same.
func TestSourcesAreEvicted(t *testing.T) {
	m, out, submit := sourcesModel(t, ModelConfig{})
	last := uint64(3 * keepSources)
	for source := range last {
		submit(1+source, 1)
		if err := (*out)[0].Complete((*out)[0].Parts[0].Inputs, nil); err != nil {
			t.Fatal(err)
		}
		*out = (*out)[:0]
	}
	if n := len(m.core.sources.byID); n > keepSources {
		t.Errorf("%d idle sources are remembered, want at most %d", n, keepSources)
	}
	if m.core.sources.byID[last] == nil {
		t.Error("the newest source is forgotten")
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}
