package scheduler

import (
	"context"
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

func TestInfer(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	echo := WorkerFunc(func(b *Batch) error {
		var in []tensor.Tensor
		for _, p := range b.Parts {
			in = append(in, p.Inputs[0])
		}
		out, err := tensor.Concat(in, nil)
		if err != nil {
			return err
		}
		b.Complete([]tensor.Tensor{out}, nil)
		return nil
	})
	spec := Spec{Inputs: []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}}, Outputs: []tensor.Spec{{Name: "y", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}}}
	rep, err := s.AddReplica(ModelID{"echo", "1"}, spec, echo, ReplicaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in, _ := tensor.FromSlice(tensor.Shape{300, 2}, make([]float32, 600))
	r := &Request{Model: rep.Model(), Inputs: []tensor.Tensor{in}, Rows: 300}
	if err := s.Infer(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	if got := r.Outputs[0].Shape; !got.Equal(tensor.Shape{300, 2}) {
		t.Fatalf("answer has shape %s", got)
	}
}
