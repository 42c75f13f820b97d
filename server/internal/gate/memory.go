package gate

import (
	"errors"
	"fmt"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/capacity"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/unfinished"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Limits are the bounds of one request, the same for every door and protocol.
type Limits = shiva.Limits

// Memory supplies a door's requests with buffers, and bounds compressed requests. A kilobyte can
// unpack to a megabyte, so without a separate bound a few clients with little bandwidth could take
// all memory for payloads. A request that unpacks at the ratio of ordinary data may use all of the
// pool, as if it had been sent uncompressed; the other compressed requests share a part.
//
// Its errors can be sent to clients as they are.
type Memory struct {
	Pool *tensor.Pool
	// Part is a part of Pool, for requests that unpack to more than Ratio times their size; nil:
	// none.
	Part  *tensor.Pool
	Ratio int
	// Room is of Pool, for requests that are arriving; nil: all of it.
	Room *unfinished.Room
}

const (
	// unpackerBytes is what an unpacker itself takes: the window and the tables of deflate, and its
	// input and output buffers.
	unpackerBytes = 80 << 10
	// littleUnpacked is exempt from the ratio: an uncompressed request gets as much, too, before
	// its first byte has arrived.
	littleUnpacked = 64 << 10
)

// Plain returns the share of an uncompressed request. half is the request as it arrives, if it has
// begun, and bounds what the request holds until half finishes.
func (m *Memory) Plain(half *unfinished.Message) Share { return Share{memory: m, half: half} }

// Unpacked is Plain for a compressed request, of which *arrived bytes have arrived. The share is
// charged for an unpacker until Close.
func (m *Memory) Unpacked(half *unfinished.Message, arrived *int64) (Share, error) {
	s := Share{memory: m, half: half, arrived: arrived}
	return s, s.refusal(m.Pool.Reserve(unpackerBytes), 0)
}

// A Share is the memory of one request. Only the goroutine that reads the request may use it.
type Share struct {
	memory  *Memory
	half    *unfinished.Message // nil: the request has arrived
	arrived *int64              // nil: the request is not compressed
}

// Close returns the memory that the share itself takes. Its buffers stay valid.
func (s Share) Close() {
	if s.arrived != nil {
		s.memory.Pool.Unreserve(unpackerBytes)
	}
}

// StageFactor is the growth factor of the memory for a body, see [tensor.Stage]. It is low for a
// compressed body: that an eighth of it has arrived does not mean that the rest will.
func (s Share) StageFactor() int {
	if s.arrived != nil {
		return 2
	}
	return tensor.StageFactor
}

// Hold bounds n bytes of ordinary memory for a request that is arriving.
func (s Share) Hold(n int) error { return s.half.Add(int64(n)) }

// Get returns a buffer of size bytes.
func (s Share) Get(size int) (*tensor.Buffer, error) { return s.Grow(nil, 0, size) }

// Grow is [tensor.Pool.Grow]. For a compressed request it takes a slot to get memory, and to fill
// each piece of it, so the caller must hold none. Copying all at once kept a processor busy for up
// to 13 ms per 8 MiB, and two dozen requests kept all of them busy.
func (s Share) Grow(b *tensor.Buffer, n, size int) (*tensor.Buffer, error) {
	m := s.memory
	more := int64(size)
	if b != nil {
		more -= int64(len(b.Bytes()))
	}
	if err := s.half.Add(more); err != nil {
		return nil, err
	}
	if s.arrived == nil {
		b, err := m.Pool.Grow(b, n, size)
		return b, s.refusal(err, 0)
	}
	from := m.Pool
	if m.Part != nil && int64(size) > littleUnpacked+int64(m.Ratio)**s.arrived {
		from = m.Part
	}
	var slot Slot
	slot.Take() // fresh megabytes have to be cleared
	larger, err := from.Get(size)
	slot.Give()
	if b == nil {
		return larger, s.refusal(err, size)
	}
	if err != nil {
		return nil, s.refusal(err, len(b.Bytes())+size)
	}
	dst, src := larger.Bytes(), b.Bytes()[:n]
	for len(src) > 0 {
		slot.Take()
		n := copy(dst, src[:min(len(src), slotBytes)])
		slot.Give()
		dst, src = dst[n:], src[n:]
	}
	b.Release()
	return larger, nil
}

// slots limits how many requests unpack at once: half of the processors, so that the other half is
// free. A request of kilobytes can mean hundreds of milliseconds of unpacking. Two dozen such
// requests took every processor in slices of 10 ms, and a small request alongside them took 50 to
// 800 ms.
var slots = make(chan struct{}, max(1, capacity.Processors()/2))

// A Slot is a request's permission to unpack. The request takes one for each piece, of some 0.1 ms,
// and returns it while it waits for its client.
type Slot struct{ has bool }

// Take waits for a slot, until each request before it has unpacked one piece.
func (s *Slot) Take() {
	slots <- struct{}{}
	s.has = true
}

// Give returns the slot. It reports whether one was held.
func (s *Slot) Give() bool {
	had := s.has
	if had {
		s.has = false
		<-slots
	}
	return had
}

// slotBytes is how much is copied with one slot: some 0.1 ms in memory that is new to the process.
const slotBytes = 128 << 10

// refusal turns a pool's error into one of the table of errors. needs is the size of the request: a
// request larger than the part never fits.
func (s Share) refusal(err error, needs int) error {
	m := s.memory
	switch {
	case !errors.Is(err, tensor.ErrBudget):
		return err
	case !errors.Is(err, tensor.ErrPart):
		return fmt.Errorf("%w: limits.payload_bytes: %w", scheduler.ErrOverloaded, err)
	case int64(needs) > m.Part.Budget():
		return fault.TooLarge("the compressed request unpacks to more than limits.unpack_ratio, %d, times the %d bytes of it that have arrived, and needs %d bytes or more; limits.unpack_bytes, %d, is the limit for all such requests together",
			m.Ratio, *s.arrived, needs, m.Part.Budget())
	}
	return fmt.Errorf("%w: limits.unpack_bytes: the compressed request unpacks to more than limits.unpack_ratio, %d, times the %d bytes of it that have arrived: %w",
		scheduler.ErrOverloaded, m.Ratio, *s.arrived, err)
}
