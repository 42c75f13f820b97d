package latest

import (
	"container/list"
	"fmt"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/shivad/shivad/shiva/tensor"
)

// A Source identifies a stream among all that are sent to a name.
type Source struct {
	Identity   string // whose stream it is; "": clients without one
	User       string // the user that its frames name; "": none
	Client     string // the machine that sends it; "" if a user may send it from any
	Stream     string // its name; for a connection's own stream the client's address
	Connection uint64 // not 0: the stream is that of a connection
}

// A Frame is what is known of an executed frame besides its outputs.
type Frame struct {
	Seq      int64     // the client's number; negative: none
	Arrived  time.Time // at the server
	Captured time.Time // by the clock of its client, or when it arrived
	Skipped  int       // frames superseded since the last executed one
	Machine  string    // that sent it; empty in answers
	Version  string    // of the model that executed it

	// Of is what the answer needs besides its outputs. The store passes it on.
	Of any
}

// An Answer is the newest answer of a stream. It is immutable. Its Seq is never negative: frames
// without a number get one, which is the time of their answers in milliseconds since 1970, and at
// least 1 above the one before, so that a restarted server goes on above its earlier numbers.
type Answer struct {
	Frame
	Source  Source
	Outputs []tensor.Tensor

	bytes  int64 // what it counts
	stored time.Time
}

// A source is a stream, from its first executed frame until a minute after its last one.
type source struct {
	Source
	name    *Name
	answers []*Answer     // of each version, the newest last
	unkept  error         // why the newest one is not among them; nil: it is
	active  time.Time     // of the last answered frame
	bytes   int64         // what it counts besides its answers
	place   *list.Element // of the store's streams
	recency *list.Element // of those of its payer
	payer   *payer
	places  []position // in its groups
	waiters waiters    // for it
	gone    bool

	// The number before the last one that was not higher than its predecessor: the client has begun
	// to count again. See Poll.newer.
	before    int64
	restarted time.Time // when that was; zero: never
}

// newest returns the newest answer of a version, "": any; nil: there is none.
func (src *source) newest(version string) *Answer {
	for i := len(src.answers) - 1; i >= 0; i-- {
		if a := src.answers[i]; version == "" || a.Version == version {
			return a
		}
	}
	return nil
}

const (
	// answerBytes is what an answer takes besides its outputs, and sourceBytes a stream.
	answerBytes = int64(unsafe.Sizeof(Answer{})) + 64
	sourceBytes = int64(unsafe.Sizeof(source{})) + 480
	// placeBytes is what its place in a group takes: most groups are those of one stream.
	placeBytes  = int64(unsafe.Sizeof(position{})+unsafe.Sizeof(group{})+unsafe.Sizeof(which{})) + 48
	outputBytes = int64(unsafe.Sizeof(tensor.Tensor{}))

	// reordered is how long after a frame an older one may be answered, where frames of a stream
	// come on several connections. After that a frame with a lower number and an earlier time is
	// from a client that has begun again.
	reordered = time.Second
)

// newAnswer takes references to outputs, or copies them. If there is no memory for a copy, the
// answer has references all the same, and an error that says why it must not be kept.
func (n *Name) newAnswer(f Frame, outputs []tensor.Tensor) (a *Answer, err error) {
	a = &Answer{Frame: f, Outputs: slices.Clone(outputs), stored: time.Now()}
	a.bytes = answerBytes + int64(len(f.Version))
	whole := wholeBuffers(outputs)
	for i := range a.Outputs {
		t := &a.Outputs[i]
		t.Shape = slices.Clone(t.Shape)
		a.bytes += outputBytes + 8*int64(len(t.Shape))
		switch {
		case t.Buf == nil:
			a.bytes += int64(len(t.Data))
			continue
		case !whole[i] && err == nil:
			var buf *tensor.Buffer
			if buf, err = n.store.pool.Get(len(t.Data)); err == nil {
				copy(buf.Bytes(), t.Data)
				t.Data, t.Buf = buf.Bytes(), buf
				break
			}
			t.Retain()
		default:
			t.Retain()
		}
		a.bytes += int64(t.Buf.Size()) // too much for outputs that share a buffer
	}
	return a, err
}

// retain takes another reference to each of the outputs.
func (a *Answer) retain() {
	for i := range a.Outputs {
		a.Outputs[i].Retain()
	}
}

// wholeBuffers reports which outputs are kept by reference: those whose buffers hold little besides
// them, and are not lent by anybody who wants them back.
func wholeBuffers(outputs []tensor.Tensor) []bool {
	const little = 1 << 10
	whole := make([]bool, len(outputs))
	for i, t := range outputs {
		if t.Buf == nil || t.Buf.Lent() {
			continue
		}
		used := 0
		for _, other := range outputs {
			if other.Buf == t.Buf {
				used += len(other.Data)
			}
		}
		whole[i] = t.Buf.Size() <= 2*used+little
	}
	return whole
}

// Put makes the answer to a frame the newest one of its stream. The strings of key and the outputs
// need to last for the call only. Frames of a stream are put in the order in which their answers
// leave. awaited: polls may wait for it, and the caller must call Serve, once the client of the
// frame has its answer.
func (n *Name) Put(key Source, f Frame, outputs []tensor.Tensor) (awaited bool) {
	a, unkept := n.newAnswer(f, outputs)
	s := n.store
	s.mu.Lock()
	gone := n.put(key, a, unkept)
	awaited = len(s.put) > 0
	s.mu.Unlock()
	gone.release()
	return awaited
}

// Serve answers the polls that wait for what was put. It does not wait for that.
func (n *Name) Serve() {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	n.store.wake()
}

// put is Put under the mutex. It returns what is to be released; unkept says why a must not be
// kept.
func (n *Name) put(key Source, a *Answer, unkept error) (gone released) {
	s := n.store
	if s.names[n.name] != n { // the name is kept no more
		return released{a}
	}
	src := n.source(key, a.Machine)
	a.Source, a.Machine = src.Source, "" // the frame's memory does not last
	src.active = a.stored
	s.renew(src)
	s.arm(a.stored)
	succession := src.number(a)
	if succession == older {
		return released{a}
	}
	if put := (served{src, a, succession, src.newest(a.Version) == nil}); put.awaited() {
		a.retain()
		s.put = append(s.put, put)
	}
	if unkept == nil && a.bytes > s.limit {
		unkept = fmt.Errorf("it counts %d bytes, and limits.latest_bytes is %d", a.bytes, s.limit)
	}
	gone = src.drop(a)
	if src.unkept = unkept; unkept != nil {
		return s.evict(append(gone, a))
	}
	at := len(src.answers)
	if succession == behind {
		at = 0
	}
	src.answers = slices.Insert(src.answers, at, a)
	s.charge(src, a.bytes)
	return s.evict(gone)
}

// source returns the stream of that key, a new one if it is not known.
func (n *Name) source(key Source, machine string) *source {
	src := n.sources[key]
	if src == nil {
		s := n.store
		key = Source{strings.Clone(key.Identity), strings.Clone(key.User), strings.Clone(key.Client),
			strings.Clone(key.Stream), key.Connection}
		src = &source{Source: key, name: n}
		src.payer = s.payerOf(key, machine)
		src.place, src.recency = s.sources.PushBack(src), src.payer.streams.PushBack(src)
		n.sources[key] = src
		n.enter(src)
		src.bytes = sourceBytes + int64(len(src.places))*placeBytes +
			int64(len(key.Identity)+len(key.User)+len(key.Client)+len(key.Stream))
		s.charge(src, src.bytes)
	}
	return src
}

// A succession says where an answer comes among those of its stream.
type succession uint8

const (
	next   succession = iota
	again             // its client has begun again to number frames
	behind            // another version of the model was faster with a newer frame
	older             // another connection of its client was faster with a newer frame
)

// number numbers an answer, if its client does not, and finds its succession.
func (src *source) number(a *Answer) succession {
	last := src.newest("")
	if a.Seq < 0 {
		a.Seq = a.stored.UnixMilli()
		if last != nil {
			a.Seq = max(a.Seq, last.Seq+1)
		}
	}
	if last == nil || a.Seq > last.Seq {
		return next
	}
	same := src.newest(a.Version)
	switch soon := a.stored.Sub(last.stored) < reordered; {
	case soon && last != same && (same == nil || a.Seq > same.Seq):
		return behind
	case soon && a.Seq < last.Seq && a.Captured.Before(last.Captured):
		return older
	}
	src.before, src.restarted = last.Seq, a.stored
	return again
}

// drop removes the answer that a replaces, and those of versions that got no frame for a minute.
func (src *source) drop(a *Answer) (gone released) {
	src.answers = slices.DeleteFunc(src.answers, func(old *Answer) bool {
		if old.Version != a.Version && a.stored.Sub(old.stored) < silent {
			return false
		}
		src.name.store.charge(src, -old.bytes)
		gone = append(gone, old)
		return true
	})
	return gone
}

// Seen records that a frame of a stream was answered without outputs: the stream goes on.
func (n *Name) Seen(key Source) {
	s := n.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if src := n.sources[key]; src != nil {
		src.active = time.Now()
		s.renew(src)
	}
}
