// Package adapter provides the declaration of containers of generations before RPC v4, which cannot
// make one, and converts between the declaration and the form of their clients: a tensor of any
// shape is one row, texts have no names, and an answer is a text that may be JSON.
package adapter

import (
	"errors"
	"fmt"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Spec returns the declaration of a container whose input is rows of one dtype and whose output has
// one element of another dtype for each row. A row of numbers is a vector of any length.
func Spec(input, output tensor.DType) scheduler.Spec {
	shape := tensor.Shape{-1, -1}
	if input == tensor.Bytes {
		shape = tensor.Shape{-1}
	}
	return scheduler.Spec{
		Inputs:    []tensor.Spec{{Name: "input", DType: input, Shape: shape}},
		Outputs:   []tensor.Spec{{Name: "output", DType: output, Shape: tensor.Shape{-1}}},
		MixedRows: true,
		Adapter:   adapter{},
	}
}

type adapter struct{}

var errOneRow = errors.New("the model takes one row per request: the server's configuration sets batched = false")

// Inputs converts a request to the single input.
func (adapter) Inputs(s *scheduler.Spec, tensors []tensor.Tensor, json []byte, batch bool,
	pool *tensor.Pool) ([]tensor.Tensor, error) {
	spec := &s.Inputs[0]
	var t tensor.Tensor
	var err error
	if spec.DType == tensor.Bytes {
		t, err = texts(tensors, json, s.Batched(), pool)
	} else {
		t, err = vectors(tensors, batch, s.Batched())
	}
	if err != nil {
		return nil, err
	}
	t.Name = spec.Name
	return []tensor.Tensor{t}, nil
}

// vectors makes the flat rows for a model of numbers. A tensor of any shape is one row, unless
// batch is set: then its first dimension counts rows.
func vectors(tensors []tensor.Tensor, batch, batched bool) (tensor.Tensor, error) {
	if len(tensors) != 1 {
		return tensor.Tensor{}, fmt.Errorf("expected 1 tensor, got %d", len(tensors))
	}
	t := tensors[0]
	elements, _ := t.Shape.Elements()
	switch {
	case !batch:
		t.Shape = tensor.Shape{elements}
	case !batched:
		return t, errOneRow
	case len(t.Shape) == 0:
		return t, errors.New("batch is true, but a single value has no rows")
	default:
		rows := t.Shape[0]
		t.Shape = tensor.Shape{rows, elements / max(rows, 1)}
	}
	t.Retain()
	return t, nil
}

// texts makes the rows for a model of texts: from a Bytes tensor, from one uint8 tensor of UTF-8
// per row, or from a JSON string (one row, answered as one) or list of strings.
func texts(tensors []tensor.Tensor, json []byte, batched bool, pool *tensor.Pool) (t tensor.Tensor, err error) {
	if json != nil {
		if t, err = shiva.ParseText(json, pool); err == nil && len(t.Shape) > 1 {
			err = fmt.Errorf("got lists of shape %s", t.Shape)
		}
		defer t.Release()
		if err != nil {
			return t, fmt.Errorf("metadata \"inputs\": expected a string or a list of strings: %w", err)
		}
		tensors = []tensor.Tensor{t}
	}
	var rows [][]byte
	for _, t := range tensors {
		switch t.DType {
		case tensor.Uint8:
			rows = append(rows, t.Data)
		case tensor.Bytes:
			elements, err := tensor.BytesElems(t)
			if err != nil {
				return t, err
			}
			rows = append(rows, elements...)
		default:
			return t, fmt.Errorf("expected text (strings, or a uint8 tensor of UTF-8), got %s %s", t.DType, t.Shape)
		}
	}
	var shape tensor.Shape // of one text
	switch {
	case len(rows) == 0:
		return t, errors.New("no text: expected strings, or a uint8 tensor of UTF-8")
	case len(rows) > 1 && !batched:
		return t, errOneRow
	case batched && (len(tensors) > 1 || tensors[0].DType == tensor.Bytes && len(tensors[0].Shape) > 0):
		shape = tensor.Shape{len(rows)}
	}
	if t = tensors[0]; len(tensors) > 1 || t.DType != tensor.Bytes {
		return tensor.FromElems(shape, rows, pool)
	}
	t.Shape = shape
	t.Retain()
	return t, nil
}
