package gate

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// Memory is where a door's requests get theirs, and what bounds those that come compressed. A
// kilobyte can unpack to a megabyte, so without a bound of their own a few clients with next to
// no bandwidth would hold all the memory that there is for payloads. What unpacks like ordinary
// data takes from all of it, as if it had come as it is; the rest shares a part.
//
// Its errors are answered as they are.
type Memory struct {
	Pool  *tensor.Pool
	Part  *tensor.Pool // a part of Pool, for what unpacks to more than Ratio times what has come; nil: none is set apart
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

// Get gives memory to a request.
func (m *Memory) Get(size int) (*tensor.Buffer, error) {
	b, err := m.Pool.Get(size)
	return b, m.refusal(err, 0, 0)
}

// BeginUnpacking counts an unpacker, until EndUnpacking.
func (m *Memory) BeginUnpacking() error { return m.refusal(m.Pool.Reserve(unpackerBytes), 0, 0) }

// EndUnpacking gives back what BeginUnpacking took.
func (m *Memory) EndUnpacking() { m.Pool.Unreserve(unpackerBytes) }

// GetUnpacked gives memory to a compressed request of which that many bytes have arrived. It
// has had bytes of it already, which it gives back when they are copied. It waits for a turn,
// so the caller has none.
func (m *Memory) GetUnpacked(size int, arrived int64, had int) (*tensor.Buffer, error) {
	from := m.Pool
	if m.Part != nil && int64(size) > littleUnpacked+int64(m.Ratio)*arrived {
		from = m.Part
	}
	var t Turn
	t.Take() // megabytes that are fresh have to be cleared
	b, err := from.Get(size)
	t.Give()
	return b, m.refusal(err, arrived, int64(size+had))
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

// CopyUnpacked copies src to dst as a request outgrows its memory. It waits for turns, so the
// caller has none. Copied at once, 8 MiB held a processor for up to 13 ms, and two dozen
// requests all of them.
func CopyUnpacked(dst, src []byte) {
	var t Turn
	for len(src) > 0 {
		t.Take()
		n := copy(dst, src[:min(len(src), turnBytes)])
		t.Give()
		dst, src = dst[n:], src[n:]
	}
}

// refusal is a pool's error as one of the table's. A request that takes more than the part is
// never going to fit.
func (m *Memory) refusal(err error, arrived, needs int64) error {
	switch {
	case !errors.Is(err, tensor.ErrBudget):
		return err
	case !errors.Is(err, tensor.ErrPart):
		return fmt.Errorf("%w: limits.payload_bytes: %w", scheduler.ErrOverloaded, err)
	case needs > m.Part.Budget():
		return fmt.Errorf("%w: the compressed request unpacks to more than limits.unpack_ratio, %d, times the %d bytes that came of it, and to %d or more; limits.unpack_bytes, %d, is all that such requests may take together",
			scheduler.ErrTooLarge, m.Ratio, arrived, needs, m.Part.Budget())
	}
	return fmt.Errorf("%w: limits.unpack_bytes: the compressed request unpacks to more than limits.unpack_ratio, %d, times the %d bytes that came of it: %w",
		scheduler.ErrOverloaded, m.Ratio, arrived, err)
}
