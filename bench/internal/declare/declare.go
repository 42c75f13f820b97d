// Package declare parses tensors and models on command lines: datatypes by their names in the
// Predict Protocol V2, shapes as comma-separated sizes, models as name:datatype:shape. A shape
// describes one row, without the batch dimension.
package declare

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shivad/shivad/shiva/tensor"
)

// Tensor parses a datatype and a shape; an empty shape means a scalar.
func Tensor(datatype, shape string) (tensor.DType, tensor.Shape, error) {
	d, ok := tensor.FromV2(strings.ToUpper(datatype))
	if !ok || d.Size() == 0 {
		return 0, nil, fmt.Errorf("declare: datatype %q: expected one of fixed size, such as FP32 or UINT8", datatype)
	}
	s := tensor.Shape{}
	if shape == "" {
		return d, s, nil
	}
	for part := range strings.SplitSeq(shape, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 0 {
			return 0, nil, fmt.Errorf("declare: shape %q: expected sizes with commas between, got %q", shape, part)
		}
		s = append(s, n)
	}
	return d, s, nil
}

// Model parses name:datatype:shape as a batched model with one input "x".
func Model(text string) (name string, input tensor.Spec, err error) {
	part := strings.Split(text, ":")
	if len(part) != 3 || part[0] == "" {
		return "", tensor.Spec{}, fmt.Errorf("declare: model %q: expected name:datatype:shape, such as image:UINT8:1080,1920,3", text)
	}
	d, s, err := Tensor(part[1], part[2])
	if err != nil {
		return "", tensor.Spec{}, err
	}
	return part[0], tensor.Spec{Name: "x", DType: d, Shape: append(tensor.Shape{-1}, s...)}, nil
}
