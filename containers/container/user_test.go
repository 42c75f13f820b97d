package container

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestUserIsRequested: a model with User, or with Metadata, declares it in its registration.
func TestUserIsRequested(t *testing.T) {
	x := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}}
	for _, user := range []bool{true, false} {
		m := Model{Name: "m", Version: "1", Inputs: x, Outputs: x, User: user, Metadata: !user, Batched: new(true),
			Predict: func(context.Context, *Batch) ([]tensor.Tensor, error) { return nil, nil }}
		text, err := m.hello("", nil, false)
		var h wire.HelloMessage
		if err != nil || json.Unmarshal(text, &h) != nil || h.User != user || h.Metadata == user {
			t.Errorf("user %t: %s (%v)", user, text, err)
		}
	}
}
