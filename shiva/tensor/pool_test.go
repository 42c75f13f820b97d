package tensor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// TestClassOf: classes are ordered, hold the requested bytes, and waste at most a quarter of these.
func TestClassOf(t *testing.T) {
	class, size := classOf(0)
	check := func(n int) {
		t.Helper()
		c, s := classOf(n)
		if s < n || n > minClassBytes && 4*s > 5*n || s%16 != 0 {
			t.Fatalf("%d bytes go into %d", n, s)
		}
		if (c == class) != (s == size) || c < class || c > class+1 {
			t.Fatalf("%d bytes: class %d of %d bytes after class %d of %d", n, c, s, class, size)
		}
		class, size = c, s
	}
	for n := 0; n < 1<<19; n++ {
		check(n)
		if n > 1<<16 && n%16 == 1 && !budgettest.Whole() {
			n += 13 // to the neighbours of the next multiple of 16: every class's size is one
		}
	}
	for n := 1 << 19; n <= maxClassBytes; n = n*17/16 + 1 {
		check(n)
		check(size) // the class's own size
	}
	for n, want := range map[int]int{0: 0, minClassBytes: 0, maxQuickBytes: quickClasses - 1,
		maxClassBytes: numClasses - 1} {
		if c, s := classOf(n); c != want || s != max(n, minClassBytes) {
			t.Errorf("%d bytes: class %d of %d bytes, want class %d", n, c, s, want)
		}
	}
	if c, s := classOf(maxClassBytes + 1); c != unpooled || s != maxClassBytes+pageBytes {
		t.Errorf("above the largest: class %d of %d bytes", c, s)
	}
}

func mustGet(t testing.TB, p *Pool, n int) *Buffer {
	t.Helper()
	b, err := p.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Bytes()) != n {
		t.Fatalf("%d bytes, want %d", len(b.Bytes()), n)
	}
	return b
}

func TestPoolCounts(t *testing.T) {
	p := NewPool(1 << 30)
	var all []*Buffer
	var sum int64
	for _, n := range []int{0, 1, 64, 65, 1000, 32 << 10, 32<<10 + 1, 1 << 20, maxClassBytes + 1} {
		all = append(all, mustGet(t, p, n))
		_, size := classOf(n)
		sum += int64(size)
		if p.InUse() != sum || all[len(all)-1].Size() != size {
			t.Fatalf("%d bytes in use after %d, want %d, of which the buffer says %d", p.InUse(), n, sum,
				all[len(all)-1].Size())
		}
	}
	if n := len(Outstanding(p)); Invariants && n != len(all) {
		t.Errorf("%d buffers are outstanding, want %d", n, len(all))
	} else if Invariants && !strings.Contains(Outstanding(p)[0], "TestPoolCounts") {
		t.Errorf("no taker in %q", Outstanding(p)[0])
	}
	for _, b := range all {
		b.Retain()
		b.Release()
		b.Release()
	}
	if p.InUse() != 0 || len(Outstanding(p)) != 0 {
		t.Errorf("%d bytes are in use in the end, %q", p.InUse(), Outstanding(p))
	}
}

func TestPoolBudget(t *testing.T) {
	p := NewPool(10_000)
	a := mustGet(t, p, 8192)
	_, err := p.Get(2000)
	if !errors.Is(err, ErrBudget) {
		t.Fatalf("the budget is passed: %v", err)
	}
	for _, want := range []string{"10000", "8192", "2048"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if p.InUse() != 8192 || p.Budget() != 10_000 {
		t.Errorf("%d of %d bytes in use after the refusal", p.InUse(), p.Budget())
	}
	b := mustGet(t, p, 1792)
	a.Release()
	b.Release()
	mustGet(t, p, 8000).Release()
}

func TestNilPool(t *testing.T) {
	var p *Pool
	b := mustGet(t, p, 100)
	b.Retain()
	b.Release()
	b.Release()
	if p.InUse() != 0 || p.Idle() != 0 || p.Budget() != 0 || Outstanding(p) != nil {
		t.Error("a nil pool counts")
	}
	var none *Buffer
	none.Retain()
	none.Release()
}

// withoutCollections keeps the garbage collector off until the test ends: a collection trims
// the shelves whose bytes the test counts.
func withoutCollections(t *testing.T) {
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
}

// TestPoolReuses: large buffers come back, most recently used first.
func TestPoolReuses(t *testing.T) {
	if Invariants {
		return // released buffers are never handed out again
	}
	withoutCollections(t)
	p := NewPool(0)
	a, b := mustGet(t, p, 1<<20), mustGet(t, p, 1<<20)
	a.Release()
	b.Release()
	if p.Idle() != 2<<20 {
		t.Errorf("%d bytes idle, want two buffers", p.Idle())
	}
	for range 5 {
		c := mustGet(t, p, 1<<20-5)
		if c != b {
			t.Fatal("another buffer than the last one released")
		}
		if p.Idle() != 1<<20 {
			t.Errorf("%d bytes idle, want one buffer", p.Idle())
		}
		c.Release()
	}
	if c := mustGet(t, p, maxClassBytes+1); c != nil {
		c.Release()
		if p.Idle() != 2<<20 {
			t.Errorf("%d bytes idle after one above the largest class", p.Idle())
		}
	}
}

// TestPoolTrim: each trim drops the buffers that were not needed since the last one, and keeps
// those that were.
func TestPoolTrim(t *testing.T) {
	if Invariants {
		return
	}
	withoutCollections(t)
	p := NewPool(0)
	idle := func() int64 { return p.Idle() >> 20 }
	var all []*Buffer
	for range 16 {
		all = append(all, mustGet(t, p, 1<<20))
	}
	for _, b := range all {
		b.Release()
	}
	p.Trim() // no buffer was idle all the time since the beginning
	if idle() != 16 {
		t.Fatalf("%d left", idle())
	}
	// Ten are in use between this trim and the next, at the same time; so six were not needed.
	for i := range 10 {
		all[i] = mustGet(t, p, 1<<20)
	}
	for i := range 10 {
		all[i].Release()
	}
	for _, want := range []int64{10, 0, 0} {
		if p.Trim(); idle() != want {
			t.Fatalf("%d left, want %d", idle(), want)
		}
	}
}

// TestPoolTrimsAtGC: each garbage collection triggers a trim, and the trim does not keep the pool
// alive.
func TestPoolTrimsAtGC(t *testing.T) {
	if Invariants {
		return
	}
	p := NewPool(0)
	mustGet(t, p, 1<<20).Release()
	budgettest.Until(t, "the idle buffer goes", func() bool { runtime.GC(); return p.Idle() == 0 })
	gone := make(chan bool)
	runtime.AddCleanup(p, func(c chan bool) { close(c) }, gone)
	p = nil
	budgettest.Until(t, "the pool goes", func() bool {
		runtime.GC()
		select {
		case <-gone:
			return true
		default:
			return false
		}
	})
}

// TestPoolMakesRoom: idle buffers of one size do not add to a budget's worth of another.
func TestPoolMakesRoom(t *testing.T) {
	if Invariants {
		return
	}
	withoutCollections(t)
	p := &Pool{budget: 64 << 20} // not trimmed by the collections that its garbage causes
	var all []*Buffer
	for range 64 {
		all = append(all, mustGet(t, p, 1<<20))
	}
	for _, b := range all {
		b.Release()
	}
	for n := int64(1); n <= 16; n++ {
		if n%2 == 0 {
			defer mustGet(t, p, 4<<20).Release()
		} else if err := p.Reserve(4 << 20); err != nil {
			t.Fatal(err)
		}
		if p.InUse()+p.Idle() > p.Budget() {
			t.Fatalf("%d bytes in use and %d idle pass the budget of %d", p.InUse(), p.Idle(), p.Budget())
		}
		if idle := p.Idle() >> 20; idle != 64-4*n {
			t.Fatalf("%d MiB idle with %d in use, want the rest of the budget", idle, 4*n)
		}
	}
}

// TestPoolConcurrently: many goroutines take, pass on, release and trim; no two have the same
// memory.
func TestPoolConcurrently(t *testing.T) {
	p := NewPool(32 << 20)
	var wg sync.WaitGroup
	handOn := make(chan *Buffer, 16)
	const step = 16 // overlapping buffers share such a byte, since no class is smaller
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(g)))
			for i := range 2000 {
				if i%100 == 0 {
					p.Trim()
				}
				b, err := p.Get(rnd.IntN(1 << rnd.IntN(19)))
				if err != nil {
					t.Error(err)
					return
				}
				for i := 0; i < len(b.Bytes()); i += step {
					b.Bytes()[i] = byte(g)
				}
				b.Retain()
				handOn <- b
				for i := 0; i < len(b.Bytes()); i += step {
					if c := b.Bytes()[i]; c != byte(g) {
						t.Errorf("goroutine %d finds a byte of %d", g, c)
						break
					}
				}
				b.Release()
				(<-handOn).Release()
			}
		})
	}
	wg.Wait()
	if p.InUse() != 0 {
		t.Errorf("%d bytes in use in the end, %q", p.InUse(), Outstanding(p))
	}
}

func BenchmarkPool(b *testing.B) {
	p := NewPool(1 << 30)
	for _, size := range []int{256, 16 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x, err := p.Get(size)
				if err != nil {
					b.Fatal(err)
				}
				x.Release()
			}
		})
	}
	b.Run("size=256/parallel=yes", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				x, err := p.Get(256)
				if err != nil {
					b.Error(err)
				}
				x.Release()
			}
		})
	})
}

// Refusing a request that does not fit never makes a concurrent one fail, even briefly.
func TestRefusalCostsNobodyElse(t *testing.T) {
	p := NewPool(1 << 20)
	done := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if _, err := p.Get(1 << 30); err == nil {
					t.Error("a gigabyte of a budget of one megabyte")
					return
				}
			}
		}
	})
	for range 200_000 {
		b, err := p.Get(64)
		if err != nil {
			t.Error(err)
			break
		}
		b.Release()
	}
	close(done)
	asking.Wait()
}

// TestPoolPart: a part counts in the whole, has a budget of its own, and its errors tell which
// budget is exhausted.
func TestPoolPart(t *testing.T) {
	p := NewPool(8 << 20)
	part := p.Part(2 << 20)
	a := mustGet(t, part, 1<<20)
	if p.InUse() != 1<<20 || part.InUse() != 1<<20 || part.Budget() != 2<<20 {
		t.Errorf("%d in use of the whole, %d of the part", p.InUse(), part.InUse())
	}
	if _, err := part.Get(3 << 19); !errors.Is(err, ErrPart) || !errors.Is(err, ErrBudget) ||
		!strings.Contains(err.Error(), "1048576 bytes of 2097152") {
		t.Errorf("above the part: %v", err)
	}
	a.Retain()
	a.Release()
	a.Release()
	if p.InUse() != 0 || part.InUse() != 0 {
		t.Errorf("%d in use of the whole, %d of the part in the end", p.InUse(), part.InUse())
	}
	// The same buffer, now taken from the whole.
	b := mustGet(t, p, 1<<20)
	if p.InUse() != 1<<20 || part.InUse() != 0 {
		t.Errorf("%d in use of the whole, %d of the part that has none", p.InUse(), part.InUse())
	}
	b.Release()
	all := mustGet(t, p, 7<<20)
	if _, err := part.Get(3 << 19); !errors.Is(err, ErrBudget) || errors.Is(err, ErrPart) {
		t.Errorf("above the whole: %v", err)
	}
	if part.InUse() != 0 {
		t.Errorf("%d in use of the part after the refusal", part.InUse())
	}
	all.Release()
	if err := part.Reserve(2 << 20); err != nil || p.InUse() != 2<<20 {
		t.Errorf("%v, %d in use", err, p.InUse())
	}
	if err := part.Reserve(1); !errors.Is(err, ErrPart) {
		t.Errorf("above the part: %v", err)
	}
	part.Unreserve(2 << 20)
	if p.InUse() != 0 || part.InUse() != 0 {
		t.Errorf("%d in use of the whole, %d of the part in the end", p.InUse(), part.InUse())
	}
	var none *Pool
	if err := none.Reserve(1); err != nil {
		t.Error(err)
	}
	none.Unreserve(1)
}

// TestGarbageIsBounded: a load that keeps changing its sizes takes the budget once, and not once
// more as uncollected garbage; automatic collections are off here.
func TestGarbageIsBounded(t *testing.T) {
	if Invariants {
		return
	}
	withoutCollections(t)
	for name, tt := range map[string]struct {
		budget, rounds int // the rounds together take more than the budget
		size           func(i int) int
	}{
		"from the shelves": {16 << 20, 20, func(i int) int { return (1 + 7*i%50) << 17 }},
		"made to measure":  {2 * maxClassBytes, 5, func(i int) int { return maxClassBytes + 1 + i%8<<20 }},
	} {
		budget := int64(tt.budget)
		p := NewPool(budget)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range tt.rounds {
			mustGet(t, p, tt.size(i)).Release()
			if runtime.ReadMemStats(&after); int64(after.HeapAlloc)-int64(before.HeapAlloc) > budget+budget/8 {
				t.Fatalf("%s: %d bytes on the heap after %d buffers, with a budget of %d", name,
					after.HeapAlloc-before.HeapAlloc, i, budget)
			}
		}
		runtime.KeepAlive(p)
	}
}
