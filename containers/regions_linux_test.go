package containers_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestSharedPicture: a picture in shared memory is named by every batch that has rows of it, and is
// not copied. It stays until the last of them is answered, also if its request has been cancelled.
func TestSharedPicture(t *testing.T) {
	r, _ := newSharedRig(t, containers.Config{})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	var mu sync.Mutex
	var hold chan struct{} // nil: batches are answered at once
	batches, held := 0, 0
	go func() { // ends with ctx
		served <- container.Serve(ctx, container.Model{
			Name: "cut", Version: "1", Batched: new(true), Inputs: []tensor.Spec{cutIn}, Outputs: cutOut, MaxBatch: 2,
			Slots: 3, Concurrency: 3,
			Log: slog.New(slog.DiscardHandler),
			Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
				mu.Lock()
				batches++
				wait := hold
				if wait != nil {
					held++
				}
				mu.Unlock()
				if wait != nil {
					<-wait
				}
				values := make([]int32, b.Rows)
				cuts, _ := b.Regions(0)
				for row, of := range cuts.Of {
					picture := b.Inputs[0].Data[of*mib:][:mib]
					values[row] = int32(picture[0]) + int32(picture[mib-1])<<8
				}
				y, err := tensor.FromSlice(tensor.Shape{b.Rows}, values)
				return []tensor.Tensor{y}, err
			},
		}, r.Dialable()[0])
	}()
	r.wait(t, cutID, 1)
	ask := func(v byte) (*scheduler.Request, chan struct{}) {
		in := r.input(t, 1, v)
		in.Name, in.Shape = "image", tensor.Shape{1, 1024, 1024, 1}
		done := make(chan struct{})
		q := r.regions(t, in, 6, ownerFunc(func(q *scheduler.Request) {
			for _, out := range q.Outputs {
				if values, err := tensor.Values[int32](out); err != nil || len(values) != 6 ||
					values[5] != int32(v)<<8+int32(v) {
					t.Errorf("the answer is %v, %v", values, err)
				}
				out.Release()
			}
			in.Release()
			close(done)
		}))
		r.sched.Submit(q)
		return q, done
	}
	budgettest.Until(t, "shared memory", func() bool {
		_, done := ask(1)
		<-done
		return r.session(t).Arena != ""
	})
	mu.Lock()
	hold, batches = make(chan struct{}), 0
	mu.Unlock()
	q, done := ask(7)
	budgettest.Until(t, "three batches to be executed", func() bool { mu.Lock(); defer mu.Unlock(); return held == 3 })
	if i := r.session(t); i.Readable != 3*mib {
		t.Errorf("the container may be reading %d bytes of shared memory", i.Readable)
	}
	r.sched.Cancel(q)
	<-done
	other := r.input(t, 1, 9) // would be in the picture's place if that were free
	other.Release()
	close(hold)
	mu.Lock()
	hold = nil
	mu.Unlock()
	budgettest.Until(t, "the picture to be given back", func() bool { return r.pool.InUse() == 0 })
	stop()
	<-served
}
