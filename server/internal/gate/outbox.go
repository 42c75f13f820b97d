package gate

import (
	"fmt"
	"sync/atomic"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// An Outbox bounds what one client has of answers that it has not read, from the first one on. To
// notice that a client stands still takes time, in which all that it has asked for is answered; so
// room for an answer is taken before its request is submitted.
//
// Most models declare how large a row of their answer is. Of others it is what the client's own
// answers were lately, and until there was one, what others' were. Nobody knows it of a model that
// has not answered yet: then it is a quarter of the limit, and those few answers stay, however
// large. Any other answer that is larger than foreseen and does not fit is dropped.
//
// A client may always have one answer, however large it is. One that has read as much as the limit
// while requests waited for room may have twice as much, and so on up to eight times, until it
// stands still: large answers of several rows can share a batch that way. A client that never reads
// never gets there, unless the limit is less than what the kernel holds of a connection, some
// megabytes.
//
// The zero Outbox with a Limit is ready. It is not safe for use by several goroutines at once.
type Outbox struct {
	Setting string // what Limit is called
	Limit   int    // bytes; see SetLimit

	window   int  // bytes now; 0: Limit
	promised int  // of answers that are on their way to it
	waiting  int  // of those that are in it
	taken    int  // of those that have left it, since the window grew
	row      int  // bytes of a row whose size nobody declares
	learned  bool // row is from an answer
	short    bool // a request was refused room since the window grew
}

// growth times the limit is what a client may have that reads.
const growth = 8

// SetLimit changes the limit. What is in the outbox stays, and counts.
func (o *Outbox) SetLimit(bytes int) {
	if bytes != o.Limit {
		o.Limit = bytes
		o.Stand() // what it has grown to was by the old one
	}
}

func (o *Outbox) room() int { return max(o.window, o.Limit) }

// Waiting is how many bytes of answers wait to be read.
func (o *Outbox) Waiting() int { return o.waiting }

// Admit takes room for the answer to an open call, and says how much. It is false when there is
// none until others have left.
//
// A client that is over its quota of unread answers waits as well, as long as some of them are
// here: what it reads makes room. If none is, it is refused, since it would wait for what it reads
// of another connection, and nobody would tell it.
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

// expect is how large the answer to a call will be.
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

// Put brings the answer that is there in the place of what was expected, and returns its size. It
// fails when the answer was not foreseen and does not fit: then the call has been made to forget
// it.
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
		return 0, fmt.Errorf("%w: the answer was larger than could be foreseen, and %d bytes of answers wait for this client, the limit of a connection (%s) is %d: read answers before asking more",
			scheduler.ErrOverloaded, o.waiting, o.Setting, o.Limit)
	}
	o.waiting += size
	return size, nil
}

// recent is the largest of the last values, more or less: one that is lower counts for a sixteenth.
func recent(most, next int) int { return max(next, most-(most-next)/16) }

// Take notes that an answer of that size has left.
func (o *Outbox) Take(size int) {
	o.waiting -= size
	if o.taken += size; o.short && o.taken >= o.room() {
		o.window = min(2*o.room(), growth*o.Limit)
		o.taken, o.short = 0, false
	}
}

// Stand notes that the client stands still.
func (o *Outbox) Stand() { o.window, o.taken, o.short = 0, 0, false }

// voices is how many models' answers the call keeps.
func (c *Call) voices() int {
	if c.Fanout == nil {
		return 1
	}
	return max(c.Fanout.Voices(), 1)
}

// answerBytes is the size of what the call keeps of its answer.
func (c *Call) answerBytes() int {
	n := 0
	for i := range c.Outputs {
		n += len(c.Outputs[i].Data)
	}
	return n * c.voices()
}

// forget gives the outputs back before the call is closed, which is still counted as it was.
func (c *Call) forget() {
	if f := c.Fanout; f != nil {
		c.Choice, c.Fanout = nil, nil
		f.Close()
	}
	for i := range c.Outputs {
		c.Outputs[i].Release()
	}
	clear(c.Outputs)
	c.Outputs = c.Outputs[:0]
}

// Unpin takes the outputs of a call that stays for a while out of the batch that they were part of,
// all of whose memory they hold. move gives the part of an output that is still needed, which may
// be none, and gets its new place. It does what the budget allows.
func (c *Call) Unpin(pool *tensor.Pool, needed func(data []byte) []byte, moved func(from, to []byte)) {
	if c.Fanout != nil {
		return // the calls to its models have references of their own
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

// setRow notes how large a row of the model's answers is, or where to keep what it was.
func (t *Target) setRow(seen map[scheduler.ModelID]*atomic.Int64) {
	if t.rowBytes = rowBytes(t.Spec.Outputs, t.Spec.Batched()); t.rowBytes >= 0 {
		return
	}
	if t.rowSeen = seen[t.ID]; t.rowSeen == nil {
		t.rowSeen = new(atomic.Int64)
		t.rowSeen.Store(-1)
	}
}

// rowBytes is the size of a row of what a model answers with, or -1 if its declaration does not
// say.
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
