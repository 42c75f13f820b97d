package load

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestPromise(t *testing.T) {
	for text, want := range map[string]Promise{
		"p99<50ms": {0.99, 50 * time.Millisecond}, "p99.9 < 1s": {0.999, time.Second},
		"p50<=10us": {0.5, 10 * time.Microsecond},
	} {
		got, err := ParsePromise(text)
		if err != nil || math.Abs(got.Share-want.Share) > 1e-12 || got.Within != want.Within {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if again, err := ParsePromise(got.String()); err != nil || again != got {
			t.Errorf("%s is written as %s", text, got)
		}
	}
	for _, bad := range []string{"", "p99", "99<50ms", "p99>50ms", "p100<1s", "p0<1s", "p99<50", "p99<-1s", "pNaN<1s"} {
		if _, err := ParsePromise(bad); err == nil {
			t.Errorf("%q is no promise, and no error", bad)
		}
	}
}

// trials simulates a server whose highest rate is capacity: beyond it, latencies rise steeply.
// disturbed is the share of trials, at any rate, that meet a disturbance.
func trials(capacity float64, disturbed float64, r *rand.Rand) func(context.Context, float64, time.Duration,
	bool) (Trial, error) {
	return func(_ context.Context, rate float64, length time.Duration, _ bool) (Trial, error) {
		n := rate * length.Seconds()
		late := 0.01 * math.Pow(rate/capacity, 30)
		if r.Float64() < disturbed {
			late += 0.05
		}
		late = min(late+math.Sqrt(late/max(n, 1))*r.NormFloat64(), 1)
		return Trial{Rate: rate, Length: length, Requests: int64(n), Kept: int64(n * (1 - max(late, 0)))}, nil
	}
}

func TestSearch(t *testing.T) {
	p := Promise{0.99, 50 * time.Millisecond}
	r := rand.New(rand.NewPCG(1, 2))
	for _, capacity := range []float64{3, 40, 437, 90_000} {
		for _, first := range []float64{capacity / 50, capacity, 20 * capacity} {
			near := 0
			const runs = 40
			for range runs {
				best, all, err := Search(t.Context(), p, first, 30*time.Second, trials(capacity, 0.1, r))
				if err != nil || len(all) == 0 {
					t.Fatal(err)
				}
				last := all[len(all)-1]
				if !last.Last || !last.Holds(p) || last.Rate != best || last.Length != 30*time.Second {
					t.Errorf("%g/s of %g was confirmed by %+v", best, capacity, last)
				}
				if best > 0.95*capacity && best < 1.05*capacity {
					near++
				}
				if len(all) > 60 {
					t.Errorf("%d trials from %g to %g", len(all), first, capacity)
				}
			}
			if near < runs*9/10 && capacity > 10 { // at 3/s a trial has too few requests
				t.Errorf("capacity %g from %g: %d of %d searches came within 5 %%", capacity, first, near, runs)
			}
		}
	}
}

func TestSearchFindsNone(t *testing.T) {
	p := Promise{0.99, time.Millisecond}
	never := func(_ context.Context, rate float64, length time.Duration, _ bool) (Trial, error) {
		return Trial{Rate: rate, Length: length, Requests: 10}, nil
	}
	if best, all, err := Search(t.Context(), p, 100, time.Second, never); !errors.Is(err, ErrNoRate) || best != 0 ||
		len(all) == 0 {
		t.Errorf("%g, %d trials, %v", best, len(all), err)
	}
	always := func(_ context.Context, rate float64, length time.Duration, _ bool) (Trial, error) {
		return Trial{Rate: rate, Length: length, Requests: 10, Kept: 10}, nil
	}
	if best, _, err := Search(t.Context(), p, 100, time.Second, always); err != nil || best < highestRate/2 {
		t.Errorf("a server without limits: %g, %v", best, err)
	}
	broken := errors.New("broken")
	n := 0
	_, all, err := Search(t.Context(), p, 100, time.Second,
		func(ctx context.Context, rate float64, length time.Duration, last bool) (Trial, error) {
			if n++; n == 3 {
				return Trial{}, broken
			}
			return always(ctx, rate, length, last)
		})
	if !errors.Is(err, broken) || len(all) != 2 {
		t.Errorf("%d trials, %v", len(all), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Search(ctx, p, 100, time.Second, always); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context's end: %v", err)
	}
}

// Errors and requests without an answer count as late.
func TestTrialOf(t *testing.T) {
	p := Promise{0.9, 50 * time.Millisecond}
	r := &Result{Offered: 100, Elapsed: time.Second, Lost: 2, Slots: []Slot{{10, 10}, {10, 8}}}
	r.Refusal.Add(time.Millisecond)
	got := TrialOf(r, p)
	if got.Requests != 22 || got.Kept != 18 || got.Failed != 3 || got.Holds(p) {
		t.Errorf("%+v", got)
	}
	if (Trial{}).Holds(p) {
		t.Error("a trial without requests holds")
	}
}
