package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/tensor"
)

// checkJSON reports whether a file is one JSON value.
func checkJSON(file []byte) error {
	if len(file) == 0 {
		return errors.New("it is empty")
	}
	var value json.RawMessage
	if err := jsonscan.Unmarshal(file, &value); err != nil {
		return fmt.Errorf("it is not an image (PNG, JPEG), .npy or JSON: %w", err)
	}
	return nil
}

// jsonTensor makes a tensor of nested arrays of numbers (strings for BYTES, [real, imaginary] for
// complex dtypes), or of a flat array with as many elements as one row.
func jsonTensor(text []byte, s spec) (tensor.Tensor, error) {
	t, err := readJSON(text, wire(s))
	if err != nil {
		return t, unfit("", "%v; %s", err, wants(s))
	}
	if n, ok := row(s).Elements(); ok && len(t.Shape) == 1 && t.Shape[0] == n && len(row(s)) != 1 {
		t.Shape = row(s) // flat: unambiguous, as the row's shape is fully declared
	}
	return t, nil
}

// readJSON is jsontensor.Read also for the dtypes that JSON lacks.
func readJSON(text []byte, d tensor.DType) (tensor.Tensor, error) {
	switch d {
	case tensor.LongDouble:
		t, err := jsontensor.Read(text, tensor.Float64, nil)
		if err != nil {
			return t, err
		}
		return roundTo(t, d)
	case tensor.Complex64, tensor.Complex128:
		part := map[tensor.DType]tensor.DType{tensor.Complex64: tensor.Float32, tensor.Complex128: tensor.Float64}[d]
		t, err := jsontensor.Read(text, part, nil)
		last := len(t.Shape) - 1
		if err == nil && (last < 0 || t.Shape[last] != 2) {
			err = fmt.Errorf("expected each complex number as [real, imaginary], got an array of shape %v", t.Shape)
		}
		if err != nil {
			return t, err
		}
		t.DType, t.Shape = d, t.Shape[:last]
		return t, nil
	}
	return jsontensor.Read(text, d, nil)
}
