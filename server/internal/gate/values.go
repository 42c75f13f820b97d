package gate

import (
	"errors"
	"fmt"
	"math"

	"github.com/x448/float16"

	"github.com/shivad/shivad/shiva/tensor"
)

// FromJSON makes a tensor of a dtype from a decoded JSON value: a number, text or boolean, or
// nested lists of them. Its memory is the garbage collector's. A number that the dtype cannot
// hold is an error.
func FromJSON(value any, d tensor.DType) (tensor.Tensor, error) {
	var shape tensor.Shape
	for list, ok := value.([]any); ok; {
		if shape = append(shape, len(list)); len(list) == 0 {
			break
		}
		list, ok = list[0].([]any)
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
	for i, leaf := range leaves {
		v, isNumber := leaf.(float64)
		if is, isBool := leaf.(bool); isBool && is {
			v = 1
		} else if !isNumber && !isBool {
			return tensor.Tensor{}, fmt.Errorf("expected numbers, got %v", leaf)
		}
		// What is written with a few decimals is meant as the nearest value of a short float.
		switch numbers[i] = v; d {
		case tensor.Float32:
			numbers[i] = float64(float32(v))
		case tensor.Float16:
			numbers[i] = float64(float16.Fromfloat32(float32(v)).Float32())
		case tensor.Int64, tensor.Uint64: // a decoded number of more digits is some other integer already
			if math.Abs(v) >= 1<<53 {
				return tensor.Tensor{}, fmt.Errorf("%.0f or a number near it: an integer of %d and above is not exact as a JSON number", v, int64(1)<<53)
			}
		}
		if math.IsInf(numbers[i], 0) {
			return tensor.Tensor{}, fmt.Errorf("%g is out of the range of %s", v, d)
		}
	}
	t, err := tensor.FromSlice(shape, numbers)
	if err != nil {
		return t, err
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
