package containers

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/internal/arena"
	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	// minShared is the size of the smallest tensor that goes by the arena: from this size on the
	// pool's buffers lie in it.
	minShared = 32 << 10
	// minPiece is the least average size of the pieces of a tensor. Smaller ones cost more in the
	// header than their bytes in the frame.
	minPiece = 8 << 10
	// outputsUnit is the unit of the size of a segment of outputs, and outputsShare the fraction of
	// the pool's budget that all of them may take: they stay as long as their sessions.
	outputsUnit  = 1 << 20
	outputsShare = 4
	// outputsPause is the number of results with large frames after which a segment of outputs that
	// failed for lack of memory is tried again.
	outputsPause = 1000
	// maxSegments is how many segments a session may have. A container that unmaps none gets bytes
	// from then on, so that it takes no more of the server's descriptors and addresses.
	maxSegments = 8
)

// errShared is the error of an output in memory that it may not name.
var errShared = errors.New("expected one piece, of an input of its batch, or of a segment of outputs at a multiple of 64 bytes")

// A sharing is the part of a session that handles shared memory: the segments that the container
// maps, the places of inputs in them, and outputs that lie in them.
type sharing struct {
	arena *arena.Arena
	pool  *tensor.Pool // for copies
	areas *tensor.Pool // budget of the segments of outputs
	looks *tensor.Pool // for pictures that others look at
	slots int          // results that may be in use at a time

	mu       sync.Mutex
	segments map[int64]*sharedSegment
	in       *arena.Segment      // inputs in it need no bytes; nil: none yet
	out      *arena.Segment      // the latest for outputs
	offers   []wire.ArenaMessage // to be sent before the next batch
	pending  map[string]bool     // uses with an offer that was not answered yet
	declined map[string]bool     // uses for which the container wants no more segments
	pause    int                 // results to wait before the next segment of outputs
	over     bool
}

// A sharedSegment is a segment that was offered, with a reference.
type sharedSegment struct {
	*arena.Segment
	use      string
	mapped   bool      // the container has confirmed it
	replaced time.Time // from then on no new batch or result should name it; zero: it is current
}

// replace records that a segment is no longer current.
func (s *sharedSegment) replace() {
	if s.replaced.IsZero() {
		s.replaced = time.Now()
	}
}

// bind passes a registration to the codec, with the shared memory for it.
func (s *session) bind(r registration) {
	if c, ok := s.codec.(*v4); ok {
		c.share = s.share(r)
		s.mu.Lock()
		s.sharing = c.share
		s.mu.Unlock()
		c.share.catchUp()
	}
	s.codec.bind(r)
}

// handleArena handles a message about shared memory.
func (s *session) handleArena(m wire.ArenaMessage) {
	notice, unmap := s.sharing.answer(m)
	if notice != "" {
		s.log(slog.LevelWarn, "container gets its tensors over the connection instead of shared memory",
			"reason", errorText(errors.New(notice)))
	}
	if unmap != 0 {
		s.unmap(unmap)
	}
}

func (s *session) unmap(number int64) {
	s.say(func(o *zmtp.Outgoing) bool { return say(o, wire.Arena, wire.ArenaMessage{Unmap: number}) })
}

// RetireSegment ends the use of a segment of inputs in all sessions. The arena calls it; it does
// not wait.
func (l *Listener) RetireSegment(segment *arena.Segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return // all sessions are ending
	}
	l.wg.Go(func() { // ends by itself; the caller may be sending a batch
		for _, s := range l.all() {
			s.retireSegment(segment)
		}
	})
}

func (s *session) retireSegment(segment *arena.Segment) {
	s.mu.Lock()
	x := s.sharing
	s.mu.Unlock()
	if x == nil {
		return
	}
	s.life.Lock() // no batch that names the segment is on its way to the connection
	mapped := x.retire(segment)
	s.life.Unlock()
	if mapped {
		s.unmap(segment.Number)
	}
}

// sameMachine reports whether both ends of a connection are on this machine. Whether the container
// sees the same processes and may read the server's memory, the container itself finds out.
func sameMachine(conn net.Conn) bool {
	switch a := conn.RemoteAddr().(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		b, ok := conn.LocalAddr().(*net.TCPAddr)
		return ok && (a.IP.IsLoopback() && b.IP.IsLoopback() || a.IP.Equal(b.IP))
	}
	return false
}

// share prepares shared memory for a container that takes it; it returns nil if the container gets
// none.
func (s *session) share(r registration) *sharing {
	cfg := &s.listener.cfg
	if !r.arena || cfg.Arena == nil || s.settings.Bytes || !sameMachine(s.raw) {
		return nil
	}
	x := &sharing{arena: cfg.Arena, pool: cfg.Pool, areas: s.listener.areas, looks: s.listener.looks,
		slots:    max(r.slots, r.concurrency+1, 2) + 2,
		segments: make(map[int64]*sharedSegment), pending: make(map[string]bool), declined: make(map[string]bool)}
	if segment := cfg.Arena.Current(); segment != nil {
		x.offerLocked(segment, wire.UseInputs)
	}
	return x
}

// catchUp retires a segment that the arena retired before s.sharing was set.
func (x *sharing) catchUp() {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.segments {
		if s.use == wire.UseInputs && x.arena.Retired(s.Segment) {
			s.replace()
		}
	}
}

// mayOfferLocked reports whether another segment may be offered for a use.
func (x *sharing) mayOfferLocked(use string) bool {
	return !x.over && !x.pending[use] && !x.declined[use] && len(x.segments) < maxSegments
}

// offerLocked offers a segment and takes over the caller's reference to it.
func (x *sharing) offerLocked(segment *arena.Segment, use string) {
	x.segments[segment.Number] = &sharedSegment{Segment: segment, use: use}
	x.pending[use] = true
	x.offers = append(x.offers, wire.ArenaMessage{Segment: segment.Number, Use: use, Path: segment.Path,
		Bytes: segment.Size(), Token: segment.Token})
}

// first returns the offer for welcome, if there is one.
func (x *sharing) first() *wire.ArenaMessage {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.offers) == 0 {
		return nil
	}
	offer := x.offers[0]
	x.offers = x.offers[:0]
	return &offer
}

// appendOffers adds the waiting offers to o, before o's own message.
func (x *sharing) appendOffers(o *zmtp.Outgoing) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, offer := range x.offers {
		if say(o, wire.Arena, offer) {
			o.End()
		}
	}
	x.offers = x.offers[:0]
}

// answer handles a message of the container. notice is for the log; unmap is the number of a
// segment that it is to unmap.
func (x *sharing) answer(m wire.ArenaMessage) (notice string, unmap int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if m.Unmapped != 0 {
		x.dropLocked(m.Unmapped)
		return "", 0
	}
	s := x.segments[m.Segment]
	if s == nil || s.mapped {
		return "", 0 // an answer to no offer: nothing depends on it
	}
	delete(x.pending, s.use)
	if m.Error != "" {
		x.declined[s.use] = true
		x.dropLocked(m.Segment)
		return m.Error, 0
	}
	s.mapped = true
	if s.use == wire.UseOutputs {
		s.Hide() // no other process needs to open it
	}
	switch {
	case s.use == wire.UseOutputs:
		if old := x.out; old != nil {
			x.segments[old.Number].replace()
		}
		x.out = s.Segment
	case !s.replaced.IsZero():
		return "", m.Segment
	default:
		x.in = s.Segment
	}
	return "", 0
}

// dropLocked forgets a segment that the container does not map any more.
func (x *sharing) dropLocked(number int64) {
	s := x.segments[number]
	if s == nil {
		return
	}
	delete(x.segments, number)
	if x.in == s.Segment {
		x.in = nil
	}
	if x.out == s.Segment {
		x.out = nil
	}
	s.Release()
}

// retire ends the use of a segment of inputs, and reports whether the container must be told. No
// batch may be on its way to the connection meanwhile.
func (x *sharing) retire(segment *arena.Segment) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.segments[segment.Number]
	if s == nil {
		return false
	}
	s.replace()
	if x.in == segment {
		x.in = nil
	}
	return s.mapped
}

// close releases all segments. An output that lies in a segment keeps it until it is released.
func (x *sharing) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	for number := range x.segments {
		x.dropLocked(number)
	}
}

// mapped returns the indices of those inputs of b that go by shared memory. If one lies in a
// segment that the container does not know, the segment is offered for the next batches.
func (x *sharing) mapped(b *scheduler.Batch, inputs int) (placed bits) {
	x.mu.Lock()
	in := x.in
	x.mu.Unlock()
	for i := range inputs {
		if absent(b, i) {
			continue
		}
		size, pieces := 0, 0
		var where *arena.Segment
		for t := range b.Pieces(i) {
			data := t.Data
			segment, _ := x.arena.Find(data)
			if segment == nil || where != nil && segment != where {
				where = nil
				break
			}
			where = segment
			size += len(data)
			pieces++
		}
		switch {
		case where == nil || size < minShared || size < pieces*minPiece:
		case where == in:
			placed.set(i)
		default:
			x.propose(where)
		}
	}
	return placed
}

// propose offers the segment of inputs in which a batch lies, unless it has been retired: the
// container would not be told to unmap it any more. A concurrent retire waits for x.mu.
func (x *sharing) propose(segment *arena.Segment) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.mayOfferLocked(wire.UseInputs) || x.segments[segment.Number] != nil || x.arena.Retired(segment) {
		return
	}
	segment.Retain()
	x.offerLocked(segment, wire.UseInputs)
}

// appendAt adds the place in shared memory to the description of input i.
func (x *sharing) appendAt(h []byte, b *scheduler.Batch, i int) []byte {
	var space [8]wire.Piece
	pieces := space[:0]
	for t := range b.Pieces(i) {
		data := t.Data
		segment, offset := x.arena.Find(data)
		if n := len(pieces) - 1; n >= 0 && pieces[n].Offset+pieces[n].Size == offset {
			// Rows next to each other, such as those of one divided request, are one piece.
			pieces[n].Size += int64(len(data))
			continue
		}
		pieces = append(pieces, wire.Piece{Segment: segment.Number, Offset: offset, Size: int64(len(data))})
	}
	return wire.AppendAt(h, pieces)
}

// take returns the frame of an output of b, with a reference. For an output in shared memory it is
// a view: of an input, which is never written again, or of a region, which the container could
// still write, and which is copied if the server interprets its bytes.
func (x *sharing) take(t *wire.TensorHeader, f zmtp.Frame, b *scheduler.Batch, interpreted bool) (zmtp.Frame, error) {
	if x == nil || len(t.At) == 0 {
		f.Buf.Retain()
		return f, nil
	}
	if len(f.Data) == 0 {
		if input, ok := x.findPassed(t, b); ok {
			return input, nil
		}
	}
	region, segment := x.region(t.At)
	if region != nil && len(f.Data) > 0 {
		segment.Put(region)
		region = nil
	}
	if region == nil {
		return zmtp.Frame{}, fmt.Errorf("output %q is at %v: %w", clip(t.Name), t.At, errShared)
	}
	lent := tensor.Lend(region, segment)
	if !interpreted {
		return zmtp.Frame{Data: region, Buf: lent}, nil
	}
	defer lent.Release()
	buf, err := x.pool.Get(len(region))
	if err != nil {
		return zmtp.Frame{}, err
	}
	copy(buf.Bytes(), region)
	return zmtp.Frame{Data: buf.Bytes(), Buf: buf}, nil
}

// findPassed finds an output of b that the container passes on from an input of the same batch, and
// takes a reference to the input's buffer. The container may read inputs of other batches in the
// segment, but not answer with them, as b does not hold their memory.
func (x *sharing) findPassed(t *wire.TensorHeader, b *scheduler.Batch) (zmtp.Frame, bool) {
	if len(t.At) != 3 || t.At[1] < 0 || t.At[2] < 1 {
		return zmtp.Frame{}, false
	}
	for k := range b.Parts {
		for _, in := range b.Parts[k].Inputs {
			segment, offset := x.arena.Find(in.Data)
			if segment == nil || segment.Number != int64(t.At[0]) {
				continue
			}
			if lo := int64(t.At[1]) - offset; lo >= 0 && lo <= int64(len(in.Data)) &&
				int64(t.At[2]) <= int64(len(in.Data))-lo {
				in.Buf.Retain()
				return zmtp.Frame{Data: in.Data[lo:][:t.At[2]:t.At[2]], Buf: in.Buf}, true
			}
		}
	}
	return zmtp.Frame{}, false
}

// region returns the bytes at a place that a result names, with a reference to their segment; nil
// if it may not name them.
func (x *sharing) region(at []int) ([]byte, *arena.Segment) {
	if len(at) != 3 {
		return nil, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.segments[int64(at[0])]
	if s == nil || s.use != wire.UseOutputs || !s.mapped {
		return nil, nil
	}
	region, ok := s.Region(int64(at[1]), int64(at[2]))
	if !ok {
		return nil, nil
	}
	return region, s.Segment
}

// free frees the regions of a result that the server will not read.
func (x *sharing) free(h *wire.ResultHeader) {
	if x == nil {
		return
	}
	for i := range h.Outputs {
		if region, segment := x.region(h.Outputs[i].At); region != nil {
			segment.Put(region)
		}
	}
	for i := range h.Opened {
		for _, o := range h.Opened[i].List {
			if region, segment := x.region(o.At[:]); region != nil {
				segment.Put(region)
			}
		}
	}
}

// learn records the large outputs of a result that arrived as frames. If they do not fit into the
// container's segment, it gets a larger one.
func (x *sharing) learn(large int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pause > 0 {
		x.pause--
		return
	}
	has := int64(0)
	if x.out != nil {
		has = x.out.Size()
	}
	want := large * int64(x.slots)
	if want <= has || !x.mayOfferLocked(wire.UseOutputs) {
		return
	}
	want = (max(want, has*2) + outputsUnit) / outputsUnit * outputsUnit
	if x.areas.Reserve(want) != nil {
		x.pause = outputsPause
		return
	}
	segment, err := x.arena.NewOutputs(want, func() { x.areas.Unreserve(want) })
	if err != nil {
		x.areas.Unreserve(want)
		x.pause = outputsPause
		return
	}
	x.offerLocked(segment, wire.UseOutputs)
}

// describe adds to the status which tensors use shared memory, and how much of it the session holds
// while these batches are in flight.
func (x *sharing) describe(i *SessionInfo, calls []*call) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var uses []string
	if x.in != nil {
		uses = append(uses, wire.UseInputs)
	}
	if x.out != nil {
		uses = append(uses, wire.UseOutputs)
	}
	i.Arena = strings.Join(uses, ", ")
	for _, c := range calls {
		i.Readable += x.readableLocked(c.batch)
	}
	for _, s := range x.segments {
		size := s.Size()
		if s.use == wire.UseInputs {
			size = x.arena.Taken(s.Segment)
		} else {
			i.Outputs += size
		}
		if !s.replaced.IsZero() {
			i.Replaced += size
			i.ReplacedFor = max(i.ReplacedFor, time.Since(s.replaced))
		}
	}
}

// readableLocked is the size of the inputs of a batch that the container may be reading in shared
// memory.
func (x *sharing) readableLocked(b *scheduler.Batch) (bytes int64) {
	for i := range b.Parts[0].Inputs {
		for t := range b.Pieces(i) {
			segment, _ := x.arena.Find(t.Data)
			if segment == nil {
				continue
			}
			if s := x.segments[segment.Number]; s != nil && s.mapped {
				bytes += int64(len(t.Data))
			}
		}
	}
	return bytes
}

// readArena parses a message about shared memory.
func readArena(f []zmtp.Frame) (m wire.ArenaMessage, err error) {
	if len(f) != 2 {
		return m, fmt.Errorf("arena of %d frames, expected arena | JSON", len(f))
	}
	if err := json.Unmarshal(f[1].Data, &m); err != nil {
		return m, fmt.Errorf("arena: %w", err)
	}
	return m, nil
}

// bits is a set of inputs.
type bits [(wire.MaxTensors + 63) / 64]uint64

func (s *bits) set(i int)      { s[i/64] |= 1 << (i % 64) }
func (s *bits) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }
