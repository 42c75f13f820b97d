package apps

import (
	"fmt"
	"maps"
	"slices"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// HasDefault reports whether the application has a default output.
func (a *App) HasDefault() bool { return a.fallback != nil }

// DefaultSpecs declares the default output by its own values, for when no model has declared
// anything: whole numbers are int64, others float64.
func (a *App) DefaultSpecs() []tensor.Spec {
	specs := make([]tensor.Spec, 0, len(a.fallback))
	for _, name := range slices.Sorted(maps.Keys(a.fallback)) {
		t, err := untyped(a.fallback[name])
		if err == nil { // else New has refused it
			specs = append(specs, tensor.Spec{Name: name, DType: t.DType, Shape: append(tensor.Shape{-1}, t.Shape...)})
		}
	}
	return specs
}

// untyped makes a tensor of the first dtype that holds a JSON value: int64, bool, bytes or float64.
func untyped(value []byte) (t tensor.Tensor, err error) {
	for _, d := range []tensor.DType{tensor.Int64, tensor.Bool, tensor.Bytes, tensor.Float64} {
		if t, err = jsontensor.Read(value, d, nil); err == nil {
			break
		}
	}
	return t, err
}

// DefaultOutput makes the default output for that many rows in the form that a model declares, each
// tensor with the rows as its first dimension. The memory comes from the pool, and the caller owns
// the reference. For a model with an adapter the output is in the adapter's text form.
func (a *App) DefaultOutput(model *scheduler.Spec, rows int, pool *tensor.Pool) (_ []tensor.Tensor, err error) {
	if a.fallback == nil {
		return nil, errNoDefault
	}
	list := make([]tensor.Tensor, len(model.Outputs))
	defer func() {
		if err != nil {
			release(list)
		}
	}()
	for i, spec := range model.Outputs {
		value, ok := a.fallback[spec.Name]
		if !ok {
			return nil, fmt.Errorf("the default output of application %q has no %q", a.Name, spec.Name)
		}
		var row tensor.Tensor
		if model.Adapter != nil && spec.DType == tensor.Bytes {
			row, err = tensor.FromStrings(tensor.Shape{}, []string{model.Adapter.Text(value)})
		} else {
			row, err = jsontensor.Read(value, spec.DType, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("the default output of application %q: %q: %w", a.Name, spec.Name, err)
		}
		want := spec.Shape
		if model.Batched() && spec.Ragged == "" {
			want = want[1:]
		}
		row.Shape = emptyShape(row.Shape, want)
		if !row.Shape.Fits(want) {
			return nil, fmt.Errorf("the default output of application %q: %q has shape %s for a row, but the model declares %s",
				a.Name, spec.Name, row.Shape, want)
		}
		if spec.Ragged == "" {
			row.Shape = append(tensor.Shape{1}, row.Shape...)
		}
		parts := make([]tensor.Tensor, rows)
		for r := range parts {
			parts[r] = row
		}
		if list[i], err = tensor.Concat(parts, pool); err != nil {
			return nil, err
		}
		list[i].Name = spec.Name
	}
	for i, by := range model.Raggeds() {
		if by < 0 {
			continue
		}
		n, err := tensor.Cast(list[by], tensor.Int64, nil)
		if err != nil {
			return nil, err
		}
		if each, _ := tensor.Values[int64](n); int(each[0])*rows != list[i].Shape[0] {
			return nil, fmt.Errorf("the default output of application %q: %q gives %s for a row, but %q has %d",
				a.Name, list[by].Name, plural.Of(each[0], "element"), list[i].Name, list[i].Shape[0]/rows)
		}
	}
	return list, nil
}

// emptyShape returns the shape of an empty list where a model may return zero elements: [0, 4] for
// [-1, 4]. An empty list does not show the shape of its elements.
func emptyShape(got, want tensor.Shape) tensor.Shape {
	if !got.Equal(tensor.Shape{0}) || len(want) < 2 || want[0] != -1 {
		return got
	}
	shape := append(tensor.Shape{}, want...)
	for i, d := range shape {
		shape[i] = max(d, 0)
	}
	return shape
}
