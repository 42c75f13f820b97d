package zmtp_test

import (
	"fmt"
	"testing"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/tensor"
)

// BenchmarkReceive sends a large frame over a socket and receives it.
func BenchmarkReceive(b *testing.B) {
	for _, size := range []int{602_112, 8 << 20} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			from, to := socketPair(b, "tcp", "127.0.0.1:0")
			s, c := open(b, from, to, zmtp.Config{Pool: tensor.NewPool(0)})
			var o zmtp.Outgoing
			var m zmtp.Message
			o.Frame(pattern(size))
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := c.Send(&o); err != nil {
					b.Fatal(err)
				}
				if err := s.Receive(&m); err != nil {
					b.Fatal(err)
				}
				m.Release()
			}
		})
	}
}
