package server

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// A load has clients that keep a model busy: each asks again as soon as it is answered, and no
// request may fail.
type load struct {
	answered atomic.Int64
	version  atomic.Value // of the model, in the last answer
	// stop returns when the last requests are answered. Call it before closing anything that they
	// need.
	stop func()
}

// keepBusy starts a load with the given number of clients. The model takes two int32.
func keepBusy(t *testing.T, s *Server, model string, many int) *load {
	t.Helper()
	l := &load{}
	var clients sync.WaitGroup
	end := make(chan struct{})
	l.stop = sync.OnceFunc(func() {
		close(end)
		clients.Wait()
	})
	for range many {
		clients.Go(func() {
			c, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			x, _ := tensor.FromSlice(tensor.Shape{2}, []int32{1, 2})
			for {
				select {
				case <-end:
					return
				default:
				}
				// Not the context of the test, which ends before the load does.
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				m, err := c.Do(ctx, &shiva.Message{Namespace: model, Tensors: []tensor.Tensor{x}})
				cancel()
				if err != nil {
					t.Errorf("a client of %s: %v", model, err)
					return
				}
				l.version.Store(strings.Trim(string(jsonscan.Field(m.Metadata, "model_version")), `"`))
				m.Release()
				l.answered.Add(1)
			}
		})
	}
	return l
}
