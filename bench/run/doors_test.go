package main

import (
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

// Rates are compared within a round, the floor is for the large tensor in bytes, and the table
// has a row for each door under each load.
func TestDoorClaims(t *testing.T) {
	all := map[string][][]doorTurn{}
	for i, f := range load.Forms {
		for range doorLoads {
			all[f.Name] = append(all[f.Name], []doorTurn{{rate: 1024 / float64(int(1)<<i), p50: time.Millisecond}, {rate: 16 / float64(int(1)<<i), p50: 2 * time.Millisecond}})
		}
	}
	limits := map[string]float64{}
	for _, r := range doorRatios(all) {
		if len(r.Rounds) != 2 || r.Rounds[0] != r.Rounds[1] {
			t.Errorf("%s: rounds %v", r.What, r.Rounds)
		}
		limits[r.What] = r.Limit
		if r.Bound == ratio.AtLeast != (r.Limit > 0) {
			t.Errorf("%s: bound %d with limit %v", r.What, r.Bound, r.Limit)
		}
	}
	want := map[string]float64{
		"REST, bytes / Shiva: rate, 64 B, 256 in flight": 0, "REST, JSON / Shiva: rate, 64 B, 256 in flight": 0, "gRPC, raw / Shiva: rate, 64 B, 256 in flight": 0,
		"REST, bytes / Shiva: rate, 602 KB, 8 in flight": 0.5, "REST, JSON / Shiva: rate, 602 KB, 8 in flight": 0, "gRPC, raw / Shiva: rate, 602 KB, 8 in flight": 0.5,
	}
	for what, limit := range want {
		if got, ok := limits[what]; !ok || got != limit {
			t.Errorf("%s: limit %v, want %v", what, got, limit)
		}
	}
	rows := doorTable(all)
	if len(rows) != len(load.Forms)*len(doorLoads) || len(rows[0]) != len(doorHead) {
		t.Fatalf("%d rows of %d cells", len(rows), len(rows[0]))
	}
	if got := []string{"Shiva, 64 B, 256 in flight", "520", "1.50"}; !slices.Equal(rows[0][:3], got) {
		t.Errorf("got %q, want %q", rows[0], got)
	}
}
