package scheduler

import (
	"cmp"
	"container/heap"
	"fmt"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler/inorder"
	"github.com/shivad/shivad/scheduler/setting"
)

// A Frame places a request in a stream: the frames of one source, such as a camera, in which newer
// frames replace older ones.
//
// The answers of a stream are delivered in the order in which its frames were submitted, except
// errors, which are delivered at once. A Frame belongs to the submitter or the scheduler together
// with its request.
type Frame struct {
	// Set by the submitter.

	// The client, perhaps a view of reused memory. Clients do not share streams.
	Client string
	Stream string // its name, perhaps also such a view; each model has its own streams
	// How many frames of the stream may wait; one more supersedes the oldest. 0: as the model is
	// configured.
	Keep setting.Keep
	Seq  int64  // the client's number of the frame; negative: it has none
	ID   string // names the frame in errors if it has no number

	// Connection, if not 0, ties the stream to a connection: requests without that number cannot
	// name it. It lasts until [Model.EndStream].
	Connection uint64

	// Captured is when the frame was taken, for [Model.Streams]; zero: when it was submitted.
	Captured time.Time
	Undated  bool // the client gave a time of capture that cannot be right

	// Set by the scheduler before Owner.Complete.

	// Frames of the stream that were superseded between the previously executed frame and this one.
	Skipped   int
	Reordered bool // its number was not above that of the frame before

	// Guarded by the model's mutex between Submit and the answer.

	req      *Request
	stream   *stream
	node     inorder.Node[*Frame] // in the line of the stream
	leaving  bool                 // its answer is being delivered
	captured int64
	number   uint64 // position in the stream in order of submission, from 1
}

// waits reports whether no row of the frame is with a container: none was sent, or all have
// returned.
func (f *Frame) waits() bool { return !f.node.Held && !f.req.executing() }

// A SupersededError is an [ErrSuperseded] that names the newer frame.
type SupersededError struct {
	Seq int64  // of the newer frame; negative: it has none
	ID  string // of the newer frame
}

func (e *SupersededError) Error() string {
	switch {
	case e.Seq >= 0:
		return fmt.Sprintf("%v by frame %d of its stream", ErrSuperseded, e.Seq)
	case e.ID != "":
		return fmt.Sprintf("%v by frame %s of its stream", ErrSuperseded, e.ID)
	}
	return fmt.Sprintf("%v by a newer frame of its stream", ErrSuperseded)
}

// Unwrap makes the error an [ErrSuperseded].
func (e *SupersededError) Unwrap() error { return ErrSuperseded }

// A streamKey identifies a stream of a model.
type streamKey struct {
	client, name string
	connection   uint64 // 0: any request of the client may name it
}

// A stream is known from its first frame until it has been silent for a while, or its connection
// is closed.
type stream struct {
	key    streamKey
	client *client // nil: the stream is that of a connection
	// Unanswered frames. Keep is that of the frame that was submitted last.
	inorder.Line[*Frame]
	// Numbers of the frame submitted last, and of the newest frame sent to a container.
	last, sent uint64
	sentSeq    int64  // the client's number of the newest frame sent
	batch      *Batch // of all answers that are leaving; nil: they are of several
	captured   int64  // earliest capture time of those frames
	shown      int64  // newest capture time of a frame answered with outputs; never: none was
	queued     int    // items in queues
	served     int64  // when a frame was sent last
	next       int64  // when the next interval of the model's StreamInterval begins
	number     uint64 // position in the order in which streams became known
	priority   int    // of the turns that it is in
	turn       int    // index in those turns, or -1
	cut        uint64 // streams.cuts of the latest batch with a frame of it
	skipped    int    // frames superseded since a frame was sent last
	seq        int64  // the client's number of the frame submitted last
	active     int64  // when a frame was submitted last
	silent     bool   // it is in silent lists
	ended      bool   // its connection is closed: it is forgotten when it falls silent
	recent     streamRecent
	neighbours [2]struct{ before, after *stream }
}

// streams are the streams of one model.
type streams struct {
	byKey          map[streamKey]*stream
	known          uint64            // number of streams known so far
	turns          [priorities]turns // streams with a bound on waiting frames, and one in a queue
	turning        int               // number of streams in turns, of all priorities
	cuts           uint64
	first          []*item  // frames that go first in the batch that is being made, in turn
	share          float64  // fraction of a place that streams are entitled to and have not had
	held           queue    // items of frames whose answers wait, by deadline
	chosen         []*item  // scratch
	returnedFrames []*Frame // frames whose rows returned to the queue since the last dispatch

	silent  silentList
	clients map[string]*client
}

// A client is known as long as one of its streams is.
type client struct {
	name    string
	streams int
	silent  silentList // of these
}

// A silentList is a list of streams without an unanswered frame, in the order in which they fell
// silent. Each such stream is in the list of its model and in that of its client.
type silentList struct {
	oldest, newest *stream
	count          int
	ofClient       int // index in neighbours: 1 for a client's list, 0 for a model's
}

func (l *silentList) add(s *stream) {
	n := &s.neighbours[l.ofClient]
	if n.before = l.newest; n.before != nil {
		n.before.neighbours[l.ofClient].after = s
	} else {
		l.oldest = s
	}
	l.newest = s
	l.count++
}

func (l *silentList) remove(s *stream) {
	n := &s.neighbours[l.ofClient]
	if n.before != nil {
		n.before.neighbours[l.ofClient].after = n.after
	} else {
		l.oldest = n.after
	}
	if n.after != nil {
		n.after.neighbours[l.ofClient].before = n.before
	} else {
		l.newest = n.before
	}
	n.before, n.after = nil, nil
	l.count--
}

const (
	// A silent stream is forgotten after silentTime, or when more than silentMost are silent.
	silentTime = int64(time.Minute)
	silentMost = 16 << 10
)

// get returns the stream of r, a new one if it is not known yet; nil: its client has as many
// streams as it may have, and each has an unanswered frame.
func (ss *streams) get(r *Request, most int, now int64) *stream {
	f := r.Frame
	key := streamKey{f.Client, f.Stream, f.Connection}
	if f.Connection != 0 {
		key.client = ""
	}
	if s := ss.byKey[key]; s != nil {
		s.ended = false
		return s
	}
	ss.forget(now)
	c, ok := ss.admit(f, most)
	if !ok {
		return nil
	}
	ss.known++
	key.client, key.name = strings.Clone(key.client), strings.Clone(key.name)
	s := &stream{key: key, client: c, number: ss.known, turn: -1, seq: -1, served: now, next: now, active: now}
	s.shown = never
	s.recent.begin(now)
	// A new stream joins half-way: it should not wait for all other streams, and clients that name
	// a new stream in each frame must not keep other streams from their turn. The stream that has
	// waited longest stays ahead of all that join later.
	if t := ss.turns[r.Priority]; len(t) > 0 {
		s.served = t[0].served + (now-t[0].served)/2
	}
	if ss.byKey == nil {
		ss.byKey = make(map[streamKey]*stream)
	}
	ss.byKey[key] = s
	return s
}

// admit counts a new stream of f's client, and forgets the client's oldest silent stream if there
// are too many. The stream of a connection has no client and is not counted.
func (ss *streams) admit(f *Frame, most int) (c *client, ok bool) {
	if f.Connection != 0 {
		return nil, true
	}
	for c = ss.clients[f.Client]; c != nil && c.streams >= most; c = ss.clients[f.Client] {
		if c.silent.oldest == nil {
			return nil, false
		}
		ss.drop(c.silent.oldest)
	}
	if c == nil {
		c = &client{name: strings.Clone(f.Client), silent: silentList{ofClient: 1}}
		if ss.clients == nil {
			ss.clients = make(map[string]*client)
		}
		ss.clients[c.name] = c
	}
	c.streams++
	return c, true
}

// drop forgets a silent stream.
func (ss *streams) drop(s *stream) {
	ss.wakeUp(s)
	ss.remove(s)
}

func (ss *streams) remove(s *stream) {
	delete(ss.byKey, s.key)
	if c := s.client; c != nil {
		if c.streams--; c.streams == 0 {
			delete(ss.clients, c.name)
		}
	}
}

// end forgets the stream of a connection, at once or when its last frame is answered.
func (ss *streams) end(key streamKey) {
	if s := ss.byKey[key]; s != nil {
		if s.ended = true; s.silent {
			ss.wakeUp(s)
			ss.fallSilent(s)
		}
	}
}

// EndStream forgets the stream of a closed connection, given the name that its frames had, when the
// last frame is answered: at once, if all are. Any goroutine may call it, after Submit of the last
// frame.
func (m *Model) EndStream(name string, connection uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.core.streams.end(streamKey{name: name, connection: connection})
}

// forget drops the streams that have been silent for too long, and the oldest if too many are
// silent.
func (ss *streams) forget(now int64) {
	for old := ss.silent.oldest; old != nil && (ss.silent.count > silentMost ||
		old.active < now-silentTime); old = ss.silent.oldest {
		ss.drop(old)
	}
}

// recent counts the streams that have sent a frame in the last minute, or wait for an answer.
func (ss *streams) recent(now int64) int {
	ss.forget(now)
	return len(ss.byKey)
}

// wakeUp removes a stream from the silent lists.
func (ss *streams) wakeUp(s *stream) {
	ss.silent.remove(s)
	if s.client != nil {
		s.client.silent.remove(s)
	}
	s.silent = false
}

// join makes f the newest frame of its stream.
func (ss *streams) join(f *Frame, s *stream, keep int, now int64) {
	if s.silent {
		ss.wakeUp(s)
	}
	f.stream, f.leaving, f.Skipped = s, false, 0
	s.last++
	f.number = s.last
	f.node.Of = f
	s.Join(&f.node)
	s.active = now
	if f.Seq >= 0 {
		s.seq = f.Seq
	}
	s.Keep = keep
	ss.reorder(s)
}

// removeFrame removes f, which has been answered, from its stream.
func (ss *streams) removeFrame(f *Frame) {
	if f.node.Held {
		ss.held.remove(&f.req.item)
	}
	f.stream.Remove(&f.node)
	ss.fallSilent(f.stream)
}

// fallSilent marks a stream as silent if it has no unanswered frame.
func (ss *streams) fallSilent(s *stream) {
	if !s.Idle() || s.silent {
		return
	}
	if s.ended {
		ss.remove(s)
		return
	}
	s.silent = true
	ss.silent.add(s)
	if s.client != nil {
		s.client.silent.add(s)
	}
}

// count records that items of a stream have entered queues, or left them.
func (ss *streams) count(s *stream, items int) {
	s.queued += items
	ss.reorder(s)
}

// sent records that rows of f are sent to a container.
func (ss *streams) sent(f *Frame, now int64) {
	s := f.stream
	s.served = now
	if f.number > s.sent {
		s.sent, s.sentSeq = f.number, f.Seq
	}
	if s.turn >= 0 {
		heap.Fix(&ss.turns[s.priority], s.turn)
	}
	if f.req.sent == unsent {
		f.Skipped, s.skipped = s.skipped, 0
	}
}

// mayLeave reports whether the answer of f, which arrived with b, can be delivered now. Answers of
// one batch are delivered by one goroutine, so they leave together.
func (s *stream) mayLeave(f *Frame, b *Batch) bool {
	return s.MayLeave(&f.node) || s.Oldest == &f.node && s.batch == b
}

// leave records that the answer of f is being delivered.
func (ss *streams) leave(f *Frame, b *Batch) {
	s := f.stream
	f.leaving = true
	if s.Leaving == 0 || f.captured < s.captured {
		s.captured = f.captured
	}
	s.batch = b
	if f.node.Held {
		ss.held.remove(&f.req.item)
	}
	s.Leave(&f.node)
}

// keepOf returns how many frames of f's stream may wait; 0: any number.
func (c *core) keepOf(f *Frame) int { return max(0, int(cmp.Or(f.Keep, c.cfg.Keep))) }

// supersedes calls f for each waiting frame of s that one more frame would supersede, the newest
// first.
func (s *stream) supersedes(keep int, f func(*Frame)) {
	if keep == 0 {
		return
	}
	n := 1
	for frame := s.Newest.Request(); frame != nil; {
		older := frame.node.Older.Request()
		if frame.waits() {
			if n++; n > keep {
				f(frame)
			}
		}
		frame = older
	}
}

// joinStream adds r, which is admitted, to its stream, and answers the frames that it supersedes.
// The oldest frame that still waits inherits the place of the oldest of these: if it is r, the
// place is returned; otherwise that frame is moved there and nil is returned.
func (c *core) joinStream(r *Request, s *stream, now int64, fx *effects) *place {
	f := r.Frame
	f.req = r
	if f.Seq >= 0 && f.Seq <= s.seq {
		f.Reordered = true
		c.stats.reordered++
	}
	var from *place
	s.supersedes(c.keepOf(f), func(old *Frame) {
		if it := &old.req.item; it.queue != nil {
			from = &it.place
		}
		c.supersede(old, f, fx)
	})
	c.stats.frames++
	s.accepted(f, now)
	c.streams.join(f, s, c.keepOf(f), now)
	if from == nil {
		return nil
	}
	at := *from
	at.deadline = min(at.deadline, r.deadline)
	for heir := s.Oldest.Request(); heir != f; heir = heir.node.Newer.Request() {
		if it := &heir.req.item; heir.waits() && it.queue != nil {
			if at.deadline = min(at.deadline, heir.req.deadline); at.before(it.place) {
				c.dequeue(it)
				c.enqueueAt(it, at)
			}
			return nil
		}
	}
	return &at
}

// supersede answers an older frame, since a newer one of its stream has arrived.
func (c *core) supersede(old, by *Frame, fx *effects) {
	old.stream.skipped++
	old.stream.recent[0].superseded++
	c.answer(old.req, OutcomeSuperseded, &SupersededError{Seq: by.Seq, ID: strings.Clone(by.ID)}, fx)
}

// returned records that rows of r have returned from a container without an answer.
func (ss *streams) returned(r *Request) {
	if r.Frame != nil {
		ss.returnedFrames = append(ss.returnedFrames, r.Frame)
	}
}

// supersedeReturned answers the frames that returned from a container if their stream has as many
// newer frames as may wait. Executing frames count, too, and so does the newest frame sent, even if
// it has its answer: a frame that is executed after a newer one shows the past.
func (c *core) supersedeReturned(fx *effects) {
	for _, f := range c.streams.returnedFrames {
		s := f.stream
		if f.req.state != stateWaiting || !f.waits() || s.Keep == 0 {
			continue
		}
		n, sent := 0, s.sent > f.number
		for newer := f.node.Newer.Request(); newer != nil && n < s.Keep; newer = newer.node.Newer.Request() {
			n++
			sent = sent && newer.number != s.sent
		}
		switch {
		case n == s.Keep:
			c.supersede(f, s.Newest.Of, fx)
		case sent && n+1 == s.Keep:
			c.supersede(f, &Frame{Seq: s.sentSeq}, fx)
		}
	}
	clear(c.streams.returnedFrames)
	c.streams.returnedFrames = c.streams.returnedFrames[:0]
}

// holdBack keeps the answer of f, which is complete, until the answers of older frames have left.
// When more answers wait for an older frame than frames may wait, that frame is superseded,
// although it is executing: otherwise a replica that hangs would hold up a stream that another
// replica serves.
func (c *core) holdBack(f *Frame, fx *effects) {
	s := f.stream
	s.Hold(&f.node)
	it := &f.req.item
	*it = item{req: f.req, hi: f.req.Rows, place: place{deadline: f.req.deadline, seq: it.seq}}
	c.streams.held.insert(it)
	c.wakeAt(it.deadline)
	for old := s.Overdue(); old != nil; old = s.Overdue() {
		c.supersede(old.Of, s.NewestHeld().Of, fx)
	}
}

// release answers the frames of s whose held answers no longer wait for an older one.
func (c *core) release(s *stream, fx *effects) {
	if s.Leaving > 0 {
		return
	}
	// One goroutine delivers all of them, one by one.
	for n := s.Oldest; n != nil && n.Held; n = s.Oldest {
		r := n.Of.req
		c.streams.leave(n.Of, nil)
		c.succeed(r)
		fx.answered = append(fx.answered, r)
	}
}

// delivered records that an answer of s has been delivered.
func (c *core) delivered(s *stream, now int64, fx *effects) {
	c.stats.shown++
	s.answered(now)
	s.Left()
	c.streams.fallSilent(s)
	c.release(s, fx)
}
