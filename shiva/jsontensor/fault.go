package jsontensor

import (
	"bytes"
	"fmt"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// Fault names the fault in well-formed JSON, the data of a tensor of this dtype and shape, of which
// [jsonscan.Scanner.Array] could read only the first done elements. It reads all of the data again.
func Fault(data []byte, d tensor.DType, shape tensor.Shape, done int) error {
	if data[0] != '[' {
		return fmt.Errorf("data: expected an array, got %s", short(data))
	}
	count, _ := shape.Elements()
	found := nestingOf(data, shape, done)
	nested := found.levels > 1
	switch {
	case found.mixed:
		return fmt.Errorf("data has an array that mixes arrays and other values")
	case nested && found.levels != len(shape):
		return fmt.Errorf("shape %s has %s, but data is nested %d deep; expected the same depth, or one flat array of %s",
			shape, plural.Of(len(shape), "dimension"), found.levels, plural.Of(count, "element"))
	case found.total != count:
		return fmt.Errorf("shape %s takes %s, got %d", shape, plural.Of(count, "element"), found.total)
	case nested && found.ragged:
		return fmt.Errorf("data has %s, but the lengths of its arrays do not match shape %s",
			plural.Of(count, "element"), shape)
	}
	return fmt.Errorf("element %d: expected %s, got %s", done, wanted(d), short(found.at))
}

// short returns the value that text begins with, or the first part of a long one.
func short(text []byte) string {
	if end, ok := jsonscan.Skip(text, 0, len(text)); ok {
		text = text[:end]
	}
	if len(text) > 40 {
		return string(bytes.ToValidUTF8(text[:40], nil)) + "…"
	}
	return string(text)
}

// A nesting compares the nesting of arrays with a shape.
type nesting struct {
	jsonscan.Scanner
	shape tensor.Shape
	want  int // index of the element that is wanted

	total  int    // values that are not arrays
	at     []byte // the text from the wanted element on
	levels int    // deepest nesting
	mixed  bool   // an array holds arrays and other values
	ragged bool   // an array is not as long as its dimension
}

func nestingOf(data []byte, shape tensor.Shape, want int) *nesting {
	n := &nesting{Scanner: jsonscan.Scanner{Text: data, Depth: len(data)}, shape: shape, want: want}
	n.walk(0)
	return n
}

// walk reads a well-formed array.
func (n *nesting) walk(depth int) {
	arrays, others := 0, 0
	for range n.Elements {
		if n.Peek() == '[' {
			arrays++
			n.walk(depth + 1)
			continue
		}
		if n.total == n.want {
			n.at = n.Text[n.At:]
		}
		others++
		n.total++
		n.Raw()
	}
	n.levels = max(n.levels, depth+1)
	n.mixed = n.mixed || arrays > 0 && others > 0
	n.ragged = n.ragged || depth < len(n.shape) && arrays+others != n.shape[depth]
}
