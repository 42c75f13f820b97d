//go:build !race && !invariants

// Allocations are counted where neither the race detector nor the invariants build adds its own.

package zmtp_test

import (
	"testing"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestAllocations: in the steady state neither side allocates.
func TestAllocations(t *testing.T) {
	a, b := socketPair(t, "tcp", "127.0.0.1:0")
	s, c := open(t, a, b, zmtp.Config{Pool: tensor.NewPool(1 << 30)})
	payload := pattern(100_000)
	var o zmtp.Outgoing
	var m zmtp.Message
	if n := testing.AllocsPerRun(200, func() {
		o.Reset()
		o.FrameString("batch")
		o.Frame(payload[:64])
		o.Frame(payload)
		if err := c.Send(&o); err != nil {
			t.Fatal(err)
		}
		if err := s.Receive(&m); err != nil {
			t.Fatal(err)
		}
		m.Release()
	}); n > 0 {
		t.Errorf("%v allocations for a message", n)
	}
}
