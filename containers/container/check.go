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
		if err := m.try(ctx, n, dim, false); err != nil {
			return fmt.Errorf("container: model %q: %d rows: %w", m.Name, n, err)
		}
	}
	if len(m.inputs()) > len(m.Inputs) {
		if err := m.try(ctx, rows, dim, true); err != nil {
			return fmt.Errorf("container: model %q: %d regions: %w", m.Name, rows, err)
		}
	}
	return nil
}

// try computes a generated batch; regions: of a picture, in the inputs that have some.
func (m *Model) try(ctx context.Context, rows, dim int, regions bool) error {
	b := &Batch{Rows: rows, model: m, pool: tensor.NewPool(0)}
	defer b.reset()
	for _, spec := range m.inputs() {
		size := dim
		switch {
		case regions && spec.Image != nil && spec.Image.Regions:
			b.cuts = append(b.cuts, cut{input: len(b.Inputs), of: make([]int, rows), ids: []PictureID{{number: 1}}})
			size = 1
		case m.batched():
			size = rows
		}
		if spec.Regions != "" {
			m.tryRegions(b, spec, regions)
			continue
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

// tryRegions adds the input of regions to a generated batch.
func (m *Model) tryRegions(b *Batch, spec tensor.Spec, present bool) {
	t := tensor.Tensor{Name: spec.Name}
	if present {
		for i := range b.cuts {
			if m.Inputs[b.cuts[i].input].Name == spec.Regions {
				b.cuts[i].regions = len(b.Inputs)
			}
		}
		whole := []float32{0, 0, 1, 0, 1, 1, 0, 1}
		t, _ = tensor.FromSlice(tensor.Shape{b.Rows, 4, 2}, slices.Repeat(whole, b.Rows)) // it fits
		t.Name = spec.Name
	}
	b.Inputs, b.present = append(b.Inputs, t), append(b.present, present)
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
