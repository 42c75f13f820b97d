package scheduler

import (
	"fmt"
	"strings"

	"github.com/shivad/shivad/shiva/tensor"
)

// A Worker carries batches to one replica of a model. Containers' sessions are workers; so is any function
// (see [WorkerFunc]).
//
// Send must not block. After nil the worker owns the batch and must call [Batch.Complete] or [Batch.Fail]
// on it exactly once, from any goroutine, possibly before Send returns. After an error it must not touch
// the batch again: the replica is taken for lost, as by [Replica.Remove].
//
// Send is called with no lock held, from whichever goroutine submitted a request or answered a batch, and
// by several at once.
type Worker interface {
	Send(b *Batch) error
}

// A WorkerFunc is a function as a Worker.
type WorkerFunc func(b *Batch) error

// Send calls f.
func (f WorkerFunc) Send(b *Batch) error { return f(b) }

// A Spec is what a replica declares of its model.
type Spec struct {
	Inputs, Outputs []tensor.Spec
	MaxBatch        int    // most rows it takes at once; 0: it does not say
	Platform        string // free text: onnxruntime, pytorch
	Parameters      []byte // JSON object, free

	// Flat is a container of the legacy protocols: its rows are flat vectors of one dtype, each of any
	// length, so that rows of different lengths share batches; its output is one Bytes text per row.
	Flat bool
}

// Batched tells whether the model takes more than one row at once: whether every declared input and output
// has -1 for its first dimension. A model that does not takes one request of one row per batch, with a
// leading dimension of 1 in the scheduler that the container does not see.
func (s Spec) Batched() bool {
	if s.Flat {
		return true
	}
	for _, io := range [][]tensor.Spec{s.Inputs, s.Outputs} {
		for _, t := range io {
			if len(t.Shape) == 0 || t.Shape[0] != -1 {
				return false
			}
		}
	}
	return true
}

// check tells whether a model can be served as declared.
func (s Spec) check() error {
	if s.MaxBatch < 0 {
		return fmt.Errorf("maximum batch %d is negative", s.MaxBatch)
	}
	if len(s.Inputs) == 0 {
		return fmt.Errorf("it declares no inputs")
	}
	batched := 0
	for _, io := range [][]tensor.Spec{s.Inputs, s.Outputs} {
		for _, t := range io {
			if !t.DType.Valid() {
				return fmt.Errorf("tensor %q has an unknown dtype %s", t.Name, t.DType)
			}
			for _, d := range t.Shape {
				if d < -1 {
					return fmt.Errorf("tensor %q has shape %s: a dimension is -1 (any) or its size", t.Name, t.Shape)
				}
			}
			if len(t.Shape) > 0 && t.Shape[0] == -1 {
				batched++
			}
		}
	}
	if n := len(s.Inputs) + len(s.Outputs); batched != 0 && batched != n {
		return fmt.Errorf("%d of its %d inputs and outputs have -1 as first dimension: all or none must (%s)", batched, n, s)
	}
	return nil
}

// sameContract tells whether clients see the same model. Platform, maximum batch and parameters may differ
// between replicas: one may have a GPU and another none.
func (s Spec) sameContract(o Spec) bool {
	return s.Flat == o.Flat && sameSpecs(s.Inputs, o.Inputs) && sameSpecs(s.Outputs, o.Outputs)
}

func sameSpecs(a, b []tensor.Spec) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].DType != b[i].DType || !a[i].Shape.Equal(b[i].Shape) {
			return false
		}
	}
	return true
}

// String is the contract in words: inputs image uint8 [-1, 8, 8]; outputs label int64 [-1].
func (s Spec) String() string {
	var b strings.Builder
	list := func(word string, ts []tensor.Spec) {
		b.WriteString(word)
		for i, t := range ts {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, " %s %s %s", t.Name, t.DType, t.Shape)
		}
	}
	list("inputs", s.Inputs)
	list("; outputs", s.Outputs)
	if s.Flat {
		b.WriteString("; flat rows")
	}
	return b.String()
}
