package scheduler_test

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestBucketOfSplitRequest: when the last waiting rows of a shape leave the queue, and those that
// did not fit the batch return, they return to the bucket of the next rows of that shape, however
// many shapes there have been.
func TestBucketOfSplitRequest(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{MaxBatch: 1, Slots: 1}})
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
	w := &schedtest.Worker{}
	rep := addTo(t, s, benchID, scheduler.Spec{Inputs: x, Outputs: x}, w)
	submit := func(rows, width int, within time.Duration) {
		in, err := tensor.FromSlice(tensor.Shape{rows, width}, make([]uint8, rows*width))
		if err != nil {
			t.Fatal(err)
		}
		r := &scheduler.Request{Model: rep.Model(), Inputs: []tensor.Tensor{in}, Rows: rows,
			Owner: ownerFunc(func(*scheduler.Request) {})}
		if within > 0 {
			r.Deadline = clock.Now().Add(within)
		}
		s.Submit(r)
	}
	for width := range 100 {
		submit(1, width+1, 0)
		clock.Advance(10 * time.Millisecond)
		if err := w.Answer(); err != nil {
			t.Fatal(err)
		}
	}
	submit(3, 200, 5*time.Millisecond) // will be late, but an idle replica gets them
	if got := w.Pending(); len(got) != 1 || got[0] != 1 {
		t.Fatalf("batches of %v rows were sent, want one of one", got)
	}
	if err := rep.Model().Check(); err != nil {
		t.Error(err)
	}
}

// TestMixedRows: rows of different shapes share a batch if the replica declares that it sends each
// row by itself, and only then.
func TestMixedRows(t *testing.T) {
	for mixed, want := range map[bool]int{false: 1, true: 2} {
		s, _ := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{MaxBatch: 8, Slots: 1, Strategy: "static"}})
		w := &schedtest.Worker{}
		rep := addTo(t, s, benchID, scheduler.Spec{
			Inputs:    []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}},
			Outputs:   []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1}}},
			MixedRows: mixed,
		}, w)
		var requests []*scheduler.Request
		for width := range 2 {
			in := tensor.Tensor{DType: tensor.Uint8, Shape: tensor.Shape{1, width + 1}, Data: make([]byte, width+1)}
			requests = append(requests,
				&scheduler.Request{Model: rep.Model(), Inputs: []tensor.Tensor{in}, Rows: 1,
					Owner: ownerFunc(func(*scheduler.Request) {})})
		}
		s.Submit(requests...)
		if got := w.Pending(); len(got) != 1 || got[0] != want {
			t.Errorf("mixed %v: batches of %v rows were sent, want one of %d", mixed, got, want)
		}
	}
}
