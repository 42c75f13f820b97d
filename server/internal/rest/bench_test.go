package rest

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// question is an HTTP request for a model that takes rows of the shape.
func question(shape tensor.Shape, inJSON bool) []byte {
	count, _ := shape.Elements()
	dims := strings.Trim(shape.String(), "[]")
	if inJSON {
		data := []byte("[1,2,3,4]")
		if count > 4 {
			data = imageText(32)
		}
		body := fmt.Sprintf(`{"inputs":[{"name":"input0","datatype":"FP32","shape":[1,%s],"data":%s}],"parameters":{"binary_data_output":true}}`,
			dims, data)
		return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", inferM, len(body), body)
	}
	head := fmt.Sprintf(`{"inputs":[{"name":"input0","datatype":"FP32","shape":[1,%s],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`,
		dims, 4*count)
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n%s%s",
		inferM, len(head)+4*count, len(head), head, make([]byte, 4*count))
}

// bare is a client that does as little as it can, with a model that answers at once with the
// input's own memory.
type bare struct {
	net.Conn
	in *bufio.Reader
}

func (r *rig) bare(shape tensor.Shape) *bare {
	r.T.Helper()
	r.Model("m", spec(tensor.Spec{Name: "input0", DType: tensor.Float32, Shape: append(tensor.Shape{-1}, shape...)}),
		scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			outputs := []tensor.Tensor{b.Parts[0].Inputs[0]}
			outputs[0].Retain()
			b.Complete(outputs, nil)
			return nil
		}))
	c, err := net.Dial("tcp", r.door.Addrs()[0].String())
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { c.Close() })
	return &bare{c, bufio.NewReaderSize(c, 64<<10)}
}

// ask sends a request, and reads the answer without looking at it.
func (c *bare) ask(request []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	length, status := 0, 0
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if status == 0 {
			if _, err := fmt.Sscanf(string(line), "HTTP/1.1 %d", &status); err != nil || status != 200 {
				return fmt.Errorf("%s (%v)", line, err)
			}
		}
		if n, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if _, err := fmt.Sscan(string(n), &length); err != nil {
				return err
			}
		}
		if len(line) == 2 {
			_, err := c.in.Discard(length)
			return err
		}
	}
}

var (
	picture = tensor.Shape{3, 224, 224}
	four    = tensor.Shape{4}
)

// BenchmarkInfer asks over a socket for 3x224x224 floats and for four of them, in binary, in JSON,
// and in JSON compressed with gzip. The client shares the machine.
func BenchmarkInfer(b *testing.B) {
	for _, shape := range []tensor.Shape{picture, four} {
		for _, form := range []string{"binary", "json", "gzip"} {
			count, _ := shape.Elements()
			b.Run(fmt.Sprintf("%d/%s", count, form), func(b *testing.B) {
				request := question(shape, form != "binary")
				if form == "gzip" {
					_, body, _ := bytes.Cut(request, []byte("\r\n\r\n"))
					text := packed(b, "gzip", string(body))
					request = fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s",
						inferM, len(text), text)
				}
				c := newRig(b, nil).bare(shape)
				b.SetBytes(int64(len(request)))
				b.ReportAllocs()
				for b.Loop() {
					if err := c.ask(request); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// A request's allocations do not depend on the size of its tensors, which are in memory of the
// pool. More than half of them are net/http's, and some are this client's.
func TestAllocations(t *testing.T) {
	const count, size = 90, 16 << 10
	for _, shape := range []tensor.Shape{picture, four} {
		for _, inJSON := range []bool{false, true} {
			request := question(shape, inJSON)
			c := newRig(t, nil).bare(shape)
			ask := func() {
				if err := c.ask(request); err != nil {
					t.Fatal(err)
				}
			}
			for range 5 { // fill connections, pools and profiles
				ask()
			}
			if budgettest.Race || tensor.Invariants { // both allocate themselves
				continue
			}
			rounds := uint64(max(15, budgettest.Rounds(50)))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				ask()
			}
			runtime.ReadMemStats(&after)
			// A garbage collection in between empties the pools of buffers below 32 KiB, and thins
			// out the others.
			collected := uint64(after.NumGC-before.NumGC) * uint64(len(request)+4*3*224*224)
			if n, b := (after.Mallocs-before.Mallocs)/rounds,
				(after.TotalAlloc-before.TotalAlloc-min(collected,
					after.TotalAlloc-before.TotalAlloc))/rounds; n > count || b > size {
				t.Errorf("%s, JSON %v: %d allocations of %d bytes for each request, want at most %d of %d", shape,
					inJSON, n, b, count, size)
			}
		}
	}
}
