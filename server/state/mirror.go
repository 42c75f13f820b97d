package state

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/shivad/shivad/server/internal/wake"
)

// A mirror is the reading half of every store: all entries in memory, and the watchers of changes.
type mirror struct {
	mu        sync.RWMutex
	unread    error                       // why nothing can be read; nil if it can
	segments  map[string]map[string]Entry // by first segment, then by key
	deletions recent[string]              // revisions at which keys were deleted
	watchers  map[*watcher]struct{}
}

// maxGone is how many deleted keys are remembered, in each server and in Redis.
const maxGone = 1 << 16

type watcher struct {
	prefix  string
	changed chan<- struct{}
}

func newMirror(unread error) *mirror {
	return &mirror{unread: unread, segments: map[string]map[string]Entry{}, deletions: newRecent[string](maxGone),
		watchers: map[*watcher]struct{}{}}
}

// firstSegment returns the first segment of a key.
func firstSegment(key string) string {
	first, _, _ := strings.Cut(key, "/")
	return first
}

func (m *mirror) Get(key string) (Entry, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e := m.segments[firstSegment(key)][key]
	e.Key = key
	return e, m.unread
}

func (m *mirror) List(prefix string) ([]Entry, error) {
	var all []Entry
	m.mu.RLock()
	unread := m.unread
	collect := func(r map[string]Entry) {
		for key, e := range r {
			if strings.HasPrefix(key, prefix) {
				all = append(all, e)
			}
		}
	}
	if first, _, whole := strings.Cut(prefix, "/"); whole {
		collect(m.segments[first])
	} else {
		for _, r := range m.segments {
			collect(r)
		}
	}
	m.mu.RUnlock()
	if unread != nil {
		return nil, unread
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return all, nil
}

func (m *mirror) Watch(prefix string, changed chan<- struct{}) (stop func()) {
	w := &watcher{prefix, changed}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers[w] = struct{}{}
	wake.Up(w.changed)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, w)
	}
}

// set applies entries; one without a value is a deletion. An entry older than the mirror's changes
// nothing: a store is notified of its own changes as well, and of those of other servers maybe
// late.
func (m *mirror) set(entries ...Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range entries {
		m.setLocked(e)
	}
}

func (m *mirror) setLocked(e Entry) {
	first := firstSegment(e.Key)
	r := m.segments[first]
	if e.Revision <= max(r[e.Key].Revision, m.deletions.at[e.Key]) {
		return
	}
	if e.Value == nil {
		m.deletions.add(e.Key, e.Revision)
		if _, ok := r[e.Key]; !ok {
			return
		}
		if delete(r, e.Key); len(r) == 0 {
			delete(m.segments, first)
		}
	} else {
		delete(m.deletions.at, e.Key)
		if r == nil {
			r = map[string]Entry{}
			m.segments[first] = r
		}
		r[e.Key] = e
	}
	for w := range m.watchers {
		if strings.HasPrefix(e.Key, w.prefix) {
			wake.Up(w.changed)
		}
	}
}

// A snapshot is everything stored, with every change up to a revision.
type snapshot struct {
	entries  map[string]Entry
	deleted  map[string]uint64 // revisions at which keys were deleted
	floor    uint64            // deletions up to this revision may be missing from deleted
	revision uint64
}

// adopt makes the mirror equal to the snapshot, and readable. Newer entries of the mirror stay.
func (m *mirror) adopt(s snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unread == ErrClosed {
		return
	}
	for key, revision := range s.deleted {
		m.setLocked(Entry{Key: key, Revision: revision})
	}
	for _, r := range m.segments {
		for key := range maps.Clone(r) {
			if _, ok := s.entries[key]; !ok {
				m.setLocked(Entry{Key: key, Revision: s.revision})
			}
		}
	}
	for _, e := range s.entries {
		m.setLocked(e)
	}
	m.deletions.floor = max(m.deletions.floor, s.floor)
	m.unread = nil
}

// newer returns what the mirror knows and the snapshot does not: entries, of which those without a
// value are deletions.
func (m *mirror) newer(s snapshot) []Entry {
	var all []Entry
	missing := func(key string, revision uint64) bool {
		there := max(s.entries[key].Revision, s.deleted[key])
		return revision > there && (there > 0 || revision > s.floor)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, r := range m.segments {
		for key, e := range r {
			if missing(key, e.Revision) {
				all = append(all, e)
			}
		}
	}
	for key, revision := range m.deletions.at {
		if missing(key, revision) {
			all = append(all, Entry{Key: key, Revision: revision})
		}
	}
	return all
}

// floor returns the revision up to which deletions may have been forgotten.
func (m *mirror) floor() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.deletions.floor
}

// close makes all later calls return ErrClosed. It reports false if the mirror was closed before.
func (m *mirror) close() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unread == ErrClosed {
		return false
	}
	m.unread = ErrClosed
	m.segments = map[string]map[string]Entry{}
	clear(m.watchers)
	return true
}
