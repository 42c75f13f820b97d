package scheduler

import "sort"

// An item is a run of waiting rows of one request. A request embeds one; it needs more only when
// rows return from a lost replica while others of the same request still wait.
type item struct {
	req    *Request
	lo, hi int // rows of the request
	place
	queue  *queue // the queue it waits in; nil: it does not wait
	bucket *bucket
	record record
	inTurn bool // it waits as a frame of a stream that takes turns

	older, newer *item // of the same source
	sibling      *item // further item of the same request
}

func (it *item) rows() int { return it.hi - it.lo }

func (it *item) bytes() int64 { return it.req.bytesOf(it.lo, it.hi) }

// load is the size of what a batch needs for the rows.
func (it *item) load() int64 { return it.req.load(it.lo, it.hi) }

// A place is where an item stands in a queue. A frame that superseded another frame of its stream
// has that frame's place; its request's own deadline is later.
type place struct {
	deadline int64
	seq      uint64 // order of arrival; makes places unique
	since    int64  // when it began to wait
}

// before is the order of a queue: deadline, then arrival.
func (p place) before(o place) bool {
	return p.deadline < o.deadline || p.deadline == o.deadline && p.seq < o.seq
}

// blockSize is the number of items in a full block: a memmove within one is cheap, and 65,536
// rows are 512 blocks, so that a memmove in the list of blocks is cheap as well.
const blockSize = 128

// A block is a sorted run of items. Their deadlines are in an array of their own, since searches
// read little else.
type block struct {
	lo, hi    int // items[lo:hi] are in use
	rows      int
	deadlines [blockSize]int64
	items     [blockSize]*item
}

func (b *block) len() int { return b.hi - b.lo }

// A queue holds items in order of their deadlines, as a sorted list of sorted blocks. When all
// requests have the same SLO, inserting is an append. Otherwise inserting and removing cost two
// binary searches and two short memmoves; a batch leaves in one memmove per block. (A heap
// inserts as fast, but the deadline strategy walks the rows in order, which a heap does not
// have.)
type queue struct {
	blocks []*block
	items  int
	rows   int
	inTurn int // items of streams that take turns
	// An empty block, so that a queue around a multiple of blockSize does not allocate.
	spare *block
}

func (q *queue) head() *item {
	if q.items == 0 {
		return nil
	}
	b := q.blocks[0]
	return b.items[b.lo]
}

func (q *queue) tail() *item {
	if q.items == 0 {
		return nil
	}
	b := q.blocks[len(q.blocks)-1]
	return b.items[b.hi-1]
}

// insert adds an item.
func (q *queue) insert(it *item) {
	it.queue = q
	q.items++
	q.rows += it.rows()
	if it.inTurn {
		q.inTurn++
	}
	n := len(q.blocks)
	if n == 0 {
		q.blocks = append(q.blocks, q.newBlock())
		q.blocks[0].insertAt(0, it)
		return
	}
	last := q.blocks[n-1]
	if !it.before(last.items[last.hi-1].place) {
		if last.hi == blockSize {
			last = q.newBlock()
			q.blocks = append(q.blocks, last)
		}
		last.insertAt(last.hi, it)
		return
	}
	bi := q.blockOf(it)
	b := q.blocks[bi]
	if b.len() == blockSize {
		upper := q.newBlock()
		q.blocks = append(q.blocks, nil)
		copy(q.blocks[bi+2:], q.blocks[bi+1:])
		q.blocks[bi+1] = upper
		b.split(upper)
		if !it.before(b.items[b.hi-1].place) {
			b = upper
		}
	}
	if b.hi == blockSize {
		b.shiftDown()
	}
	b.insertAt(b.find(it), it)
}

// remove removes an item, which must be in the queue.
func (q *queue) remove(it *item) {
	bi := q.blockOf(it)
	b := q.blocks[bi]
	at := b.find(it)
	q.removeRange(bi, at, at+1)
	q.tidy(bi)
}

// removeRange removes items [from, to) of block bi.
func (q *queue) removeRange(bi, from, to int) {
	b := q.blocks[bi]
	for _, it := range b.items[from:to] {
		it.queue = nil
		b.rows -= it.rows()
		q.rows -= it.rows()
		if it.inTurn {
			q.inTurn--
		}
	}
	q.items -= to - from
	if from == b.lo {
		clear(b.items[from:to])
		b.lo = to
	} else {
		copy(b.deadlines[from:], b.deadlines[to:b.hi])
		copy(b.items[from:], b.items[to:b.hi])
		clear(b.items[b.hi-(to-from) : b.hi])
		b.hi -= to - from
	}
	if b.len() == 0 {
		q.dropBlock(bi)
		return
	}
}

// tidy merges block bi with a neighbour if both are small, so that the number of blocks stays in
// proportion to the number of items, whatever is removed.
func (q *queue) tidy(bi int) {
	small := func(i int) bool { return i >= 0 && i < len(q.blocks) && q.blocks[i].len() < blockSize/4 }
	switch {
	case !small(bi):
	case small(bi + 1):
		q.merge(bi)
	case small(bi - 1):
		q.merge(bi - 1)
	}
}

// shrink removes the first n rows of a waiting item, which must have more. Its key does not
// change.
func (q *queue) shrink(it *item, n int) {
	it.lo += n
	q.rows -= n
	q.blocks[q.blockOf(it)].rows -= n
}

// blockOf is the index of the first block whose last item is not before the given one.
func (q *queue) blockOf(it *item) int {
	return sort.Search(len(q.blocks), func(i int) bool {
		b := q.blocks[i]
		return !b.items[b.hi-1].before(it.place)
	})
}

// merge appends block bi+1 to block bi; both are small.
func (q *queue) merge(bi int) {
	a, b := q.blocks[bi], q.blocks[bi+1]
	a.shiftDown()
	copy(a.deadlines[a.hi:], b.deadlines[b.lo:b.hi])
	copy(a.items[a.hi:], b.items[b.lo:b.hi])
	a.hi += b.len()
	a.rows += b.rows
	clear(b.items[b.lo:b.hi])
	q.dropBlock(bi + 1)
}

func (q *queue) dropBlock(bi int) {
	b := q.blocks[bi]
	copy(q.blocks[bi:], q.blocks[bi+1:])
	q.blocks[len(q.blocks)-1] = nil
	q.blocks = q.blocks[:len(q.blocks)-1]
	b.lo, b.hi, b.rows = 0, 0, 0
	q.spare = b
}

func (q *queue) newBlock() *block {
	if b := q.spare; b != nil {
		q.spare = nil
		return b
	}
	return new(block)
}

// find is the index of the first item in b that is not before the given one.
func (b *block) find(it *item) int {
	lo, hi := b.lo, b.hi
	for lo < hi {
		mid := (lo + hi) / 2
		if b.deadlines[mid] < it.deadline || b.deadlines[mid] == it.deadline && b.items[mid].seq < it.seq {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func (b *block) insertAt(i int, it *item) {
	copy(b.deadlines[i+1:b.hi+1], b.deadlines[i:b.hi])
	copy(b.items[i+1:b.hi+1], b.items[i:b.hi])
	b.deadlines[i], b.items[i] = it.deadline, it
	b.hi++
	b.rows += it.rows()
}

// shiftDown moves the items to the start of the block.
func (b *block) shiftDown() {
	if b.lo == 0 {
		return
	}
	n := b.len()
	copy(b.deadlines[:], b.deadlines[b.lo:b.hi])
	copy(b.items[:], b.items[b.lo:b.hi])
	clear(b.items[n:b.hi])
	b.lo, b.hi = 0, n
}

// split moves the upper half of b into upper, which is empty.
func (b *block) split(upper *block) {
	mid := b.lo + b.len()/2
	n := copy(upper.items[:], b.items[mid:b.hi])
	copy(upper.deadlines[:], b.deadlines[mid:b.hi])
	clear(b.items[mid:b.hi])
	upper.hi, b.hi = n, mid
	for _, it := range upper.items[:n] {
		upper.rows += it.rows()
	}
	b.rows -= upper.rows
}

// A cursor is a position in a queue. Any change to the queue invalidates it.
type cursor struct {
	block, at int
	before    int // rows before block
}

// start is the position of the head.
func (q *queue) start() cursor {
	if q.items == 0 {
		return cursor{}
	}
	return cursor{at: q.blocks[0].lo}
}

// end reports whether c is after the last item.
func (q *queue) end(c cursor) bool { return c.block >= len(q.blocks) }

// item is the item at c, which is not the end.
func (q *queue) item(c cursor) *item { return q.blocks[c.block].items[c.at] }

// next is the position after c, which is not the end.
func (q *queue) next(c cursor) cursor {
	b := q.blocks[c.block]
	if c.at++; c.at == b.hi {
		return q.nextBlock(c)
	}
	return c
}

func (q *queue) nextBlock(c cursor) cursor {
	c.before += q.blocks[c.block].rows
	c.block++
	c.at = 0
	if c.block < len(q.blocks) {
		c.at = q.blocks[c.block].lo
	}
	return c
}

// seek moves forward to the first item at or after c with a deadline of at least d.
func (q *queue) seek(c cursor, d int64) cursor {
	for c.block < len(q.blocks) {
		b := q.blocks[c.block]
		if b.deadlines[b.hi-1] < d {
			c = q.nextBlock(c)
			continue
		}
		lo, hi := c.at, b.hi-1 // the answer is in [lo, hi]
		for lo < hi {
			if mid := (lo + hi) / 2; b.deadlines[mid] < d {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		c.at = lo
		return c
	}
	return c
}

// first is the first item with a deadline of at least d.
func (q *queue) first(d int64) cursor {
	if n := len(q.blocks); n > 4 {
		// The rows before a block are counted by walking to it; walking from the end is often
		// shorter.
		c := cursor{block: n, before: q.rows}
		for c.block > 0 {
			b := q.blocks[c.block-1]
			if b.deadlines[b.hi-1] < d {
				break
			}
			c.block--
			c.before -= b.rows
		}
		if c.block < n {
			c.at = q.blocks[c.block].lo
		}
		return q.seek(c, d)
	}
	return q.seek(q.start(), d)
}

// back is the last position with at least n rows from there on.
func (q *queue) back(n int) cursor {
	c := cursor{block: len(q.blocks), before: q.rows}
	for rows := 0; c.block > 0; {
		c.block--
		b := q.blocks[c.block]
		c.before -= b.rows
		if rows+b.rows < n {
			rows += b.rows
			continue
		}
		if b.rows == b.len() {
			c.at = b.hi - (n - rows)
			return c
		}
		for c.at = b.hi - 1; ; c.at-- {
			if rows += b.items[c.at].rows(); rows >= n {
				return c
			}
		}
	}
	return q.start()
}

// rowsFrom counts the rows from c on.
func (q *queue) rowsFrom(c cursor) int {
	if q.end(c) {
		return 0
	}
	b := q.blocks[c.block]
	rows := q.rows - c.before
	if b.rows == b.len() { // the usual case: every request has one row
		return rows - (c.at - b.lo)
	}
	for _, it := range b.items[b.lo:c.at] {
		rows -= it.rows()
	}
	return rows
}

// rowsBefore counts the rows whose deadline is not after d: those ahead of a new row with
// deadline d.
func (q *queue) rowsBefore(d int64) int {
	n := len(q.blocks)
	if n == 0 {
		return 0
	}
	if last := q.blocks[n-1]; last.deadlines[last.hi-1] <= d {
		return q.rows
	}
	return q.rows - q.rowsFrom(q.seek(q.start(), d+1))
}
