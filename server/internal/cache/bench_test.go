//go:build !race && !invariants

package cache

import (
	"fmt"
	"testing"
	"time"

	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

var sizes = []int{64, 4 << 10, 256 << 10, 4 << 20}

// BenchmarkHash measures the cost of an input's key, and in the same run that of copying the input.
func BenchmarkHash(b *testing.B) {
	k := New(Config{Bytes: 1 << 20})
	defer k.Close()
	v := k.Version(new(metrics.Cache))
	for _, n := range sizes {
		q := newTireless(v, n)
		b.Run(fmt.Sprintf("size=%d", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				v.key(&q.Request, "")
			}
			hash := b.Elapsed().Seconds() / float64(b.N)
			dst := make([]byte, n)
			begun := time.Now()
			for range b.N {
				copy(dst, q.Inputs[0].Data)
			}
			b.ReportMetric(time.Since(begun).Seconds()/float64(b.N)/hash, "x-memcpy-speed")
		})
	}
}

// BenchmarkHit measures the full cost of a hit, and the part that is not hashing. (With large
// inputs the difference is lost in noise.)
func BenchmarkHit(b *testing.B) {
	for _, n := range sizes[:2] {
		b.Run(fmt.Sprintf("size=%d", n), func(b *testing.B) {
			pool := tensor.NewPool(0)
			k := New(Config{Bytes: 1 << 20, TTL: time.Hour, Pool: pool})
			defer k.Close()
			v := k.Version(new(metrics.Cache))
			q := newTireless(v, n)
			buf, err := pool.Get(40)
			if err != nil {
				b.Fatal(err)
			}
			q.call.Find(&q.Request, time.Now())
			q.answer(buf)
			q.release()
			b.SetBytes(int64(n))
			b.ReportAllocs()
			now := time.Now()
			for b.Loop() {
				if !q.call.Find(&q.Request, now) {
					b.Fatal("not found")
				}
				q.release()
			}
			hit := b.Elapsed()
			begun := time.Now()
			for range b.N {
				v.key(&q.Request, "")
			}
			b.ReportMetric(float64(hit-time.Since(begun))/float64(b.N), "ns/hit-without-hash")
		})
	}
}

// BenchmarkMiss measures what the cache adds to a request that has to be executed: the look-up,
// leading, storing the answer, and evicting another.
func BenchmarkMiss(b *testing.B) {
	pool := tensor.NewPool(0)
	k := New(Config{Bytes: 1 << 20, TTL: time.Hour, Pool: pool})
	defer k.Close()
	q := newTireless(k.Version(new(metrics.Cache)), 256)
	buf, err := pool.Get(40)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	i, now := 0, time.Now()
	for b.Loop() {
		i++
		q.Inputs[0].Data[0], q.Inputs[0].Data[1], q.Inputs[0].Data[2] = byte(i), byte(i>>8), byte(i>>16)
		q.call.Find(&q.Request, now)
		if q.Owner != q {
			q.answer(buf)
		}
		q.release()
	}
}
