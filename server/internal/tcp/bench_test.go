package tcp

import (
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// BenchmarkSockets compares the transports on sockets with an echo: one small request at a time,
// many at a time on several connections, and one image at a time. gnet on Unix sockets exists for
// this comparison only.
func BenchmarkSockets(b *testing.B) {
	for _, k := range []struct {
		name           string
		bytes          int
		clients, ahead int
	}{{"small", 64, 1, 1}, {"small 16x16", 64, 16, 16}, {"image", 1920 * 1080 * 3, 1, 1},
		{"image x4", 1920 * 1080 * 3, 4, 1}} {
		for _, over := range []struct {
			name string
			rig  func(testing.TB, func(*Config)) *rig
		}{{"tcp gnet", newSocketRig}, {"unix", newUnixRig}, {"unix gnet", newUnixGnetRig}} {
			b.Run(k.name+"/"+over.name, func(b *testing.B) {
				r := over.rig(b, func(c *Config) { c.OutboundBytes = 64 << 20 })
				x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, k.bytes}}}
				r.model("m", scheduler.Spec{Inputs: x, Outputs: x, Platform: "test"}, r.Echo)
				ask, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: "m", Tensors: []tensor.Tensor{
					{DType: tensor.Uint8, Shape: tensor.Shape{1, k.bytes}, Data: make([]byte, k.bytes)}}})
				if err != nil {
					b.Fatal(err)
				}
				first := r.dial()
				first.bytes(ask)
				answer, err := shiva.AppendMessage(nil, first.next())
				if err != nil {
					b.Fatal(err)
				}
				first.Close()
				var all sync.WaitGroup
				took := make([][]time.Duration, k.clients)
				b.ReportAllocs()
				b.ResetTimer()
				for i := range k.clients {
					c, n := r.dial(), max(1, b.N/k.clients/k.ahead)
					all.Go(func() { took[i] = pingPong(b, c, slices.Repeat(ask, k.ahead), len(answer)*k.ahead, n) })
				}
				all.Wait()
				b.StopTimer()
				list := slices.Concat(took...)
				slices.Sort(list)
				b.ReportMetric(float64(list[len(list)/2].Microseconds()), "p50-µs")
				b.ReportMetric(float64(len(list)*k.ahead)/b.Elapsed().Seconds(), "requests/s")
			})
		}
	}
}

// pingPong writes a request and reads the bytes of its answer, n times.
func pingPong(b *testing.B, c io.ReadWriter, ask []byte, answer, n int) (took []time.Duration) {
	in := make([]byte, answer)
	for range n {
		began := time.Now()
		if _, err := c.Write(ask); err != nil {
			b.Error(err)
			return took
		}
		if _, err := io.ReadFull(c, in); err != nil {
			b.Error(err)
			return took
		}
		took = append(took, time.Since(began))
	}
	return took
}

// newUnixGnetRig makes a rig whose Unix sockets are on gnet.
func newUnixGnetRig(t testing.TB, change func(*Config)) *rig {
	r := newUnixRig(t, change)
	e, err := newEngine(r.door, 1)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.door.carriers["unix"].stop()
	r.door.carriers["unix"] = e
	return r
}
