package apps

import (
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// A standIn answers a call by the default output of an application whose models have not been here
// since the server started. Nobody has declared anything then: the outputs are as the default has
// them, and the question is not looked at but for its rows.
type standIn struct{ call *gate.Call }

// openDefault gives a call the default output, because of why.
func (a *application) openDefault(c *gate.Call, tensors []tensor.Tensor, why error) error {
	rows, one := rowsOfAny(tensors)
	outputs, err := a.DefaultOutput(&a.target.Spec, rows, a.gate.Pool())
	if err != nil {
		return err
	}
	c.Target, c.Rows, c.Squeeze = a.target, rows, one
	c.Outputs = append(c.Outputs[:0], outputs...)
	c.Choice = &gate.Choice{Application: a.Name, Default: true, Explanation: gate.Text(why)}
	c.Fanout = standIn{c}
	return nil
}

func (s standIn) Start(calls []*gate.Call) []*gate.Call {
	s.call.Finish()
	return calls
}

func (standIn) Cancel()     {}
func (standIn) Close()      {}
func (standIn) Voices() int { return 1 }

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
