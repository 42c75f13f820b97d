package shiva

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva/tensor"
)

// TextsKey is the key of metadata whose object has the texts of a message, by the name of their
// input or output. Text has no dtype on this wire, so its tensors travel there; README.md
// beside this file describes the form.
const TextsKey = "__texts__"

const (
	// maxTextRank bounds the nesting of lists that ParseText reads: numpy takes no tensor of a
	// higher rank.
	maxTextRank = 64
	// maxEmptyLists bounds the brackets that AppendText writes for a tensor without elements.
	// Its shape may name any number of them at no cost to whoever sent it.
	maxEmptyLists = 1 << 20
)

// AppendText appends the elements of a Bytes tensor as JSON: a string for shape [], else lists
// nested as deep as the shape has dimensions. An element that is not UTF-8 becomes
// {"b64":"..."}, its bytes in base64 (RFC 4648, padded). Dimensions after one of size 0 are not
// written.
func AppendText(dst []byte, t tensor.Tensor) ([]byte, error) {
	if t.DType != tensor.Bytes {
		return dst, fmt.Errorf("shiva: texts asked of a tensor of %s", t.DType)
	}
	if err := t.Check(); err != nil {
		return dst, err
	}
	shape := t.Shape
	for i, lists := 0, 1; i < len(shape); i++ {
		if shape[i] == 0 {
			shape = shape[:i+1]
			if lists > maxEmptyLists {
				return dst, fmt.Errorf("shiva: texts of shape %s are %d lists without an element, limit %d", t.Shape, lists, maxEmptyLists)
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

// appendNest appends the elements of a shape that data begins with, and gives what follows them.
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
		return AppendString(dst, string(element))
	}
	dst = append(dst, `{"b64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, element)
	return append(dst, `"}`...)
}

// AppendTexts appends the value of [TextsKey]: an object of the tensors, which are of Bytes, by
// their names.
func AppendTexts(dst []byte, tensors ...tensor.Tensor) ([]byte, error) {
	dst = append(dst, '{')
	for i, t := range tensors {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendString(dst, t.Name), ':')
		var err error
		if dst, err = AppendText(dst, t); err != nil {
			return dst, fmt.Errorf("text %q: %w", t.Name, err)
		}
	}
	return append(dst, '}'), nil
}

// Texts returns the texts that the metadata of m holds under [TextsKey], in their order, as
// tensors of Bytes in memory of their own.
func (m *Message) Texts() ([]tensor.Tensor, error) {
	object := Field(m.Metadata, TextsKey)
	if object == nil {
		return nil, nil
	}
	var texts []tensor.Tensor
	var bad error
	err := EachField(object, func(key, value []byte) bool {
		var t tensor.Tensor
		if t, bad = ParseText(value, nil); bad != nil {
			bad = fmt.Errorf("text %q: %w", key, bad)
			return false
		}
		t.Name = string(key)
		texts = append(texts, t)
		return true
	})
	if err == nil {
		err = bad
	}
	return texts, err
}

// ParseText reads what [AppendText] writes, in memory of the pool that the result owns: one
// reference, which is the caller's. Lists that are not alike in length and depth make no shape,
// and are refused. An error wraps [tensor.ErrBudget] if the pool has no memory, and nothing
// else otherwise.
func ParseText(text []byte, pool *tensor.Pool) (tensor.Tensor, error) {
	n := nest{text: text, shape: tensor.Shape{}, rank: -1}
	start := skipSpace(text, 0)
	end, err := n.value(start, 0)
	if err != nil {
		return tensor.Tensor{}, err
	}
	if skipSpace(text, end) < len(text) {
		return tensor.Tensor{}, fmt.Errorf("unexpected %.20q after the text", text[end:])
	}
	buf, err := pool.Get(n.size)
	if err != nil {
		return tensor.Tensor{}, err
	}
	data := buf.Bytes()[:0]
	for i := start; i < end; i++ { // between elements there is nothing but brackets, commas and space
		if text[i] != '"' && text[i] != '{' {
			continue
		}
		last := i
		if data, last, err = appendParsed(data, text, i); err != nil {
			buf.Release()
			return tensor.Tensor{}, err
		}
		i = last - 1
	}
	return tensor.Tensor{DType: tensor.Bytes, Shape: n.shape, Data: data, Buf: buf}, nil
}

// A nest is nested lists whose shape is being found.
type nest struct {
	text  []byte
	shape tensor.Shape // lengths of the lists so far, by depth; -1 while the first list of a depth is open
	rank  int          // depth of the elements; -1: none has come
	size  int          // of the elements at most: what is escaped is shorter than its escapes
}

var errRagged = errors.New("the lists are not alike in length and depth, so they have no shape")

// value reads the element or the list at offset i, and gives the offset after it.
func (n *nest) value(i, depth int) (int, error) {
	if i < len(n.text) && n.text[i] == '[' {
		return n.list(i, depth)
	}
	end, ok := i, false
	if i < len(n.text) && (n.text[i] == '"' || n.text[i] == '{') {
		end, ok = SkipValue(n.text, i, 1)
	}
	if !ok {
		return i, fmt.Errorf("expected a string or nested lists of strings, got %.20q", n.text[i:])
	}
	if len(n.shape) != depth {
		return i, errRagged
	}
	n.rank = depth
	n.size += 4 + end - i
	if n.size > math.MaxInt32 {
		return i, fmt.Errorf("texts of more than %d bytes", math.MaxInt32)
	}
	return end, nil
}

func (n *nest) list(i, depth int) (int, error) {
	switch {
	case depth == n.rank:
		return i, errRagged
	case depth == maxTextRank:
		return i, fmt.Errorf("lists nested deeper than %d", maxTextRank)
	case depth == len(n.shape):
		n.shape = append(n.shape, -1)
	}
	length := 0
	i = skipSpace(n.text, i+1)
	for closed := i < len(n.text) && n.text[i] == ']'; !closed; length++ {
		end, err := n.value(i, depth+1)
		if err != nil {
			return i, err
		}
		i = skipSpace(n.text, end)
		switch {
		case i < len(n.text) && n.text[i] == ',':
			i = skipSpace(n.text, i+1)
		case i < len(n.text) && n.text[i] == ']':
			closed = true
		default:
			return i, fmt.Errorf("a list of texts does not end: %.20q", n.text[i:])
		}
	}
	if n.shape[depth] >= 0 && n.shape[depth] != length {
		return i, errRagged
	}
	n.shape[depth] = length
	return i + 1, nil
}

// appendParsed appends the element that begins at offset i of text, and gives the offset after it.
func appendParsed(data, text []byte, i int) ([]byte, int, error) {
	end, ok := SkipValue(text, i, 1)
	if !ok {
		return data, i, fmt.Errorf("expected a string, got %.20q", text[i:])
	}
	if text[i] == '"' {
		s := text[i+1 : end-1]
		for _, c := range s {
			if c == '\\' {
				plain, _ := ParseString(text[i:end])
				return tensor.AppendElem(data, plain), end, nil
			}
		}
		return tensor.AppendElem(data, s), end, nil
	}
	var binary struct {
		B64 *[]byte `json:"b64"`
	}
	if err := json.Unmarshal(text[i:end], &binary); err != nil || binary.B64 == nil {
		return data, i, fmt.Errorf(`expected a string or {"b64":"..."}, got %.40q`, text[i:end])
	}
	return tensor.AppendElem(data, *binary.B64), end, nil
}
