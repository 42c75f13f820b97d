package container

import (
	"testing"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// FuzzFeedback: the feedback passed to the model is complete and in the order of the declaration.
func FuzzFeedback(f *testing.F) {
	const x, y = `{"name":"x","datatype":"INT8","shape":[2]}`, `{"name":"y","datatype":"INT8","shape":[2]}`
	f.Add([]byte(`{"application":"a","user":"u","rows":2,"inputs":[`+x+`],"outputs":[`+y+`],"truth":[`+y+`],"label":[1],"loss":0.5}`), byte(3))
	f.Add([]byte(`{"rows":2,"inputs":[`+x+`]}`), byte(1))
	f.Add([]byte(`{"rows":2,"inputs":[`+y+`],"truth":[`+x+`,`+x+`]}`), byte(3))
	m := &Model{
		Inputs: []tensor.Spec{{Name: "left", DType: tensor.Int8, Shape: tensor.Shape{2}, Optional: true},
			{Name: "x", DType: tensor.Int8, Shape: tensor.Shape{-1}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Int8, Shape: tensor.Shape{-1}}},
	}
	f.Fuzz(func(t *testing.T, head []byte, frames byte) {
		budgettest.Input(t)
		b := &Batch{model: m}
		b.message.Frames = []zmtp.Frame{{Data: []byte("feedback")}, {Data: head}}
		for range frames % 8 {
			b.message.Frames = append(b.message.Frames, zmtp.Frame{Data: []byte{1, 2}})
		}
		got, err := m.feedback(b)
		if err != nil {
			return
		}
		if got.Rows < 1 || len(got.Inputs) != 2 || got.Outputs != nil && len(got.Outputs) != 1 {
			t.Fatalf("%+v", got)
		}
		for _, list := range [][]tensor.Tensor{got.Inputs[1:], got.Outputs, got.Truth} {
			for _, one := range list {
				if err := one.Check(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
