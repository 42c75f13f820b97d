package gate

import (
	"fmt"
	"sync/atomic"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// An Outbox bounds the answers that one client has not read, from the first one on. Until the
// server notices that a client does not read, it answers all of the client's requests; so room for
// an answer is reserved before its request is submitted.
//
// Most models declare the size of a row of their answer. For the others the estimate is the size of
// the client's own recent answers, and until there is one, of other clients' answers. For a model
// that has not answered yet the estimate is a quarter of the limit, and those few answers are kept
// at any size. Any other answer that is larger than estimated and does not fit is dropped.
//
// A client may always have one answer, of any size. If it reads as much as the limit while requests
// wait for room, the limit doubles, and so on up to eight times, until it stops reading: that way,
// large answers of several rows can share a batch. A client that never reads keeps the original
// limit, unless the limit is below what the kernel buffers for a connection, some megabytes.
//
// The zero Outbox with a Limit is ready. Only one goroutine at a time may use it.
type Outbox struct {
	Setting string // the name of the setting behind Limit
	Limit   int    // bytes; see SetLimit

	window   int  // the limit now, in bytes; 0: Limit
	promised int  // bytes reserved for answers that are not here yet
	waiting  int  // bytes of answers that wait to be read
	taken    int  // bytes read since the window grew
	row      int  // size of a row that the model does not declare
	learned  bool // row was measured
	short    bool // a request was refused room since the window grew
}

// growth times the limit is the most that a reading client may have.
const growth = 8

// SetLimit changes the limit. Answers in the outbox stay and count.
func (o *Outbox) SetLimit(bytes int) {
	if bytes != o.Limit {
		o.Limit = bytes
		o.Stand() // the old limit let it grow
	}
}

func (o *Outbox) room() int { return max(o.window, o.Limit) }

// Waiting returns how many bytes of answers wait to be read.
func (o *Outbox) Waiting() int { return o.waiting }

// Admit reserves room for the answer to an open call, and returns how much. ok is false if there is
// no room until other answers have been read.
//
// A client over its quota of unread answers waits as well, as long as some of them are in this
// outbox: reading them makes room. If none is in this outbox, the request is refused: it would wait
// for answers on another connection, and nothing would wake this one.
func (o *Outbox) Admit(c *Call) (expected int, ok bool, err error) {
	expected = o.expect(c)
	used := o.promised + o.waiting
	if used > 0 && used+expected > o.room() {
		o.short = true
		return 0, false, nil
	}
	if used > 0 && !c.Use.Fits(expected) {
		return 0, false, nil
	}
	if err := c.Use.Promise(expected); err != nil {
		return 0, false, err
	}
	o.promised += expected
	return expected, true, nil
}

// expect estimates the size of the answer to a call.
func (o *Outbox) expect(c *Call) int {
	if c.Target == nil { // feedback, whose answer is short
		return 0
	}
	row := c.Target.rowBytes
	if s := c.Target.rowSeen; s != nil {
		if row = o.row; !o.learned {
			row = int(s.Load())
		}
	}
	if c.unforeseen = row < 0; c.unforeseen {
		return o.Limit / 4
	}
	return row * max(c.Rows, 1) * c.voices()
}

// Put replaces the reserved size by that of the answer, and returns it. It fails if the answer is
// larger than estimated and does not fit; the call has then dropped the answer.
func (o *Outbox) Put(c *Call, expected int) (size int, err error) {
	o.promised -= expected
	defer func() { c.Use.Became(size) }()
	if c.Err != nil {
		return 0, nil
	}
	size = c.answerBytes()
	if c.Target != nil && c.Target.rowSeen != nil {
		row := size / (max(c.Rows, 1) * c.voices())
		o.row, o.learned = recent(o.row, row), true
		c.Target.rowSeen.Store(int64(recent(int(c.Target.rowSeen.Load()), row)))
	}
	if size > expected && o.waiting > 0 && o.waiting+size > o.room() && !c.unforeseen {
		o.short = true
		c.forget()
		return 0, fmt.Errorf("%w: the answer is larger than estimated and was dropped: %d bytes of answers are unread on this connection, and the limit (%s) is %d; read them before you send more requests",
			scheduler.ErrOverloaded, o.waiting, o.Setting, o.Limit)
	}
	o.waiting += size
	return size, nil
}

// recent is a decaying maximum: a lower value counts for a sixteenth.
func recent(most, next int) int { return max(next, most-(most-next)/16) }

// Take records that an answer of that size has been read.
func (o *Outbox) Take(size int) {
	o.waiting -= size
	if o.taken += size; o.short && o.taken >= o.room() {
		o.window = min(2*o.room(), growth*o.Limit)
		o.taken, o.short = 0, false
	}
}

// Stand records that the client has stopped reading.
func (o *Outbox) Stand() { o.window, o.taken, o.short = 0, 0, false }

// voices is the number of models' answers that the call holds.
func (c *Call) voices() int {
	if c.Fanout == nil {
		return 1
	}
	return max(c.Fanout.Voices(), 1)
}

// answerBytes returns the size of the answer that the call holds.
func (c *Call) answerBytes() int {
	n := 0
	for i := range c.Outputs {
		n += len(c.Outputs[i].Data)
	}
	return n * c.voices()
}

// forget releases the outputs before the call is closed. The request keeps its count.
func (c *Call) forget() {
	if f := c.Fanout; f != nil {
		c.Choice, c.Fanout = nil, nil
		f.Close()
	}
	c.Outputs = Released(c.Outputs)
}

// Unpin copies the outputs of a call that stays for a while out of their batch: otherwise they
// would keep the memory of the whole batch. needed returns the part of an output that is still
// needed, which may be empty, and moved is told its new place. Unpin copies what the budget allows.
func (c *Call) Unpin(pool *tensor.Pool, needed func(data []byte) []byte, moved func(from, to []byte)) {
	if c.Fanout != nil {
		return // the calls to models have their own references
	}
	const little = 1 << 10
	for i := range c.Outputs {
		t := &c.Outputs[i]
		if t.Buf == nil || t.Buf.Size() <= 2*len(t.Data)+little {
			continue
		}
		from := needed(t.Data)
		if len(from) == 0 {
			t.Release()
			t.Data, t.Buf = nil, nil
			continue
		}
		buf, err := pool.Get(len(from))
		if err != nil {
			return
		}
		to := buf.Bytes()
		copy(to, from)
		moved(from, to)
		t.Release()
		t.Data, t.Buf = to, buf
	}
}

// setRow sets rowBytes, or rowSeen, for the measured size, if no size is declared.
func (t *Target) setRow(seen map[scheduler.ModelID]*atomic.Int64) {
	if t.rowBytes = rowBytes(t.Spec.Outputs, t.Spec.Batched()); t.rowBytes >= 0 {
		return
	}
	if t.rowSeen = seen[t.ID]; t.rowSeen == nil {
		t.rowSeen = new(atomic.Int64)
		t.rowSeen.Store(-1)
	}
}

// rowBytes is the size of a row of a model's answer, or -1 if the declaration does not fix it.
func rowBytes(outputs []tensor.Spec, batched bool) int {
	sum := 0
	for i := range outputs {
		shape := outputs[i].Shape
		if batched && len(shape) > 0 {
			shape = shape[1:]
		}
		n, ok := shape.Elements()
		size := outputs[i].DType.Size()
		if !ok || size <= 0 || n > 1<<40/size {
			return -1
		}
		sum += n * size
	}
	return sum
}
