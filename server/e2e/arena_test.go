//go:build e2e

package e2e

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

// Large tensors go to a container in Python and back through shared memory, unless it is off; the
// answers are right, even if rows of several requests are combined. The model reports whether its
// input was in shared memory (1), and whether it had shared memory for outputs (2).
func TestE2EPythonArena(t *testing.T) {
	for _, tt := range []struct {
		config string
		shared int64
	}{{"", 3}, {"[containers]\narena = false\n", 0}} {
		s := start(t, tt.config)
		s.script("busy_models.py", s.containers, "shared")
		s.waitReplicas("shared", 1)
		c := s.client()
		var asks sync.WaitGroup
		var shared atomic.Int64
		for n := range 8 {
			asks.Go(func() {
				for k := range 8 {
					data := bytes.Repeat([]byte{byte(n), byte(k), 1, 2}, 200_000)
					x, err := tensor.New(tensor.Uint8, tensor.Shape{1, len(data)}, data)
					if err != nil {
						t.Error(err)
						return
					}
					m, err := ask(t, c, "shared", x)
					if err != nil {
						t.Error(err)
						return
					}
					if where, err := tensor.Values[int64](m.Tensors[1]); err != nil {
						t.Error(err)
					} else {
						shared.Or(where[0])
					}
					if !bytes.Equal(m.Tensors[0].Data, data) {
						t.Errorf("request %d of client %d: other bytes came back", k, n)
					}
					m.Release()
				}
			})
		}
		asks.Wait()
		if shared.Load() != tt.shared {
			t.Errorf("with %q: shared %d, expected %d", tt.config, shared.Load(), tt.shared)
		}
	}
}
