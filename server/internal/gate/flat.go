package gate

import (
	"errors"
	"fmt"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// matchFlat makes the rows of a legacy model: flat vectors of one dtype, of any length each. A
// tensor of any shape is one row, unless batch says that its first dimension counts rows.
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

// matchTexts makes the rows of a legacy model that takes strings: from a Bytes tensor, from one
// uint8 tensor of UTF-8 per row, or from the strings of p.Inputs, which is these models' own
// form.
func (c *Call) matchTexts(tensors []tensor.Tensor, p *Params, spec *tensor.Spec, pool *tensor.Pool) error {
	if p.Inputs != nil {
		t, err := shiva.ParseText(p.Inputs, pool)
		if err == nil {
			c.owned = append(c.owned, t)
			if len(t.Shape) > 1 {
				err = fmt.Errorf("got lists of shape %s", t.Shape)
			}
		}
		if err != nil {
			return unmade(spec, fmt.Errorf("metadata \"inputs\": expected a string or a list of strings: %w", err))
		}
		tensors = []tensor.Tensor{t}
	}
	one := len(tensors) == 1 && (tensors[0].DType == tensor.Uint8 || len(tensors[0].Shape) == 0)
	c.Squeeze = one || !c.Target.Spec.Batched()
	var texts [][]byte
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
	if c.Rows = len(texts); c.Rows == 0 {
		return fmt.Errorf("%w: input %q: no text: expected strings, or a uint8 tensor of UTF-8", scheduler.ErrInvalidInput, spec.Name)
	}
	if c.Rows != 1 && !c.Target.Spec.Batched() {
		return c.oneOnly()
	}
	t := tensors[0]
	if len(tensors) == 1 && t.DType == tensor.Bytes {
		t.Name, t.Shape = spec.Name, tensor.Shape{c.Rows}
	} else {
		var err error
		if t, err = newTexts(spec, tensor.Shape{c.Rows}, texts, pool); err != nil {
			return err
		}
		c.owned = append(c.owned, t)
	}
	c.Inputs = append(c.Inputs, t)
	return nil
}

// newTexts makes a Bytes input in memory of the pool: what the scheduler holds of a request is
// payload, whatever it came as. The tensor has a reference, which is the caller's.
func newTexts(spec *tensor.Spec, shape tensor.Shape, texts [][]byte, pool *tensor.Pool) (tensor.Tensor, error) {
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

// unmade is why an input could not be made of what came: it is not what it should be, or there
// is no memory for it.
func unmade(spec *tensor.Spec, err error) error {
	condition := scheduler.ErrInvalidInput
	if errors.Is(err, tensor.ErrBudget) {
		condition = scheduler.ErrOverloaded
	}
	return fmt.Errorf("%w: input %q: %w", condition, spec.Name, err)
}
