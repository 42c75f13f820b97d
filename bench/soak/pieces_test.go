package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// third is the report of a piece of twenty minutes that keeps every promise.
func third() *report {
	r := good()
	r.Began, r.Build, r.Length = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "a", 20*time.Minute
	for i := range r.Samples {
		at := time.Duration(i+1) * 10 * time.Second
		r.Samples[i] = sample{at, state{Heap: 40e6 + int64(at.Hours()*maxSlope*0.9)}}
	}
	return r
}

// TestPieces: reading returns the added pieces, and the error about an invalid file names the
// piece.
func TestPieces(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pieces")
	if list, err := readPieces(file); list != nil || err != nil {
		t.Errorf("%v, %v of no file", list, err)
	}
	want := []*report{third(), third()}
	want[1].Churn.Faults = []string{"client: gone"}
	for _, r := range want {
		if err := r.add(file); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := readPieces(file); err != nil || !reflect.DeepEqual(list, want) || lengthOf(list) != 40*time.Minute {
		t.Errorf("%v, %v", list, err)
	}
	for _, more := range []string{"{", `{"Length": 1}`} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		bad := filepath.Join(t.TempDir(), "bad")
		if err := os.WriteFile(bad, append(text, more...), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readPieces(bad); err == nil || !strings.Contains(err.Error(), "piece 3") {
			t.Errorf("%q as a third piece: %v", more, err)
		}
	}
}

// TestJudge: pieces that each keep the promises for a short run can together break those for hours.
func TestJudge(t *testing.T) {
	three := func(spoil func(i int, r *report)) []*report {
		var list []*report
		for i := range 3 {
			r := third()
			spoil(i, r)
			list = append(list, r)
		}
		return list
	}
	for _, c := range []struct {
		words []string // each in a broken promise of its own
		list  []*report
	}{
		{nil, three(func(int, *report) {})},
		{nil, three(func(i int, r *report) { // noise
			grow(r, float64(1-i)*5*maxSlope)
			if i == 0 {
				r.P99[windows-1] *= 3
			}
		})},
		{nil, three(func(_ int, r *report) { grow(r, 2*maxSlope) })[:2]}, // too short to tell
		{[]string{"all pieces: the heap grows by"}, three(func(_ int, r *report) { grow(r, 2*maxSlope) })},
		{[]string{"all pieces: the p99 of the end is 1.30"}, three(func(_ int, r *report) { r.P99[windows-1] = 13 * time.Millisecond })},
		{[]string{"piece 2: 1 requests have no answer"}, three(func(i int, r *report) { r.Lost = int64(i % 2) })},
	} {
		broken := judge(c.list, 2*time.Hour)
		if len(broken) != len(c.words) {
			t.Errorf("broken is %q, expected %q", broken, c.words)
			continue
		}
		for i, words := range c.words {
			if !strings.Contains(broken[i], words) {
				t.Errorf("broken is %q, expected %q", broken[i], words)
			}
		}
	}
}
