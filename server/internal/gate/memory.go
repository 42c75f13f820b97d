package gate

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Limits are those of one request, whatever door it comes through and whatever protocol has it.
type Limits = shiva.Limits

// Memory is where a door's requests get theirs, and what bounds those that come compressed. A
// kilobyte can unpack to a megabyte, so without a bound of their own a few clients with next to
// no bandwidth would hold all the memory that there is for payloads. What unpacks like ordinary
// data takes from all of it, as if it had come as it is; the rest shares a part.
//
// Its errors are answered as they are.
type Memory struct {
	Pool *tensor.Pool
	// Part is a part of Pool, for what unpacks to more than Ratio times what has come; nil: none.
	Part  *tensor.Pool
	Ratio int
}

const (
	// unpackerBytes is what an unpacker itself holds: the window of deflate, its tables, and
	// the buffers before and after it.
	unpackerBytes = 80 << 10
	// littleUnpacked needs no ratio: a request that is not compressed has as much before a byte
	// of it has arrived.
	littleUnpacked = 64 << 10
)

// Plain is the share of a request that is not compressed.
func (m *Memory) Plain() Share { return Share{memory: m} }

// Unpacked is the share of a compressed request, of which *arrived bytes have arrived. It counts
// an unpacker until Close.
func (m *Memory) Unpacked(arrived *int64) (Share, error) {
	s := Share{memory: m, arrived: arrived}
	return s, s.refusal(m.Pool.Reserve(unpackerBytes), 0)
}

// A Share is the memory of one request. It belongs to the goroutine that reads the request.
type Share struct {
	memory  *Memory
	arrived *int64 // nil: the request is not compressed
}

// Close gives back what the share itself takes. Buffers of it live on.
func (s Share) Close() {
	if s.arrived != nil {
		s.memory.Pool.Unreserve(unpackerBytes)
	}
}

// StageFactor is by how much the memory of a body of the request grows, see [tensor.Stage]. An
// eighth of what is compressed is no sign that the rest comes.
func (s Share) StageFactor() int {
	if s.arrived != nil {
		return 2
	}
	return tensor.StageFactor
}

// Get returns a buffer of size bytes.
func (s Share) Get(size int) (*tensor.Buffer, error) { return s.Grow(nil, 0, size) }

// Grow is [tensor.Pool.Grow]. A compressed request gets and fills memory in turns, so its caller
// has none. Copied at once, 8 MiB held a processor for up to 13 ms, and two dozen requests all of
// them.
func (s Share) Grow(b *tensor.Buffer, n, size int) (*tensor.Buffer, error) {
	m := s.memory
	if s.arrived == nil {
		b, err := m.Pool.Grow(b, n, size)
		return b, s.refusal(err, 0)
	}
	from := m.Pool
	if m.Part != nil && int64(size) > littleUnpacked+int64(m.Ratio)**s.arrived {
		from = m.Part
	}
	var turn Turn
	turn.Take() // megabytes that are fresh have to be cleared
	larger, err := from.Get(size)
	turn.Give()
	if b == nil {
		return larger, s.refusal(err, size)
	}
	if err != nil {
		return nil, s.refusal(err, len(b.Bytes())+size)
	}
	dst, src := larger.Bytes(), b.Bytes()[:n]
	for len(src) > 0 {
		turn.Take()
		n := copy(dst, src[:min(len(src), turnBytes)])
		turn.Give()
		dst, src = dst[n:], src[n:]
	}
	b.Release()
	return larger, nil
}

// turns are for those who unpack: half of the processors do, at most, so that the other half is
// there for others. A request of kilobytes is hundreds of milliseconds of unpacking, and two
// dozen of them had every processor in turns of 10 ms: a small request beside them took 50 to
// 800 ms.
var turns = make(chan struct{}, max(1, runtime.NumCPU()/2))

// A Turn is a request's at unpacking: it takes one for each piece, of some 0.1 ms, and gives it
// up while it waits for its client.
type Turn struct{ has bool }

// Take waits for a turn, which comes when those before have unpacked a piece each.
func (t *Turn) Take() {
	turns <- struct{}{}
	t.has = true
}

// Give ends the turn. It reports whether there was one.
func (t *Turn) Give() bool {
	had := t.has
	if had {
		t.has = false
		<-turns
	}
	return had
}

// turnBytes is how much is copied in a turn: some 0.1 ms where the memory is new to the process.
const turnBytes = 128 << 10

// refusal is a pool's error as one of the table's. The request needs that many bytes at once, and
// one that needs more than the part is never going to fit.
func (s Share) refusal(err error, needs int) error {
	m := s.memory
	switch {
	case !errors.Is(err, tensor.ErrBudget):
		return err
	case !errors.Is(err, tensor.ErrPart):
		return fmt.Errorf("%w: limits.payload_bytes: %w", scheduler.ErrOverloaded, err)
	case int64(needs) > m.Part.Budget():
		return fmt.Errorf("%w: the compressed request unpacks to more than limits.unpack_ratio, %d, times the %d bytes of it that have arrived, and to %d or more; limits.unpack_bytes, %d, is all that such requests may take together",
			scheduler.ErrTooLarge, m.Ratio, *s.arrived, needs, m.Part.Budget())
	}
	return fmt.Errorf("%w: limits.unpack_bytes: the compressed request unpacks to more than limits.unpack_ratio, %d, times the %d bytes of it that have arrived: %w",
		scheduler.ErrOverloaded, m.Ratio, *s.arrived, err)
}
