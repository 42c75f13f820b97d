package rest

import (
	"bytes"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva"
)

// A text is JSON (RFC 8259) that is read once from its start to its end, value by value, with
// no tree between. Each method reads what its name says at the current place, and fails where
// something else stands. Strings are UTF-8, and the names in an object differ.
type text struct {
	b     []byte
	at    int
	depth int // levels that may still be opened
	apart int // bytes of tensors' data so far, which limits.metadata_bytes does not count
	limit int // limits.metadata_bytes; 0: none
}

// peek returns the first byte of the next token, 0 at the end.
func (t *text) peek() byte {
	for t.at < len(t.b) {
		switch c := t.b[t.at]; c {
		case ' ', '\n', '\t', '\r':
			t.at++
		default:
			return c
		}
	}
	return 0
}

// unexpected says what stands here instead of what was wanted.
func (t *text) unexpected(want string) error {
	if t.peek(); t.at >= len(t.b) {
		return malformed("JSON: expected %s, but the text ends after %d bytes", want, len(t.b))
	}
	return malformed("JSON: expected %s at byte %d, got %.24q", want, t.at, bytes.ToValidUTF8(t.b[t.at:min(len(t.b), t.at+24)], []byte("?")))
}

// wrong is for a value of the wrong kind, if it is a value at all. what says whose it is; it is
// called for errors only.
func (t *text) wrong(what func() string, want string) error {
	from := *t
	if raw, err := from.raw(); err != nil {
		return err
	} else if len(raw) > 40 {
		return invalid("%s: expected %s, got %s…", what(), want, bytes.ToValidUTF8(raw[:40], nil))
	} else {
		return invalid("%s: expected %s, got %s", what(), want, raw)
	}
}

// open enters an object or array.
func (t *text) open(bracket byte, want string) error {
	if t.peek() != bracket {
		return t.unexpected(want)
	}
	if t.depth == 0 {
		return malformed("JSON: nested deeper than limits.json_depth allows, at byte %d", t.at)
	}
	t.depth--
	t.at++
	return nil
}

// next steps over the comma or the closing bracket after an element.
func (t *text) next(closing byte) (more bool, err error) {
	switch c := t.peek(); {
	case t.limit > 0 && t.at-t.apart > t.limit:
		return false, t.tooLong()
	case c == ',':
		t.at++
		return true, nil
	case c == closing:
		t.at++
		t.depth++
		return false, nil
	}
	return false, t.unexpected(`"," or ` + strconv.Quote(string(closing)))
}

func (t *text) tooLong() error {
	return tooLarge("the JSON has %d bytes or more beside the tensors' data; limits.metadata_bytes is %d", t.at-t.apart, t.limit)
}

// object calls member with each name in turn, which reads the value.
func (t *text) object(member func(name string) error) error {
	if err := t.open('{', "an object"); err != nil {
		return err
	}
	if t.peek() == '}' {
		_, err := t.next('}')
		return err
	}
	var names distinct
	for {
		at := t.at
		name, err := t.str("the name of a member")
		if err != nil {
			return err
		}
		if !names.add(name) {
			return malformed("JSON: %q at byte %d stands there for the second time", name, at)
		}
		if t.peek() != ':' {
			return t.unexpected(`":"`)
		}
		t.at++
		if err := member(name); err != nil {
			return err
		}
		if more, err := t.next('}'); !more {
			return err
		}
		if t.peek() != '"' {
			return t.unexpected("the name of a member")
		}
	}
}

// members is object for members of which one that is null counts as absent: serializers of many
// languages write what is not set so.
func (t *text) members(member func(name string) error) error {
	return t.object(func(name string) error {
		if t.null() {
			return nil
		}
		return member(name)
	})
}

// null steps over null, if it stands here.
func (t *text) null() bool {
	is := t.peek() == 'n' && bytes.HasPrefix(t.b[t.at:], []byte("null"))
	if is {
		t.at += len("null")
	}
	return is
}

// distinct is a set of strings: most objects have a few members.
type distinct struct {
	few  [8]string
	n    int
	many map[string]struct{}
}

func (d *distinct) add(s string) bool {
	if slices.Contains(d.few[:d.n], s) {
		return false
	}
	if d.n < len(d.few) {
		d.few[d.n] = s
		d.n++
		return true
	}
	if d.many == nil {
		d.many = make(map[string]struct{})
	}
	_, there := d.many[s]
	d.many[s] = struct{}{}
	return !there
}

// array calls element with each index in turn, which reads the value.
func (t *text) array(want string, element func(i int) error) error {
	if err := t.open('[', want); err != nil {
		return err
	}
	if t.peek() == ']' {
		_, err := t.next(']')
		return err
	}
	for i := 0; ; i++ {
		if err := element(i); err != nil {
			return err
		}
		if more, err := t.next(']'); !more {
			return err
		}
	}
}

// str reads a string, which is its own and no view of the text.
func (t *text) str(want string) (string, error) {
	if t.peek() != '"' {
		return "", t.unexpected(want)
	}
	b, err := t.raw()
	if err != nil {
		return "", err
	}
	if inner := b[1 : len(b)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return intern(inner), nil
	}
	s, ok := shiva.ParseString(b)
	if !ok {
		return "", malformed("JSON: %.24q is not a string", b)
	}
	return s, nil
}

// intern saves the memory of words that are in every request.
func intern(b []byte) string {
	switch string(b) {
	case "id":
		return "id"
	case "parameters":
		return "parameters"
	case "inputs":
		return "inputs"
	case "outputs":
		return "outputs"
	case "name":
		return "name"
	case "shape":
		return "shape"
	case "datatype":
		return "datatype"
	case "data":
		return "data"
	case "FP32":
		return "FP32"
	}
	return string(b)
}

// raw reads any value and gives its text, a view.
func (t *text) raw() ([]byte, error) {
	t.peek()
	start := t.at
	end, ok := shiva.SkipValue(t.b, start, t.depth)
	if !ok {
		t.at = end
		return nil, t.unexpected("a value")
	}
	t.at = end
	if t.limit > 0 && end-t.apart > t.limit {
		return nil, t.tooLong()
	}
	value := t.b[start:end]
	if !utf8.Valid(value) {
		return nil, malformed("JSON: the value at byte %d is not UTF-8", start)
	}
	return value, nil
}

// skip reads any value.
func (t *text) skip() error {
	_, err := t.raw()
	return err
}

// boolean reads true or false.
func (t *text) boolean(what func() string) (bool, error) {
	rest := t.b[min(len(t.b), t.at):]
	if t.peek() != 0 {
		rest = t.b[t.at:]
	}
	switch {
	case bytes.HasPrefix(rest, []byte("true")):
		t.at += 4
		return true, nil
	case bytes.HasPrefix(rest, []byte("false")):
		t.at += 5
		return false, nil
	}
	return false, t.wrong(what, "true or false")
}

// whole reads a number without sign, fraction and exponent, of at most most.
func (t *text) whole(what func() string, most uint64) (uint64, error) {
	t.peek()
	from := t.at
	raw, err := t.raw()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil || n > most {
		t.at = from
		return 0, t.wrong(what, "a whole number from 0 to "+strconv.FormatUint(most, 10))
	}
	return n, nil
}

// end makes sure that nothing follows.
func (t *text) end() error {
	if t.peek(); t.at < len(t.b) {
		return t.unexpected("the end of the text")
	}
	return nil
}
