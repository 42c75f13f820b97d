package scheduler

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

const ms = int64(1_000_000)

// near reports whether got is within a share of want.
func near(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

func TestProfileLearnsALine(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	p := newProfile(128)
	for i := range 2000 {
		n := 1 + rng.IntN(min(p.explored(), 128))
		p.learn(n, int64(float64(5*ms+ms/2*int64(n))*(1+0.1*rng.NormFloat64())), int64(i)*10*ms)
	}
	for _, n := range []int{1, 2, 5, 10, 30, 64, 100, 128} {
		if want := float64(5*ms + ms/2*int64(n)); !near(p.typical(n), want, 0.08) {
			t.Errorf("%d rows: median %.2f ms, want about %.2f", n, p.typical(n)/1e6, want/1e6)
		}
	}
	// With noise of 10 %, the 96th percentile is 1.175 of the median.
	if p.spread.upper.mul < 1.08 || p.spread.upper.mul > 1.35 {
		t.Errorf("upper factor %.3f, want about 1.18", p.spread.upper.mul)
	}
}

// TestProfileExploresByDoubling: never more than double the largest measured size.
func TestProfileExploresByDoubling(t *testing.T) {
	p := newProfile(100)
	for i, want := range []int{1, 2, 4, 8, 16, 32, 64, 100, 100} {
		if p.explored() != want {
			t.Fatalf("after %d batches up to %d rows may be tried, want %d", i, p.explored(), want)
		}
		p.learn(p.explored(), ms, 0)
	}
}

// TestProfileForgetsTheFirst: the first batch of a replica includes loading and compiling.
func TestProfileForgetsTheFirst(t *testing.T) {
	p := newProfile(100)
	p.learn(1, 2000*ms, 0)
	if p.typical(1) != float64(2000*ms) {
		t.Errorf("after one batch %v is known, want what it took", p.typical(1))
	}
	p.learn(1, 5*ms, 0)
	if p.typical(1) != float64(5*ms) || p.planned(1) > 7*ms {
		t.Errorf("after the second the median is %v and the plan %v, want 5 ms and a margin", p.typical(1),
			p.planned(1))
	}
}

// TestProfileShrugsOffOutliers: one batch in a hundred takes ten times as long, and plans do
// not change.
func TestProfileShrugsOffOutliers(t *testing.T) {
	p := newProfile(32)
	for i := range 500 {
		ns := 10 * ms
		if i%100 == 99 {
			ns *= 10
		}
		p.learn(16, ns, int64(i)*ms)
	}
	if !near(float64(p.planned(16)), float64(10*ms), 0.01) {
		t.Errorf("planned with %v, want 10 ms", p.planned(16))
	}
}

// TestProfileFollowsDrift: when all sizes become twice as slow, or fast again, a dozen batches
// correct all of them, also those that were not measured since.
func TestProfileFollowsDrift(t *testing.T) {
	p := newProfile(64)
	now := int64(0)
	batch := func(n int, factor int64) {
		now += 10 * ms
		p.learn(n, (5*ms+ms/2*int64(n))*factor/10, now)
	}
	for range 20 {
		for n := 1; n <= 64; n *= 2 {
			batch(n, 10)
		}
	}
	for _, factor := range []int64{20, 10, 50, 8} {
		for range 12 {
			batch(32, factor)
		}
		for _, n := range []int{8, 32, 64} {
			if want := float64((5*ms + ms/2*int64(n)) * factor / 10); !near(p.typical(n), want, 0.1) ||
				!near(float64(p.planned(n)), want, 0.3) {
				t.Errorf("factor %d, %d rows: median %.2f ms, plan %.2f ms, want about %.2f", factor, n,
					p.typical(n)/1e6, float64(p.planned(n))/1e6, want/1e6)
			}
		}
	}
}

// TestProfileForgets: a slowdown that is too small to be a drift is learned after thirty batches,
// however many there were before.
func TestProfileForgets(t *testing.T) {
	p := newProfile(32)
	now := int64(0)
	for i := range 331 {
		ns := 10 * ms
		if i >= 300 {
			ns += 3 * ms / 2
		}
		now += 10 * ms
		p.learn(16, ns, now)
	}
	if want := 11.5e6; !near(p.typical(16), want, 0.01) {
		t.Errorf("the median is %.2f ms, want %.2f", p.typical(16)/1e6, want/1e6)
	}
}

// TestProfileOutgrowsBadMemory: large batches were measured while the replica was ten times too
// slow; measurements of small ones correct the large ones, too.
func TestProfileOutgrowsBadMemory(t *testing.T) {
	p := newProfile(64)
	for range 15 {
		p.learn(64, 2000*ms, 0)
	}
	now := int64(0)
	small := func(batches int) {
		for range batches {
			now += 100 * ms
			p.learn(4, 7*ms, now)
		}
	}
	small(3)
	if p.typical(64) < float64(1900*ms) {
		t.Fatalf("a fresh memory was forgotten: %v", p.typical(64))
	}
	small(400)
	if want := float64(7 * ms * 64 / 4); p.typical(64) > want {
		t.Errorf("64 rows are thought to take %v, want at most 16 batches of 4, %v", p.typical(64), want)
	}
}

// TestStaleSizeIsNoDrift: a size that was last measured before the others deviates by a factor of
// hundreds. That is no evidence about sizes measured since.
func TestStaleSizeIsNoDrift(t *testing.T) {
	p := newProfile(64)
	now := int64(0)
	batch := func(n int, ns int64) {
		now += 10 * ms
		p.learn(n, ns, now)
	}
	for range 20 {
		batch(8, ms)
	}
	for _, n := range []int{16, 32, 64} {
		for range 4 {
			batch(n, 120*ms)
		}
	}
	for range 8 {
		batch(8, 120*ms)
	}
	for _, n := range []int{8, 16, 32, 64} {
		if !near(p.typical(n), float64(120*ms), 0.1) {
			t.Errorf("%d rows: median %.1f ms, want 120", n, p.typical(n)/1e6)
		}
	}
}

// TestSureSizesDoNotLean: measurements of 16 rows that agree are not pulled to a line through
// other sizes that passes above or below, however noisy batches were before.
func TestSureSizesDoNotLean(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, most := range []float64{1000, 150} {
		p := newProfile(64)
		for i := range 40 {
			median := 10.0
			if i%2 == 1 {
				median = most
			}
			p.learn(12+12*(i%2), int64(median*math.Exp(rng.NormFloat64()/4)*1e6), int64(i)*ms)
		}
		for i := range 3 {
			p.learn(16, 120*ms+int64(i)*ms, int64(40+i)*ms)
		}
		if !near(p.typical(16), float64(120*ms), 0.05) {
			t.Errorf("24 rows of %g ms: 16 are predicted to take %.1f ms, want 120", most, p.typical(16)/1e6)
		}
	}
}

// TestLargerSizesRefute: old measurements of 16 rows are dropped when 32 rows take far less, and
// do not return with the next measurement; later measurements of 16 rows hold.
func TestLargerSizesRefute(t *testing.T) {
	p := newProfile(64)
	for i := range 20 {
		p.learn(16, 400*ms, int64(i)*ms)
	}
	at := int64(20)
	batch := func(n int, ns int64) {
		at++
		p.learn(n, ns, at*ms)
	}
	batch(32, 20*ms)
	batch(32, 20*ms)
	if !near(p.typical(16), float64(20*ms), 0.01) {
		t.Errorf("16 rows are predicted to take %.1f ms, want the 20 of 32", p.typical(16)/1e6)
	}
	batch(16, 12*ms)
	if !near(p.typical(16), float64(12*ms), 0.2) {
		t.Errorf("16 rows are predicted to take %.1f ms, want 12 as measured", p.typical(16)/1e6)
	}
	for range 10 {
		batch(16, 60*ms)
	}
	if p.typical(16) < float64(30*ms) {
		t.Errorf("16 rows are predicted to take %.1f ms, and were measured as 60 since", p.typical(16)/1e6)
	}
}

// TestStallsAdd: three batches in a hundred take 33 ms longer, whatever their size, and only the
// smallest sizes were measured. The plan for one row includes the stall, but the objective does
// not exclude larger batches because of it.
func TestStallsAdd(t *testing.T) {
	p := newProfile(128)
	for i := range 640 {
		ns := 300_000 + 20_000*int64(1+i%2)
		if i%16 == 15 {
			ns += 33 * ms
		}
		p.learn(1+i%2, ns, int64(i)*10*ms)
	}
	if got := p.planned(2); got < 33*ms || got > 34*ms {
		t.Errorf("two rows are planned with %v, want 33 ms and their own time", got)
	}
	if got := p.unstalled(4); got > ms {
		t.Errorf("four rows have a plan without stalls of %v, want less than a millisecond", got)
	}
	q := plan{max: 128, objective: 30 * ms, prof: &p}
	if n, _ := q.bounded(); n != 4 {
		t.Errorf("%d rows are allowed, want 4, which is as far as sizes are explored", n)
	}
}

// TestProfileIsMonotone: a larger batch is never predicted to be faster, whatever the
// measurements.
func TestProfileIsMonotone(t *testing.T) {
	budgettest.OneGoroutine(t)
	rng := rand.New(rand.NewPCG(5, 5))
	p := newProfile(200)
	for i := range 3000 {
		p.learn(1+rng.IntN(p.explored()), 1+rng.Int64N(50*ms), int64(i)*100*ms)
		for n := 2; n <= 220; n++ {
			if p.typical(n) < p.typical(n-1) {
				t.Fatalf("after %d batches %d rows take %v, %d take %v", i+1, n, p.typical(n), n-1, p.typical(n-1))
			}
		}
		if p.spread.upper.mul < 1 || p.spread.down > 1 || math.IsNaN(p.spread.upper.mul) || math.IsNaN(p.spread.down) {
			t.Fatalf("after %d batches the spread is %v to %v", i+1, p.spread.down, p.spread.upper.mul)
		}
	}
}

// TestClassesAreInOrder: classes cover the sizes in order, at most a quarter wide, and each round
// size is a class of its own.
func TestClassesAreInOrder(t *testing.T) {
	first := 1
	for n := 2; n < 1<<16; n++ {
		d := classOf(n) - classOf(n-1)
		if d < 0 || d > 2 {
			t.Fatalf("class of %d is %d, of %d it is %d", n, classOf(n), n-1, classOf(n-1))
		}
		if d > 0 {
			first = n
		}
		if float64(n) > 1.25*float64(first) {
			t.Fatalf("%d and %d are in one class", first, n)
		}
	}
	for q := range 40 {
		n := roundSize(q)
		if quarterOf(n) != q || classOf(n) == classOf(n+1) || n > 1 && classOf(n) == classOf(n-1) {
			t.Fatalf("%d is the round size %d, but of class %d, beside %d and %d", n, q, classOf(n), classOf(n-1),
				classOf(n+1))
		}
	}
}
