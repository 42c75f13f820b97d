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

// Size classes: 64 bytes, then four steps to each doubling, so that at most a fifth of a buffer is
// unused (a quarter of the requested size), up to 64 MiB. Larger buffers are allocated in whole
// pages of the requested size, and left to the source or the garbage collector: keeping them would
// amount to a leak.
const (
	minClassBytes = 64
	minClassBits  = 6
	maxClassBits  = 26
	maxClassBytes = 1 << maxClassBits
	pageBytes     = 4 << 10
	numClasses    = (maxClassBits-minClassBits)*4 + 1
	unpooled      = numClasses
	foreignClass  = numClasses + 1 // memory of a Source, or of a Lender

	// Buffers up to this size are kept in a sync.Pool: it takes a few nanoseconds and no lock, and
	// the garbage collector trims it. Larger ones are kept on shelves of our own, because a
	// sync.Pool drops everything that was idle for two collections, and a fresh buffer of megabytes
	// has to be cleared first.
	maxQuickBytes = 32 << 10
	quickClasses  = (15-minClassBits)*4 + 1
)

// ErrBudget is wrapped by the errors of [Pool.Get] when the pool's byte budget is exhausted. They
// name the budget, the bytes in use and the bytes requested.
var ErrBudget = errors.New("tensor: memory budget exhausted")

// ErrPart is the ErrBudget of an exhausted part, see [Pool.Part]; the whole pool may have memory
// left.
var ErrPart = fmt.Errorf("%w in a part of the pool", ErrBudget)

// A Source provides the memory of a pool's large classes, instead of the garbage collector: memory
// that other processes can map, for instance. Its methods may be called from any goroutine.
type Source interface {
	// Get returns n bytes with undefined contents; n is a multiple of 4 KiB and more than 32 KiB.
	// Get returns nil if the source has no room, or would have to grow by more than grow bytes:
	// then the pool takes ordinary memory.
	Get(n int, grow int64) []byte
	// Put takes back the bytes of a Get.
	Put(mem []byte)
	// Idle returns the number of bytes that the source holds but has not handed out. They count in
	// the budget.
	Idle() int64
	// Trim is called after each garbage collection. Spare is called when the pool needs the budget
	// of the idle bytes for other memory; it may return before they are freed, or keep them.
	Trim()
	Spare()
}

// A Pool hands out Buffers in size classes, counts the bytes in use and refuses to exceed its
// budget. One Pool serves a whole process. A nil *Pool is usable: ordinary memory without a limit
// or a count.
//
// Released memory stays in the pool for the next Get. At each garbage collection, half of the large
// buffers that were idle since the previous one are dropped. Memory in use and idle memory together
// stay within the budget; with dropped memory that is not collected yet, within a sixteenth more.
type Pool struct {
	budget int64  // 0: no limit
	whole  *Pool  // the pool that this is a part of; nil: none
	source Source // of memory for the large classes; nil: the garbage collector

	_    [56]byte     // out has a cache line of its own: every Get and Release writes it
	out  atomic.Int64 // bytes of all classes handed out
	_    [56]byte
	idle atomic.Int64 // bytes on the shelves

	refused atomic.Uint64 // how often memory was refused
	garbage garbage       // large buffers that were dropped

	quick   [quickClasses]sync.Pool // of *Buffer
	shelves [numClasses - quickClasses]shelf

	books books // of buffers in use; empty unless built with invariants
}

// A shelf keeps the idle buffers of one large class, most recently used last.
type shelf struct {
	mu   sync.Mutex
	free []*Buffer
	low  int // fewest that were free since the last collection, so were not needed
	idle int // the same since the last Trim
}

// NewPool makes a pool that hands out at most budgetBytes at any time; 0 means no limit. A buffer
// counts with the size of its class.
func NewPool(budgetBytes int64) *Pool { return NewPoolFrom(nil, budgetBytes) }

// NewPoolFrom makes a pool like NewPool that takes large buffers, of more than 32 KiB, from the
// source while that has memory.
func NewPoolFrom(source Source, budgetBytes int64) *Pool {
	p := &Pool{budget: max(budgetBytes, 0), source: source}
	trimAtGC(p)
	return p
}

// Part makes a pool that hands out p's memory, at most budgetBytes of it at any time; 0 means as
// much as p has. Memory in use counts in both pools. Get of a part fails with [ErrPart] when the
// part is exhausted, and otherwise as p's does.
func (p *Pool) Part(budgetBytes int64) *Pool {
	return &Pool{budget: max(budgetBytes, 0), whole: p}
}

// Budget returns the limit in bytes, 0 if there is none.
func (p *Pool) Budget() int64 {
	if p == nil {
		return 0
	}
	return p.budget
}

// InUse returns the number of bytes in use, in whole classes.
func (p *Pool) InUse() int64 {
	if p == nil {
		return 0
	}
	return p.out.Load()
}

// Idle returns the number of bytes kept for reuse in the large classes. A part keeps none of its
// own.
func (p *Pool) Idle() int64 {
	if p == nil {
		return 0
	}
	if p.source != nil {
		return p.idle.Load() + p.source.Idle()
	}
	return p.idle.Load()
}

// Get returns a buffer of n bytes with undefined contents and one reference. Its only error is
// [ErrBudget].
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
		return &Buffer{data: mem, pool: p, class: foreignClass}
	}
	return nil
}

// crowded reports whether memory in use and the source's idle memory together exceed the budget,
// even after asking the source to free idle memory.
func (p *Pool) crowded() bool {
	if p.source == nil || p.budget == 0 || p.out.Load()+p.source.Idle() <= p.budget {
		return false
	}
	p.source.Spare()
	return p.out.Load()+p.source.Idle() > p.budget
}

// Reserve counts n bytes of memory outside the pool as in use: state that peers can make grow and
// that is not payload. It fails as Get does. Give the bytes back with Unreserve.
func (p *Pool) Reserve(n int64) error {
	if p == nil {
		return nil
	}
	if err := p.claim(n); err != nil {
		return err
	}
	if p.whole != nil {
		if err := p.whole.Reserve(n); err != nil {
			p.out.Add(-n)
			return err
		}
		return nil
	}
	p.crowded() // asks the source to free idle memory; it keeps what lies beside used memory
	p.makeRoom()
	return nil
}

// Unreserve gives back n reserved bytes.
func (p *Pool) Unreserve(n int64) {
	for ; p != nil; p = p.whole {
		p.out.Add(-n)
	}
}

// claim counts n bytes as in use, unless that exceeds the budget.
func (p *Pool) claim(n int64) error {
	// Do not add, even briefly, a claim that certainly does not fit: it would make concurrent
	// claims fail.
	if out := p.out.Load(); p.budget > 0 && n > p.budget-out {
		return p.exhausted(out, n)
	}
	if out := p.out.Add(n); p.budget > 0 && out > p.budget {
		p.out.Add(-n)
		return p.exhausted(out-n, n)
	}
	return nil
}

// Refused returns how often memory was refused, including by parts of the pool.
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

// classOf returns the class for n bytes and its size.
func classOf(n int) (class, size int) {
	if n <= minClassBytes {
		return 0, minClassBytes
	}
	if n > maxClassBytes {
		return unpooled, (n + pageBytes - 1) &^ (pageBytes - 1)
	}
	// The leading bit of n-1 selects the doubling, the two bits below it one of its four steps.
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
	s.low, s.idle = min(s.low, last), min(s.idle, last)
	p.idle.Add(-int64(len(b.data)))
	return b
}

// put takes back a buffer whose last reference was released.
func (p *Pool) put(b *Buffer) {
	p.out.Add(-int64(len(b.data)))
	switch {
	case p.whole != nil:
		b.pool = p.whole // the next Get may be of another pool
		p.whole.put(b)
	case b.class == foreignClass:
		p.books.remove(b)
		p.source.Put(b.data)
	case Invariants:
		// Never hand it out again, so that every use after release reads the poison.
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

// makeRoom drops idle buffers, largest first, until they and the memory in use fit the budget: a
// load whose sizes change must not take the budget once in use and once more on the shelves. Nor
// once more as garbage: on a busy machine the collector runs late, even if a memory limit triggers
// it, and a process in a cgroup is killed meanwhile.
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

// Trim drops all large buffers that were idle since the last Trim, and returns how many bytes these
// have. They are garbage until the next collection. The pool also drops some by itself, see [Pool]:
// call Trim every few seconds to get memory back sooner.
func (p *Pool) Trim() (bytes int64) {
	return p.trim(func(s *shelf) int {
		n := s.idle
		s.idle = len(s.free) - n
		return n
	})
}

// trimCollected drops half of the buffers that were idle since the last collection, at least one:
// collections may follow each other within milliseconds.
func (p *Pool) trimCollected() {
	p.trim(func(s *shelf) int {
		n := (s.low + 1) / 2
		s.low = len(s.free) - n
		return n
	})
}

// trim drops as many of the buffers of each shelf as it should lose.
func (p *Pool) trim(lose func(*shelf) int) (bytes int64) {
	if p.source != nil {
		p.source.Trim()
	}
	for i := range p.shelves {
		s := &p.shelves[i]
		s.mu.Lock()
		bytes += p.dropLocked(s, lose(s))
		s.mu.Unlock()
	}
	return bytes
}

// dropLocked drops the n least recently used buffers of s, and returns how many bytes they have.
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
	s.low, s.idle = min(s.low, left), min(s.idle, left)
	return bytes
}

// garbage counts the bytes of all large buffers that were ever dropped, and how many of these a
// collection is known to have freed.
type garbage struct {
	dropped, freed atomic.Int64
	before         int64 // value of dropped at the previous collection; used by trimAtGC

	collecting sync.Mutex
}

// bytes returns how many bytes may await a collection.
func (g *garbage) bytes() int64 { return max(0, g.dropped.Load()-g.freed.Load()) }

// collected raises freed to dropped: a collection has freed all buffers dropped up to then.
func (g *garbage) collected(dropped int64) {
	for {
		freed := g.freed.Load()
		if freed >= dropped || g.freed.CompareAndSwap(freed, dropped) {
			return
		}
	}
}

// collect waits for a collection if there is too much garbage in addition to the memory in use and
// idle. Buffers hold no pointers, so a collection takes milliseconds. When the budget is used up,
// there is one for each sixteenth of the budget that is newly allocated.
func (p *Pool) collect() {
	over := func() bool {
		return p.out.Load()+p.Idle()+p.garbage.bytes() > p.budget+p.budget/16
	}
	if !over() {
		return
	}
	p.garbage.collecting.Lock()
	defer p.garbage.collecting.Unlock()
	if over() { // no other caller has collected meanwhile
		dropped := p.garbage.dropped.Load()
		runtime.GC()
		p.garbage.collected(dropped)
	}
}

// trimAtGC trims p after each garbage collection, as long as p is reachable. The runtime collects
// at least every two minutes, so an idle process gives nearly all memory back within a quarter of
// an hour; a timer would need a goroutine and a call to stop it.
func trimAtGC(p *Pool) {
	// Too large for the allocator to share its memory with a longer-lived neighbour.
	type tick struct{ _ [32]byte }
	runtime.AddCleanup(new(tick), func(w weak.Pointer[Pool]) {
		if p := w.Value(); p != nil {
			// The collection that found this tick began after this function made the tick, in the
			// cleanup of the previous collection.
			p.garbage.collected(p.garbage.before)
			p.garbage.before = p.garbage.dropped.Load()
			p.trimCollected()
			trimAtGC(p)
		}
	}, weak.Make(p))
}
