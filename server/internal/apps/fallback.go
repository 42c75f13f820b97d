package apps

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/x448/float16"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// HasDefault reports whether there is an answer for when no model gives one.
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

// dtypeOf is the dtype that holds all of a decoded JSON value.
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

// DefaultOutput makes the default output for so many rows of a model that declares to be such,
// each tensor with the rows as its first dimension, in memory of the pool and with a reference
// that is the caller's. A model with an adapter says
// it in the adapter's text.
func (a *App) DefaultOutput(model *scheduler.Spec, rows int, pool *tensor.Pool) (_ []tensor.Tensor, err error) {
	if a.fallback == nil {
		return nil, errNoDefault
	}
	list := make([]tensor.Tensor, len(model.Outputs))
	defer func() {
		if err != nil {
			for _, t := range list {
				t.Release()
			}
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
		row, err := FromJSON(value, spec.DType)
		if err != nil {
			return nil, fmt.Errorf("the default output of application %q: %q: %w", a.Name, spec.Name, err)
		}
		want := spec.Shape
		if model.Batched() && spec.Ragged == "" {
			want = want[1:]
		}
		row.Shape = none(row.Shape, want)
		if !row.Shape.Fits(want) {
			return nil, fmt.Errorf("the default output of application %q: %q has shape %s for a row, and the model gives %s", a.Name, spec.Name, row.Shape, want)
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
			return nil, fmt.Errorf("the default output of application %q: %q says %d for a row, and %q has %d", a.Name, list[by].Name, each[0], list[i].Name, list[i].Shape[0]/rows)
		}
	}
	return list, nil
}

// none is the shape of an empty list where a model may give none of something: [0, 4] for [-1,
// 4]. A list does not say what it would be a list of.
func none(got, want tensor.Shape) tensor.Shape {
	if !got.Equal(tensor.Shape{0}) || len(want) < 2 || want[0] != -1 {
		return got
	}
	shape := append(tensor.Shape{}, want...)
	for i, d := range shape {
		shape[i] = max(d, 0)
	}
	return shape
}

// FromJSON makes a tensor of a dtype from a decoded JSON value: a number, text or boolean, or
// nested lists of them. Its memory is the garbage collector's. A number that the dtype cannot
// hold is an error.
func FromJSON(value any, d tensor.DType) (tensor.Tensor, error) {
	var shape tensor.Shape
	for v := value; ; {
		list, ok := v.([]any)
		if !ok {
			break
		}
		shape = append(shape, len(list))
		if len(list) == 0 {
			break
		}
		v = list[0]
	}
	// No room is made for as many as the shape says: it is that of the first lists only, and a
	// short text may claim a great deal.
	leaves, err := flatten(nil, value, shape)
	if err != nil {
		return tensor.Tensor{}, err
	}
	if d == tensor.Bytes {
		texts := make([]string, len(leaves))
		for i, v := range leaves {
			var isText bool
			if texts[i], isText = v.(string); !isText {
				return tensor.Tensor{}, fmt.Errorf("expected texts, got %v", v)
			}
		}
		return tensor.FromStrings(shape, texts)
	}
	numbers := make([]float64, len(leaves))
	for i, v := range leaves {
		switch v := v.(type) {
		case float64:
			numbers[i] = v
		case bool:
			if v {
				numbers[i] = 1
			}
		default:
			return tensor.Tensor{}, fmt.Errorf("expected numbers, got %v", v)
		}
	}
	t, err := tensor.FromSlice(shape, numbers)
	if err != nil {
		return t, err
	}
	// A decoded number of more digits is some other integer already.
	if d == tensor.Int64 || d == tensor.Uint64 {
		for _, v := range numbers {
			if math.Abs(v) >= 1<<53 {
				return t, fmt.Errorf("%.0f or a number near it: an integer of %d and above is not exact as a JSON number", v, int64(1)<<53)
			}
		}
	}
	// What is written with a few decimals is meant as the nearest value of a short float.
	switch d {
	case tensor.Float32:
		short := make([]float32, len(numbers))
		for i, v := range numbers {
			if math.Abs(v) > math.MaxFloat32 {
				return t, fmt.Errorf("%g is out of the range of %s", v, d)
			}
			short[i] = float32(v)
		}
		return tensor.FromSlice(shape, short)
	case tensor.Float16:
		short := make([]float16.Float16, len(numbers))
		for i, v := range numbers {
			if short[i] = float16.Fromfloat32(float32(v)); short[i].IsInf(0) {
				return t, fmt.Errorf("%g is out of the range of %s", v, d)
			}
		}
		return tensor.FromSlice(shape, short)
	}
	return tensor.Cast(t, d, nil)
}

func flatten(to []any, v any, shape tensor.Shape) ([]any, error) {
	list, isList := v.([]any)
	if len(shape) == 0 {
		if isList {
			return nil, errors.New("lists of different depths")
		}
		return append(to, v), nil
	}
	if !isList || len(list) != shape[0] {
		return nil, errors.New("lists of different lengths")
	}
	var err error
	for _, e := range list {
		if to, err = flatten(to, e, shape[1:]); err != nil {
			return nil, err
		}
	}
	return to, nil
}
