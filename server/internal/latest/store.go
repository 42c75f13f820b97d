package latest

import (
	"container/list"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

const (
	// asked is how long the answers of a name are kept after the last question for them.
	asked = time.Minute
	// silent is how long an answer is kept after the last frame of its stream.
	silent = time.Minute
)

// A Store holds the newest answers of all streams. Close it.
type Store struct {
	pool *tensor.Pool // memory of copies

	mu sync.Mutex // guards all below, and all of Names; not held while a poll's owner is told

	limit   int64
	bytes   int64
	names   map[string]*Name
	sources *list.List // of *source, the one whose frame was answered longest ago first
	payers  payers
	paying  map[string]*payer // by name
	evicted time.Time         // when the limit last made the store forget a stream; zero: never
	done    Usage             // the counts of what it has done
	closed  error             // not nil: answers every poll
	sweeper *time.Timer
	due     bool // the sweeper is set

	// may says why a question must not wait; nil: it may. See Permit.
	may func(name string, q *Question) error

	put       []served // answers for which polls may wait
	told      []*Poll  // polls that have their answer
	concerned []*Poll  // buffer of serve
	telling   bool     // a goroutine serves these and tells those
}

// New returns a store that keeps at most that many bytes. Copies are made in pool; nil: in the
// garbage collector's memory.
func New(pool *tensor.Pool, bytes int64) *Store {
	return &Store{pool: pool, limit: bytes, names: make(map[string]*Name), sources: list.New(),
		paying: make(map[string]*payer)}
}

// Resize changes the bound.
func (s *Store) Resize(bytes int64) {
	s.mu.Lock()
	s.limit = bytes
	gone := s.evict(nil)
	s.mu.Unlock()
	gone.release()
}

// Close forgets everything, and answers all polls, those that wait and those to come, with err.
func (s *Store) Close(err error) {
	s.mu.Lock()
	s.closed = err
	var gone released
	for _, n := range s.names {
		n.fail(err)
		gone = n.clear(gone)
	}
	s.names = make(map[string]*Name)
	for _, p := range s.put {
		gone = append(gone, p.answer)
	}
	s.put = nil
	if s.sweeper != nil {
		s.sweeper.Stop()
	}
	s.mu.Unlock()
	gone.release()
}

// Permit ends the waiting of polls for which may returns an error, and refuses those to come: a
// question may wait for longer than its asker has the right to ask. may gets the name that is
// asked; it is called under the mutex.
func (s *Store) Permit(may func(name string, q *Question) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.may = may
	for _, n := range s.names {
		for _, p := range n.polls() {
			if err := may(n.name, &p.Question); err != nil {
				s.tell(p, nil, err)
			}
		}
	}
}

// Settings say how a name's answers are kept.
type Settings struct {
	Always bool // whether or not anybody asks
	Shared bool // anybody who may ask the model may have them, not only the stream's own identity
}

// Name returns the answers of a name, with settings that hold from now on.
func (s *Store) Name(name string, settings Settings) *Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.names[name]
	if n == nil {
		n = &Name{store: s, name: name, sources: make(map[Source]*source), groups: make(map[which]*group)}
		if s.closed == nil {
			s.names[name] = n
		}
	}
	n.set(settings)
	n.setWanted(time.Now())
	return n
}

// set changes the settings. Polls that then may mean other streams than before wait for one anew.
func (n *Name) set(settings Settings) {
	var polls []*Poll
	if settings.Shared != n.settings.Shared {
		polls = n.polls()
	}
	for _, p := range polls {
		p.remove()
		n.tidy(n.which(&p.Question), p.group)
	}
	n.settings = settings
	for _, p := range polls {
		p.enter(n.asked(&p.Question), nil)
		n.decide(p)
	}
}

// Keep forgets all names for which known is false. Their polls are answered with the error that
// gone returns.
func (s *Store) Keep(known func(name string) bool, gone func(name string) error) {
	s.mu.Lock()
	var lost released
	for name, n := range s.names {
		if !known(name) {
			n.ended = gone(name)
			n.fail(n.ended)
			lost = n.clear(lost)
			delete(s.names, name)
		}
	}
	s.mu.Unlock()
	lost.release()
}

// A Name holds the newest answers of the streams that are sent to one model or application.
type Name struct {
	store *Store
	name  string

	wanted atomic.Int64 // until when answers are kept, in Unix nanoseconds

	// Guarded by the store's mutex.

	settings Settings
	ended    error     // answers every poll; nil: the name is known
	since    time.Time // since when answers have been kept without a gap; zero: they are not
	until    time.Time // a minute after the last question
	waiting  int       // polls that wait
	sources  map[Source]*source
	groups   map[which]*group
}

// Wanted reports whether answers are to be put. It is cheap, and may be called from any goroutine.
func (n *Name) Wanted(now time.Time) bool { return n.wanted.Load() > now.UnixNano() }

// setWanted sets until when answers are kept, and since when they have been.
func (n *Name) setWanted(now time.Time) {
	until := n.until.UnixNano()
	switch {
	case n.settings.Always || n.waiting > 0:
		until = math.MaxInt64
	case n.until.IsZero():
		until = 0
	}
	if until <= now.UnixNano() {
		n.since = time.Time{}
	} else if n.since.IsZero() {
		n.since = now
	}
	n.wanted.Store(until)
}

// touch records that somebody has asked.
func (n *Name) touch(now time.Time) {
	n.until = now.Add(asked)
	n.setWanted(now)
	n.store.arm(now)
}

// fail answers all polls that wait.
func (n *Name) fail(err error) {
	for _, p := range n.polls() {
		n.store.tell(p, nil, err)
	}
}

// clear forgets all streams.
func (n *Name) clear(gone released) released {
	for _, src := range n.sources {
		gone = n.store.forget(src, gone)
	}
	return gone
}

// forget forgets a stream, and adds what it held to gone.
func (s *Store) forget(src *source, gone released) released {
	bytes := src.bytes
	for _, a := range src.answers {
		gone = append(gone, a)
		bytes += a.bytes
	}
	s.charge(src, -bytes)
	src.answers, src.gone = nil, true
	s.sources.Remove(src.place)
	src.payer.streams.Remove(src.recency)
	s.forgetIdle(src.payer)
	delete(src.name.sources, src.Source)
	src.name.remove(src)
	return gone
}

// evict forgets streams until the rest is within the limit: the oldest of whoever has the most.
func (s *Store) evict(gone released) released {
	for s.bytes > s.limit {
		s.evicted = time.Now()
		s.done.Evicted++
		gone = s.forget(s.payers[0].streams.Front().Value.(*source), gone)
	}
	return gone
}

// arm sets the sweeper if there is something to forget some day.
func (s *Store) arm(now time.Time) {
	if s.due || s.closed != nil {
		return
	}
	s.due = true
	if s.sweeper == nil {
		s.sweeper = time.AfterFunc(silent, s.sweep)
	} else {
		s.sweeper.Reset(silent)
	}
}

// sweep forgets streams that have been silent for a minute, and those of names that nobody has
// asked for a minute. It runs as long as there are any, at the next moment that one may be due.
func (s *Store) sweep() {
	s.mu.Lock()
	now := time.Now()
	var gone released
	next := time.Time{}
	until := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for e := s.sources.Front(); e != nil; e = s.sources.Front() {
		src := e.Value.(*source)
		if at := src.active.Add(silent); at.After(now) {
			until(at)
			break
		}
		gone = s.forget(src, gone)
	}
	for _, n := range s.names {
		n.setWanted(now)
		switch {
		case n.since.IsZero():
			gone = n.clear(gone)
		case !n.settings.Always && n.waiting == 0:
			until(n.until)
		}
	}
	s.due = false
	if !next.IsZero() && s.closed == nil {
		s.due = true
		s.sweeper.Reset(max(next.Sub(now), time.Millisecond))
	}
	s.mu.Unlock()
	gone.release()
}

// released are answers whose references are given back once the mutex is free.
type released []*Answer

func (r released) release() {
	for _, a := range r {
		for i := range a.Outputs {
			a.Outputs[i].Release()
		}
	}
}
