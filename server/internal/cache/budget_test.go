//go:build !race && !invariants

package cache

import (
	"runtime"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

// The size that an entry counts for is close to its size on the heap.
func TestEntryBytes(t *testing.T) {
	const n = 20000
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	out := []tensor.Tensor{{DType: tensor.Int32, Shape: tensor.Shape{1, 16}, Data: make([]byte, 64)}}
	for _, ttl := range []time.Duration{0, time.Hour} {
		k := New(Config{Bytes: 1 << 30, TTL: ttl, Pool: tensor.NewPool(0)})
		v := k.Version(new(metrics.Cache))
		before := heap()
		for i := range n {
			e := k.newEntry(v, out)
			k.store(key{Hi: uint64(i), Lo: uint64(i) << 32}, e)
			e.release()
		}
		took, charge := (heap()-before)/n, k.Usage().Bytes/n
		t.Logf("TTL %v: an entry takes %d bytes and counts for %d", ttl, took, charge)
		if took > charge*11/10 || took < charge*6/10 {
			t.Errorf("TTL %v: an entry takes %d bytes and counts for %d", ttl, took, charge)
		}
		k.Close()
	}
}

// tireless is a request that may be answered again and again.
type tireless struct {
	scheduler.Request
	call    Call
	answers int
}

func (q *tireless) Complete(*scheduler.Request) { q.answers++ }

func newTireless(v *Version, bytes int) *tireless {
	q := &tireless{}
	q.call.Version = v
	q.Request = scheduler.Request{
		Rows: 1, Owner: q, Deadline: time.Now().Add(time.Hour),
		Inputs: []tensor.Tensor{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1, bytes},
			Data: make([]byte, bytes)}},
	}
	return q
}

// answer completes q as a scheduler would, with 40 bytes.
func (q *tireless) answer(buf *tensor.Buffer) {
	buf.Retain()
	q.Outputs = append(q.Outputs[:0],
		tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{1, 10}, Data: buf.Bytes(), Buf: buf})
	q.Owner.Complete(&q.Request)
}

func (q *tireless) release() {
	for i := range q.Outputs {
		q.Outputs[i].Release()
	}
}

func TestHitAllocatesNothing(t *testing.T) {
	pool := tensor.NewPool(0)
	k := New(Config{Bytes: 1 << 20, Pool: pool})
	defer k.Close()
	q := newTireless(k.Version(new(metrics.Cache)), 256)
	buf, err := pool.Get(40)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Release()
	if q.call.Find(&q.Request, time.Now()) {
		t.Fatal("found")
	}
	q.answer(buf)
	q.release()
	if n := testing.AllocsPerRun(1000, func() {
		if !q.call.Find(&q.Request, time.Now()) {
			t.Fatal("not found")
		}
		q.release()
	}); n != 0 {
		t.Errorf("a hit makes %v allocations", n)
	}
}

// A miss and the storing of its answer: the flight, the entry with its outputs and their shapes,
// and the table's node for it.
func TestMissAllocatesLittle(t *testing.T) {
	const most = 8
	pool := tensor.NewPool(0)
	k := New(Config{Bytes: 1 << 20, Pool: pool})
	defer k.Close()
	q := newTireless(k.Version(new(metrics.Cache)), 256)
	buf, err := pool.Get(40)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Release()
	i := 0
	if n := testing.AllocsPerRun(5000, func() {
		i++
		q.Inputs[0].Data[0], q.Inputs[0].Data[1] = byte(i), byte(i>>8)
		if q.call.Find(&q.Request, time.Now()) {
			t.Fatal("found")
		}
		q.answer(buf)
		q.release()
	}); n > most {
		t.Errorf("a miss makes %v allocations, want at most %d", n, most)
	} else {
		t.Logf("a miss makes %v allocations", n)
	}
}
