package main

import (
	"encoding/json"
	"fmt"

	"github.com/shivad/shivad/shiva/jsontext"
	"github.com/shivad/shivad/shiva/tensor"
)

// parseJSON reads one JSON value, with numbers as they were written.
func parseJSON(file []byte) (v any, err error) {
	if err = jsontext.Unmarshal(file, &v); err != nil {
		err = fmt.Errorf("it is not an image (PNG, JPEG), .npy or JSON: %w", err)
	}
	return v, err
}

// jsonTensor makes a tensor of nested arrays of numbers (strings for BYTES, [real, imaginary] for
// complex dtypes), or of a flat array with as many elements as one row.
func jsonTensor(v any, s spec) (tensor.Tensor, error) {
	b := arrayBuilder{dtype: wire(s)}
	if err := b.add(v, 0); err != nil {
		return tensor.Tensor{}, unfit("", "%v; %s", err, wants(s))
	}
	if b.shape == nil {
		b.shape = tensor.Shape{}
	}
	var t tensor.Tensor
	var err error
	if b.dtype == tensor.Bytes {
		t, err = tensor.FromStrings(b.shape, b.texts)
	} else {
		t, err = tensor.New(b.dtype, b.shape, b.data)
	}
	if err != nil {
		return t, err
	}
	if n, ok := row(s).Elements(); ok && len(b.shape) == 1 && b.shape[0] == n && len(row(s)) != 1 {
		t.Shape = row(s) // flat: unambiguous, as the row's shape is fully declared
	}
	return t, nil
}

// arrayBuilder gathers the elements of nested arrays and their shape.
type arrayBuilder struct {
	dtype tensor.DType
	shape tensor.Shape // taken from the first path down; all other paths must agree
	depth int          // of the leaves; set once one was seen
	leaf  bool
	index []int // of the element being read

	data  []byte
	texts []string
}

func (b *arrayBuilder) add(v any, depth int) error {
	list, isList := v.([]any)
	complexes := b.dtype == tensor.Complex64 || b.dtype == tensor.Complex128
	if !isList || complexes && isPair(list) {
		if b.leaf && depth != b.depth {
			return fmt.Errorf("element %v is not as deep as the first one", b.index)
		}
		b.leaf, b.depth = true, depth
		return b.addLeaf(v)
	}
	switch {
	case b.leaf && depth >= b.depth:
		return fmt.Errorf("element %v is a list where the first one is not", b.index)
	case depth == len(b.shape):
		if b.leaf {
			return fmt.Errorf("element %v is a list where the first one is not", b.index)
		}
		b.shape = append(b.shape, len(list))
	case b.shape[depth] != len(list):
		return fmt.Errorf("list %v has %d elements where the first one has %d", b.index, len(list), b.shape[depth])
	}
	b.index = append(b.index, 0)
	for i, e := range list {
		b.index[depth] = i
		if err := b.add(e, depth+1); err != nil {
			return err
		}
	}
	b.index = b.index[:depth]
	return nil
}

// isPair reports whether a list is a complex number.
func isPair(list []any) bool {
	if len(list) != 2 {
		return false
	}
	_, re := list[0].(json.Number)
	_, im := list[1].(json.Number)
	return re && im
}

func (b *arrayBuilder) addLeaf(v any) error {
	refuse := func(what string) error {
		return fmt.Errorf("element %v is %s, not a value of %s", b.index, what, b.dtype.V2())
	}
	if b.dtype == tensor.Bytes {
		s, ok := v.(string)
		if !ok {
			return refuse("not a string")
		}
		b.texts = append(b.texts, s)
		return nil
	}
	var err error
	switch v := v.(type) {
	case json.Number:
		if b.dtype == tensor.Complex64 || b.dtype == tensor.Complex128 {
			return refuse("one number; a complex one is written [real, imaginary]")
		}
		b.data, err = appendNumber(b.data, b.dtype, string(v))
	case []any: // a complex number
		part := map[tensor.DType]tensor.DType{tensor.Complex64: tensor.Float32, tensor.Complex128: tensor.Float64}[b.dtype]
		for _, p := range v {
			if err == nil {
				b.data, err = appendNumber(b.data, part, string(p.(json.Number)))
			}
		}
	case bool:
		if b.dtype != tensor.Bool {
			return refuse(fmt.Sprint(v))
		}
		n := "0"
		if v {
			n = "1"
		}
		b.data, err = appendNumber(b.data, b.dtype, n)
	case string:
		return refuse(fmt.Sprintf("the string %.40q", v))
	case nil:
		return refuse("null")
	default:
		return refuse("an object")
	}
	if err != nil {
		return fmt.Errorf("element %v: %w", b.index, err)
	}
	return nil
}
