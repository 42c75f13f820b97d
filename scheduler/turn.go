package scheduler

import "container/heap"

// Which stream is served next.
//
// When the next request to be sent is a frame, it is taken from the stream that was served longest
// ago, among those with a frame that would be in time. Deadlines cannot decide this. The deadlines
// of waiting frames from cameras with the same frame rate differ only by the cameras' phases, which
// do not change: with a model that takes a multiple of the frame interval, one camera would always
// be first, and the other cameras never.
//
// Places in the queue, which ordinary requests have, too, decide whether the next request is a
// frame. A frame that supersedes another takes that frame's place: a new place would be at the end,
// and so would the place of each later frame, so that a stream beside a queue of ordinary requests
// would never be served. But an inherited place can make a frame look late that is not: where a
// batch takes two thirds of the time until the deadlines, the place is too early for the next batch
// from the moment that it is inherited. So a frame whose stream is first in turn goes first,
// wherever its place is, and as many frames follow it as the streams are entitled to.

// turns are the streams of one priority that have a waiting frame, as a heap: the one that was
// served longest ago is first.
type turns []*stream

func (t turns) Len() int { return len(t) }
func (t turns) Less(i, j int) bool {
	return t[i].served < t[j].served || t[i].served == t[j].served && t[i].number < t[j].number
}
func (t turns) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].turn, t[j].turn = i, j
}

func (t *turns) Push(x any) {
	s := x.(*stream)
	s.turn = len(*t)
	*t = append(*t, s)
}

func (t *turns) Pop() any {
	last := len(*t) - 1
	s := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	s.turn = -1
	return s
}

// reorder adds s to the turns of the priority of its newest frame, if it belongs there.
func (ss *streams) reorder(s *stream) {
	belongs := s.Keep > 0 && s.queued > 0
	if s.turn >= 0 && (!belongs || s.Newest != nil && s.Newest.Of.req.Priority != s.priority) {
		heap.Remove(&ss.turns[s.priority], s.turn)
		ss.turning--
	}
	if belongs && s.turn < 0 {
		if s.Newest != nil {
			s.priority = s.Newest.Of.req.Priority
		}
		heap.Push(&ss.turns[s.priority], s)
		ss.turning++
	}
}

// turnsTried is how many streams are considered for one place in a batch. It bounds what a batch
// costs where the streams in front have frames that do not fit.
const turnsTried = 32

// inTurn calls visit with the streams of a priority, the one that was served longest ago first,
// until visit returns false. blocked reports that visit never did, and that there are more streams.
// visit must change neither streams nor queues.
func (ss *streams) inTurn(priority int, visit func(*stream) (more bool)) (blocked bool) {
	t := &ss.turns[priority]
	var passed [turnsTried]*stream
	n := 0
	for more := true; more && n < turnsTried && len(*t) > 0; n++ {
		passed[n] = heap.Pop(t).(*stream)
		more = visit(passed[n])
		blocked = more && len(*t) > 0
	}
	for _, s := range passed[:n] {
		heap.Push(t, s)
	}
	return blocked
}

// waiting returns the oldest item of s, in a queue of a priority, for which good holds, wherever
// its place is; nil: there is none.
func (s *stream) waiting(priority int, good func(*item) bool) *item {
	for f := s.Oldest.Request(); f != nil; f = f.node.Newer.Request() {
		if it := &f.req.item; it.inTurn && it.queue != nil && f.req.Priority == priority && good(it) {
			return it
		}
	}
	return nil
}

// nextFrame returns the frame whose turn it is, among those of a priority that rep could answer in
// time; nil: there is none. If the streams in front have none and the search ends before all
// streams were considered, those in front go to the back.
func (c *core) nextFrame(rep *Replica, priority int, start int64) (frame *item) {
	ss := &c.streams
	inTime := func(it *item) bool {
		p := rep.plan(c, start, it.bucket.rowBytes)
		n := min(it.rows(), max(1, rep.strategy.limit(p)))
		return !p.shed || it.req.deadline >= start+p.planned(n)
	}
	var late [turnsTried]*stream
	n := 0
	blocked := ss.inTurn(priority, func(s *stream) bool {
		frame = s.waiting(priority, inTime)
		late[n] = s
		n++
		return frame == nil
	})
	if blocked {
		for _, s := range late[:n] {
			s.served = start
			heap.Fix(&ss.turns[priority], s.turn)
		}
	}
	return frame
}

// goesFirst returns the frame that goes first in the next batch of rep, for which the strategy has
// chosen the window w of q, and how many may follow it in turn; nil: the window's own rows go
// first. q is nil if the strategy has chosen none.
//
// The frame always goes before another frame. It goes before an ordinary request if its place is
// before that of the request, but only as often as streams are entitled to: where deadlines are
// hardly longer than a batch, all inherited places are too early, and ordinary requests would never
// be served.
func (c *core) goesFirst(rep *Replica, q *queue, w *window, priority int, start int64) (it *item, places int) {
	ss := &c.streams
	for higher := range priority {
		if it := c.nextFrame(rep, higher, start); it != nil {
			return it, it.queue.rows
		}
	}
	if priority == priorities {
		return nil, 0
	}
	if it = c.nextFrame(rep, priority, start); it == nil {
		return nil, 0
	}
	head := q.item(w.at)
	switch {
	case q.items == q.inTurn:
		return it, q.rows
	case head.inTurn:
		return it, 1
	case !it.before(head.place):
		return nil, 0
	}
	p := rep.plan(c, start, it.bucket.rowBytes)
	end := start + p.planned(1)
	due := q.rowsFrom(q.first(end)) - q.rowsFrom(q.first(end+p.planned(w.rows)))
	ss.share += ss.entitled(priority, due) * float64(w.rows)
	if places = int(ss.share); places == 0 {
		return nil, 0
	}
	ss.share -= float64(places)
	return it, places
}

// entitled returns the share of places that streams of a priority may take from ordinary requests:
// the share of streams among the rows that will be late unless they are served now, and half at
// most.
func (ss *streams) entitled(priority, due int) float64 {
	return min(0.5, float64(len(ss.turns[priority]))/float64(max(due, 1)))
}

// windowOf returns a window for a batch of rep in which a frame goes first, followed, in turn, by
// other frames that are in time, up to a number of places.
func (c *core) windowOf(rep *Replica, it *item, places int, start int64) (*plan, window) {
	ss := &c.streams
	q := it.queue
	p := rep.plan(c, start, it.bucket.rowBytes)
	limit := max(1, rep.strategy.limit(p))
	least := min(it.rows(), limit)
	most := limit
	if p.shed {
		most = p.roomFor(it.req.deadline, least, limit)
	}
	due := min(start+p.planned(most), it.req.deadline)
	ss.first = append(ss.first[:0], it)
	rows := it.rows()
	ss.inTurn(it.req.Priority, func(s *stream) bool {
		if s == it.req.Frame.stream || rows >= most {
			return rows < most
		}
		o := s.waiting(it.req.Priority, func(o *item) bool {
			return o.queue == q && o.rows() <= most-rows && o.req.deadline >= due
		})
		if o != nil && len(ss.first) < places {
			rows += o.rows()
			ss.first = append(ss.first, o)
		}
		return rows < most && len(ss.first) < places
	})
	for _, o := range ss.first {
		c.renew(o)
	}
	w, ok := rep.strategy.pick(q, p)
	if !ok {
		w = window{at: cursor{block: len(q.blocks)}, rows: least, room: least, cap: limit}
	}
	if w.why == CloseTrial { // it may be late: nothing but its cost bounds a trial
		most = max(most, w.rows)
	}
	if n := min(max(w.rows, least), most); n != w.rows {
		w.rows, w.bestTime, w.medianDeadline = n, 0, 0
	}
	if w.room = max(w.room, w.rows); w.room > most {
		w.room, w.why = most, CloseDeadline
	}
	return p, w
}

// chanceInTurn returns the item that a replica gets although none is predicted to be in time: the
// frame whose turn it is, if the given item is a frame or streams are entitled to a place, else the
// given item.
func (c *core) chanceInTurn(it *item) *item {
	ss, priority := &c.streams, it.req.Priority
	if len(ss.turns[priority]) == 0 {
		return it
	}
	if !it.inTurn {
		if ss.share = min(1, ss.share+ss.entitled(priority, it.queue.items)); ss.share < 1 {
			return it
		}
	}
	best := it
	ss.inTurn(priority, func(s *stream) bool {
		if o := s.waiting(priority, func(*item) bool { return true }); o != nil {
			best = o
			return false
		}
		return true
	})
	return best
}

// renew moves a waiting frame whose inherited place has become too early to its own place.
func (c *core) renew(it *item) {
	if it.deadline == it.req.deadline {
		return
	}
	since := it.since
	c.dequeue(it)
	c.enqueue(it, since)
}

// instead returns the item of at most room rows that goes to a container instead of the given
// frame. It chooses the stream that was served longest ago, among those with a frame in the same
// queue that fits, and whose deadline is not before the earlier of end and the given frame's
// deadline. nil: each has a frame in the batch.
func (c *core) instead(it *item, room int, end int64) *item {
	ss := &c.streams
	var best *item
	if it.req.Frame.stream.cut != ss.cuts {
		best = it
	}
	fits := func(o *item) bool {
		return o.queue == it.queue && o.rows() <= room && o.req.deadline >= min(end, it.req.deadline)
	}
	ss.inTurn(it.req.Priority, func(s *stream) bool {
		if s.cut == ss.cuts {
			return true
		}
		o := s.waiting(it.req.Priority, fits)
		if o != nil {
			best = o
		}
		return o == nil
	})
	return best
}

// fillInTurn is fill where streams take turns: it takes the frames in ss.first first, each further
// place that a frame would get goes to the stream whose turn it is, and no stream gets two.
func (c *core) fillInTurn(b *Batch, q *queue, at cursor, until goal, end, now int64) (stopped bool) {
	target, whole := until.rows, until.whole
	ss := &c.streams
	chosen, rest := ss.chosen[:0], (*item)(nil)
	rows, bytes := b.Rows, b.bytes
	// choose takes an item into the batch, or reports that there is no room for it.
	choose := func(it *item) bool {
		if rows >= target {
			return false
		}
		if rows > 0 && bytes+it.load() > c.cfg.BatchBytes {
			b.crowded = true
			return false
		}
		n := it.rows()
		if n > target-rows && n <= whole {
			return false
		}
		if f := it.req.Frame; f != nil {
			f.stream.cut = ss.cuts
		}
		if n > target-rows {
			rest, rows = it, target
			return true
		}
		rows += n
		bytes += it.load()
		chosen = append(chosen, it)
		return true
	}
	for _, it := range ss.first {
		choose(it)
	}
	clear(ss.first)
	ss.first = ss.first[:0]
	for ; rows < target && !stopped && !q.end(at); at = q.next(at) {
		it := q.item(at)
		if it.inTurn {
			if it = c.instead(it, target-rows, end); it == nil {
				b.leftOut = true
				continue
			}
		}
		stopped = !choose(it)
	}
	for _, it := range chosen {
		b.oldest = max(b.oldest, now-it.since)
		b.add(span{req: it.req, lo: it.lo, hi: it.hi, record: it.record})
		q.remove(it)
		c.uncount(it)
	}
	if rest != nil {
		c.part(b, q, rest, target-b.Rows, now)
	}
	clear(chosen)
	ss.chosen = chosen[:0]
	return stopped
}

// waitingInTurn returns how many rows wait in streams that take turns.
func (ss *streams) waitingInTurn() (rows int) {
	for _, turns := range ss.turns {
		for _, s := range turns {
			for f := s.Oldest.Request(); f != nil; f = f.node.Newer.Request() {
				if it := &f.req.item; it.queue != nil && !f.node.Held {
					rows += it.rows()
				}
			}
		}
	}
	return rows
}
