package scheduler

// A source is a submitter of requests: a connection. It is known while it has unanswered requests,
// and remembered for a while after that.
type source struct {
	id     uint64
	rows   int // waiting
	bytes  int64
	share  float64 // of the queue's bounds: the larger of its shares of rows and bytes
	newest *item
	index  int // in the heap; -1: it has no rows waiting
	// It had an answer since a container was last lost with a request of it, see culprit.go.
	trusted bool
	habit
	pending
}

// sources counts each source's share of the queue, and keeps the source with the largest share at
// the top of a heap.
//
// It serves one rule: at a limit, the newest rows of the sources with the largest shares make room
// for a source with a smaller one. (That is longest queue drop, Suter et al., "Design
// Considerations for Supporting TCP with Per-Flow Queueing", INFOCOM 1998; taking the larger of the
// shares of rows and of bytes is dominant resource fairness, Ghodsi et al., NSDI 2011.) It
// guarantees that a source with at most its equal share of a full queue is never refused because of
// other sources, however much they send.
type sources struct {
	byID  map[uint64]*source
	heap  []*source // by share, the largest first
	last  *source   // the latest looked up: requests arrive in bursts from one connection
	rows  float64   // bounds
	bytes float64
	callers
}

// keepSources is how many sources are remembered, some 200 bytes each; those with unanswered
// requests in any case.
const keepSources = 4096

func (ss *sources) get(id uint64) *source {
	if s := ss.last; s != nil && s.id == id {
		return s
	}
	s := ss.byID[id]
	if s == nil {
		if len(ss.byID) >= keepSources {
			ss.evict()
		}
		s = &source{id: id, index: -1}
		if ss.byID == nil {
			ss.byID = make(map[uint64]*source)
		}
		ss.byID[id] = s
	}
	ss.last = s
	return s
}

// add counts an item that begins to wait, as the newest of its source.
func (ss *sources) add(it *item) {
	s := it.req.source
	if it.older = s.newest; s.newest != nil {
		s.newest.newer = it
	}
	s.newest = it
	ss.change(s, it.rows(), it.bytes())
}

// remove subtracts an item that no longer waits.
func (ss *sources) remove(it *item) {
	s := it.req.source
	if it.newer != nil {
		it.newer.older = it.older
	} else {
		s.newest = it.older
	}
	if it.older != nil {
		it.older.newer = it.newer
	}
	it.older, it.newer = nil, nil
	ss.change(s, -it.rows(), -it.bytes())
}

// change adds to the counts of s and restores the order of the heap.
func (ss *sources) change(s *source, rows int, bytes int64) {
	s.rows += rows
	s.bytes += bytes
	s.share = ss.shareOf(s.rows, s.bytes)
	if s.caller {
		ss.queued += rows
	}
	switch {
	case s.rows == 0:
		if s.index >= 0 {
			ss.drop(s)
		}
	case s.index < 0:
		s.index = len(ss.heap)
		ss.heap = append(ss.heap, s)
		ss.up(s.index)
	case rows > 0:
		ss.up(s.index)
	default:
		ss.down(s.index)
	}
}

// trusts reports whether a source is trusted. While there are too many sources to remember all of
// them, each is.
func (ss *sources) trusts(id uint64) bool {
	s := ss.byID[id]
	return s == nil || s.trusted || len(ss.byID) >= keepSources
}

// distrust withdraws the trust in a source until its next answer.
func (ss *sources) distrust(id uint64) {
	if s := ss.byID[id]; s != nil {
		s.trusted = false
	}
}

// evict forgets a few idle sources where more are remembered than there should be.
func (ss *sources) evict() {
	const most = 8 // are looked at
	n := 0
	for _, s := range ss.byID {
		if s.unanswered == 0 {
			ss.callers.forget(s)
			delete(ss.byID, s.id)
			if ss.last == s {
				ss.last = nil
			}
		}
		if n++; n == most || len(ss.byID) < keepSources {
			return
		}
	}
}

func (ss *sources) shareOf(rows int, bytes int64) float64 {
	return max(float64(rows)/ss.rows, float64(bytes)/ss.bytes)
}

// bound sets the limits that shares are relative to.
func (ss *sources) bound(rows int, bytes int64) {
	ss.rows, ss.bytes = float64(rows), float64(bytes)
	for _, s := range ss.heap {
		s.share = ss.shareOf(s.rows, s.bytes)
	}
	for i := len(ss.heap)/2 - 1; i >= 0; i-- {
		ss.down(i)
	}
}

// heavy returns at most n sources with large shares. The first one's is the largest of all.
func (ss *sources) heavy(n int) []*source { return ss.heap[:min(n, len(ss.heap))] }

func (ss *sources) drop(s *source) {
	i, n := s.index, len(ss.heap)-1
	ss.swap(i, n)
	ss.heap[n] = nil
	ss.heap = ss.heap[:n]
	s.index = -1
	if i < n {
		ss.down(i)
		ss.up(i)
	}
}

func (ss *sources) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if ss.heap[parent].share >= ss.heap[i].share {
			return
		}
		ss.swap(i, parent)
		i = parent
	}
}

func (ss *sources) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(ss.heap) {
			return
		}
		if right := child + 1; right < len(ss.heap) && ss.heap[right].share > ss.heap[child].share {
			child = right
		}
		if ss.heap[i].share >= ss.heap[child].share {
			return
		}
		ss.swap(i, child)
		i = child
	}
}

func (ss *sources) swap(i, j int) {
	ss.heap[i], ss.heap[j] = ss.heap[j], ss.heap[i]
	ss.heap[i].index, ss.heap[j].index = i, j
}
