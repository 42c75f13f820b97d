package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A Promise is a share of all requests that must be answered well within a time after they were
// due. An error is later than any bound.
type Promise struct {
	Share  float64
	Within time.Duration
}

// ParsePromise parses a promise such as "p99<50ms".
func ParsePromise(text string) (Promise, error) {
	quantile, bound, ok := strings.Cut(text, "<")
	number, isQuantile := strings.CutPrefix(strings.TrimSpace(quantile), "p")
	percent, err := strconv.ParseFloat(number, 64)
	within, errWithin := time.ParseDuration(strings.TrimPrefix(strings.TrimSpace(bound), "="))
	if !ok || !isQuantile || err != nil || errWithin != nil || !(percent > 0 && percent < 100) || within <= 0 {
		return Promise{}, fmt.Errorf("expected a percentile below 100 and a time with its unit, such as p99<50ms, got %q", text)
	}
	return Promise{percent / 100, within}, nil
}

func (p Promise) String() string {
	return fmt.Sprintf("p%s<%v", strconv.FormatFloat(100*p.Share, 'g', 6, 64), p.Within)
}

// A Trial is a run at one rate, or with a number of clients, with the outcome of its requests.
type Trial struct {
	Rate     float64 // offered; of a closed loop answered
	Clients  int     // of a closed loop
	Length   time.Duration
	Requests int64         // due in the measured time
	Kept     int64         // answered well within the promise
	At       time.Duration // the promise's percentile of the good answers
	Failed   int64         // errors, and requests without an answer
	Lag      time.Duration // the generator's own delay, at the 99th percentile
	Last     bool          // a confirmation, of full length
}

// Holds reports whether the promise was kept. A trial without requests does not hold.
func (t Trial) Holds(p Promise) bool {
	return t.Requests > 0 && float64(t.Kept) >= p.Share*float64(t.Requests)
}

// TrialOf judges a run that had the promise's bound as its Within.
func TrialOf(r *Result, p Promise) Trial {
	t := Trial{Rate: cmp.Or(r.Offered, r.Rate()), Length: r.Elapsed, Requests: r.Lost, At: r.Latency.Quantile(p.Share),
		Failed: r.Refusal.Count() + r.Lost, Lag: r.Lag.Quantile(0.99)}
	for _, s := range r.Slots {
		t.Requests += int64(s.Due)
		t.Kept += int64(s.Good)
	}
	return t
}

const (
	// precision is the final ratio of the lowest rate that does not hold to the highest that does.
	precision = 1.02
	// enough is the number of requests beyond the percentile in a trial, if time allows: a third
	// more or fewer than ten occur by chance, which is a small step where latency rises steeply.
	enough = 10
	// maxConfirmations bounds how often the result is lowered because a long run did not hold.
	maxConfirmations = 12
	highestRate      = 1e7
	// climb is the step upwards from a rate that broke the promise and then held.
	climb = 1.1
)

var shortestTrial = time.Second

// ErrNoRate is the error of a search that found no rate at all.
var ErrNoRate = errors.New("load: no rate meets the target")

// A search is a sequence of trials.
type search struct {
	promise Promise
	trials  []Trial
}

// holds reports whether a promise holds at a rate, or with a number of clients: it is broken when
// two runs broke it, or one in which most requests were late.
func (s *search) holds(ctx context.Context, last bool, run func() (Trial, error)) (bool, error) {
	for range 2 {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		t, err := run()
		if err != nil {
			return false, err
		}
		t.Last = last
		s.trials = append(s.trials, t)
		if t.Holds(s.promise) || t.Kept < t.Requests/2 {
			return t.Holds(s.promise), nil
		}
	}
	return false, nil
}

// lengthFor is the length of a trial with rate requests per second.
func lengthFor(p Promise, rate float64, full time.Duration) time.Duration {
	seconds := enough / (1 - p.Share) / rate
	return min(max(time.Duration(min(seconds, full.Seconds())*float64(time.Second)), shortestTrial), full)
}

// Search looks for the highest rate that keeps a promise. try runs a trial. The search doubles the
// rate from first on until a trial breaks the promise, or halves it until one holds, and then
// bisects. A rate counts as breaking the promise when two trials at it did, since a single trial
// may have met with a disturbance that has nothing to do with the rate; where most requests were
// late, one trial suffices. The result is confirmed by a trial of full length, and lowered until
// that holds. Search returns the rate and all trials in order, also along with an error.
func Search(ctx context.Context, p Promise, first float64, full time.Duration,
	try func(ctx context.Context, rate float64, length time.Duration, last bool) (Trial, error)) (
	best float64, trials []Trial, err error) {
	s := search{promise: p}
	defer func() { trials = s.trials }()
	holds := func(rate float64, length time.Duration, last bool) (bool, error) {
		return s.holds(ctx, last, func() (Trial, error) { return try(ctx, rate, length, last) })
	}
	trial := func(rate float64) (bool, error) {
		return holds(rate, lengthFor(p, rate, full), false)
	}
	low, high := 0.0, math.Inf(1)
	for rate := first; low == 0 || math.IsInf(high, 1); {
		ok, err := trial(rate)
		if err != nil {
			return 0, nil, err
		}
		if ok {
			low, rate = rate, 2*rate
		} else {
			high, rate = rate, rate/2
		}
		if rate*full.Seconds() < 1 {
			return 0, nil, ErrNoRate
		}
		if rate > highestRate {
			high = rate
		}
	}
	bisect := func() error {
		for high/low > precision {
			middle := math.Sqrt(low * high)
			ok, err := trial(middle)
			if err != nil {
				return err
			}
			if ok {
				low = middle
			} else {
				high = middle
			}
		}
		return nil
	}
	if err := bisect(); err != nil {
		return 0, nil, err
	}
	// Disturbances may have hit both trials of a rate far below the highest. So the lowest rate
	// that broke the promise is tried again, and if it holds, so are the rates above it.
	for {
		ok, err := trial(high)
		if err != nil {
			return 0, nil, err
		}
		if !ok || high > highestRate {
			break
		}
		low, high = high, high*climb
	}
	if err := bisect(); err != nil {
		return 0, nil, err
	}
	for range maxConfirmations {
		ok, err := holds(low, full, true)
		if err != nil {
			return 0, nil, err
		}
		if ok {
			return low, nil, nil
		}
		low /= precision
	}
	return 0, nil, ErrNoRate
}
