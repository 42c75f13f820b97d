package main

import (
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/bench/load"
)

// good is the report of two hours that only just keep every promise.
func good() *report {
	r := &report{Length: 2 * time.Hour, Before: state{Goroutines: 20, Descriptors: 30},
		After: state{Goroutines: 25, Descriptors: 25}, Answered: 1e6, Refused: 100}
	for i := range windows * samples {
		at := time.Duration(i+1) * time.Minute
		heap := 40e6 + at.Hours()*maxSlope*0.99 + float64(i%2)*1000
		if i < samples {
			heap /= 2 // filling
		}
		r.Samples = append(r.Samples, sample{at, state{Heap: int64(heap)}})
	}
	for i := range windows {
		r.P99 = append(r.P99, 10*time.Millisecond)
		if i > 0 {
			r.P99[i] = 11900 * time.Microsecond
		}
	}
	return r
}

// TestBroken: each promise can be broken, and its fault tells by how much.
func TestBroken(t *testing.T) {
	r := good()
	for i := range 10 { // the machine stands still
		r.Samples[len(r.Samples)-1-3*i].Heap += 50 << 20
	}
	if broken := r.broken(); len(broken) > 0 {
		t.Errorf("all is well, and broken are %q", broken)
	}
	for word, spoil := range map[string]func(*report){
		"p99":                func(r *report) { r.P99[windows-1] = 13 * time.Millisecond },
		"2.75 MiB in 1.83 h": func(r *report) { grow(r, maxSlope/2+maxSlope/100) },
		"26 in the end":      func(r *report) { r.After.Goroutines++ },
		"24 in the end":      func(r *report) { r.After.Descriptors-- },
		"1 requests have no": func(r *report) { r.Lost++ },
		"0.0200 % of the":    func(r *report) { r.Refused *= 2 },
		"what the first one said": func(r *report) {
			r.Refused *= 2
			r.count(&load.Result{Failure: "what the first one said"})
			r.P99 = r.P99[:windows]
		},
		"client: no route": func(r *report) { r.Churn.Faults = []string{"client: no route"} },
		"and 3 more":       func(r *report) { r.Churn.Faults = make([]string, maxFaults+3) },
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
	r.Length = time.Minute
	for i := range r.Samples {
		r.Samples[i] = sample{r.Samples[i].At / 120, state{Heap: 40e6}}
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
	for i, s := range r.Samples {
		r.Samples[i].Heap += int64(perHour * s.At.Hours())
	}
}
