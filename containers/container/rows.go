package container

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/shivad/shivad/shiva/tensor"
)

// PerRow makes a Model's Predict from a function that computes one row. The function gets views
// of the inputs and returns one tensor for each declared output, in that order; the first
// dimension of all of them is 1. An error or a panic fails that row alone. The outputs are copied
// when it returns, so it may reuse their memory. Rows of one batch must agree in the sizes that
// are declared as -1. For a model that is not batched the inputs have the shapes that the client
// sent. A model without inputs gets an empty list for each row. Where the rows are regions
// ([Batch.Regions]), each gets the picture that it is a region of.
func PerRow(
	f func(ctx context.Context, row []tensor.Tensor) ([]tensor.Tensor, error),
) func(context.Context, *Batch) ([]tensor.Tensor, error) {
	return func(ctx context.Context, b *Batch) ([]tensor.Tensor, error) {
		if !b.model.batched() {
			return f(ctx, b.Inputs)
		}
		rest := append([]tensor.Tensor(nil), b.Inputs...)
		rows := make([][]tensor.Tensor, len(b.model.Outputs)) // indexed by output
		// The outputs of any row that succeeded.
		var good []tensor.Tensor
		var failed []int
		for r := range b.Rows {
			row := make([]tensor.Tensor, len(rest))
			for i := range rest {
				var err error
				if picture := b.pictureOf(i, r); picture >= 0 {
					row[i], err = rest[i].RowSlice(picture, picture+1)
				} else if row[i] = rest[i]; b.Has(i) {
					row[i], rest[i], err = rest[i].Cut(1)
				}
				if err != nil {
					return nil, err
				}
			}
			out, err := b.one(ctx, f, row)
			if err != nil {
				b.Fail(r, err)
				failed = append(failed, r)
				out = make([]tensor.Tensor, len(rows))
			} else {
				good = out
			}
			for i := range rows {
				rows[i] = append(rows[i], out[i])
			}
		}
		if good == nil && b.Rows > 0 {
			good = b.blank()
		}
		outputs := make([]tensor.Tensor, len(rows))
		for i := range rows {
			for _, r := range failed {
				rows[i][r] = good[i] // dropped, but the row must be present
			}
			var err error
			if outputs[i], err = tensor.Concat(rows[i], b.pool); err != nil {
				return nil, fmt.Errorf("container: output %q: rows of one batch must agree in shape: %w",
					b.model.Outputs[i].Name, err)
			}
			b.buffers = append(b.buffers, outputs[i].Buf)
		}
		return outputs, nil
	}
}

// one computes a row. It copies the outputs, since f may reuse their memory for the next row.
func (b *Batch) one(ctx context.Context, f func(context.Context, []tensor.Tensor) ([]tensor.Tensor, error),
	row []tensor.Tensor) (out []tensor.Tensor, err error) {
	defer func() {
		if r := recover(); r != nil {
			b.model.Log.Error("container: a row panicked", "panic", r, "stack", string(debug.Stack()))
			out, err = nil, fmt.Errorf("panic: %v", r)
		}
	}()
	if out, err = f(ctx, row); err != nil {
		return nil, err
	}
	if err = b.model.check(out, 1); err != nil {
		return nil, err
	}
	own := make([]tensor.Tensor, len(out))
	for i, t := range out {
		if own[i], err = tensor.Concat([]tensor.Tensor{t}, nil); err != nil {
			return nil, err
		}
	}
	return own, nil
}

// blank makes one row of zeros for every output, with 1 where a size is not declared.
func (b *Batch) blank() []tensor.Tensor {
	out := make([]tensor.Tensor, len(b.model.Outputs))
	for i, spec := range b.model.Outputs {
		shape, n := make(tensor.Shape, len(spec.Shape)), 1
		for k, size := range spec.Shape {
			shape[k] = max(size, 1)
			n *= shape[k]
		}
		width := spec.DType.Size()
		if spec.DType == tensor.Bytes {
			width = 4 // the length of an empty element
		}
		out[i] = tensor.Tensor{Name: spec.Name, DType: spec.DType, Shape: shape, Data: make([]byte, n*width)}
	}
	return out
}
