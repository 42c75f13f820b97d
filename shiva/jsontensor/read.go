package jsontensor

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// maxRank bounds the nesting of lists: numpy has no arrays of a higher rank.
const maxRank = 64

var errRagged = errors.New("the lists are not alike in length and depth, so they have no shape")

// Read makes a tensor of a dtype from a JSON value: a number, boolean or string, or nested lists of
// them, whose lengths become its shape. Strings of Bytes may also be {"b64": "..."}, their bytes in
// base64. The caller gets one reference to the result, whose memory is from the pool; without one
// the garbage collector owns it. The error wraps [tensor.ErrBudget] if, and only if, the pool has
// no memory.
func Read(text []byte, d tensor.DType, pool *tensor.Pool) (tensor.Tensor, error) {
	switch {
	case d == tensor.Bytes:
		return shiva.ParseText(text, pool)
	case !Has(d):
		return tensor.Tensor{}, fmt.Errorf("JSON has no values of %s", d.V2())
	}
	text = bytes.TrimSpace(text)
	shape, err := shapeOf(text)
	if err != nil {
		return tensor.Tensor{}, err
	}
	// An element takes at least a digit and a comma: a short text whose first lists claim a large
	// shape gets no memory.
	count, ok := shape.Elements()
	if !ok || count > len(text)/2+1 {
		return tensor.Tensor{}, errRagged
	}
	list := text
	if len(shape) == 0 {
		list = append(append([]byte{'['}, text...), ']')
	}
	buf, err := pool.Get(count * d.Size())
	if err != nil {
		return tensor.Tensor{}, err
	}
	t := tensor.Tensor{DType: d, Shape: shape, Data: buf.Bytes(), Buf: buf}
	s := jsonscan.Scanner{Text: list, Depth: maxRank + 1}
	if done, ok := s.Array(shape, Elements(&t)); !ok {
		t.Release()
		return tensor.Tensor{}, unlike(list, d, shape, done)
	}
	return t, nil
}

// unlike is Fault where the shape was taken from the text, so that no sender is told of it.
func unlike(list []byte, d tensor.DType, shape tensor.Shape, done int) error {
	if len(shape) == 0 {
		shape = tensor.Shape{1}
	}
	count, _ := shape.Elements()
	found := nestingOf(list, shape, done)
	if found.mixed || found.ragged || found.total != count {
		return errRagged
	}
	where := ""
	if count > 1 {
		where = fmt.Sprintf("element %v: ", indexes(done, shape))
	}
	return fmt.Errorf("%sexpected %s, got %s", where, wanted(d), short(found.at))
}

// indexes are those of an element in each dimension.
func indexes(element int, shape tensor.Shape) []int {
	list := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		list[i], element = element%shape[i], element/shape[i]
	}
	return list
}

// shapeOf checks that text is one JSON value, and returns the lengths of its first lists, by depth.
func shapeOf(text []byte) (tensor.Shape, error) {
	shape := tensor.Shape{}
	s := jsonscan.Scanner{Text: text, Depth: maxRank + 1}
	s.Raw()
	if err := s.End(); err != nil {
		return nil, err
	}
	for at := 0; text[at] == '['; {
		s = jsonscan.Scanner{Text: text, At: at, Depth: maxRank + 1}
		count := 0
		for range s.Elements {
			if s.Peek(); count == 0 {
				at = s.At
			}
			count++
			s.Raw()
		}
		if shape = append(shape, count); count == 0 {
			break
		}
	}
	return shape, nil
}
