package apps

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// A standIn answers a call with the default output of an application none of whose models has
// registered since the server started. Nothing is declared then: the outputs have the form of the
// default, and only the rows of the request are counted.
type standIn struct {
	app    *application
	call   *gate.Call
	waiter atomic.Pointer[composite.Waiter] // of a frame of a stream, once submitted; else nil
}

// openDefault answers a call with the default output; why is the error that it replaces.
func (a *application) openDefault(c *gate.Call, r *gate.Request, why error) error {
	rows, one := rowsOfAny(r.Inputs)
	outputs, err := a.DefaultOutput(&a.target.Spec, rows, a.gate.Pool())
	if err != nil {
		return err
	}
	c.Target, c.Rows, c.Squeeze = a.target, rows, one
	c.Outputs = append(c.Outputs[:0], outputs...)
	asked := *r
	asked.Asker = &a.asker
	if r.Framed() {
		asked.Keep = cmp.Or(r.Keep, a.Keep)
	}
	if err := c.Enter(&asked); err != nil {
		c.Close()
		return err
	}
	if timeout := cmp.Or(r.Timeout, a.target.Deadline); timeout > 0 {
		c.Deadline = r.Arrived.Add(timeout)
	}
	c.Choice = &gate.Choice{Application: a.Name, Default: true, Explanation: fault.Text(why)}
	c.Fanout = &standIn{app: a, call: c}
	return nil
}

func (s *standIn) Start(calls []*gate.Call) []*gate.Call {
	waiter := s.app.registry.order.Join(s.call, s.call, nil)
	if s.waiter.Store(waiter); waiter != nil {
		waiter.Finish()
	} else {
		s.call.Finish()
	}
	return calls
}

func (s *standIn) Cancel()   { s.waiter.Load().Cancel() }
func (*standIn) Close()      {}
func (*standIn) Voices() int { return 1 }

// rowsOfAny counts the rows of a request without any declaration: the first dimension, if all
// tensors have more than one dimension and the first is the same; otherwise the request is one row
// without its batch dimension. If there are regions of a picture, they are the rows.
func rowsOfAny(tensors []tensor.Tensor) (rows int, one bool) {
	for i, t := range tensors {
		image, regions := strings.CutSuffix(t.Name, tensor.RegionsSuffix)
		if regions && slices.ContainsFunc(tensors, func(o tensor.Tensor) bool { return o.Name == image }) {
			tensors = tensors[i : i+1]
			break
		}
	}
	for i, t := range tensors {
		if len(t.Shape) < 2 || i > 0 && t.Shape[0] != rows {
			return 1, true
		}
		rows = t.Shape[0]
	}
	return max(rows, 1), len(tensors) == 0
}
