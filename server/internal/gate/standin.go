package gate

import (
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// An application with a default output answers that when no model can, and so also when none has
// been here since the server started. Then nobody has declared anything: the outputs are as the
// default has them, and the question is not looked at but for its rows.

// standsIn reports whether the default is all that the application has to say.
func (a *application) standsIn() bool {
	return len(a.models) == 0 && a.fault == nil && a.HasDefault()
}

// standIn gives the target of such an application the outputs of its default.
func (t *Target) standIn(a *application) {
	t.Spec = scheduler.Spec{Platform: "application", Outputs: a.DefaultSpecs()}
	t.compose()
}

// openDefault answers a request with the default. It is complete when it is submitted.
func (g *Gate) openDefault(c *Call, t *Target, tensors []tensor.Tensor) error {
	a := t.application
	rows, one := rowsOfAny(tensors)
	outputs, err := a.DefaultOutput(&t.Spec, rows, g.pool)
	if err != nil {
		return err
	}
	c.Target, c.Rows, c.Squeeze = t, rows, one
	c.Outputs = append(c.Outputs[:0], outputs...)
	c.answered, c.Choice = true, &Choice{Application: a.Name, Default: true, Explanation: Text(a.unlinked())}
	return nil
}

// rowsOfAny counts the rows of a question to nobody knows what model: the first dimension of
// tensors that have more, if it is the same for all; else it is one row, which comes without its
// dimension.
func rowsOfAny(tensors []tensor.Tensor) (rows int, one bool) {
	for i, t := range tensors {
		if len(t.Shape) < 2 || i > 0 && t.Shape[0] != rows {
			return 1, true
		}
		rows = t.Shape[0]
	}
	return max(rows, 1), len(tensors) == 0
}
