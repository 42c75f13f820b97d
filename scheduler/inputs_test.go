package scheduler_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestModelWithoutInputs: requests to a model without inputs form batches as others do, of one row
// each. Each gets its own row of the outputs, and one that fails fails alone.
func TestModelWithoutInputs(t *testing.T) {
	y := []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1}}}
	for name, c := range map[string]struct {
		batching scheduler.Batching
		rows     []int // of each batch, failed ones included
	}{
		"batched":     {scheduler.BatchingUnsaid, []int{1, 3}},
		"declared":    {scheduler.BatchingRows, []int{1, 3}},
		"not batched": {scheduler.BatchingNone, []int{1, 1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{Strategy: "static"}})
			spec := scheduler.Spec{Outputs: y, Batching: c.batching}
			if c.batching == scheduler.BatchingNone {
				spec.Outputs = []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{}}}
			}
			var rows []int
			w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0)}
			w.Model = func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
				rows = append(rows, b.Rows)
				values := make([]uint8, b.Rows)
				var failed []scheduler.RowError
				for i, p := range b.Parts {
					if len(p.Inputs) != 0 || p.Rows != 1 {
						t.Errorf("part %d has %d inputs and %d rows", i, len(p.Inputs), p.Rows)
					}
					if values[i] = p.Parameters[1]; values[i] == 'c' {
						failed = append(failed, scheduler.RowError{Row: i, Message: "no c"})
					}
				}
				out, err := tensor.FromSlice(tensor.Shape{b.Rows}, values)
				return []tensor.Tensor{out}, failed, err
			}
			model := addTo(t, s, benchID, spec, w).Model()
			if got := spec.Batched(); got != (c.batching != scheduler.BatchingNone) {
				t.Errorf("batched: %v", got)
			}
			var requests []*scheduler.Request
			done := 0
			for _, p := range "abcd" {
				r := &scheduler.Request{Model: model, Rows: 1, Parameters: []byte{'{', byte(p), '}'}}
				r.Owner = ownerFunc(func(*scheduler.Request) { done++ })
				requests = append(requests, r)
				s.Submit(r)
			}
			for done < len(requests) && clock.Step() {
			}
			if !slices.Equal(rows, c.rows) {
				t.Errorf("batches of %v rows, want %v", rows, c.rows)
			}
			for i, r := range requests {
				switch {
				case i == 2 && errors.Is(r.Err, scheduler.ErrContainerFailed):
				case i == 2 || r.Err != nil || len(r.Outputs) != 1 || !slices.Equal(r.Outputs[0].Data, []byte{"abcd"[i]}):
					t.Errorf("request %d: %v, %v", i, r.Outputs, r.Err)
				}
			}
			x := rowOf(t, 1)
			if r := ask(t, s, clock, &scheduler.Request{Model: model, Rows: 1, Inputs: x}); !errors.Is(r.Err,
				scheduler.ErrInvalidInput) {
				t.Errorf("a request with an input: %v", r.Err)
			}
		})
	}
}
