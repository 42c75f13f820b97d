//go:build e2e

package e2e

import (
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Feedback to an application reaches a container in Python that asks for it, with the input of the
// request that it names; the effect shows in the container's next answer.
func TestE2EFeedbackReachesTheContainer(t *testing.T) {
	s := start(t, "")
	s.script("learning_model.py", s.containers)
	s.waitReplicas("learning", 1)
	s.ctl("apps", "create", "app", "--model", "learning")
	x, err := tensor.FromSlice(tensor.Shape{1, 2}, []float32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	x.Name = "x"
	c := s.client()
	if _, err := c.Do(t.Context(),
		&shiva.Message{Namespace: "app", Metadata: []byte(`{"id":"q","user":"anna"}`),
			Tensors: []tensor.Tensor{x}}); err != nil {
		t.Fatal(err)
	}
	s.ctl("feedback", "app", "--id", "q", "--user", "anna", "--label", "7")
	budgettest.Until(t, "the container to have learned", func() bool {
		a, err := ask(t, c, "learning", x)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Release()
		y, err := tensor.Values[float32](a.Tensors[0])
		return err == nil && y[0] == 21
	})
	s.steady()
}
