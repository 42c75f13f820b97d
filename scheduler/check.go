package scheduler

import "fmt"

// Check verifies the invariants of the model's state and returns the first violation, or nil. It
// holds the model's lock while it visits every waiting and executing row, so it is for tests and
// for a server that seems to misbehave.
func (m *Model) Check() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.check(m.sched.now())
}

func (c *core) check(now int64) error {
	rows, bytes, items := 0, int64(0), 0
	requests := make(map[*Request]int) // rows that wait or execute
	look := func(q *queue, b *bucket) error {
		n, err := q.check(func(it *item) error {
			rows += it.rows()
			bytes += it.bytes()
			items++
			requests[it.req] += it.rows()
			switch {
			case it.queue != q || it.bucket != b:
				return fmt.Errorf("an item of rows %d to %d is in a queue other than its own", it.lo, it.hi)
			case it.rows() < 1:
				return fmt.Errorf("an item has the rows %d to %d", it.lo, it.hi)
			case it.req.state != stateWaiting:
				return fmt.Errorf("rows of an answered request wait")
			case it.deadline > it.req.deadline, it.deadline < it.req.deadline && it.req.Frame == nil:
				return fmt.Errorf("an item's deadline is %d, its request's %d", it.deadline, it.req.deadline)
			}
			return nil
		})
		if err == nil && n != q.rows {
			err = fmt.Errorf("a queue has %d rows, its count is %d", n, q.rows)
		}
		return err
	}
	for i, b := range c.buckets.ordered {
		if !b.listed || c.buckets.byKey[b.key] != b {
			return fmt.Errorf("bucket %d is listed but not marked as listed", i)
		}
		if i > 0 && !c.buckets.ordered[i-1].before(b) {
			return fmt.Errorf("buckets %d and %d are out of order", i-1, i)
		}
		priority, q := b.top()
		if q == nil || priority != b.priority || q.head().seq != b.seq {
			return fmt.Errorf("bucket %d has a stale position", i)
		}
		n := 0
		for p := range b.queues {
			if err := look(&b.queues[p], b); err != nil {
				return err
			}
			n += b.queues[p].rows
		}
		if n != b.rows {
			return fmt.Errorf("bucket %d has %d rows, its count is %d", i, n, b.rows)
		}
	}
	for _, b := range c.buckets.byKey {
		if _, q := b.top(); q != nil && !b.listed {
			return fmt.Errorf("a bucket of %d rows is not listed", b.rows)
		}
	}
	if err := c.sources.check(items, rows, bytes); err != nil {
		return err
	}
	if err := c.streams.check(requests); err != nil {
		return err
	}
	again, size, err := c.auditRetries(requests)
	if err != nil {
		return err
	}
	if again != c.trying || rows+again != c.rows || bytes+size != c.bytes {
		return fmt.Errorf("%d rows wait, %d of them as retries, with %d bytes; the counts are %d, %d and %d",
			rows, again, bytes+size, c.rows-c.trying, c.trying, c.bytes)
	}
	live := 0
	for _, rep := range c.replicas {
		if rep.state == replicaLive {
			live++
		}
		if n := rep.executing(); len(rep.inflight) > 0 && n < 1 {
			return fmt.Errorf("replica %q has %d batches and executes none", rep.label, len(rep.inflight))
		}
		if err := rep.audit(requests); err != nil {
			return err
		}
	}
	if err := c.sources.checkCallers(requests); err != nil {
		return err
	}
	for r, n := range requests {
		if n != int(r.left) {
			return fmt.Errorf("a request has %d rows unanswered, but %d wait or execute", r.left, n)
		}
	}
	switch {
	case live != c.live:
		return fmt.Errorf("%d replicas are live, the count is %d", live, c.live)
	case len(requests) != c.requests:
		return fmt.Errorf("%d requests are unanswered, the count is %d", len(requests), c.requests)
	case !c.hopeful(now) && c.rows > 0:
		return fmt.Errorf("%d rows wait for no replica", c.rows)
	}
	return nil
}

// audit compares a replica's batches with their requests, and checks that every state of the
// replica can end.
func (r *Replica) audit(requests map[*Request]int) error {
	for _, b := range r.inflight {
		if err := b.audit(requests); err != nil {
			return err
		}
		if b.state != batchOut {
			return fmt.Errorf("a batch in flight was given up")
		}
	}
	for _, b := range r.overdue {
		if err := b.audit(requests); err != nil {
			return err
		}
		if b.state != batchOrphan {
			return fmt.Errorf("a batch that was not given up is among those given up")
		}
	}
	switch {
	case r.state == replicaLive && len(r.inflight) == 0 && r.room() <= 0 && r.slots > 0:
		return fmt.Errorf("a live replica has no free slot and no batch in flight")
	case r.state == replicaSuspect && len(r.overdue) == 0:
		return fmt.Errorf("a replica is suspect without a batch given up")
	}
	return nil
}

// audit compares a batch in flight with its requests, and adds its rows to their counts.
func (b *Batch) audit(requests map[*Request]int) error {
	n := 0
	for i := range b.spans {
		s := &b.spans[i]
		n += s.hi - s.lo
		if s.req == nil {
			continue
		}
		requests[s.req] += s.hi - s.lo
		switch {
		case !s.linked():
			return fmt.Errorf("a request does not link to its rows %d to %d in flight", s.lo, s.hi)
		case s.req.state != stateWaiting:
			return fmt.Errorf("rows of an answered request are in flight for it")
		case b.state != batchOut:
			return fmt.Errorf("a request waits for a batch that was given up")
		case s.req.deadline < b.tightest:
			return fmt.Errorf("a batch's earliest deadline is %d, a request in it has %d", b.tightest, s.req.deadline)
		}
	}
	if n != b.Rows {
		return fmt.Errorf("a batch of %d rows has spans of %d rows", b.Rows, n)
	}
	return nil
}

// linked reports whether the request's list has the span.
func (s *span) linked() bool {
	for at := s.req.spans; at != nil; at = at.next {
		if at == s {
			return true
		}
	}
	return false
}

// check calls f for each item in order, and counts the rows.
func (q *queue) check(f func(*item) error) (rows int, err error) {
	var last *item
	items, inTurn := 0, 0
	for i, b := range q.blocks {
		if b.len() < 1 {
			return 0, fmt.Errorf("block %d of %d is empty", i, len(q.blocks))
		}
		n := 0
		for at := b.lo; at < b.hi; at++ {
			it := b.items[at]
			if it == nil || b.deadlines[at] != it.deadline {
				return 0, fmt.Errorf("block %d has a deadline other than its item's", i)
			}
			if last != nil && !last.before(it.place) {
				return 0, fmt.Errorf("block %d is out of order", i)
			}
			last = it
			n += it.rows()
			items++
			if it.inTurn {
				inTurn++
			}
			if err := f(it); err != nil {
				return 0, err
			}
		}
		if n != b.rows {
			return 0, fmt.Errorf("block %d has %d rows, its count is %d", i, n, b.rows)
		}
		rows += n
	}
	if items != q.items {
		return 0, fmt.Errorf("a queue has %d items, its count is %d", items, q.items)
	}
	if inTurn != q.inTurn {
		return 0, fmt.Errorf("a queue has %d items of streams that take turns, its count is %d", inTurn, q.inTurn)
	}
	return rows, nil
}

func (ss *sources) check(items, rows int, bytes int64) error {
	for i, s := range ss.heap {
		switch {
		case s.index != i:
			return fmt.Errorf("source %d is at %d of the heap, not at %d", s.id, i, s.index)
		case i > 0 && ss.heap[(i-1)/2].share < s.share:
			return fmt.Errorf("source %d has a larger share than its parent in the heap", s.id)
		case s.rows < 1:
			return fmt.Errorf("source %d is listed with %d rows", s.id, s.rows)
		case ss.byID[s.id] != s:
			return fmt.Errorf("source %d is listed but not found by its number", s.id)
		}
		n := 0
		for it := s.newest; it != nil; it = it.older {
			n += it.rows()
			items--
		}
		if n != s.rows {
			return fmt.Errorf("source %d has %d rows, its count is %d", s.id, n, s.rows)
		}
		rows -= n
		bytes -= s.bytes
	}
	if items != 0 || rows != 0 || bytes != 0 {
		return fmt.Errorf("the sources lack %d items, %d rows and %d bytes of the queue", items, rows, bytes)
	}
	return nil
}

// checkCallers compares the sources' requests, and the answers that they have not followed, with
// the counts.
func (ss *sources) checkCallers(requests map[*Request]int) error {
	unanswered, out := make(map[*source]int), make(map[*source]int)
	for r := range requests {
		unanswered[r.source]++
		out[r.source] += r.Rows
	}
	owed, due, queued, all, away, untold, awaited := 0, 0, 0, 0, 0, 0, 0
	for _, s := range ss.byID {
		if s.unanswered != unanswered[s] || s.out != out[s] {
			return fmt.Errorf("source %d has %d requests with %d rows, its counts are %d and %d",
				s.id, unanswered[s], out[s], s.unanswered, s.out)
		}
		if s.owed > 0 {
			owed++
		}
		if s.untold > 0 {
			untold++
			if s.place >= len(ss.untold) || ss.untold[s.place] != s || s.parts == nil {
				return fmt.Errorf("source %d is not among those whose clients wait for other parts", s.id)
			}
		}
		if s.awaited {
			awaited++
		}
		if s.caller {
			due, queued, all, away = due+s.owedRows, queued+s.rows, all+s.out, away+s.untold
		}
	}
	for s := ss.oldest; s != nil; s = s.newer {
		if owed--; s.owed < 1 || s.newer != nil && (s.newer.older != s || s.newer.since < s.since) {
			return fmt.Errorf("source %d is out of order among those with answers that no request has followed", s.id)
		}
	}
	switch {
	case untold != len(ss.untold) || awaited != ss.awaited:
		return fmt.Errorf("of %d sources clients wait for other parts, and %d are awaited, the counts are %d and %d",
			untold, awaited, len(ss.untold), ss.awaited)
	case owed != 0:
		return fmt.Errorf("%d sources are missing among those with answers that no request has followed", owed)
	case due != ss.due || queued != ss.queued || all != ss.callers.out || away != ss.away:
		return fmt.Errorf("callers have %d rows due, %d queued, %d unanswered and %d away, the counts are %d, %d, %d and %d",
			due, queued, all, away, ss.due, ss.queued, ss.callers.out, ss.away)
	}
	return nil
}

// check looks at the streams, and counts the requests whose answers are held.
func (ss *streams) check(requests map[*Request]int) error {
	silent, turning, held := 0, 0, 0
	clients := make(map[*client][2]int) // their streams, and how many of these are silent
	for _, s := range ss.byKey {
		queued, n := 0, 0
		var last *Frame
		for f := s.Oldest.Request(); f != nil; f = f.node.Newer.Request() {
			r := f.req
			switch {
			case f.node.Older.Request() != last:
				return fmt.Errorf("a frame of stream %q does not know the one before it", s.key.name)
			case r.Frame != f || f.stream != s || r.state != stateWaiting:
				return fmt.Errorf("stream %q has a frame that is not its own, or answered", s.key.name)
			case f.node.Held != (r.left == 0) || f.node.Held != (r.item.queue == &ss.held):
				return fmt.Errorf("a frame of stream %q has %d rows unanswered, held: %v",
					s.key.name, r.left, f.node.Held)
			case f.node.Held && last == nil && s.Leaving == 0:
				return fmt.Errorf("the answer of the oldest frame of stream %q is held", s.key.name)
			}
			last = f
			if f.node.Held {
				n++
				requests[r] = 0
				continue
			}
			for it := &r.item; it != nil; {
				if it.queue != nil {
					queued++
				}
				if it == &r.item {
					it = r.extra
				} else {
					it = it.sibling
				}
			}
		}
		if last != s.Newest.Request() || n != s.Held || queued != s.queued {
			return fmt.Errorf("stream %q holds %d answers and counts %d, has %d items waiting and counts %d",
				s.key.name, n, s.Held, queued, s.queued)
		}
		if (s.turn >= 0) != (s.Keep > 0 && s.queued > 0) || s.turn >= 0 && ss.turns[s.priority][s.turn] != s {
			return fmt.Errorf("stream %q is at %d of the turns, keeps %d and has %d items waiting",
				s.key.name, s.turn, s.Keep, s.queued)
		}
		if s.silent != s.Idle() || s.silent && s.ended {
			return fmt.Errorf("stream %q counts as silent: %v", s.key.name, s.silent)
		}
		if s.silent {
			silent++
		}
		if c := s.client; c != nil {
			n := clients[c]
			if n[0]++; s.silent {
				n[1]++
			}
			clients[c] = n
		}
		if s.turn >= 0 {
			turning++
		}
		held += n
	}
	if silent != ss.silent.count || turning != ss.turning || held != ss.held.items {
		return fmt.Errorf("%d streams are silent, %d take turns, %d answers are held; %d, %d and %d are counted",
			silent, turning, held, ss.silent.count, ss.turning, ss.held.items)
	}
	for c, n := range clients {
		if ss.clients[c.name] != c || n != [2]int{c.streams, c.silent.count} {
			return fmt.Errorf("client %q has %d streams, %d of them silent; %d and %d are counted",
				c.name, n[0], n[1], c.streams, c.silent.count)
		}
	}
	if len(clients) != len(ss.clients) {
		return fmt.Errorf("%d clients have streams, %d are known", len(clients), len(ss.clients))
	}
	for _, turns := range ss.turns {
		for i, s := range turns {
			if i > 0 && turns.Less(i, (i-1)/2) {
				return fmt.Errorf("stream %q was served before the one above it", s.key.name)
			}
		}
	}
	if len(ss.first) > 0 {
		return fmt.Errorf("%d frames go first in a batch that is not being made", len(ss.first))
	}
	return nil
}
