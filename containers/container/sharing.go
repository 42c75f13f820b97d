package container

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/shivad/shivad/containers/internal/arena"
	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/tensor"
)

// minShared is the size of the smallest output that goes by shared memory, where there is some.
const minShared = 32 << 10

// A sharing is the shared memory of a session.
type sharing struct {
	mu       sync.Mutex
	segments map[int64]*mapping
	out      *mapping // for the next outputs; nil: none
}

// A mapping is a segment in this process. It stays while it is referenced: by the session, until it
// is replaced, and by the batches that were received or answered in it.
type mapping struct {
	number int64
	mem    []byte
	writer *arena.Writer // of outputs; nil: inputs

	// Guarded by the mu of sharing.
	refs     int
	replaced bool // no batch that arrives from now on names it
}

// A region is memory of an output that a batch has taken.
type region struct {
	mapping *mapping
	data    []byte
}

// share maps a segment that the server offers, or gives up one that it retires, and answers.
func (n *session) share(m wire.ArenaMessage) {
	if m.Unmap != 0 {
		n.sharing.mu.Lock()
		s := n.sharing.segments[m.Unmap]
		first := s != nil && !s.replaced
		if first {
			s.replaced = true
		}
		n.sharing.mu.Unlock()
		if first {
			n.releaseMapping(s)
		}
		return
	}
	answer := wire.ArenaMessage{Segment: m.Segment}
	s, err := mapSegment(m)
	if err != nil {
		answer.Error = err.Error()
		n.log.Warn("container: tensors go over the connection instead of shared memory", "use", m.Use, "reason", err)
		n.tell(answer)
		return
	}
	x := &n.sharing
	x.mu.Lock()
	var old *mapping
	if s.writer != nil {
		old, x.out = x.out, s
	}
	x.segments[s.number] = s
	x.mu.Unlock()
	n.tell(answer)
	if old != nil {
		n.releaseMapping(old)
	}
}

func mapSegment(m wire.ArenaMessage) (*mapping, error) {
	if m.Use != wire.UseInputs && m.Use != wire.UseOutputs {
		return nil, fmt.Errorf("unknown use %.32q", m.Use)
	}
	token, err := hex.DecodeString(m.Token)
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	s := &mapping{number: m.Segment, refs: 1}
	if s.mem, err = arena.Map(m.Path, m.Bytes, token, m.Use == wire.UseOutputs); err != nil {
		return nil, err
	}
	if m.Use == wire.UseOutputs {
		s.writer = arena.NewWriter(s.mem)
	}
	return s, nil
}

// tell sends a message about shared memory.
func (n *session) tell(m wire.ArenaMessage) {
	text, err := json.Marshal(m)
	if err != nil {
		return // unreachable for plain strings and numbers
	}
	var o zmtp.Outgoing
	o.FrameString(wire.Arena)
	o.Frame(text)
	n.send(&o)
}

// releaseMapping releases a reference to a mapping. The last one unmaps it, and the server is told.
func (n *session) releaseMapping(s *mapping) {
	x := &n.sharing
	x.mu.Lock()
	s.refs--
	last := s.refs == 0 && x.segments[s.number] == s // otherwise the session has ended
	if last {
		delete(x.segments, s.number)
	}
	x.mu.Unlock()
	if last {
		arena.Unmap(s.mem)
		n.tell(wire.ArenaMessage{Unmapped: s.number})
	}
}

// end unmaps everything. No goroutine computes or sends any more.
func (x *sharing) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.out = nil
	for number, s := range x.segments {
		delete(x.segments, number)
		arena.Unmap(s.mem)
	}
}

// holds reports whether an address lies in memory that the session maps.
func (x *sharing) holds(addr uintptr) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.segments {
		if base := uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))); addr >= base && addr < base+uintptr(len(s.mem)) {
			return true
		}
	}
	return false
}

// input returns the bytes of an input in shared memory: a view if it is in one piece, and otherwise
// gathered in memory of the pool. The batch holds the mapping until it is reset.
func (b *Batch) input(at []int) ([]byte, error) {
	size := 0
	for i := 0; i < len(at); i += 3 {
		s := b.hold(int64(at[i]))
		if s == nil {
			return nil, fmt.Errorf("segment %d was not offered", at[i])
		}
		if at[i+1] < 0 || at[i+2] < 0 || at[i+1] > len(s.mem) || at[i+2] > len(s.mem)-at[i+1] {
			return nil, fmt.Errorf("%d bytes at %d are not in segment %d of %d bytes",
				at[i+2], at[i+1], s.number, len(s.mem))
		}
		if size += at[i+2]; int64(size) > b.model.MessageBytes {
			return nil, fmt.Errorf("it has more than %d bytes", b.model.MessageBytes)
		}
	}
	if len(at) == 3 && !b.model.WritableInputs {
		s := b.hold(int64(at[0]))
		return s.mem[at[1] : at[1]+at[2] : at[1]+at[2]], nil
	}
	data, err := b.room(size)
	if err != nil {
		return nil, err
	}
	data = data[:0]
	for i := 0; i < len(at); i += 3 {
		data = append(data, b.hold(int64(at[i])).mem[at[i+1]:at[i+1]+at[i+2]]...)
	}
	return data, nil
}

// room returns memory for an input that is gathered or copied. For a model whose last answer had an
// input as an output, the server can read that memory, and it need not be copied again.
func (b *Batch) room(n int) ([]byte, error) {
	if b.session.echoes.Load() {
		if data := b.region(n); data != nil {
			return data, nil
		}
	}
	buf, err := b.pool.Get(n)
	if err != nil {
		return nil, err
	}
	b.buffers = append(b.buffers, buf)
	return buf.Bytes(), nil
}

// echoes reports whether one of the outputs is an input.
func (b *Batch) echoes(outputs []tensor.Tensor) bool {
	return slices.ContainsFunc(outputs, func(y tensor.Tensor) bool {
		return len(y.Data) >= minShared && slices.ContainsFunc(b.Inputs, func(x tensor.Tensor) bool {
			return unsafe.SliceData(x.Data) == unsafe.SliceData(y.Data)
		})
	})
}

// hold returns a mapping that stays until the batch is reset; nil if none has that number.
func (b *Batch) hold(number int64) *mapping {
	for _, s := range b.mappings {
		if s.number == number {
			return s
		}
	}
	if b.session == nil {
		return nil
	}
	x := &b.session.sharing
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.segments[number]
	if s != nil {
		s.refs++
		b.mappings = append(b.mappings, s)
	}
	return s
}

// arrive holds every segment that the batch may name until it is reset. The reader calls it: the
// message after the batch may be a request to unmap one, before the batch is computed. Replaced
// segments are not held: batches that overlap would keep them for ever.
func (b *Batch) arrive() {
	x := &b.session.sharing
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.segments {
		if s.writer == nil && !s.replaced {
			s.refs++
			b.mappings = append(b.mappings, s)
		}
	}
}

// region returns memory for an output of n bytes that the server can read; nil: send the bytes.
func (b *Batch) region(n int) []byte {
	if n < minShared || b.session == nil {
		return nil
	}
	x := &b.session.sharing
	x.mu.Lock()
	out := x.out
	x.mu.Unlock()
	if out == nil || b.hold(out.number) == nil {
		return nil
	}
	data := out.writer.Get(n)
	if data != nil {
		b.regions = append(b.regions, region{out, data})
	}
	return data
}

// put finds the place of an output that goes by shared memory, and copies it there if it lies
// elsewhere.
func (b *Batch) put(data []byte) (at wire.Piece, ok bool) {
	if len(data) < minShared {
		return at, false
	}
	if at, ok = b.give(data); ok {
		return at, true
	}
	if at, ok = b.pass(data); ok {
		return at, true
	}
	there := b.region(len(data))
	if there == nil {
		return at, false
	}
	copy(there, data)
	return b.give(there)
}

// give hands the region that has exactly these bytes to the server.
func (b *Batch) give(data []byte) (at wire.Piece, ok bool) {
	for i, r := range b.regions {
		if unsafe.SliceData(r.data) == unsafe.SliceData(data) && len(r.data) == len(data) {
			b.regions = append(b.regions[:i], b.regions[i+1:]...)
			return wire.Piece{Segment: r.mapping.number, Offset: r.mapping.writer.Offset(data),
				Size: int64(len(data))}, true
		}
	}
	return at, false
}

// pass finds an output within an input, which the server has already.
func (b *Batch) pass(data []byte) (at wire.Piece, ok bool) {
	for i := range b.header.Inputs {
		in := b.header.Inputs[i].At
		if len(in) != 3 {
			continue
		}
		s := b.hold(int64(in[0]))
		if s == nil {
			continue
		}
		at, begin := unsafe.Pointer(unsafe.SliceData(data)), unsafe.Pointer(unsafe.SliceData(s.mem))
		offset := int(uintptr(at) - uintptr(begin))
		if offset >= in[1] && offset+len(data) <= in[1]+in[2] {
			return wire.Piece{Segment: s.number, Offset: int64(offset), Size: int64(len(data))}, true
		}
	}
	return at, false
}

// unshare releases the shared memory of the batch.
func (b *Batch) unshare() {
	for _, r := range b.regions {
		r.mapping.writer.Put(r.data)
	}
	for _, s := range b.mappings {
		b.session.releaseMapping(s)
	}
	clear(b.regions)
	clear(b.mappings)
	b.regions, b.mappings = b.regions[:0], b.mappings[:0]
}
