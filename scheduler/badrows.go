package scheduler

import "math"

// badRows is how often batches fail for a row in them. Each such failure costs a batch for
// every doubling of the rows until the bad one is found, and while that lasts the others wait.
// So where bad rows are frequent smaller batches serve more: with one in a hundred, deadlines
// of 200 ms and 700 rows a second, 0.78 of the others without this, 0.88 with it. Where fewer
// batches fail than may, it bounds nothing.
//
// It is of the last batches, not rows or seconds: at the smallest sizes, where it sees least,
// it forgets as fast, so that batches are large again some 200 after the last bad row.
type badRows struct {
	rows, failures float64 // in batches of waiting rows, retries apart, with forgetting
}

const (
	badShare  = 0.3 // of the batches may fail
	badForget = 1 - 1.0/64
	badDoubt  = 200 // rows that are taken to have gone well before any were seen
)

// batch notes one that was answered or failed.
func (b *badRows) batch(rows int, failed bool) {
	b.rows = b.rows*badForget + float64(rows)
	b.failures *= badForget
	if failed {
		b.failures++
	}
}

// excuse takes back a failure that was not a row's.
func (b *badRows) excuse() { b.failures = max(0, b.failures-1) }

// most bounds a batch so that no larger share of them fails.
func (b *badRows) most() int {
	return int(min(max(1, badShare*(b.rows+badDoubt)/max(b.failures, badShare)), math.MaxInt32))
}
