package gate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsontext"
	"github.com/shivad/shivad/shiva/tensor"
)

// TensorReference and the index of a tensor are the text that stands for that tensor in the
// metadata of a message in bridge form, which is what the reference package's ShivaBridge makes
// of a model with fields.
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

// InBridgeForm reports whether a value of a message's metadata refers to a tensor. The names of
// tensors and the texts of a plain message may be anything, and are not looked at.
func InBridgeForm(metadata []byte) bool {
	if !bytes.Contains(metadata, []byte(TensorReference)) { // no other message pays more than this look
		return false
	}
	for key, value := range jsontext.Members(metadata) {
		if string(key) != "__tensors__" && string(key) != shiva.TextsKey && Refers(value) {
			return true
		}
	}
	return false
}

// Refers reports whether a JSON value is a reference to a tensor or has one in it. It reads
// each byte once.
func Refers(value []byte) bool {
	for i := 0; i < len(value); i++ {
		if value[i] != '"' {
			continue
		}
		end, ok := jsontext.Skip(value, i, 0)
		if !ok {
			return false
		}
		if _, ok := reference(value[i:end]); ok && !isKey(value[end:]) {
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
// A field is an input's by its path ("frame.image", "masks.0") or, where no path fits, by its
// own key. The fields that are no input's go to the container.
type bridge struct {
	specs   []tensor.Spec
	places  map[string]int // of specs, by name
	tensors []tensor.Tensor
	pool    *tensor.Pool

	text   []byte  // the object of all fields
	fields []field // by input
	path   []byte  // of the field that is looked at
	byKey  bool    // this is the second look: paths have taken what is theirs
	rest   []byte  // what the second look leaves to the container
	used   [256]bool
}

// A field is where the value of an input is; end is 0 if there is none.
type field struct{ start, end int }

// longestPath bounds what is compared with the names of inputs, which are no longer.
const longestPath = 255

// cross makes of the fields in p.Forward, and of the tensors that they refer to, tensors with
// the names of inputs, and leaves in p.Forward what the container gets. In a message that is
// not in bridge form (nothing in it refers to a tensor) fields are inputs if one is named as an
// input is; ok tells whether that is so.
func (c *Call) cross(tensors []tensor.Tensor, p *Params, pool *tensor.Pool) (inputs []tensor.Tensor, ok bool, err error) {
	b := &bridge{specs: c.Target.Spec.Inputs, tensors: tensors, pool: pool, text: p.Forward}
	if b.text == nil {
		b.text = []byte("{}")
	}
	if p.Inputs != nil { // no key of its own for a model that is no legacy one
		b.text = append(append([]byte(`{"inputs":`), p.Inputs...), '}')
		if len(p.Forward) > 0 {
			b.text = append(append(b.text[:len(b.text)-1], ','), p.Forward[1:]...)
		}
	}
	b.places = make(map[string]int, len(b.specs))
	for i := range b.specs {
		b.places[b.specs[i].Name] = i
	}
	b.fields = make([]field, len(b.specs))
	if _, _, err := b.walk(0); err != nil {
		return nil, false, err
	}
	b.byKey, b.rest = true, b.rest[:0]
	_, forwarded, err := b.walk(0)
	if err != nil {
		return nil, false, err
	}
	for i := range b.fields {
		if b.fields[i].end == 0 {
			continue
		}
		t, owned, err := b.build(i)
		if owned {
			c.owned = append(c.owned, t)
		}
		if err != nil {
			return nil, false, err
		}
		t = c.completed(t, &b.specs[i])
		t.Name = b.specs[i].Name
		inputs = append(inputs, t)
	}
	if !p.Bridge && inputs == nil {
		return nil, false, nil
	}
	for i := range tensors {
		if !b.used[i] {
			return nil, false, fmt.Errorf("%w: tensor %d of %d is no field's: in bridge form each is named by a value \"%s<index>\"", scheduler.ErrInvalidInput, i, len(tensors), TensorReference)
		}
	}
	if p.Forward = nil; forwarded {
		p.Forward = b.rest
	}
	return inputs, true, nil
}

// The walk: each function gets the offset where something begins and gives the one after its
// end, and whether the container gets any of it. The text is known to be JSON. It is read
// twice, whatever its nesting.

func (b *bridge) space(i int) int {
	for b.text[i] == ' ' || b.text[i] == '\n' || b.text[i] == '\t' || b.text[i] == '\r' {
		i++
	}
	return i
}

// walk reads the object or list at offset i. A member that the container does not get is left out,
// and an element leaves null in its place.
func (b *bridge) walk(i int) (end int, forwarded bool, err error) {
	isList, closing := b.text[i] == '[', b.text[i]+2 // ']' and '}' are two behind '[' and '{'
	b.rest = append(b.rest, b.text[i])
	path, begin := len(b.path), len(b.rest)
	i = b.space(i + 1)
	empty := b.text[i] == closing
	for n := int64(0); b.text[i] != closing; n++ {
		if path > 0 || isList {
			b.path = append(b.path, '.')
		}
		before := len(b.rest)
		if before > begin {
			b.rest = append(b.rest, ',')
		}
		value, key := len(b.rest), ""
		if isList {
			b.path = strconv.AppendInt(b.path, n, 10)
		} else {
			end, _ := jsontext.Skip(b.text, i, 0)
			quoted := b.text[i:end]
			key, _ = jsontext.Unquote(quoted)
			b.path = append(b.path, key...)
			b.rest = append(append(b.rest, quoted...), ':')
			i = b.space(b.space(end) + 1)
		}
		var some bool
		if i, some, err = b.field(i, key); err != nil {
			return i, false, err
		}
		switch {
		case some:
			forwarded = true
		case isList:
			b.rest = append(b.rest[:value], "null"...)
		default:
			b.rest = b.rest[:before]
		}
		b.path = b.path[:path]
		if i = b.space(i); b.text[i] == ',' {
			i = b.space(i + 1)
		}
	}
	b.rest = append(b.rest, closing)
	return i + 1, forwarded || empty, nil
}

// field looks at the value at offset i, whose path is b.path.
func (b *bridge) field(i int, key string) (end int, forwarded bool, err error) {
	if b.text[i] == '{' {
		return b.walk(i)
	}
	if place, ok := b.place(key); ok {
		return b.claim(place, i)
	}
	if b.text[i] == '[' {
		return b.walk(i)
	}
	end, _ = jsontext.Skip(b.text, i, 0)
	value := b.text[i:end]
	if string(value) == Absent {
		return end, false, nil
	}
	if _, ok := reference(value); ok && b.byKey {
		return end, false, fmt.Errorf("%w: field %.200q is a tensor, but no input; the inputs are %s", scheduler.ErrInvalidInput, b.path, list(b.specs))
	}
	b.rest = append(b.rest, value...)
	return end, true, nil
}

// place returns the input that the field may be.
func (b *bridge) place(key string) (int, bool) {
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

// claim gives input place the value at offset i. A further value for it that names no tensor is
// the container's: a parameter may be called as an input is.
func (b *bridge) claim(place, i int) (end int, forwarded bool, err error) {
	end, _ = jsontext.Skip(b.text, i, len(b.text))
	value := b.text[i:end]
	f := &b.fields[place]
	switch {
	case string(value) == Absent || string(value) == "null" || b.byKey && f.start == i && f.end == end:
		return end, false, nil
	case f.end == 0:
		*f = field{i, end}
		return end, false, nil
	case b.byKey && !Refers(value):
		b.rest = append(b.rest, value...)
		return end, true, nil
	}
	return end, false, fmt.Errorf("%w: input %q is given twice: field %.200q is the second", scheduler.ErrInvalidInput, b.specs[place].Name, b.path)
}

// build makes input i of its field: the tensor or the list of tensors that it names, else the
// texts or numbers that it is. owned tells whether the result is memory of its own.
func (b *bridge) build(i int) (t tensor.Tensor, owned bool, err error) {
	spec := &b.specs[i]
	value := b.text[b.fields[i].start:b.fields[i].end]
	switch {
	case Refers(value):
		return b.stack(spec, value)
	case spec.DType == tensor.Bytes:
		if t, err = shiva.ParseText(value, b.pool); err != nil {
			return t, false, unmade(spec, err)
		}
		return t, true, nil
	}
	if t, err = numbers(value, spec, b.pool); err != nil {
		return t, false, unmade(spec, err)
	}
	return t, true, nil
}

// stack joins the tensors that nested lists of references name; the lists' lengths become its
// first dimensions.
func (b *bridge) stack(spec *tensor.Spec, value []byte) (t tensor.Tensor, owned bool, err error) {
	names, err := shiva.ParseText(value, nil)
	if err != nil {
		return t, false, unmade(spec, err)
	}
	elements, err := tensor.BytesElems(names)
	if err != nil {
		return t, false, unmade(spec, err)
	}
	parts := make([]tensor.Tensor, len(elements))
	for i, e := range elements {
		at, ok := reference(jsontext.AppendString(nil, e))
		switch {
		case !ok:
			return t, false, fmt.Errorf("%w: input %q: expected a list of tensors only, got %.40q among them", scheduler.ErrInvalidInput, spec.Name, e)
		case at >= len(b.tensors):
			return t, false, fmt.Errorf("%w: input %q is tensor %d, but the message has %d", scheduler.ErrInvalidInput, spec.Name, at, len(b.tensors))
		case b.used[at]: // a list of a few bytes each could name a large tensor any number of times
			return t, false, fmt.Errorf("%w: input %q: tensor %d is a field's already", scheduler.ErrInvalidInput, spec.Name, at)
		}
		b.used[at] = true
		parts[i] = b.tensors[at]
	}
	if len(names.Shape) == 0 {
		return parts[0], false, nil
	}
	if spec.DType == tensor.Bytes && !slices.ContainsFunc(parts, func(t tensor.Tensor) bool { return t.DType != tensor.Uint8 }) {
		texts := make([][]byte, len(parts))
		for i := range parts {
			texts[i] = parts[i].Data
		}
		if t, err = tensor.FromElems(names.Shape, texts, b.pool); err != nil {
			return t, false, unmade(spec, err)
		}
		return t, true, nil
	}
	for i := range parts {
		parts[i].Shape = append(tensor.Shape{1}, parts[i].Shape...)
	}
	if t, err = tensor.Concat(parts, b.pool); err != nil {
		return t, false, unmade(spec, err)
	}
	t.Shape = append(names.Shape, t.Shape[1:]...)
	return t, true, nil
}

// numbers makes an input of a JSON number or boolean, or of nested lists of them, in memory of
// the pool.
func numbers(value []byte, spec *tensor.Spec, pool *tensor.Pool) (tensor.Tensor, error) {
	var decoded any
	if err := json.Unmarshal(value, &decoded); err != nil {
		return tensor.Tensor{}, err
	}
	t, err := FromJSON(decoded, spec.DType)
	if err != nil {
		return t, err
	}
	buf, err := pool.Get(len(t.Data))
	if err != nil {
		return t, err
	}
	copy(buf.Bytes(), t.Data)
	t.Data, t.Buf = buf.Bytes(), buf
	return t, nil
}

// texts makes the Bytes inputs that p.Texts has, by name.
func (c *Call) texts(p *Params, pool *tensor.Pool) (texts []tensor.Tensor, err error) {
	specs := c.Target.Spec.Inputs
	for key, value := range jsontext.Members(p.Texts) {
		i := slices.IndexFunc(specs, func(s tensor.Spec) bool { return s.Name == string(key) })
		var t tensor.Tensor
		switch {
		case i < 0:
			err = fmt.Errorf("%w: metadata %q: no input %.200q; model %q takes %s", scheduler.ErrInvalidInput, shiva.TextsKey, key, c.Target.ID.Name, list(specs))
		case specs[i].DType != tensor.Bytes:
			err = fmt.Errorf("%w: metadata %q: input %q is no text but %s", scheduler.ErrInvalidInput, shiva.TextsKey, key, c.expected(&specs[i]))
		case indexByName(texts, specs[i].Name) >= 0:
			err = fmt.Errorf("%w: metadata %q: input %q is given twice", scheduler.ErrInvalidInput, shiva.TextsKey, key)
		default:
			if t, err = shiva.ParseText(value, pool); err != nil {
				err = unmade(&specs[i], err)
				break
			}
			t = c.completed(t, &specs[i])
			t.Name = specs[i].Name
			c.owned = append(c.owned, t)
			texts = append(texts, t)
			if len(t.Shape) > max(len(specs[i].Shape), 1) {
				err = fmt.Errorf("%w: metadata %q: input %q: expected %s, got lists of shape %s", scheduler.ErrInvalidInput, shiva.TextsKey, key, c.expected(&specs[i]), t.Shape)
			}
		}
		if err != nil {
			break
		}
	}
	return texts, err
}

// completed adds to the shape of lists the dimensions after one of size 0, of which they say
// nothing: the declared ones.
func (c *Call) completed(t tensor.Tensor, spec *tensor.Spec) tensor.Tensor {
	n := len(t.Shape)
	switch {
	case n == 0 || n >= len(spec.Shape) || t.Shape[n-1] != 0:
		return t
	case c.Target.Spec.Batched() && n == len(spec.Shape)-1 && t.Shape.Fits(spec.Shape[1:]): // one row
		return t
	}
	t.Shape = slices.Clone(t.Shape)
	for _, d := range spec.Shape[n:] {
		t.Shape = append(t.Shape, max(d, 0))
	}
	return t
}
