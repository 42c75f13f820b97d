package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/shivad/shivad/shiva/tensor"
)

// Check runs a model without a server, for its tests: WarmUp, Health, and Predict on generated
// batches of one row and of several (as far as MaxBatch allows), with dim for every size that is
// declared as -1. It returns an error for everything that would fail in production: a hook that
// fails, a Predict that fails or panics, outputs that differ from the declaration, a batch in which
// every row fails.
func Check(ctx context.Context, m Model, rows, dim int) error {
	if rows < 1 || dim < 0 {
		return fmt.Errorf("container: check with %d rows and dim %d, expected at least 1 and 0", rows, dim)
	}
	if _, err := m.hello("", nil, false); err != nil {
		return err
	}
	if m.Log == nil {
		m.Log = slog.New(slog.DiscardHandler)
	}
	if m.WarmUp != nil {
		if err := hook(ctx, m.Log, "WarmUp", func() error { return m.WarmUp(ctx) }); err != nil {
			return fmt.Errorf("container: model %q: warm-up: %w", m.Name, err)
		}
	}
	if m.Health != nil {
		if err := hook(ctx, m.Log, "Health", func() error { return m.Health(ctx) }); err != nil {
			return fmt.Errorf("container: model %q: health: %w", m.Name, err)
		}
	}
	if m.MaxBatch > 0 {
		rows = min(rows, m.MaxBatch)
	}
	if !m.batched() {
		rows = 1
	}
	for _, n := range slices.Compact([]int{1, rows}) {
		if err := m.try(ctx, n, dim); err != nil {
			return fmt.Errorf("container: model %q: %d rows: %w", m.Name, n, err)
		}
	}
	return nil
}

// try computes a generated batch.
func (m *Model) try(ctx context.Context, rows, dim int) error {
	b := &Batch{Rows: rows, model: m, pool: tensor.NewPool(0)}
	defer b.reset()
	for _, spec := range m.Inputs {
		size := dim
		if m.batched() {
			size = rows
		}
		t, err := sample(spec, size, dim)
		if err != nil {
			return err
		}
		t.Name = spec.Name
		b.Inputs, b.present = append(b.Inputs, t), append(b.present, true)
	}
	outputs, err := m.call(ctx, b, m.Log)
	if err == nil {
		err = b.check(outputs)
	}
	if err != nil {
		return err
	}
	if len(b.failed) == b.Rows && b.Rows > 0 {
		return errors.New("every row failed: " + string(b.failed[0].Message))
	}
	return nil
}

// sample generates an input of small numbers, which every dtype can hold. first and dim are the
// sizes of the first dimension and of the others, where they are declared as -1.
func sample(spec tensor.Spec, first, dim int) (tensor.Tensor, error) {
	shape := slices.Clone(spec.Shape)
	for i, size := range shape {
		switch {
		case size == -1 && i == 0:
			shape[i] = first
		case size == -1:
			shape[i] = dim
		}
	}
	n, ok := shape.Elements()
	if !ok {
		return tensor.Tensor{}, fmt.Errorf("input %q: no sample of shape %s", spec.Name, spec.Shape)
	}
	switch spec.DType {
	case tensor.Bytes:
		return tensor.FromStrings(shape, slices.Repeat([]string{"text"}, n))
	case tensor.LongDouble, tensor.Complex64, tensor.Complex128: // no cast converts to them
		return tensor.New(spec.DType, shape, make([]byte, n*spec.DType.Size()))
	}
	small := make([]uint8, n)
	for i := range small {
		small[i] = uint8(i % 100)
		if spec.DType == tensor.Bool {
			small[i] %= 2
		}
	}
	numbers, err := tensor.FromSlice(shape, small)
	if err != nil {
		return tensor.Tensor{}, err
	}
	return tensor.Cast(numbers, spec.DType, nil)
}
