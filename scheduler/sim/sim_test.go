package sim

import (
	"math"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// span returns how long a simulation lasts: d, or four times d in "make test".
func span(d time.Duration) time.Duration {
	if budgettest.Whole() {
		return 4 * d
	}
	return d
}

// TestPromises checks, in the few hardest cells, the promises that bench/goodput checks in all.
func TestPromises(t *testing.T) {
	budgettest.OneGoroutine(t)
	profiles := Profiles()
	if !budgettest.Whole() { // there is one goroutine
		profiles = profiles[1:2]
	}
	cells := []Cell{
		{Load: 0.95, Bursts: true}, {Load: 1.1}, {Load: 0.5}, {Load: 0.8}, {Load: 2.5},
		{Load: 1.5, Mixed: true}, {Load: 2, Bursts: true, Mixed: true},
	}
	if !budgettest.Whole() {
		cells = cells[:2]
	}
	for _, p := range profiles {
		for _, c := range cells {
			c.Profile, c.Warm, c.Length, c.Seed = p, 2*time.Second, 6*time.Second, 1
			t.Run(c.String(), func(t *testing.T) {
				t.Parallel()
				o := &Outcome{Cell: c, Oracle: Oracle(c), AtOnce: AtOnce(c)}
				r, err := Run(c, Strategies()[0])
				if err != nil {
					t.Fatal(err)
				}
				o.Strategies = append(o.Strategies, r)
				t.Logf("%.3f in time, the oracle %.3f; %.3f of the capacity; mean batch %.1f; p50 %v, at once %v",
					r.Share(), o.Oracle.Share(), r.OfCapacity(), r.MeanBatch, r.P50, o.AtOnce.P50)
				for _, b := range o.Broken() {
					t.Error(b)
				}
			})
		}
	}
}

// TestStalls: after batches that took ten SLOs longer, the profile is as before, and so is the
// goodput, except for the time lost.
func TestStalls(t *testing.T) {
	budgettest.OneGoroutine(t)
	c := Cell{Profile: Profiles()[1], Load: 0.8, Warm: 2 * time.Second, Length: 10 * time.Second, Seed: 1}
	c.Chance, c.Stall = 0.002, 10*c.SLO
	r, err := Run(c, Strategies()[0])
	if err != nil {
		t.Fatal(err)
	}
	if o := Oracle(c); r.Share() < OfOracle*o.Share() {
		t.Errorf("%.3f in time, the oracle %.3f", r.Share(), o.Share())
	}
}

// TestSame: a simulation is deterministic.
func TestSame(t *testing.T) {
	budgettest.OneGoroutine(t)
	c := Cell{Profile: Profiles()[3], Load: 1.3, Bursts: true, Mixed: true, Length: time.Second, Seed: 7}
	a, err := Run(c, Strategies()[0])
	if err != nil {
		t.Fatal(err)
	}
	b, err := Run(c, Strategies()[0])
	if err != nil {
		t.Fatal(err)
	}
	if a.Good != b.Good || a.MeanBatch != b.MeanBatch || a.P99 != b.P99 {
		t.Errorf("%d and %d in time, batches of %v and %v, p99 %v and %v", a.Good, b.Good, a.MeanBatch, b.MeanBatch,
			a.P99, b.P99)
	}
}

// TestArrivals: bursts have the given mean rate, with 1.8 and 0.2 times that rate in their halves.
func TestArrivals(t *testing.T) {
	budgettest.OneGoroutine(t)
	c := Cell{Profile: Profiles()[1], Load: 1, Bursts: true, Length: 40 * time.Second, Seed: 3}
	halves := [2]float64{}
	for _, a := range c.arrivals() {
		halves[a.at/burstHalf%2]++
	}
	want := c.Capacity() * 20
	for i, speed := range []float64{burstOn, burstOff} {
		if got := halves[i] / want; got < speed*0.97 || got > speed*1.03 {
			t.Errorf("half %d has %.3f of the mean rate, want %.1f", i, got, speed)
		}
	}
}

// TestNormal: the table agrees with the error function.
func TestNormal(t *testing.T) {
	budgettest.OneGoroutine(t)
	for x := -5.0; x < 5; x += 0.00037 {
		if got, want := normal(2*x, 2), 0.5*math.Erfc(-x/math.Sqrt2); math.Abs(got-want) > 5e-7 && math.Abs(x) < 4 ||
			math.Abs(got-want) > 4e-5 {
			t.Errorf("at %g: %g, want %g", x, got, want)
		}
	}
}

// TestSources: rows on many connections, some of which have fewer rows waiting than others by
// chance, cost no goodput: making room for these must not empty the queue of fresh rows.
func TestSources(t *testing.T) {
	budgettest.OneGoroutine(t)
	share := func(sources int) float64 {
		r, err := Run(Cell{Profile: Profiles()[2], Load: 5, Sources: sources, Warm: span(time.Second / 4),
			Length: span(time.Second / 2), Seed: 1}, Strategies()[0])
		if err != nil {
			t.Fatal(err)
		}
		return r.Share()
	}
	one := share(1)
	for _, n := range []int{4, 20, 100} {
		if many := share(n); many < 0.98*one {
			t.Errorf("on %d connections %.3f of the rows were answered in time, on one %.3f", n, many, one)
		}
	}
}

// TestSideBySide: simulations that run side by side share nothing. It is for the race detector,
// under which the tests of one goroutine are skipped, and looks at no figures.
func TestSideBySide(t *testing.T) {
	const warm, length, jobs = 20 * ms, 60 * ms, 4
	cells := append(Cells(Profiles()[1:2], []float64{1.1}, warm, length, 1),
		KindCells([]float64{0.8}, warm, length, 1)...)
	if _, err := RunAll(t.Context(), cells, jobs); err != nil {
		t.Error(err)
	}
	loops := LoopCells(warm, length, 1)
	for i := range loops {
		loops[i].Servers = i % 3 // of some cells several servers share the replicas
	}
	if _, err := RunLoopCells(t.Context(), loops, jobs); err != nil {
		t.Error(err)
	}
}
