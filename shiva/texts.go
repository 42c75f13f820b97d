package shiva

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// TextsKey is the metadata key of an object with the texts of a message, by input or output name.
// Text has no dtype on this wire, so text tensors travel there; server/manual/wire.md
// describes the form.
const TextsKey = "__texts__"

const (
	// maxTextRank bounds the nesting of lists that ParseText reads: numpy has no arrays of a higher
	// rank.
	maxTextRank = 64
	// maxEmptyLists bounds the brackets that AppendText writes for a tensor without elements, whose
	// shape may imply any number of them at no cost to the sender.
	maxEmptyLists = 1 << 20
)

// AppendText appends the elements of a Bytes tensor as JSON: a string for shape [], otherwise lists
// nested as deep as the shape has dimensions. An element that is not UTF-8 becomes {"b64":"..."},
// its bytes in base64 (RFC 4648, padded). Dimensions after a 0 are not written.
func AppendText(dst []byte, t tensor.Tensor) ([]byte, error) {
	if t.DType != tensor.Bytes {
		return dst, fmt.Errorf("shiva: expected a tensor of bytes, got %s", t.DType)
	}
	if err := t.Check(); err != nil {
		return dst, err
	}
	shape := t.Shape
	for i, lists := 0, 1; i < len(shape); i++ {
		if shape[i] == 0 {
			shape = shape[:i+1]
			if lists > maxEmptyLists {
				return dst, fmt.Errorf("shiva: texts of shape %s are %d lists without an element, limit %d", t.Shape,
					lists, maxEmptyLists)
			}
			break
		}
		if lists <= maxEmptyLists {
			lists *= min(shape[i], maxEmptyLists+1)
		}
	}
	dst, _ = appendNest(dst, shape, t.Data)
	return dst, nil
}

// appendNest appends the elements of a tensor of this shape at the start of data, and returns the
// rest of data.
func appendNest(dst []byte, shape tensor.Shape, data []byte) ([]byte, []byte) {
	if len(shape) == 0 {
		end := 4 + int(binary.LittleEndian.Uint32(data))
		return appendElement(dst, data[4:end]), data[end:]
	}
	dst = append(dst, '[')
	for i := range shape[0] {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst, data = appendNest(dst, shape[1:], data)
	}
	return append(dst, ']'), data
}

func appendElement(dst, element []byte) []byte {
	if utf8.Valid(element) {
		return jsonscan.AppendString(dst, element)
	}
	dst = append(dst, `{"b64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, element)
	return append(dst, `"}`...)
}

// AppendTexts appends the value of [TextsKey]: an object of Bytes tensors by name.
func AppendTexts(dst []byte, tensors ...tensor.Tensor) ([]byte, error) {
	dst = append(dst, '{')
	for i, t := range tensors {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsonscan.AppendString(dst, t.Name), ':')
		var err error
		if dst, err = AppendText(dst, t); err != nil {
			return dst, fmt.Errorf("text %q: %w", t.Name, err)
		}
	}
	return append(dst, '}'), nil
}

// Texts returns the texts that the metadata of m holds under [TextsKey], in their order, as Bytes
// tensors in memory of their own.
func (m *Message) Texts() ([]tensor.Tensor, error) {
	object := jsonscan.Field(m.Metadata, TextsKey)
	if object == nil {
		return nil, nil
	}
	var texts []tensor.Tensor
	s := jsonscan.Scanner{Text: object, Depth: maxTextRank + 2}
	for name := range s.Members {
		t, err := ParseText(s.Raw(), nil)
		if err != nil {
			s.Fail(fmt.Errorf("text %q: %w", name, err))
			break
		}
		t.Name = string(name)
		texts = append(texts, t)
	}
	return texts, s.Err()
}

// ParseText reads what [AppendText] writes. The caller gets one reference to the result, whose
// memory is from the pool. Lists that differ in length or depth have no shape and are refused. The
// error wraps [tensor.ErrBudget] if, and only if, the pool has no memory.
func ParseText(text []byte, pool *tensor.Pool) (tensor.Tensor, error) {
	n := nest{Scanner: jsonscan.Scanner{Text: text, Depth: maxTextRank + 1}, shape: tensor.Shape{}, rank: -1}
	n.value(0)
	if err := n.End(); err != nil {
		return tensor.Tensor{}, err
	}
	buf, err := pool.Get(n.size)
	if err != nil {
		return tensor.Tensor{}, err
	}
	data := buf.Bytes()[:0]
	n.At = 0
	for n.Peek() != 0 { // between elements there is nothing but brackets, commas and space
		if c := text[n.At]; c != '"' && c != '{' {
			n.At++
			continue
		}
		if data, err = n.appendElement(data); err != nil {
			buf.Release()
			return tensor.Tensor{}, err
		}
	}
	return tensor.Tensor{DType: tensor.Bytes, Shape: n.shape, Data: data, Buf: buf}, nil
}

// A nest reads nested lists and determines their shape.
type nest struct {
	jsonscan.Scanner
	// Lengths of the lists so far, by depth; -1 while the first list of a depth is open.
	shape tensor.Shape
	rank  int // depth of the elements; -1: no element was read yet
	size  int // upper bound for the elements' bytes: escapes only get shorter
}

var errRagged = errors.New("the lists are not alike in length and depth, so they have no shape")

// value reads an element or a list.
func (n *nest) value(depth int) {
	switch n.Peek() {
	case '[':
		n.list(depth)
	case '"', '{':
		n.rank = depth
		if n.size += 4 + len(n.Raw()); n.size > math.MaxInt32 {
			n.Fail(fmt.Errorf("texts of more than %d bytes", math.MaxInt32))
		}
		if len(n.shape) != depth {
			n.Fail(errRagged)
		}
	default:
		n.Unexpected("a string or nested lists of strings")
	}
}

func (n *nest) list(depth int) {
	switch {
	case depth == n.rank:
		n.Fail(errRagged)
	case depth == maxTextRank:
		n.Fail(fmt.Errorf("lists nested deeper than %d", maxTextRank))
	case depth == len(n.shape):
		n.shape = append(n.shape, -1)
	}
	length := 0
	for range n.Elements {
		n.value(depth + 1)
		length++
	}
	if n.Err() != nil {
		return
	}
	if n.shape[depth] >= 0 && n.shape[depth] != length {
		n.Fail(errRagged)
	}
	n.shape[depth] = length
}

// appendElement appends the element that is read next.
func (n *nest) appendElement(data []byte) ([]byte, error) {
	if n.Peek() == '"' {
		return tensor.AppendElem(data, n.Str()), nil
	}
	var binary struct {
		B64 *[]byte `json:"b64"`
	}
	text := n.Raw()
	if err := json.Unmarshal(text, &binary); err != nil || binary.B64 == nil {
		return data, fmt.Errorf(`expected a string or {"b64":"..."}, got %.40q`, text)
	}
	return tensor.AppendElem(data, *binary.B64), nil
}
