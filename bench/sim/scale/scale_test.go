package main

import (
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// small is a fleet that is simulated in a fraction of a second. Each of its containers has sessions
// with four of its servers.
func small(servers int) Fleet {
	f := fleetOf(servers, 1)
	f.Settle, f.Length = time.Minute, 5*time.Second
	return f
}

func played(t *testing.T, f Fleet) *Result {
	t.Helper()
	r, err := simulate(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d frames, %.4f of the oracle's in time; %d of %d containers needed; %s messages; %v sessions, %d began, %d attempts; %d streams moved; p99 %v",
		r.Offered, r.Share(), last(r.Needed), last(r.Had), r.perFrame(), r.Sessions, r.Begun, r.Attempts, r.Moved, r.P99)
	return r
}

// TestClock: events take place in the order of their times and then of their setting, each at its
// time; stopped events do not take place.
func TestClock(t *testing.T) {
	c, rng := &clock{}, rand.New(rand.NewPCG(1, 1))
	var want, got []int
	type one struct{ at, number int }
	var all []one
	for i := range 2000 {
		at := rng.IntN(500)
		timer := c.AfterFunc(time.Duration(at), func() {
			if c.since() != time.Duration(at) {
				t.Errorf("event %d of %d takes place at %d", i, at, c.since())
			}
			got = append(got, i)
		})
		if i%3 == 0 {
			timer.Stop()
			continue
		}
		all = append(all, one{at, i})
	}
	slices.SortFunc(all, func(a, b one) int { return (a.at-b.at)*1e4 + a.number - b.number })
	for _, o := range all {
		want = append(want, o.number)
	}
	for _, ok := c.next(); ok; _, ok = c.next() {
		c.take().f()
	}
	if !slices.Equal(got, want) {
		t.Error("events take place out of order")
	}
}

// TestFleetBelowCapacity: below their capacity, containers that four of six servers share answer as
// many frames as the oracle, and the servers together need about as many containers as there are.
// The same seed gives the same figures.
func TestFleetBelowCapacity(t *testing.T) {
	t.Parallel()
	f := small(6)
	r := played(t, f)
	if r.Share() < 0.99 || r.Best < r.Offered*99/100 {
		t.Errorf("%d of %d frames are answered in time, %d by the oracle", r.Good, r.Offered, r.Best)
	}
	if n, had := last(r.Needed), last(r.Had); float64(n) < 0.7*float64(had) || float64(n) > 1.15*float64(had) {
		t.Errorf("at 0.8 of what they can do %d containers are needed, and there are %d", n, had)
	}
	if r.Sessions.Most > 2*r.Sessions.Least || r.Moved > 0 {
		t.Errorf("servers have %v sessions, and %d streams have moved", r.Sessions, r.Moved)
	}
	if again := played(t, f); !reflect.DeepEqual(again, r) {
		t.Error("the same seed gives other figures")
	}
}

// TestFleetOracle: at 1.2 times the capacity the oracle answers 0.85 to 0.94 of the frames in time:
// executions of two seconds, a frame's whole time, would be 1.125 of the capacity.
func TestFleetOracle(t *testing.T) {
	t.Parallel()
	f := small(4)
	f.Load, f.Warm, f.Length = 1.2, 30*time.Second, 10*time.Second
	r := played(t, f)
	if best := float64(r.Best) / float64(r.Offered); best < 0.85 || best > 0.94 {
		t.Errorf("the oracle answers %.3f in time", best)
	}
	if r.Share() < 0.8 || r.Share() > 1.02 {
		t.Errorf("%.3f of what the oracle does", r.Share())
	}
}

// TestFleetEvents: within seconds after each event the fleet is as good as before.
func TestFleetEvents(t *testing.T) {
	t.Parallel()
	for i, a := range events(4, 1) {
		if !budgettest.Whole() && i%2 == 0 {
			continue // a failed rack and more load change the fleet for good
		}
		f := a.fleet
		f.Subset, f.Settle, f.Warm, f.Length = 2, 20*time.Second, 8*time.Second, min(f.Length, 30*time.Second)
		f.Rack, f.Failing, f.Roll = 5*f.Rack, 50*f.Failing, f.Roll/4
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			r := played(t, f)
			offered, good := 0, 0
			for _, b := range r.Bins[len(r.Bins)-6:] {
				offered, good = offered+b.Offered, good+b.Good
			}
			// One of four servers that fails near the end is a quarter of the fleet.
			if share := float64(good) / float64(offered); share < 0.9 && f.Rack+f.Failing == 0 || r.Share() < 0.8 {
				t.Errorf("in the last three seconds %.3f are answered in time", share)
			}
			gone := f.Rack > 0 || f.Roll > 0
			if gone && r.Moved == 0 || (gone || f.Failing > 0) && r.Begun == 0 || f.Step > 0 && r.Moved > 0 {
				t.Errorf("%d streams moved, %d sessions began", r.Moved, r.Begun)
			}
			if f.Scale && (last(r.Had) <= f.Containers || last(r.Had) > 2*f.Containers) {
				t.Errorf("with half as much load again there are %d containers where there were %d", last(r.Had), f.Containers)
			}
		})
	}
}

// TestTraffic: the load of Redis in a simulation without events is as computed, and the busiest of
// several Redis gets the share of the feedback that the hash of names gives it.
func TestTraffic(t *testing.T) {
	t.Parallel()
	r := played(t, small(6))
	var all second
	for _, s := range r.Redis {
		all.Loads += s.Loads
		if s.Servers != 6 {
			t.Errorf("%d servers look for changes, want 6", s.Servers)
		}
	}
	if n := len(r.Redis); n != 5 || all.Loads < 1 || all.Loads > 12 {
		t.Errorf("6 servers write %d loads in %d seconds, each at most one in 5 s", all.Loads, n)
	}
	feedback := newTraffic(1)
	for range 2_000_000 {
		feedback.frame()
	}
	n := feedback.now.busiest(1).feedback
	if n < 1900 || n > 2100 {
		t.Errorf("%.0f of 2,000,000 frames have feedback, want one of %d", n, feedbackOf)
	}
	for _, of := range []int{4, shards} {
		if share := feedback.now.busiest(of).feedback / n; share < hottest(of)-0.03 || share > hottest(of)+0.03 {
			t.Errorf("one of %d Redis has %.3f of the feedback, want %.3f", of, share, hottest(of))
		}
	}
}

// TestRefused: an impossible fleet is refused.
func TestRefused(t *testing.T) {
	for name, change := range map[string]func(f *Fleet){
		"no server": func(f *Fleet) { f.Servers = 0 }, "no time": func(f *Fleet) { f.Length = 0 }, "too slow": func(f *Fleet) { f.A = f.SLO },
	} {
		f := small(1)
		change(&f)
		if _, err := simulate(f); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestPage: the page has the table of Redis that the program prints. The figures of the other
// tables change with the scheduler.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../SCALE.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := redisTable([]int{1, 4, 16, 64, 256, 1000}); !strings.Contains(string(text), table) {
		t.Errorf("the page has not this table:\n%s", table)
	}
}
