package gate

import (
	"errors"
	"fmt"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// matchFlat makes the rows of a legacy model: flat vectors of one dtype, of any length each. A tensor of
// any shape is one row, unless batch says that its first dimension counts rows.
func (c *Call) matchFlat(tensors []tensor.Tensor, p *Params, pool *tensor.Pool) error {
	spec := &c.Target.Spec.Inputs[0]
	if spec.DType == tensor.Bytes {
		return c.matchTexts(tensors, p, spec, pool)
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
			return unmade(spec, err)
		}
		c.owned = append(c.owned, cast)
		t = cast
	}
	rows := 1
	if p.Batch && !c.Target.Spec.Batched() {
		return c.oneOnly()
	}
	if p.Batch {
		if len(t.Shape) == 0 {
			return fmt.Errorf("%w: input %q: batch is true, but a single value has no rows", scheduler.ErrInvalidInput, spec.Name)
		}
		rows = t.Shape[0]
	}
	c.dims[0], c.dims[1] = rows, len(t.Data)/t.DType.Size()/max(rows, 1)
	t.Shape = c.dims[:2:2]
	c.Inputs = append(c.Inputs, t)
	c.Rows = rows
	c.Squeeze = !p.Batch
	return nil
}

// oneOnly is the error for several rows where each request is one.
func (c *Call) oneOnly() error {
	return fmt.Errorf("%w: model %q takes one row per request: the server's configuration says batched = false",
		scheduler.ErrInvalidInput, c.Target.ID.Name)
}

// matchTexts makes the rows of a legacy model that takes strings: from the list in the metadata, or from
// one uint8 tensor of UTF-8 per row, or from a Bytes tensor (doors whose wire has one).
func (c *Call) matchTexts(tensors []tensor.Tensor, p *Params, spec *tensor.Spec, pool *tensor.Pool) error {
	n, one := len(p.Texts), p.OneText
	var texts [][]byte
	if p.Texts == nil {
		one = len(tensors) == 1 && tensors[0].DType == tensor.Uint8
		for _, t := range tensors {
			switch t.DType {
			case tensor.Uint8:
				texts = append(texts, t.Data)
			case tensor.Bytes:
				elements, err := tensor.BytesElems(t)
				if err != nil {
					return unmade(spec, err)
				}
				texts = append(texts, elements...)
			default:
				return fmt.Errorf("%w: input %q: expected text (strings, or a uint8 tensor of UTF-8), got %s %s",
					scheduler.ErrInvalidInput, spec.Name, t.DType, t.Shape)
			}
		}
		n = len(texts)
	}
	if n == 0 {
		return fmt.Errorf("%w: input %q: no text: expected strings, or a uint8 tensor of UTF-8", scheduler.ErrInvalidInput, spec.Name)
	}
	if n != 1 && !c.Target.Spec.Batched() {
		return c.oneOnly()
	}
	var t tensor.Tensor
	var err error
	if texts != nil {
		t, err = newTexts(spec, tensor.Shape{n}, texts, pool)
	} else {
		t, err = newTexts(spec, tensor.Shape{n}, p.Texts, pool)
	}
	if err != nil {
		return err
	}
	c.owned = append(c.owned, t)
	c.Inputs = append(c.Inputs, t)
	c.Rows = n
	c.Squeeze = one || !c.Target.Spec.Batched()
	return nil
}

// textTensor makes the Bytes input of a model from the strings of the metadata. As many strings as one row
// declares make a row; with an undeclared size all of them are one row.
func textTensor(spec *tensor.Spec, batched bool, p *Params, pool *tensor.Pool) (tensor.Tensor, error) {
	shape := append(tensor.Shape{}, spec.Shape...)
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
	if perRow == 0 || n%perRow != 0 || n == 0 && (batched || open < 0) {
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
	return newTexts(spec, shape, p.Texts, pool)
}

// newTexts makes a Bytes input in memory of the pool: what the scheduler holds of a request is payload, whatever it came as. The
// tensor has a reference, which is the caller's.
func newTexts[S string | []byte](spec *tensor.Spec, shape tensor.Shape, texts []S, pool *tensor.Pool) (tensor.Tensor, error) {
	size := 0
	for _, s := range texts {
		size += 4 + len(s) // its length before it
	}
	buf, err := pool.Get(size)
	if err != nil {
		return tensor.Tensor{}, unmade(spec, err)
	}
	data := buf.Bytes()[:0]
	for _, s := range texts {
		data = tensor.AppendElem(data, s)
	}
	t := tensor.Tensor{Name: spec.Name, DType: tensor.Bytes, Shape: shape, Data: data, Buf: buf}
	if err := t.Check(); err != nil {
		t.Release()
		return tensor.Tensor{}, unmade(spec, err)
	}
	return t, nil
}

// unmade is why an input could not be made of what came: it is not what it should be, or there is no memory for it.
func unmade(spec *tensor.Spec, err error) error {
	condition := scheduler.ErrInvalidInput
	if errors.Is(err, tensor.ErrBudget) {
		condition = scheduler.ErrOverloaded
	}
	return fmt.Errorf("%w: input %q: %w", condition, spec.Name, err)
}
