package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/shivad/shivad/bench/load"
)

// The promises. Those on latency and memory are for runs of hours: a run of minutes is exempt
// from the first, and may grow by leastGrowth for the second.
const (
	maxDrift    = 1.2     // p99 of the last window to that of the first, from leastWindow on
	maxSlope    = 1 << 20 // bytes of heap in an hour
	leastGrowth = 4 << 20 // bytes of heap in a run of minutes, while caches of a minute fill
	maxLeft     = 5       // goroutines and descriptors more or fewer than at the start
	maxFaults   = 20      // faults listed
	// Share of the steady load: a killed container removes a third of the capacity briefly.
	maxRefused = 1e-4
)

// leastWindow is the length from which on a p99 reflects the server rather than other work of the
// machine.
const leastWindow = 5 * time.Minute

// A report is the result of a run.
type report struct {
	Length        time.Duration
	Before, After state
	Samples       []sample
	P99           []time.Duration // of the windows
	Answered      int64
	Refused, Lost int64
	FirstRefusal  string
	Churn         counts
}

// count counts a window of the steady load.
func (r *report) count(got *load.Result) {
	r.P99 = append(r.P99, got.Latency.Quantile(0.99))
	r.Answered += got.Answered
	r.Refused += got.Failed
	r.Lost += got.Lost
	if r.FirstRefusal == "" {
		r.FirstRefusal = got.Failure
	}
}

// broken returns the broken promises.
func (r *report) broken() (list []string) {
	fault := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	window := r.Length / windows
	if drift := r.drift(); drift > maxDrift && window >= leastWindow {
		fault("p99 of the last %v is %.2f times that of the first, want %g at most", window, drift, maxDrift)
	}
	hours := (r.Length - window).Hours()
	most := maxSlope * hours
	if window < leastWindow {
		most = leastGrowth
	}
	if grown := slope(r.filled()) * hours; grown > most {
		fault("the heap grows by %.2f MiB in %.2f h, want %.2f at most", grown/(1<<20), hours, most/(1<<20))
	}
	if d := r.After.Goroutines - r.Before.Goroutines; d > maxLeft || d < -maxLeft {
		fault("%d goroutines at the start, %d in the end, want a difference of %d at most", r.Before.Goroutines,
			r.After.Goroutines, maxLeft)
	}
	if d := r.After.Descriptors - r.Before.Descriptors; d > maxLeft || d < -maxLeft {
		fault("%d descriptors at the start, %d in the end, want a difference of %d at most", r.Before.Descriptors,
			r.After.Descriptors, maxLeft)
	}
	if r.Lost > 0 {
		fault("%d requests have no answer", r.Lost)
	}
	if share := float64(r.Refused) / float64(max(r.Answered, 1)); share > maxRefused {
		fault("%.4f %% of the requests are answered with an error, want %g %% at most; the first: %s", 100*share,
			100*maxRefused, r.FirstRefusal)
	}
	for _, f := range r.Churn.Faults[:min(len(r.Churn.Faults), maxFaults)] {
		fault("%s", f)
	}
	if more := len(r.Churn.Faults) - maxFaults; more > 0 {
		fault("and %d more faults of clients, containers and versions that come and go", more)
	}
	return list
}

// drift is the p99 of the last window to that of the first.
func (r *report) drift() float64 { return float64(r.P99[len(r.P99)-1]) / float64(r.P99[0]) }

// filled returns the samples after the first window, which fills pools, spares and histograms.
func (r *report) filled() []sample { return r.Samples[min(samples, len(r.Samples)):] }

// slope is the growth of the heap over the samples, in bytes per hour: the median of the slopes
// between any two (Theil and Sen), which tolerates samples taken with a full queue during a stall
// of the machine.
func slope(list []sample) float64 {
	var slopes []float64
	for i, a := range list {
		for _, b := range list[i+1:] {
			slopes = append(slopes, float64(b.Heap-a.Heap)/(b.At-a.At).Hours())
		}
	}
	if len(slopes) == 0 {
		return 0
	}
	slices.Sort(slopes)
	return slopes[len(slopes)/2]
}
