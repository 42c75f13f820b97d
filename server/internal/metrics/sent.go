package metrics

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// keptBatches is how many of a model's last batches are recorded individually.
const keptBatches = 128

// A Batch is a batch that was sent to a container.
type Batch struct {
	At     time.Time // to the millisecond
	Rows   int       // at most 65535
	Closed scheduler.CloseReason
}

// sentBatches holds the last batches in one word each, so that they are written and read without a
// lock: milliseconds since 1970 in 44 bits, rows in 16 and the reason in 4.
type sentBatches struct {
	count atomic.Uint64
	ring  [keptBatches]atomic.Uint64
}

func (s *sentBatches) add(rows int, why scheduler.CloseReason) {
	word := uint64(time.Now().UnixMilli())<<20 | uint64(min(rows, math.MaxUint16))<<4 | uint64(why)
	s.ring[(s.count.Add(1)-1)%keptBatches].Store(word)
}

// Sent returns the model's last batches, the oldest first, except one that is being sent.
func (m *Model) Sent() []Batch {
	count := m.sent.count.Load()
	var list []Batch
	for n := count - min(count, keptBatches); n < count; n++ {
		if word := m.sent.ring[n%keptBatches].Load(); word != 0 { // 0: not yet written
			list = append(list,
				Batch{time.UnixMilli(int64(word >> 20)), int(word >> 4 & math.MaxUint16),
					scheduler.CloseReason(word & 15)})
		}
	}
	return list
}
