package gate

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/tensor"
)

// TensorReference, followed by the index of a tensor, is the text that stands for that tensor in
// the metadata of a message in bridge form. The reference package's ShivaBridge makes such messages
// from a model with fields.
const TensorReference = "__tensor__"

// Absent is the JSON text that a bridge writes for a field that is None.
const Absent = `"null"`

// reference returns the tensor that a JSON string refers to.
func reference(value []byte) (index int, ok bool) {
	digits, quoted := bytes.CutPrefix(value, []byte(`"`+TensorReference))
	if !quoted || len(digits) < 2 || len(digits) > 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(digits[:len(digits)-1]), 10, 16)
	return int(n), err == nil
}

func isReference(value []byte) bool {
	_, ok := reference(value)
	return ok
}

// InBridgeForm reports whether some value in a message's metadata refers to a tensor. It skips the
// members of a plain message that hold the names of tensors and the texts: these may be any string.
func InBridgeForm(metadata []byte) bool {
	// Messages in other forms pay only for this search.
	if !bytes.Contains(metadata, []byte(TensorReference)) {
		return false
	}
	for key, value := range jsonscan.Members(metadata) {
		if string(key) != shiva.NamesKey && string(key) != shiva.TextsKey && Refers(value) {
			return true
		}
	}
	return false
}

// Refers reports whether a JSON value is a reference to a tensor or contains one. It reads each
// byte once.
func Refers(value []byte) bool {
	for i := 0; i < len(value); i++ {
		if value[i] != '"' {
			continue
		}
		end, ok := jsonscan.Skip(value, i, 0)
		if !ok {
			return false
		}
		if isReference(value[i:end]) && !isKey(value[end:]) {
			return true
		}
		i = end - 1
	}
	return false
}

func isKey(rest []byte) bool {
	rest = bytes.TrimLeft(rest, " \t\r\n")
	return len(rest) > 0 && rest[0] == ':'
}

// A bridge finds the inputs of a model among the fields of a message in bridge form.
//
// A field is matched with an input by its path ("frame.image", "masks.0") or, if no path matches,
// by its own key. All other fields go to the container.
type bridge struct {
	walker // over the object of all fields, twice; the second time it keeps what the container gets

	specs   []tensor.Spec
	places  map[string]int // of specs, by name
	tensors []tensor.Tensor
	pool    *tensor.Pool

	fields [][]byte       // the value of each input; nil if there is none
	lists  []tensor.Shape // of inputs that are lists of tensors: the lengths of the lists
	byKey  bool           // the second pass: fields that match by path are taken
	used   [256]bool
}

// A walker goes through an object, at any nesting, and makes an object of what it keeps.
type walker struct {
	jsonscan.Scanner
	path []byte // of the current field
	rest []byte // what was kept so far

	// field reads the value of the current field and appends what it keeps of it to rest. It
	// reports whether that is anything. key is "" for an element of a list.
	field func(key string) (kept bool)
	// ends may append members to an object, whose path is the current one; begun tells whether it
	// has some. nil: there are none to append.
	ends func(begun bool) (appended bool)
}

// longestPath bounds the paths that are compared with names of inputs, which are no longer.
const longestPath = 255

// cross makes inputs from the fields in r.Parameters and from the tensors that they refer to, and
// leaves the rest in r.Parameters for the container. In a message that is not in bridge form, where
// nothing refers to a tensor, fields count as inputs only if one has the name of an input; ok
// reports whether one does.
func (c *Call) cross(r *Request, pool *tensor.Pool) (inputs []tensor.Tensor, ok bool, err error) {
	tensors, text := r.Inputs, r.Parameters
	if text == nil {
		text = []byte("{}")
	}
	if r.Legacy != nil { // this key is more than a field only for a model with an adapter
		text = append(append([]byte(`{"inputs":`), r.Legacy...), '}')
		if len(r.Parameters) > 0 {
			text = append(append(text[:len(text)-1], ','), r.Parameters[1:]...)
		}
	}
	specs := c.Target.Spec.Inputs
	b := &bridge{
		walker: walker{Scanner: jsonscan.Scanner{Text: text, Depth: len(text), Rules: jsonscan.KnownUTF8}},
		specs:  specs, places: make(map[string]int, len(specs)), tensors: tensors, pool: pool,
		fields: make([][]byte, len(specs)), lists: make([]tensor.Shape, len(specs)),
	}
	b.field = b.take
	for i := range specs {
		b.places[specs[i].Name] = i
	}
	forwarded := false
	for _, b.byKey = range []bool{false, true} {
		b.At, b.rest = 0, b.rest[:0]
		forwarded = b.walk()
	}
	if err := b.Err(); err != nil {
		return nil, false, err
	}
	for i, value := range b.fields {
		if value == nil {
			continue
		}
		t, err := b.build(i, value)
		if err != nil {
			return nil, false, inputError(&specs[i], err)
		}
		t = c.completed(t, &specs[i])
		t.Name = specs[i].Name
		c.Own(t)
		inputs = append(inputs, t)
	}
	if !r.Bridge && inputs == nil {
		return nil, false, nil
	}
	for i := range tensors {
		if !b.used[i] {
			return nil, false, fault.Invalid("no field refers to tensor %d of %d: in bridge form, each tensor needs a field with the value \"%s<index>\"",
				i, len(tensors), TensorReference)
		}
	}
	if r.Parameters = nil; forwarded {
		r.Parameters = b.rest
	}
	c.form = b.form(c.Target.Spec.Outputs)
	return inputs, true, nil
}

// walk reads the next object or list, and reports whether it keeps any of it. Members that it does
// not keep are left out; list elements that it does not keep become null.
func (w *walker) walk() (kept bool) {
	bracket, path := w.Peek(), len(w.path)
	isList, empty := bracket == '[', true
	w.rest = append(w.rest, bracket)
	begin := len(w.rest)
	step := func(name []byte) bool {
		empty = false
		if path > 0 || isList {
			w.path = append(w.path, '.')
		}
		w.path = append(w.path, name...)
		before, key := len(w.rest), ""
		if before > begin {
			w.rest = append(w.rest, ',')
		}
		if !isList {
			key = string(name)
			w.rest = append(jsonscan.AppendString(w.rest, key), ':')
		}
		switch value := len(w.rest); {
		case w.field(key):
			kept = true
		case isList:
			w.rest = append(w.rest[:value], "null"...)
		default:
			w.rest = w.rest[:before]
		}
		w.path = w.path[:path]
		return true
	}
	if isList {
		w.Elements(func(i int) bool { return step(strconv.AppendInt(nil, int64(i), 10)) })
	} else {
		w.Members(step)
		if w.ends != nil && w.ends(len(w.rest) > begin) {
			kept = true
		}
	}
	w.rest = append(w.rest, bracket+2) // ']' and '}' are two after '[' and '{'
	return kept || empty
}

// take reads the next value, whose path is b.path, and reports whether any of it goes to the
// container.
func (b *bridge) take(key string) (forwarded bool) {
	c := b.Peek()
	place, ok := b.input(key)
	if c == '{' || c == '[' && !ok {
		return b.walk()
	}
	value := b.Raw()
	switch {
	case ok && !b.claim(place, value), string(value) == Absent:
		return false
	case ok:
	case b.byKey && isReference(value):
		b.Fail(fault.Invalid("field %.200q refers to a tensor, but matches no input; the model takes %s", b.path,
			list(b.specs)))
	}
	b.rest = append(b.rest, value...)
	return true
}

// input returns the input that the current field matches.
func (b *bridge) input(key string) (int, bool) {
	if len(b.path) <= longestPath {
		if i, ok := b.places[string(b.path)]; ok {
			return i, true
		}
	}
	if !b.byKey || key == "" {
		return 0, false
	}
	i, ok := b.places[key]
	return i, ok
}

// claim gives an input its value, unless the value is null, and reports whether the value goes to
// the container instead. If several fields match an input by key, those that name no tensor go to
// the container: a parameter may have the name of an input.
func (b *bridge) claim(place int, value []byte) (forwarded bool) {
	has := b.fields[place]
	switch {
	case string(value) == Absent || string(value) == "null":
	case has == nil:
		b.fields[place] = value
	case b.byKey && &has[0] == &value[0]: // the same field, in the second pass
	case b.byKey && !Refers(value):
		return true
	default:
		b.Fail(fault.Invalid("input %q is given twice: field %.200q is the second", b.specs[place].Name, b.path))
	}
	return false
}

// build makes an input from its field: the tensor or the list of tensors that it refers to, or else
// the texts or numbers in it. The caller owns the reference.
func (b *bridge) build(input int, value []byte) (tensor.Tensor, error) {
	if Refers(value) {
		return b.stack(input, value)
	}
	return jsontensor.Read(value, b.specs[input].DType, b.pool)
}

// stack joins the tensors that nested lists refer to. The lengths of the lists become the first
// dimensions of the result.
func (b *bridge) stack(input int, value []byte) (t tensor.Tensor, err error) {
	names, err := shiva.ParseText(value, nil)
	if err != nil {
		return t, err
	}
	elements, err := tensor.BytesElems(names)
	if err != nil {
		return t, err
	}
	parts := make([]tensor.Tensor, len(elements))
	data := make([][]byte, len(elements))
	text := b.specs[input].DType == tensor.Bytes // each part is bytes
	for i, e := range elements {
		at, ok := reference(jsonscan.AppendString(nil, e))
		switch {
		case !ok:
			return t, fmt.Errorf("expected a list of tensors only, got %.40q among them", e)
		case at >= len(b.tensors):
			return t, fmt.Errorf("it refers to tensor %d, counted from 0, but the message has %d", at, len(b.tensors))
		case b.used[at]: // otherwise a short list could repeat a large tensor any number of times
			return t, fmt.Errorf("another field refers to tensor %d already", at)
		}
		b.used[at] = true
		parts[i], data[i] = b.tensors[at], b.tensors[at].Data
		text = text && parts[i].DType == tensor.Uint8
	}
	b.lists[input] = names.Shape
	switch {
	case len(names.Shape) == 0:
		b.lists[input] = nil
		parts[0].Retain()
		return parts[0], nil
	case text:
		return tensor.FromElems(names.Shape, data, b.pool)
	}
	for i := range parts {
		parts[i].Shape = append(tensor.Shape{1}, parts[i].Shape...)
	}
	if t, err = tensor.Concat(parts, b.pool); err == nil {
		t.Shape = append(slices.Clip(names.Shape), t.Shape[1:]...)
	}
	return t, err
}

// texts makes the Bytes inputs from r.Texts, which holds them by name.
func (c *Call) texts(r *Request, pool *tensor.Pool) (texts []tensor.Tensor, err error) {
	specs := c.Target.Spec.Inputs
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: metadata %q: "+format,
			append([]any{scheduler.ErrInvalidInput, shiva.TextsKey}, args...)...)
	}
	for key, value := range jsonscan.Members(r.Texts) {
		i := slices.IndexFunc(specs, func(s tensor.Spec) bool { return s.Name == string(key) })
		switch {
		case i < 0:
			return nil, wrong("no input %.200q; model %q takes %s", key, c.Target.ID.Name, list(specs))
		case specs[i].DType != tensor.Bytes && specs[i].Image == nil: // pictures may be files
			return nil, wrong("input %q takes no text: expected %s", key, c.expected(&specs[i]))
		case indexByName(texts, specs[i].Name) >= 0:
			return nil, wrong("input %q is given twice", key)
		}
		t, err := shiva.ParseText(value, pool)
		if err != nil {
			return nil, inputError(&specs[i], err)
		}
		t = c.completed(t, &specs[i])
		t.Name = specs[i].Name
		c.Own(t)
		texts = append(texts, t)
		if len(t.Shape) > max(len(specs[i].Shape), 1) {
			return nil, wrong("input %q: expected %s, got lists of shape %s", key, c.expected(&specs[i]), t.Shape)
		}
	}
	return texts, nil
}

// completed adds the declared dimensions that an empty list cannot show: those after one of size 0.
func (c *Call) completed(t tensor.Tensor, spec *tensor.Spec) tensor.Tensor {
	n := len(t.Shape)
	switch {
	case n == 0 || n >= len(spec.Shape) || t.Shape[n-1] != 0:
		return t
	// This is one row.
	case c.Target.Spec.Batched() && n == len(spec.Shape)-1 && t.Shape.Fits(spec.Shape[1:]):
		return t
	}
	t.Shape = slices.Clone(t.Shape)
	for _, d := range spec.Shape[n:] {
		t.Shape = append(t.Shape, max(d, 0))
	}
	return t
}
