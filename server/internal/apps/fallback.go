package apps

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// HasDefault reports whether the application has a default output.
func (a *App) HasDefault() bool { return a.fallback != nil }

// DefaultSpecs declares the default output by its own values, for when no model has declared
// anything: whole numbers are int64, others float64.
func (a *App) DefaultSpecs() []tensor.Spec {
	specs := make([]tensor.Spec, 0, len(a.fallback))
	for _, name := range slices.Sorted(maps.Keys(a.fallback)) {
		value := a.fallback[name]
		spec := tensor.Spec{Name: name, DType: dtypeOf(value), Shape: tensor.Shape{-1}}
		for v, isList := value.([]any); isList; {
			spec.Shape = append(spec.Shape, len(v))
			if len(v) == 0 {
				break
			}
			v, isList = v[0].([]any)
		}
		specs = append(specs, spec)
	}
	return specs
}

// dtypeOf returns the dtype that holds all of a decoded JSON value.
func dtypeOf(value any) tensor.DType {
	switch v := value.(type) {
	case []any:
		d := tensor.Int64
		for i, e := range v {
			if of := dtypeOf(e); i == 0 || of != tensor.Int64 {
				d = of
			}
		}
		return d
	case string:
		return tensor.Bytes
	case bool:
		return tensor.Bool
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return tensor.Int64
		}
	}
	return tensor.Float64
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
		if model.Adapter != nil && spec.DType == tensor.Bytes {
			if value, err = model.Adapter.Text(value); err != nil {
				return nil, err
			}
		}
		row, err := gate.FromJSON(value, spec.DType)
		if err != nil {
			return nil, fmt.Errorf("the default output of application %q: %q: %w", a.Name, spec.Name, err)
		}
		want := spec.Shape
		if model.Batched() && spec.Ragged == "" {
			want = want[1:]
		}
		row.Shape = emptyShape(row.Shape, want)
		if !row.Shape.Fits(want) {
			return nil, fmt.Errorf("the default output of application %q: %q has shape %s for a row, but the model declares %s", a.Name, spec.Name, row.Shape, want)
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
			return nil, fmt.Errorf("the default output of application %q: %q gives %d elements for a row, but %q has %d", a.Name, list[by].Name, each[0], list[i].Name, list[i].Shape[0]/rows)
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
