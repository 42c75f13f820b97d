package gate

import (
	"fmt"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// matchFlat makes the rows of a legacy model: flat vectors of one dtype, of any length each. A tensor of
// any shape is one row, unless batch says that its first dimension counts rows.
func (c *Call) matchFlat(tensors []tensor.Tensor, p *Params, pool *tensor.Pool) error {
	spec := &c.Target.Spec.Inputs[0]
	if spec.DType == tensor.Bytes {
		return c.matchTexts(tensors, p, spec)
	}
	if len(tensors) != 1 {
		return fmt.Errorf("%w: expected 1 tensor of %s, got %d", scheduler.ErrInvalidInput, spec.DType, len(tensors))
	}
	t := tensors[0]
	if t.DType != spec.DType {
		if !c.Target.Cast {
			return fmt.Errorf("%w: input %q: expected %s of any shape, got %s %s", scheduler.ErrInvalidInput, spec.Name, spec.DType, t.DType, t.Shape)
		}
		cast, err := tensor.Cast(t, spec.DType, pool)
		if err != nil {
			return fmt.Errorf("%w: input %q: %w", scheduler.ErrInvalidInput, spec.Name, err)
		}
		c.owned = append(c.owned, cast)
		t = cast
	}
	rows := 1
	if p.Batch {
		if len(t.Shape) == 0 || t.Shape[0] == 0 {
			return fmt.Errorf("%w: input %q: batch is true, but shape %s has no rows", scheduler.ErrInvalidInput, spec.Name, t.Shape)
		}
		rows = t.Shape[0]
	}
	c.dims[0], c.dims[1] = rows, len(t.Data)/t.DType.Size()/rows
	t.Shape = c.dims[:2:2]
	c.Inputs = append(c.Inputs, t)
	c.Rows = rows
	c.Squeeze = !p.Batch
	return nil
}

// matchTexts makes the rows of a legacy model that takes strings: from the list in the metadata, or from
// one uint8 tensor of UTF-8 per row, or from a Bytes tensor (doors whose wire has one).
func (c *Call) matchTexts(tensors []tensor.Tensor, p *Params, spec *tensor.Spec) error {
	texts, one := p.Texts, p.OneText
	if texts == nil {
		one = len(tensors) == 1 && tensors[0].DType == tensor.Uint8
		for _, t := range tensors {
			switch t.DType {
			case tensor.Uint8:
				texts = append(texts, string(t.Data))
			case tensor.Bytes:
				elements, err := tensor.Strings(t)
				if err != nil {
					return fmt.Errorf("%w: input %q: %w", scheduler.ErrInvalidInput, spec.Name, err)
				}
				texts = append(texts, elements...)
			default:
				return fmt.Errorf("%w: input %q: expected text (a uint8 tensor of UTF-8, or strings in metadata \"inputs\"), got %s %s",
					scheduler.ErrInvalidInput, spec.Name, t.DType, t.Shape)
			}
		}
	}
	if len(texts) == 0 {
		return fmt.Errorf("%w: input %q: no text: expected strings in metadata \"inputs\" or a uint8 tensor of UTF-8", scheduler.ErrInvalidInput, spec.Name)
	}
	t, err := tensor.FromStrings(tensor.Shape{len(texts)}, texts)
	if err != nil {
		return fmt.Errorf("%w: input %q: %w", scheduler.ErrInvalidInput, spec.Name, err)
	}
	t.Name = spec.Name
	c.Inputs = append(c.Inputs, t)
	c.Rows = len(texts)
	c.Squeeze = one
	return nil
}

// textTensor makes the Bytes input of a model from the strings of the metadata. As many strings as one row
// declares make a row; with an undeclared size all of them are one row.
func textTensor(spec *tensor.Spec, p *Params) (tensor.Tensor, error) {
	shape := append(tensor.Shape{}, spec.Shape...)
	batched := len(shape) > 0 && shape[0] == -1
	perRow, open := 1, -1
	for i, d := range shape {
		switch {
		case i == 0 && batched:
		case d == -1 && open < 0:
			open = i
		case d == -1:
			return tensor.Tensor{}, fmt.Errorf("%w: input %q: strings in metadata \"inputs\" cannot fill shape %s with two open dimensions",
				scheduler.ErrInvalidInput, spec.Name, spec.Shape)
		default:
			perRow *= d
		}
	}
	n := len(p.Texts)
	if n == 0 || perRow == 0 || n%perRow != 0 {
		return tensor.Tensor{}, fmt.Errorf("%w: input %q: expected %d strings for each row of shape %s in metadata \"inputs\", got %d",
			scheduler.ErrInvalidInput, spec.Name, perRow, spec.Shape, n)
	}
	switch {
	case open >= 0:
		shape[open] = n / perRow
		if batched {
			shape[0] = 1
		}
	case batched:
		shape[0] = n / perRow
	case n != perRow:
		return tensor.Tensor{}, fmt.Errorf("%w: input %q: expected %d strings for shape %s in metadata \"inputs\", got %d",
			scheduler.ErrInvalidInput, spec.Name, perRow, spec.Shape, n)
	}
	if p.OneText && batched {
		shape = shape[1:] // one string, one row: answered as one
	}
	t, err := tensor.FromStrings(shape, p.Texts)
	if err != nil {
		return t, fmt.Errorf("%w: input %q: %w", scheduler.ErrInvalidInput, spec.Name, err)
	}
	t.Name = spec.Name
	return t, nil
}
