package tensor

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"
)

// Size classes: 64 bytes, then four steps to each doubling, so that at most a fifth of a buffer
// lies idle (a quarter of what was requested), up to 64 MiB. Larger buffers are made to measure, in
// whole pages, and left to the source or the garbage collector: a pool that keeps them is a leak by
// another name.
const (
	minClassBytes = 64
	minClassBits  = 6
	maxClassBits  = 26
	maxClassBytes = 1 << maxClassBits
	pageBytes     = 4 << 10
	numClasses    = (maxClassBits-minClassBits)*4 + 1
	unpooled      = numClasses
	elsewhere     = numClasses + 1 // memory of a Source, or of a Lender

	// Buffers up to this size are kept in a sync.Pool: a few nanoseconds, no lock, and the
	// garbage collector thins it out. Larger ones are kept on shelves of our own, because a
	// sync.Pool forgets all that was idle for two collections, and a fresh buffer of megabytes
	// has to be cleared first.
	maxQuickBytes = 32 << 10
	quickClasses  = (15-minClassBits)*4 + 1
)

// ErrBudget is what [Pool.Get] refuses with when the pool's byte budget is exhausted. The error
// wraps it and names the budget, what is in use and what was requested.
var ErrBudget = errors.New("tensor: memory budget exhausted")

// ErrPart is the ErrBudget of a part, see [Pool.Part], when its whole has memory left.
var ErrPart = fmt.Errorf("%w in a part of the pool", ErrBudget)

// A Source has the memory of a pool's large classes, instead of the garbage collector: memory that
// other processes can map, for instance. Its methods may be called from any goroutine.
type Source interface {
	// Get returns n bytes, whole pages of 4 KiB and more than 32 KiB, with undefined contents. It
	// returns nil if it has no place, or would have to use more than grow bytes of memory that it
	// does not have yet: then the pool takes ordinary memory.
	Get(n int, grow int64) []byte
	// Put gets the bytes of a Get back.
	Put(mem []byte)
	// Idle is the number of bytes that the source holds and nobody uses. They count in the budget.
	Idle() int64
	// Trim is called after each garbage collection. Spare is called when the pool needs the idle
	// bytes for memory of another kind; it may return before they are free, or keep them.
	Trim()
	Spare()
}

// A Pool hands out Buffers in size classes, counts the bytes that are out and refuses to pass
// its budget. One Pool serves a whole process. A nil *Pool is usable: ordinary memory without a
// limit or a count.
//
// Released memory stays in the pool for the next Get. Of the large classes, half of what was idle
// between two garbage collections is dropped at each collection. Memory in use and idle stays
// within the budget together; with what was dropped and not collected yet, within a sixteenth
// more.
type Pool struct {
	budget int64  // 0: none
	whole  *Pool  // that this is a part of; nil: none
	source Source // of the large classes; nil: the garbage collector

	_    [56]byte     // every Get and Release writes out: it has a cache line of its own
	out  atomic.Int64 // bytes of all classes handed out
	_    [56]byte
	idle atomic.Int64 // bytes on the shelves

	refused atomic.Uint64 // times that it was exhausted
	garbage garbage       // large buffers that were let go

	quick   [quickClasses]sync.Pool // of *Buffer
	shelves [numClasses - quickClasses]shelf

	books books // of what is out; empty unless built with invariants
}

// A shelf keeps the idle buffers of one large class, most recently used last.
type shelf struct {
	mu   sync.Mutex
	free []*Buffer
	low  int // fewest that were free since the last trim: nobody needed these
}

// NewPool makes a pool that has at most budgetBytes out at any time; 0 means no limit. Bytes
// are counted as the classes they occupy.
func NewPool(budgetBytes int64) *Pool { return NewPoolFrom(nil, budgetBytes) }

// NewPoolFrom makes a pool like NewPool whose large buffers, of more than 32 KiB, are memory of the
// source while that has some.
func NewPoolFrom(source Source, budgetBytes int64) *Pool {
	p := &Pool{budget: max(budgetBytes, 0), source: source}
	trimAtGC(p)
	return p
}

// Part makes a pool that hands out p's memory, and of it at most budgetBytes at any time; 0
// means as much as p has. What is out counts in both. Get of a part fails with [ErrPart] when
// the part is exhausted, and otherwise as p's does.
func (p *Pool) Part(budgetBytes int64) *Pool {
	return &Pool{budget: max(budgetBytes, 0), whole: p}
}

// Budget is the limit in bytes, 0 if there is none.
func (p *Pool) Budget() int64 {
	if p == nil {
		return 0
	}
	return p.budget
}

// InUse is the number of bytes that are out, in whole classes.
func (p *Pool) InUse() int64 {
	if p == nil {
		return 0
	}
	return p.out.Load()
}

// Idle is the number of bytes kept for reuse in the large classes. A part keeps none of its own.
func (p *Pool) Idle() int64 {
	if p == nil {
		return 0
	}
	if p.source != nil {
		return p.idle.Load() + p.source.Idle()
	}
	return p.idle.Load()
}

// Get returns a buffer of n bytes with undefined contents and one reference. It fails only with
// an error that is [ErrBudget].
func (p *Pool) Get(n int) (*Buffer, error) {
	if p == nil {
		b := &Buffer{data: make([]byte, n), n: n, class: unpooled}
		b.refs.Store(1)
		b.trace.take()
		return b, nil
	}
	class, size := classOf(n)
	if err := p.claim(int64(size)); err != nil {
		return nil, err
	}
	if p.whole != nil {
		b, err := p.whole.Get(n)
		if err != nil {
			p.out.Add(-int64(size))
			return nil, err
		}
		b.pool = p
		return b, nil
	}
	b := p.find(class, size)
	if b == nil && p.crowded() {
		out := p.out.Add(-int64(size))
		return nil, p.exhausted(out, int64(size))
	}
	if b == nil {
		b = p.take(class)
	}
	if b == nil {
		if class >= quickClasses {
			p.makeRoom()
		}
		b = &Buffer{data: make([]byte, size), pool: p, class: class}
	}
	b.n = n
	b.refs.Store(1)
	if Invariants {
		b.trace.take()
		p.books.add(b)
	}
	return b, nil
}

// find returns a buffer of the source's memory for a claim of size bytes, or nil.
func (p *Pool) find(class, size int) *Buffer {
	if p.source == nil || class < quickClasses {
		return nil
	}
	grow := int64(math.MaxInt64)
	if p.budget > 0 {
		grow = p.budget - (p.out.Load() - int64(size) + p.Idle())
	}
	if mem := p.source.Get(size, grow); mem != nil {
		return &Buffer{data: mem, pool: p, class: elsewhere}
	}
	return nil
}

// crowded reports whether what is out and what the source holds idle pass the budget. The source
// is told.
func (p *Pool) crowded() bool {
	if p.source == nil || p.budget == 0 || p.out.Load()+p.source.Idle() <= p.budget {
		return false
	}
	p.source.Spare()
	return p.out.Load()+p.source.Idle() > p.budget
}

// Reserve counts n bytes as out that lie elsewhere, for state that grows with what peers do and
// is no payload. It fails as Get does. Who reserves gives them back with Unreserve.
func (p *Pool) Reserve(n int64) error {
	if p == nil {
		return nil
	}
	if err := p.claim(n); err != nil {
		return err
	}
	if err := p.whole.Reserve(n); err != nil {
		p.out.Add(-n)
		return err
	}
	return nil
}

// Unreserve gives n bytes back that were reserved.
func (p *Pool) Unreserve(n int64) {
	for ; p != nil; p = p.whole {
		p.out.Add(-n)
	}
}

// claim counts n bytes as out, unless they are more than the budget has.
func (p *Pool) claim(n int64) error {
	// What certainly does not fit is not even added for a moment: others would not fit meanwhile.
	if out := p.out.Load(); p.budget > 0 && n > p.budget-out {
		return p.exhausted(out, n)
	}
	if out := p.out.Add(n); p.budget > 0 && out > p.budget {
		p.out.Add(-n)
		return p.exhausted(out-n, n)
	}
	return nil
}

// Refused is how often memory was refused, by a part of the pool too.
func (p *Pool) Refused() uint64 {
	if p == nil {
		return 0
	}
	return p.refused.Load()
}

func (p *Pool) exhausted(out, size int64) error {
	for all := p; all != nil; all = all.whole {
		all.refused.Add(1)
	}
	err := ErrBudget
	if p.whole != nil {
		err = ErrPart
	}
	return fmt.Errorf("%w: %d bytes of %d are in use, %d more were requested", err, out, p.budget, size)
}

// classOf returns the class that n bytes go into and its size.
func classOf(n int) (class, size int) {
	if n <= minClassBytes {
		return 0, minClassBytes
	}
	if n > maxClassBytes {
		return unpooled, (n + pageBytes - 1) &^ (pageBytes - 1)
	}
	// The leading bit of n-1 says which doubling, the two below it which of its four steps.
	x := uint(n - 1)
	shift := bits.Len(x) - 3
	step := int(x >> shift) // 4..7
	return (shift+3-minClassBits-1)*4 + step - 3, (step + 1) << shift
}

// take returns an idle buffer of the class, or nil.
func (p *Pool) take(class int) *Buffer {
	if class < quickClasses {
		b, _ := p.quick[class].Get().(*Buffer)
		return b
	}
	if class == unpooled {
		return nil
	}
	s := &p.shelves[class-quickClasses]
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.free) - 1
	if last < 0 {
		return nil
	}
	b := s.free[last]
	s.free[last] = nil
	s.free = s.free[:last]
	s.low = min(s.low, last)
	p.idle.Add(-int64(len(b.data)))
	return b
}

// put takes a buffer back whose last reference is gone.
func (p *Pool) put(b *Buffer) {
	p.out.Add(-int64(len(b.data)))
	switch {
	case p.whole != nil:
		b.pool = p.whole // whoever gets it next may be no part
		p.whole.put(b)
	case b.class == elsewhere:
		p.books.remove(b)
		p.source.Put(b.data)
	case Invariants:
		// Never hand it out again: every use after release meets the poison.
		p.books.remove(b)
	case b.class < quickClasses:
		p.quick[b.class].Put(b)
	case b.class == unpooled:
		p.garbage.dropped.Add(int64(len(b.data)))
	default:
		s := &p.shelves[b.class-quickClasses]
		s.mu.Lock()
		s.free = append(s.free, b)
		p.idle.Add(int64(len(b.data)))
		s.mu.Unlock()
	}
}

// makeRoom lets idle buffers go, largest first, until they and what is out fit the budget: a
// load that changes its sizes must not end up with the budget once in use and once more on the
// shelves. Nor once more as garbage: on a busy machine the collector is late, also where a
// memory limit sets it off, and a process in a cgroup is killed meanwhile.
func (p *Pool) makeRoom() {
	if p.budget == 0 {
		return
	}
	defer p.collect()
	for i := len(p.shelves) - 1; i >= 0; i-- {
		over := p.out.Load() + p.Idle() - p.budget
		if over <= 0 {
			return
		}
		s := &p.shelves[i]
		s.mu.Lock()
		if len(s.free) > 0 {
			size := int64(len(s.free[0].data))
			p.dropLocked(s, int(min(int64(len(s.free)), (over+size-1)/size)))
		}
		s.mu.Unlock()
	}
}

// Trim lets go half of what lay idle on each shelf since the last trim, at least one, and says
// how many bytes that are. They are garbage until the next collection. It is done after each of
// them anyway: a program calls it to have memory back sooner.
func (p *Pool) Trim() (bytes int64) {
	if p.source != nil {
		p.source.Trim()
	}
	for i := range p.shelves {
		s := &p.shelves[i]
		s.mu.Lock()
		bytes += p.dropLocked(s, (s.low+1)/2)
		s.low = len(s.free)
		s.mu.Unlock()
	}
	return bytes
}

// dropLocked lets go the n buffers of s that were used longest ago, and says how many bytes
// they have.
func (p *Pool) dropLocked(s *shelf, n int) (bytes int64) {
	if n == 0 {
		return 0
	}
	bytes = int64(n) * int64(len(s.free[0].data))
	p.idle.Add(-bytes)
	p.garbage.dropped.Add(bytes)
	left := copy(s.free, s.free[n:])
	clear(s.free[left:])
	s.free = s.free[:left]
	s.low = min(s.low, left)
	return bytes
}

// garbage counts the bytes of large buffers that were let go, since the beginning: those of
// which it is known that a collection has freed them are the first ones.
type garbage struct {
	dropped, freed atomic.Int64
	before         int64 // dropped by the last collection but one; of trimAtGC

	collecting sync.Mutex
}

// bytes is how much may be waiting for a collection.
func (g *garbage) bytes() int64 { return max(0, g.dropped.Load()-g.freed.Load()) }

// collected notes that what had been dropped by then is freed.
func (g *garbage) collected(dropped int64) {
	for {
		freed := g.freed.Load()
		if freed >= dropped || g.freed.CompareAndSwap(freed, dropped) {
			return
		}
	}
}

// collect waits for a collection if there is too much garbage beside what is out and idle.
// Buffers hold no pointers, so it takes milliseconds, and there is one for each sixteenth of
// the budget that is made anew when the budget is used up.
func (p *Pool) collect() {
	over := func() bool {
		return p.out.Load()+p.Idle()+p.garbage.bytes() > p.budget+p.budget/16
	}
	if !over() {
		return
	}
	p.garbage.collecting.Lock()
	defer p.garbage.collecting.Unlock()
	if over() { // still, after whoever was before
		dropped := p.garbage.dropped.Load()
		runtime.GC()
		p.garbage.collected(dropped)
	}
}

// trimAtGC has p trimmed after each garbage collection, as long as anyone else holds it. The
// runtime collects at least every two minutes, so an idle process gives all but nothing back
// within a quarter of an hour; a timer would need a goroutine and somebody to stop it.
func trimAtGC(p *Pool) {
	// Too large for the allocator to share its memory with a longer-lived neighbour.
	type tick struct{ _ [32]byte }
	runtime.AddCleanup(new(tick), func(w weak.Pointer[Pool]) {
		if p := w.Value(); p != nil {
			// A collection that has found this tick began after the one before it was made, by
			// this function.
			p.garbage.collected(p.garbage.before)
			p.garbage.before = p.garbage.dropped.Load()
			p.Trim()
			trimAtGC(p)
		}
	}, weak.Make(p))
}
