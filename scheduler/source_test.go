package scheduler

import (
	"errors"
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

type ignore struct{}

func (ignore) Complete(*Request) {}

// sourcesModel is a model with one replica, which holds its batches, and a function that submits
// to it.
func sourcesModel(t *testing.T, cfg ModelConfig) (m *Model, out *[]*Batch, submit func(source uint64, rows int)) {
	s, err := New(Config{Default: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	out = new([]*Batch)
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1}}}
	keep := func(b *Batch) error { *out = append(*out, b); return nil }
	rep, err := s.AddReplica(ModelID{"m", "1"}, Spec{Inputs: x, Outputs: x}, WorkerFunc(keep), ReplicaOptions{Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	return rep.Model(), out, func(source uint64, rows int) {
		in, err := tensor.FromSlice(tensor.Shape{rows}, make([]uint8, rows))
		if err != nil {
			t.Fatal(err)
		}
		s.Submit(&Request{Model: rep.Model(), Inputs: []tensor.Tensor{in}, Rows: rows, Source: source, Owner: ignore{}})
	}
}

// TestRefusedSourcesAreForgotten: short connections under overload leave no sources behind.
func TestRefusedSourcesAreForgotten(t *testing.T) {
	m, _, submit := sourcesModel(t, ModelConfig{QueueRows: 1, MaxBatch: 1})
	for source := range uint64(3 * keepSources) {
		submit(source, 1)
	}
	if n := len(m.core.sources.byID); n > keepSources+2 {
		t.Errorf("%d sources are remembered, of which two have a request", n)
	}
}

// TestSourceOfSplitRequest: when a source's only request leaves the queue and returns with the
// rest of its rows, it still has the source of the connection's next request, however many
// sources there are.
func TestSourceOfSplitRequest(t *testing.T) {
	m, out, submit := sourcesModel(t, ModelConfig{MaxBatch: 4, Strategy: "static"})
	submit(1, 1)
	submit(1, 2)
	submit(2, 2)
	// The request is alone in its batch: it is not tried again, and the next two go together.
	(*out)[0].Fail(errors.New("in order"))
	for source := range uint64(2 * keepSources) {
		submit(10+source, 1)
	}
	if err := m.sched.Configure("m", ModelConfig{MaxBatch: 1, Strategy: "static"}); err != nil {
		t.Fatal(err)
	}
	(*out)[1].Fail(errors.New("broken")) // both are tried alone, row by row
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}
