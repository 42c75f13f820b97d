package latest

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Usage is what a store has, and what it has done since it was made.
type Usage struct {
	Bytes, Limit int64 // of answers, and of what is known of their streams
	Streams      int   // known
	Waiting      int   // polls

	Answered, Failed uint64 // polls that got an answer, or an error
	Evicted          uint64 // streams that the limit made the store forget
}

// Usage returns what the store has and has done.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.done
	u.Bytes, u.Limit, u.Streams = s.bytes, s.limit, s.sources.Len()
	for _, n := range s.names {
		u.Waiting += n.waiting
	}
	return u
}

// A State is a stream as operators see it.
type State struct {
	Name    string // of the model or application
	Source         // if it is not known, all but Stream and User are zero
	Known   bool   // a frame of it was answered here; otherwise somebody waits for it
	Frame          // of its newest answer; zero: none is kept
	Kept    bool
	Waiting int      // polls
	Askers  []string // identities or machines of some of those who wait, in order
}

const mostAskers = 4

// before reports whether operators should see s before t: whoever waits for a stream that gives no
// answers is worse off than those who wait for an old one, and these than nobody.
func (s *State) before(t *State) int {
	waits := func(s *State) int { return min(s.Waiting, 1) }
	kept := func(s *State) int {
		if s.Kept {
			return 1
		}
		return 0
	}
	return cmp.Or(waits(t)-waits(s), kept(s)-kept(t), s.Captured.Compare(t.Captured),
		strings.Compare(s.Name, t.Name), strings.Compare(s.Stream, t.Stream), strings.Compare(s.Client, t.Client))
}

// An awaited is what polls wait for: a stream, or one that no frame has come from.
type awaited struct {
	source       *source
	name         *Name
	stream, user string
}

// States returns the streams of all names, at most that many, in the order in which operators
// should see them. It does not count as a question.
func (s *Store) States(most int) []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	crowds := make(map[awaited]*State)
	for _, n := range s.names {
		for _, p := range n.polls() {
			key := awaited{source: p.source}
			if p.source == nil {
				key = awaited{nil, n, p.Stream, p.User}
			}
			crowd := crowds[key]
			if crowd == nil {
				crowd = &State{Name: n.name, Source: Source{Stream: key.stream, User: key.user}}
				crowds[key] = crowd
			}
			crowd.Waiting++
			if who := cmp.Or(p.Identity, p.Client); len(crowd.Askers) < mostAskers &&
				!slices.Contains(crowd.Askers, who) {
				crowd.Askers = append(crowd.Askers, who)
			}
		}
	}
	list := first{most: most}
	for e := s.sources.Front(); e != nil; e = e.Next() {
		src := e.Value.(*source)
		st := State{Name: src.name.name, Source: src.Source, Known: true}
		if a := src.newest(""); a != nil {
			st.Frame, st.Kept = a.Frame, true
		}
		if crowd := crowds[awaited{source: src}]; crowd != nil {
			st.Waiting, st.Askers = crowd.Waiting, crowd.Askers
		}
		list.add(st)
	}
	for key, crowd := range crowds {
		if key.source == nil {
			list.add(*crowd)
		}
	}
	for i := range list.states {
		list.states[i].Of = nil
		slices.Sort(list.states[i].Askers)
	}
	return list.states
}

// first keeps the first of many states.
type first struct {
	most   int
	states []State
}

func (f *first) add(s State) {
	n := len(f.states)
	if n == f.most && (n == 0 || s.before(&f.states[n-1]) >= 0) {
		return
	}
	at, _ := slices.BinarySearchFunc(f.states, &s, func(have State, s *State) int { return have.before(s) })
	f.states = slices.Insert(f.states, at, s)
	f.states = f.states[:min(len(f.states), f.most)]
}

// Answers returns the newest answers of all streams that a question may mean, by their names, at
// most that many, and how many there are. It counts as a question. The caller has a reference to
// each output: see Release.
func (n *Name) Answers(q Question, most int) (list []*Answer, all int) {
	s := n.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil || n.ended != nil {
		return nil, 0
	}
	n.touch(time.Now())
	if g := n.groups[n.which(&q)]; g != nil {
		for _, src := range g.sources {
			if a := src.newest(q.Version); a != nil {
				list = append(list, a)
			}
		}
	}
	slices.SortFunc(list, func(a, b *Answer) int {
		return cmp.Or(strings.Compare(a.Source.Stream, b.Source.Stream), strings.Compare(a.Source.User, b.Source.User),
			strings.Compare(a.Source.Client, b.Source.Client), cmp.Compare(a.Source.Connection, b.Source.Connection))
	})
	all = len(list)
	list = list[:min(all, most)]
	for _, a := range list {
		a.retain()
	}
	return list, all
}

// Release gives back the references that Answers has taken.
func Release(list []*Answer) { released(list).release() }
