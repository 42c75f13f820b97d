package adapter

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// Numbers returns an output of floats as it is. Texts become a float64 tensor: of shape [rows] if
// each is a number, of shape [rows, n] if each is a list of n numbers.
func (adapter) Numbers(output tensor.Tensor, one bool) (tensor.Tensor, bool) {
	if output.DType != tensor.Bytes {
		return output, true
	}
	texts, err := tensor.BytesElems(output)
	if err != nil {
		return tensor.Tensor{}, false
	}
	var values []float64
	shape := tensor.Shape{len(texts)}
	for i, s := range texts {
		var row []float64
		var ok bool
		n := -1 // a bare number
		if v, err := strconv.ParseFloat(string(s), 64); err == nil && json.Valid(s) {
			row = []float64{v}
		} else if row, ok = list(s); ok {
			n = len(row)
		} else {
			return tensor.Tensor{}, false
		}
		if i == 0 && n >= 0 {
			shape = append(shape, n)
		}
		if n >= 0 != (len(shape) == 2) || n >= 0 && n != shape[1] {
			return tensor.Tensor{}, false
		}
		values = append(values, row...)
	}
	if one && len(shape) > 1 {
		shape = shape[1:]
	}
	t, err := tensor.FromSlice(shape, values)
	t.Name = output.Name
	return t, err == nil
}

// list parses an array of numbers.
func list(s []byte) ([]float64, bool) {
	var elements []*float64 // null is no number
	if len(s) == 0 || s[0] != '[' || json.Unmarshal(s, &elements) != nil {
		return nil, false
	}
	row := make([]float64, len(elements))
	for i, e := range elements {
		if e == nil {
			return nil, false
		}
		row[i] = *e
	}
	return row, true
}

// AppendMembers appends "output" (one row) or "outputs", with each row as JSON.
func (adapter) AppendMembers(b []byte, output tensor.Tensor, one bool) ([]byte, error) {
	rows, err := members(output)
	if err != nil {
		return b, err
	}
	if one {
		return append(append(append(b, `"output":`...), rows[0]...), ','), nil
	}
	b = append(append(b, `"outputs":[`...), bytes.Join(rows, []byte{','})...)
	return append(b, "],"...), nil
}

// members returns the rows of an output as JSON. A text that is JSON is copied, and a number that
// JSON cannot express is the string "NaN", "+Inf" or "-Inf".
func members(output tensor.Tensor) ([][]byte, error) {
	if output.DType == tensor.Bytes {
		rows, err := tensor.BytesElems(output)
		for i, s := range rows {
			if !fitsMetadata(s) {
				rows[i] = jsonscan.AppendString(nil, s)
			}
		}
		return rows, err
	}
	wide, err := tensor.Cast(output, tensor.Float64, nil)
	if err != nil {
		return nil, err
	}
	defer wide.Release() // it may be the output itself
	values, err := tensor.Values[float64](wide)
	if err != nil {
		return nil, err
	}
	rows := make([][]byte, len(values))
	for i, v := range values {
		text := strconv.AppendFloat(nil, v, 'g', -1, 8*output.DType.Size())
		if math.IsNaN(v) || math.IsInf(v, 0) {
			text = jsonscan.AppendString(nil, text)
		}
		rows[i] = text
	}
	return rows, nil
}

// fitsMetadata reports whether a text is JSON that a client's decoder accepts, which is stricter
// than encoding/json.
func fitsMetadata(s []byte) bool {
	const depth = 128 - 2 // a decoder's default, less the object and the list around it
	return jsonscan.Valid(s, depth)
}

// Text returns the value itself if it is a text, else its JSON.
func (adapter) Text(value []byte) string {
	if s, isText := jsonscan.Unquote(value); isText {
		return s
	}
	return string(value)
}
