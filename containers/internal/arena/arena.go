package arena

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

const (
	// minIdle is the memory of a segment below which it is not worth replacing.
	minIdle = 16 << 20
	// idlePeriod is how long most of a segment may be idle before it is replaced. New memory costs
	// as much as all other work on a frame, so bursts of frames must find the memory of the burst
	// before. A burst of frames fits into burstBytes; idle memory above that, as after a peak of
	// large requests, is returned after peakPeriod, at the second trim.
	idlePeriod = 5 * time.Minute
	burstBytes = 256 << 20
	peakPeriod = 5 * time.Second
)

// An Arena is the source of a pool's large buffers, a [tensor.Source]: a segment that containers
// can map for reading. All methods may be called from any goroutine. A nil Arena takes no memory;
// its methods Watch, Usage, Shared and Renew do nothing.
//
// After a peak most of the segment is idle, and the memory of a sealed file cannot be returned in
// part. When that lasts for minutes (Trim) the next buffers lie in a new segment, and the old one
// is unmapped with its last buffer and its last session. It counts in the pool's budget until then.
//
// An Arena also makes the segments for outputs and counts them, but callers of NewOutputs reserve
// their bytes of the pool.
type Arena struct {
	size    int64
	broken  func(error)
	retired func(*Segment)

	watcher atomic.Pointer[func()]
	steps   atomic.Int64 // of Watch, at the last call

	resident atomic.Int64 // bytes of all segments of inputs that were ever used
	used     atomic.Int64 // bytes of them in buffers
	outputs  atomic.Int64 // bytes of the segments for outputs

	mu       sync.Mutex
	segments atomic.Pointer[[]*inputs] // changed under mu
	current  *inputs                   // nil: the next Get makes one
	failed   bool                      // making one failed since the last trim
	peak     int64                     // most bytes used of current since the last trim
	busy     time.Time                 // of the last trim that found more than a quarter of it used
}

// inputs is a segment with buffers of a pool.
type inputs struct {
	Segment
	space space // guarded by the arena's mu
	// old, in the strict build, is the memory that was released last. It is not reused yet, so that
	// every use after release meets the poison.
	old []extent
}

// New makes an arena of size bytes, which is also the size of a segment. It takes memory when the
// first buffer is made. broken is called with the reason when there is no shared memory, without
// locks.
func New(size int64, broken func(error)) *Arena {
	a := &Arena{size: size &^ (headSize - 1), broken: broken, retired: func(*Segment) {}}
	a.segments.Store(new([]*inputs))
	return a
}

// OnRetire sets the function that is called with each segment which the processes that map it are
// to unmap: without locks, by any goroutine that takes or returns memory. Call it before the first
// buffer is made. The arena may be nil.
func (a *Arena) OnRetire(retired func(*Segment)) {
	if a != nil {
		a.retired = retired
	}
}

// Current returns the segment of the next buffers, with a reference for the caller; nil if there is
// no shared memory.
func (a *Arena) Current() *Segment {
	a.mu.Lock()
	s, err := a.currentLocked()
	if s != nil {
		s.Retain()
	}
	a.mu.Unlock()
	if err != nil {
		a.broken(err)
	}
	if s == nil {
		return nil
	}
	return &s.Segment
}

// Retired reports whether a segment gets no more buffers.
func (a *Arena) Retired(s *Segment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current == nil || &a.current.Segment != s
}

func (a *Arena) currentLocked() (*inputs, error) {
	if a.current != nil || a.failed {
		return a.current, nil
	}
	s := &inputs{space: newSpace(headSize, a.size)}
	if err := s.open(a.size, false, func() { a.forget(s) }); err != nil {
		a.failed = true
		return nil, err
	}
	a.current, a.peak, a.busy = s, 0, time.Now()
	a.resident.Add(headSize)
	a.used.Add(headSize)
	all := append(slices.Clone(*a.segments.Load()), s)
	a.segments.Store(&all)
	return s, nil
}

// forget is called when the last reference to s has been released.
func (a *Arena) forget(s *inputs) {
	defer a.notify()
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(*a.segments.Load()), func(x *inputs) bool { return x == s })
	a.segments.Store(&all)
	a.resident.Add(-s.space.high)
	a.used.Add(-headSize)
}

// Get returns n bytes, a multiple of the page size. It returns nil if the segment has no place for
// them, if they take more than grow bytes that were never used, or if all segments together would
// take more memory than the arena's size: a container that does not unmap old segments takes memory
// from the arena, and from nothing else. It implements [tensor.Source].
func (a *Arena) Get(n int, grow int64) []byte {
	defer a.notify()
	a.mu.Lock()
	s, err := a.currentLocked()
	if s == nil {
		a.mu.Unlock()
		if err != nil {
			a.broken(err)
		}
		return nil
	}
	defer a.mu.Unlock()
	high := s.space.high
	offset, ok := s.space.take(int64(n), high+max(0, min(grow, a.size-a.resident.Load())))
	if !ok {
		return nil
	}
	s.Retain()
	a.resident.Add(s.space.high - high)
	a.used.Add(int64(n))
	a.peak = max(a.peak, s.space.used)
	return s.mem[offset : offset+int64(n) : offset+int64(n)]
}

// Put takes back the bytes of a Get.
func (a *Arena) Put(mem []byte) {
	s, offset := a.find(mem)
	a.mu.Lock()
	e := extent{offset, offset + int64(len(mem))}
	if tensor.Invariants {
		e = s.age(e)
	}
	if e.hi > 0 {
		s.space.give(e.lo, e.hi-e.lo)
	}
	a.used.Add(-int64(len(mem)))
	a.mu.Unlock()
	s.Release()
}

// age exchanges an extent for the oldest of the waiting ones, if there are many.
func (s *inputs) age(e extent) (oldest extent) {
	const most = 4
	s.old = append(s.old, e)
	if len(s.old) > most {
		oldest = s.old[0]
		s.old = s.old[1:]
	}
	return oldest
}

// live is the number of bytes in buffers.
func (s *inputs) live() int64 {
	n := s.space.used
	for _, e := range s.old {
		n -= e.hi - e.lo
	}
	return n
}

// Find returns the segment in which data lies, and its offset there; nil if data is not in the
// arena. The segment stays as long as the owner of data holds its buffer.
func (a *Arena) Find(data []byte) (*Segment, int64) {
	if len(data) == 0 {
		return nil, 0
	}
	if s, offset := a.find(data); s != nil {
		return &s.Segment, offset
	}
	return nil, 0
}

func (a *Arena) find(data []byte) (*inputs, int64) {
	for _, s := range *a.segments.Load() {
		if offset := s.offset(data); offset >= 0 {
			return s, offset
		}
	}
	return nil, 0
}

// NewOutputs makes a segment of that many bytes for the outputs of one session, which the container
// may write. gone is called after the last reference to the segment was released.
func (a *Arena) NewOutputs(bytes int64, gone func()) (*Segment, error) {
	s := new(Segment)
	err := s.open(bytes, true, func() {
		a.outputs.Add(-bytes)
		a.notify()
		gone()
	})
	if err != nil {
		return nil, err
	}
	a.outputs.Add(bytes)
	a.notify()
	return s, nil
}

// Watch has f called, without locks, each time the memory of all segments has changed by a
// sixteenth of a segment's size.
func (a *Arena) Watch(f func()) {
	if a != nil {
		a.watcher.Store(&f)
	}
}

func (a *Arena) notify() {
	steps := (a.resident.Load() + a.outputs.Load()) / max(a.size/16, 1)
	if f := a.watcher.Load(); f != nil && a.steps.Swap(steps) != steps {
		(*f)()
	}
}

// A Usage records the memory that an arena takes, in bytes.
type Usage struct {
	Limit    int64 // the bound on Resident
	Resident int64 // segments of inputs, in use and idle
	Used     int64 // part of Resident, in buffers
	Replaced int64 // part of Resident, in retired segments that buffers and sessions still hold
	Outputs  int64 // segments for outputs, whole
}

// Usage returns the memory that the arena takes.
func (a *Arena) Usage() Usage {
	if a == nil {
		return Usage{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	u := Usage{Limit: a.size, Resident: a.resident.Load(), Used: a.used.Load(), Outputs: a.outputs.Load()}
	if u.Replaced = u.Resident; a.current != nil {
		u.Replaced -= a.current.space.high
	}
	return u
}

// Taken returns the memory that a segment of inputs takes: all that was ever used of it.
func (a *Arena) Taken(s *Segment) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range *a.segments.Load() {
		if &x.Segment == s {
			return x.space.high
		}
	}
	return 0
}

// Resident returns the memory of all segments of inputs, in use and idle.
func (a *Arena) Resident() int64 { return a.resident.Load() }

// Shared returns the memory of all segments.
func (a *Arena) Shared() int64 {
	if a == nil {
		return 0
	}
	return a.resident.Load() + a.outputs.Load()
}

// Idle returns the part of Resident that is in no buffer.
func (a *Arena) Idle() int64 { return max(0, a.resident.Load()-a.used.Load()) }

// Trim replaces a segment of which three quarters have been idle for some minutes.
func (a *Arena) Trim() {
	a.mu.Lock()
	a.failed = false
	over := false
	if s := a.current; s != nil {
		now := time.Now()
		if s.space.high <= minIdle || a.peak >= s.space.high/4 {
			a.busy = now
		}
		period := idlePeriod
		if s.space.high-a.peak > burstBytes {
			period = peakPeriod
		}
		a.peak = s.space.used
		over = now.Sub(a.busy) >= period
	}
	a.mu.Unlock()
	if over {
		a.Renew()
	}
}

// Spare retires the segment if it has no buffer, to free its memory for others. With buffers, its
// idle memory would be lost to new buffers and yet not be returned.
func (a *Arena) Spare() {
	a.mu.Lock()
	idle := a.current != nil && a.current.live() == 0
	a.mu.Unlock()
	if idle {
		a.Renew()
	}
}

// Renew retires the segment, so that its idle memory is freed: the next buffers lie in a new one.
func (a *Arena) Renew() {
	if a == nil {
		return
	}
	a.mu.Lock()
	s := a.current
	a.current = nil
	a.mu.Unlock()
	if s != nil {
		a.retired(&s.Segment)
		s.Release()
	}
}
