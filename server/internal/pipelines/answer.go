package pipelines

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva/tensor"
)

// answer makes the outputs of the call from those of the stages. A row that failed has zeros and
// empty texts, and no values in a ragged output.
func (r *run) answer() (err error) {
	defer func() {
		if what := recover(); what != nil {
			err = r.p.panicked(what)
		}
	}()
	c := r.call
	for i, m := range r.p.plan.answer {
		var t tensor.Tensor
		switch m.kind {
		case value:
			t, err = r.joined(m, &r.p.plan.Spec.Outputs[i])
		case lengths:
			t, err = r.int32s(m.stage, func(o *row) int32 {
				if o.err != nil {
					return 0
				}
				return int32(o.call.Outputs[m.output].Shape[1])
			})
		case parents:
			t, err = r.int32s(m.stage, func(o *row) int32 { return o.of })
		case status:
			t, err = r.int32s(m.stage, func(o *row) int32 { return statusOf(o.err) })
		case rows:
			t, err = r.rowsOf(m.stage)
		}
		if err != nil {
			return fmt.Errorf("%w (output %q of pipeline %q)", err, r.p.plan.Spec.Outputs[i].Name, r.p.Name)
		}
		t.Name = r.p.plan.Spec.Outputs[i].Name
		c.Outputs = append(c.Outputs, t)
	}
	return nil
}

// statusOf is what the answer says of a row: 0, or the code of its error.
func statusOf(err error) int32 {
	if err == nil {
		return 0
	}
	return int32(fault.Of(err).HTTP)
}

// joined returns an output of all rows of a stage, with a reference.
func (r *run) joined(m member, spec *tensor.Spec) (tensor.Tensor, error) {
	list := r.stages[m.stage].rows
	parts := make([]tensor.Tensor, 0, len(list))
	for k := range list {
		if o := &list[k]; o.err == nil {
			t := o.call.Outputs[m.output]
			if m.flat {
				t.Shape = t.Shape[1:]
			}
			parts = append(parts, t)
		}
	}
	if len(parts) == 1 && len(list) == 1 { // nothing to copy
		t := parts[0]
		t.Retain()
		t.Shape = slices.Clone(t.Shape)
		return t, nil
	}
	hole, err := r.hole(m, spec, parts)
	if err != nil {
		return hole, err
	}
	if len(parts) == 0 && len(list) == 0 {
		hole.Shape[0], hole.Data = 0, nil
		return hole, nil
	}
	if len(parts) < len(list) {
		all := parts
		parts = make([]tensor.Tensor, len(list))
		for k := range list {
			if parts[k] = hole; list[k].err == nil {
				parts[k], all = all[0], all[1:]
			}
		}
	}
	t, err := tensor.Concat(parts, r.p.gate.Pool())
	if err != nil {
		return t, r.unjoined(err)
	}
	return t, nil
}

// unjoined is the error for rows that cannot be joined.
func (r *run) unjoined(err error) error {
	if errors.Is(err, tensor.ErrBudget) {
		return fmt.Errorf("%w: no memory for the answer: %w", scheduler.ErrOverloaded, err)
	}
	return fmt.Errorf("%w: the rows cannot be joined: %w; if their sizes differ, the model has to declare the output as ragged, or batched = false",
		scheduler.ErrContainerFailed, err)
}

// hole makes what a row that failed has of an output: zeros in the shape of the other rows, or else
// of the declaration, with 0 for what it leaves open.
func (r *run) hole(m member, spec *tensor.Spec, parts []tensor.Tensor) (tensor.Tensor, error) {
	ragged := m.flat || r.p.plan.stages[m.stage].target.Spec.Outputs[m.output].Ragged != ""
	shape := slices.Clone(spec.Shape)
	if len(parts) > 0 {
		shape = slices.Clone(parts[0].Shape)
	}
	for i := range shape {
		shape[i] = max(shape[i], 0)
	}
	if shape[0] = 1; ragged {
		shape[0] = 0
	}
	n, ok := shape.Elements()
	size := spec.DType.Size()
	if spec.DType == tensor.Bytes {
		size = 4 // an empty text is its length
	}
	if !ok || n > mostHole/size {
		return tensor.Tensor{}, fault.TooLarge("a row that failed would have %s values of %s", shape, spec.DType)
	}
	return tensor.Tensor{DType: spec.DType, Shape: shape, Data: make([]byte, n*size)}, nil
}

// mostHole bounds the bytes of a hole, which are not counted.
const mostHole = 64 << 20

// int32s makes an INT32 of every row of a stage.
func (r *run) int32s(stage int, of func(o *row) int32) (tensor.Tensor, error) {
	list := r.stages[stage].rows
	values := make([]int32, len(list))
	for k := range list {
		values[k] = of(&list[k])
	}
	return tensor.FromSlice(tensor.Shape{len(values)}, values)
}

// rowsOf counts the rows of a stage by parent row.
func (r *run) rowsOf(stage int) (tensor.Tensor, error) {
	maker := r.p.plan.stages[stage].stage.each.stage
	counts := make([]int32, len(r.stages[maker].rows))
	for k := range r.stages[stage].rows {
		counts[r.stages[stage].rows[k].parent]++
	}
	return tensor.FromSlice(tensor.Shape{len(counts)}, counts)
}
