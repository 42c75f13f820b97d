package rest

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// megabytes returns rows of a megabyte each, in JSON of half that size.
func megabytes(rows int) string {
	return fmt.Sprintf(`{"inputs":[{"name":"input0","datatype":"FP32","shape":[%d,262144],"data":[%s1]}]}`, rows,
		strings.Repeat("1,", rows<<18-1))
}

var megabyteSpec = spec(tensor.Spec{Name: "input0", DType: tensor.Float32, Shape: tensor.Shape{-1, 1 << 18}})

// halfSent returns a gzip body without its end that begins with n spaces.
func halfSent(t testing.TB, n int) string {
	t.Helper()
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if _, err := w.Write(bytes.Repeat([]byte(" "), n)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Clients that send kilobytes that unpack to megabytes share a part of the memory, whether their
// bodies end or not, and other clients lose none of theirs.
func TestUnpackedSharesAPart(t *testing.T) {
	const budget = 64 << 20
	pool := tensor.NewPool(budget)
	part := pool.Part(16 << 20)
	r := newRig(t, func(c *Config) { c.Memory = gate.Memory{Pool: pool, Part: part, Ratio: 32} })
	w := new(schedtest.Worker)
	r.Model("held", megabyteSpec, w)
	r.Model("m", megabyteSpec, scheduler.WorkerFunc(r.Echo))

	bomb := halfSent(t, 3<<19)
	var conns []net.Conn
	for len(conns) < 7 { // one after the other: together they would keep each other from growing
		conns = append(conns,
			r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n",
				inferM, len(bomb), bomb)))
		budgettest.Until(t, "a client to have the memory of its body", func() bool {
			return part.InUse() == int64(len(conns))<<21
		})
	}
	// Admitted requests keep their memory until they end.
	if used, most := pool.InUse(), part.Budget()+int64(len(conns))*(128<<10); used > most {
		t.Errorf("%d clients that sent %d bytes each hold %d bytes, more than %d", len(conns), len(bomb), used, most)
	}
	four, eight := packed(t, "gzip", megabytes(4)), packed(t, "gzip", megabytes(8))
	r.refused(r.ask("POST", inferM, four, "Content-Encoding: gzip"), 429, "overloaded", "limits.unpack_bytes", "limits.unpack_ratio, 32")
	if a := r.ask("POST", inferM, megabytes(2)); a.status != 200 {
		t.Errorf("a plain request: %.300v", a)
	}
	rnd := rand.NewChaCha8([32]byte{})
	noise := make([]byte, 4<<20)
	_, _ = io.ReadFull(rnd, noise)
	head := fmt.Sprintf(`{"parameters":{"binary_data_output":true},"inputs":[{"name":"input0","datatype":"FP32","shape":[%d,262144],"parameters":{"binary_data_size":%d}}]}`,
		len(noise)>>20, len(noise))
	if a := r.ask("POST", inferM, packed(t, "gzip", head+string(noise)), "Content-Encoding: gzip",
		fmt.Sprintf("Inference-Header-Content-Length: %d", len(head))); a.status != 200 {
		t.Errorf("a compressed request that unpacks to little more: %.300v", a)
	}
	for _, c := range conns {
		c.Close()
	}
	budgettest.Until(t, "the memory to come back", func() bool { return pool.InUse() == 0 })

	// The tensors of complete requests count as long as they exist.
	done := make(chan answer, 1)
	go func() {
		a, _ := r.try("POST", "/v2/models/held/infer", bytes.NewReader([]byte(eight)), "Content-Encoding: gzip")
		done <- a
	}()
	budgettest.Until(t, "a request to be at its container", func() bool { return len(w.Pending()) == 1 })
	r.refused(r.ask("POST", inferM, eight, "Content-Encoding: gzip"), 429, "limits.unpack_bytes")
	budgettest.Until(t, "its answer", func() bool {
		_ = w.Answer() // batch by batch
		return len(done) > 0
	})
	budgettest.Until(t, "the memory to come back", func() bool { return pool.InUse() == 0 })
	if a := r.ask("POST", inferM, four, "Content-Encoding: gzip"); a.status != 200 {
		t.Errorf("afterwards: %.300v", a)
	}
	// A body larger than the part never fits, so its client is not told to retry.
	pool = tensor.NewPool(budget)
	r = newRig(t, func(c *Config) { c.Memory = gate.Memory{Pool: pool, Part: pool.Part(1 << 20), Ratio: 32} })
	r.Model("m", megabyteSpec, scheduler.WorkerFunc(r.Echo))
	r.refused(r.ask("POST", inferM, four, "Content-Encoding: gzip"), 413, "limits.unpack_bytes, 1048576", "limits.unpack_ratio, 32")
}

// An unpacker takes more memory than the request that makes one, and counts from its first byte; a
// client that sends nothing holds no turn.
func TestUnpackersCount(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	var conns []net.Conn
	const clients = 20
	for range clients {
		conns = append(conns,
			r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\na\r\n%s\r\n",
				inferM, halfSent(t, 1)[:10])))
	}
	budgettest.Until(t, "all to have begun", func() bool { return r.Pool.InUse() >= clients*(64<<10) })
	began := time.Now()
	if a := r.ask("POST", inferM, packed(t, "gzip", fp32(1, "")), "Content-Encoding: gzip"); a.status != 200 ||
		time.Since(began) > 5*time.Second {
		t.Errorf("after %v beside %d that stand still: %v", time.Since(began), clients, a)
	}
	for _, c := range conns {
		c.Close()
	}
}
