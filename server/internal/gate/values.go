package gate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/x448/float16"

	"github.com/shivad/shivad/shiva/tensor"
)

// DecodeJSON decodes a value with all digits of its numbers, for [FromJSON].
func DecodeJSON(text []byte) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err = d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("expected one JSON value")
	}
	return value, nil
}

// FromJSON makes a tensor of a dtype from a decoded JSON value: a number, text or boolean, or
// nested lists of them. A number may be a json.Number, with all its digits. The garbage collector
// owns the tensor's memory. A number that the dtype cannot hold is an error.
func FromJSON(value any, d tensor.DType) (tensor.Tensor, error) {
	var shape tensor.Shape
	for list, ok := value.([]any); ok; {
		if shape = append(shape, len(list)); len(list) == 0 {
			break
		}
		list, ok = list[0].([]any)
	}
	// The capacity is not taken from the shape: the shape describes the first lists only, and a
	// short text may claim a huge one.
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
	switch d {
	case tensor.Int64:
		return integers(shape, leaves, func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) })
	case tensor.Uint64:
		return integers(shape, leaves, func(text string) (uint64, error) { return strconv.ParseUint(text, 10, 64) })
	}
	numbers := make([]float64, len(leaves))
	for i, leaf := range leaves {
		v, err := float(leaf)
		if err != nil {
			return tensor.Tensor{}, err
		}
		// Decimal text stands for the nearest value of a short float.
		switch numbers[i] = v; d {
		case tensor.Float32:
			numbers[i] = float64(float32(v))
		case tensor.Float16:
			numbers[i] = float64(float16.Fromfloat32(float32(v)).Float32())
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

func float(leaf any) (float64, error) {
	switch v := leaf.(type) {
	case float64:
		return v, nil
	case json.Number:
		return v.Float64()
	case bool:
		if v {
			return 1, nil
		}
		return 0, nil
	}
	return 0, fmt.Errorf("expected numbers, got %v", leaf)
}

// integers makes a tensor of a type with more integers than a float64 has. A number not written as
// plain digits, such as 1e3, is accepted in the range where a float64 represents every integer.
func integers[T int64 | uint64](shape tensor.Shape, leaves []any, parse func(string) (T, error)) (tensor.Tensor, error) {
	values := make([]T, len(leaves))
	for i, leaf := range leaves {
		if text, ok := leaf.(json.Number); ok {
			v, err := parse(text.String())
			if err == nil {
				values[i] = v
				continue
			}
			if errors.Is(err, strconv.ErrRange) {
				return tensor.Tensor{}, fmt.Errorf("%s is out of the range of %T", text, v)
			}
		}
		f, err := float(leaf)
		if err != nil {
			return tensor.Tensor{}, err
		}
		if math.Abs(f) >= 1<<53 {
			return tensor.Tensor{}, fmt.Errorf("got %.0f or a number near it: integers of %d and above must be written in digits alone", f, int64(1)<<53)
		}
		if values[i] = T(f); float64(values[i]) != f {
			return tensor.Tensor{}, fmt.Errorf("%v is not a value of %T", f, values[i])
		}
	}
	return tensor.FromSlice(shape, values)
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
