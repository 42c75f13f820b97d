package main

import (
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/bench/load"
)

// good is the report of two hours in which every promise is kept, if only just.
func good() *report {
	r := &report{length: 2 * time.Hour, before: state{goroutines: 20, descriptors: 30}, after: state{goroutines: 25, descriptors: 25}, answered: 1e6, refused: 100}
	for i := range windows * samples {
		at := time.Duration(i+1) * time.Minute
		heap := 40e6 + at.Hours()*maxSlope*0.99 + float64(i%2)*1000
		if i < samples {
			heap /= 2 // filling
		}
		r.samples = append(r.samples, sample{at, state{heap: int64(heap)}})
	}
	for i := range windows {
		r.p99 = append(r.p99, 10*time.Millisecond)
		if i > 0 {
			r.p99[i] = 11900 * time.Microsecond
		}
	}
	return r
}

// TestBroken: each promise can be broken, and its fault says by how much.
func TestBroken(t *testing.T) {
	r := good()
	for i := range 10 { // the machine stands still
		r.samples[len(r.samples)-1-3*i].heap += 50 << 20
	}
	if broken := r.broken(); len(broken) > 0 {
		t.Errorf("all is well, and broken are %q", broken)
	}
	for word, spoil := range map[string]func(*report){
		"p99":                func(r *report) { r.p99[windows-1] = 13 * time.Millisecond },
		"2.75 MiB in 1.83 h": func(r *report) { grow(r, maxSlope/2+maxSlope/100) },
		"26 in the end":      func(r *report) { r.after.goroutines++ },
		"24 in the end":      func(r *report) { r.after.descriptors-- },
		"1 requests have no": func(r *report) { r.lost++ },
		"0.0200 % of the":    func(r *report) { r.refused *= 2 },
		"what the first one said": func(r *report) {
			r.refused *= 2
			r.add(&load.Result{Failure: "what the first one said"})
			r.p99 = r.p99[:windows]
		},
		"client: no route": func(r *report) { r.churn.faults = []string{"client: no route"} },
		"and 3 more":       func(r *report) { r.churn.faults = make([]string, maxFaults+3) },
	} {
		r := good()
		spoil(r)
		if broken := strings.Join(r.broken(), "\n"); !strings.Contains(broken, word) {
			t.Errorf("broken is %q, expected %q in it", broken, word)
		}
	}
}

// TestShort: in a run of minutes the heap may fill.
func TestShort(t *testing.T) {
	r := good()
	r.length = time.Minute
	for i := range r.samples {
		r.samples[i] = sample{r.samples[i].at / 120, state{heap: 40e6}}
	}
	grow(r, leastGrowth*50) // of 55 seconds' 65
	if broken := r.broken(); len(broken) > 0 {
		t.Errorf("%q", broken)
	}
	grow(r, leastGrowth*20)
	if broken := r.broken(); len(broken) != 1 || !strings.Contains(broken[0], "heap") {
		t.Errorf("the heap grew by more than that, and broken are %q", broken)
	}
}

// grow adds bytes for each hour.
func grow(r *report, perHour float64) {
	for i, s := range r.samples {
		r.samples[i].heap += int64(perHour * s.at.Hours())
	}
}
