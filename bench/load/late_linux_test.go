//go:build !poll

package load

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// Lateness counts from the request's own deadline to the server's write; an answer in time is not
// late. Slots and Pieces each count every request of the measured time once.
func TestLate(t *testing.T) {
	const delay, early, far = 30 * time.Millisecond, 10 * time.Millisecond, time.Minute
	addr := serve(t, func(c net.Conn) {
		p := make([]byte, len(small))
		for {
			if _, err := io.ReadFull(c, p); err != nil {
				return
			}
			time.Sleep(delay)
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	})
	r, err := Run(t.Context(),
		Config{Addr: addr, Frames: [][]byte{small, small}, Deadlines: []time.Duration{early, far}, Conns: 40,
			Rate: 400, Even: true, Duration: 500 * time.Millisecond, Within: far, Piece: 120 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	all := r.Latency.Count()
	if late := r.Late.Count(); all != 199 || late < all/2-1 || late > all/2+1 || r.LateRead.Count() != late {
		t.Errorf("%d answers, %d of them late, want 199 and half of them", all, late)
	}
	if least := r.Late.Quantile(0); least < delay-early {
		t.Errorf("late by %v at least, want %v", least, delay-early)
	}
	// The two times are read from different clocks.
	if written, read := r.Late.Mean(), r.LateRead.Mean(); read+time.Millisecond < written {
		t.Errorf("read %v after the deadline in the mean, before it was written after %v", read, written)
	}
	due, good := 0, 0
	for _, s := range r.Slots {
		due += s.Due
		good += s.Good
	}
	if due != 199 || good != 199 || len(r.Slots) != int(500*time.Millisecond/SlotLength) {
		t.Errorf("%d slots with %d requests, %d good, want 10 with 199", len(r.Slots), due, good)
	}
	var pieces []int64
	for i := range r.Pieces {
		pieces = append(pieces, r.Pieces[i].Count())
	}
	if !slices.Equal(pieces, []int64{47, 48, 48, 48, 8}) {
		t.Errorf("pieces of %v requests, want 48 of each 120 ms but the first, and the rest", pieces)
	}
	if _, err := Run(t.Context(),
		Config{Addr: addr, Frames: [][]byte{small}, Deadlines: []time.Duration{early, far}}); err == nil {
		t.Error("two deadlines for one frame, and no error")
	}
}
