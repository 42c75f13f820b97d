package scheduler

import "math"

// badRows estimates how often a batch fails because of one of its rows, and bounds the batch size
// accordingly. Finding the bad row takes one more batch for every doubling of the rows, while the
// other rows wait; so where bad rows are frequent, smaller batches serve more. With one bad row in
// a hundred, deadlines of 200 ms and 700 rows/s, 0.78 of the good rows were answered without this
// bound and 0.88 are with it. Below badShare of failed batches there is no bound.
//
// Memory fades by batches, not by rows or seconds: small batches show little, yet the bound must
// fade as fast there. Batches are large again some 200 batches after the last bad row.
type badRows struct {
	rows, failures float64 // of batches from the queue, without retries, exponentially weighted
}

const (
	badShare  = 0.3 // share of the batches that may fail
	badForget = 1 - 1.0/64
	badDoubt  = 200 // good rows assumed before the first measurement
)

// batch records a batch that was answered or failed.
func (b *badRows) batch(rows int, failed bool) {
	b.rows = b.rows*badForget + float64(rows)
	b.failures *= badForget
	if failed {
		b.failures++
	}
}

// excuse withdraws a failure that no row caused.
func (b *badRows) excuse() { b.failures = max(0, b.failures-1) }

// most is the size at which badShare of the batches is expected to fail.
func (b *badRows) most() int {
	return int(min(max(1, badShare*(b.rows+badDoubt)/max(b.failures, badShare)), math.MaxInt32))
}
