package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// An item is one argument of infer, ready to be sent: a tensor for each input of the model,
// each with all its declared dimensions. Text inputs are tensors of Bytes.
type item struct {
	name   string
	inputs []tensor.Tensor
	rows   int
}

// loader turns arguments into items.
type loader struct {
	stdin io.Reader
	model model
	text  bool    // arguments are texts, not files
	lossy bool    // allow conversions that lose something
	scale float64 // factor for pixels of float inputs; 0 = none

	stdinUsed bool
}

// load reads one argument.
func (l *loader) load(arg string) (item, error) {
	it := item{name: arg}
	var err error
	switch {
	case l.text:
		err = l.loadText(&it, arg)
	case len(l.model.inputs) > 1 && strings.Contains(arg, "="):
		err = l.loadNamed(&it, arg)
	default:
		err = l.loadFile(&it, arg)
	}
	if err == nil {
		err = it.countRows(l.model)
	}
	if f, ok := err.(*failure); ok {
		f.Message = arg + ": " + f.Message
		return it, f
	}
	if err != nil {
		return it, unfit("", "%s: %v", arg, err)
	}
	return it, nil
}

func (l *loader) loadText(it *item, text string) error {
	if l.model.sole() != 0 || l.model.inputs[0].DType != tensor.Bytes {
		return unfit("without --text an argument is a file", "%s takes no text: %s", l.model.route,
			wants(l.model.inputs[0]))
	}
	t, err := tensor.FromStrings(tensor.Shape{}, []string{text})
	if err != nil {
		return err
	}
	if n, ok := row(l.model.inputs[0]).Elements(); ok && n == 1 {
		t.Shape = row(l.model.inputs[0]) // [-1, 1] holds one text per row, as [-1] does
	} else if len(row(l.model.inputs[0])) == 1 {
		t.Shape = tensor.Shape{1}
	}
	t, err = fit(t, l.model.inputs[0])
	it.inputs = []tensor.Tensor{t}
	return err
}

// loadNamed reads NAME=FILE,NAME=FILE: one file for each input.
func (l *loader) loadNamed(it *item, arg string) error {
	files := map[string]string{}
	for part := range strings.SplitSeq(arg, ",") {
		name, path, ok := strings.Cut(part, "=")
		if !ok || files[name] != "" {
			return fmt.Errorf("expected NAME=FILE,NAME=FILE with each name once, got %q", part)
		}
		files[name] = path
	}
	return l.fill(it, func(s spec) (tensor.Tensor, bool, error) {
		path, ok := files[s.Name]
		delete(files, s.Name)
		if !ok {
			return tensor.Tensor{}, false, nil
		}
		file, err := l.read(path)
		if err != nil {
			return tensor.Tensor{}, true, err
		}
		t, err := l.convert(file, s)
		return t, true, err
	}, func() []string { return sortedKeys(files) })
}

// loadFile reads a file for the one input, or a JSON object with a key for each.
func (l *loader) loadFile(it *item, path string) error {
	file, err := l.read(path)
	if err != nil {
		return err
	}
	inputs := l.model.inputs
	if !isImage(file) && !isNPY(file) {
		if err := checkJSON(file); err != nil {
			return err
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(file, &object) == nil && object != nil {
			return l.fill(it, func(s spec) (tensor.Tensor, bool, error) {
				v, ok := object[s.Name]
				delete(object, s.Name)
				if !ok {
					return tensor.Tensor{}, false, nil
				}
				t, err := jsonTensor(v, s)
				return t, true, err
			}, func() []string { return sortedKeys(object) })
		}
	}
	sole := l.model.sole()
	if sole < 0 {
		return unfit("", "%s takes %s: give NAME=FILE,NAME=FILE or a JSON object with the keys %s",
			l.model.route, plural.Of(len(inputs), "input"), inputNames(l.model))
	}
	return l.fill(it, func(s spec) (tensor.Tensor, bool, error) {
		if s.Name != inputs[sole].Name {
			return tensor.Tensor{}, false, nil
		}
		t, err := l.convert(file, s)
		return t, true, err
	}, func() []string { return nil })
}

// fill gets each input by its name. left returns the names of further inputs that were given.
func (l *loader) fill(it *item, get func(spec) (t tensor.Tensor, ok bool, err error), left func() []string) error {
	for _, s := range l.model.inputs {
		t, ok, err := get(s)
		if !ok && err == nil && s.Optional {
			it.inputs = append(it.inputs, tensor.Tensor{}) // left out
			continue
		}
		if !ok && err == nil {
			return unfit("", "input %q is missing; %s takes %s", s.Name, l.model.route, inputNames(l.model))
		}
		if err == nil {
			t, err = fit(t, s)
		}
		if err != nil {
			return err
		}
		it.inputs = append(it.inputs, t)
	}
	if extra := left(); len(extra) > 0 {
		return unfit("", "there is no input %q; %s takes %s", extra[0], l.model.route, inputNames(l.model))
	}
	return nil
}

// read reads a file, or standard input for "-".
func (l *loader) read(path string) ([]byte, error) {
	if path != "-" {
		file, err := os.ReadFile(path)
		if pe, ok := err.(*os.PathError); ok {
			return nil, pe.Err // the message names the argument already
		}
		return file, err
	}
	if l.stdinUsed {
		return nil, fmt.Errorf("standard input can be read only once")
	}
	l.stdinUsed = true
	return io.ReadAll(l.stdin)
}

// convert makes a tensor of a file for one input. It may lack the batch dimension.
func (l *loader) convert(file []byte, s spec) (tensor.Tensor, error) {
	switch {
	case isImage(file) && s.files:
		return pictureFile(file)
	case isImage(file):
		img, _, err := image.Decode(bytes.NewReader(file))
		if err != nil {
			return tensor.Tensor{}, err
		}
		return newPicture(img).tensorFor(s, l.lossy, l.scale)
	case isNPY(file):
		t, err := readNPY(file)
		if err != nil {
			return t, err
		}
		return l.cast(t, s)
	}
	if err := checkJSON(file); err != nil {
		return tensor.Tensor{}, err
	}
	return jsonTensor(file, s)
}

func isNPY(file []byte) bool { return bytes.HasPrefix(file, []byte(npyMagic)) }

// cast converts t to the dtype of an input, if no value changes or if that is allowed.
func (l *loader) cast(t tensor.Tensor, s spec) (tensor.Tensor, error) {
	d := wire(s)
	if t.DType == d {
		return t, nil
	}
	out, err := tensor.Cast(t, d, nil)
	if err == nil {
		return out, nil
	}
	_, whole := integers[d]
	if _, numbers := integers[t.DType]; l.lossy && !whole &&
		(numbers || t.DType == tensor.Float64 || t.DType == tensor.Float32 || t.DType == tensor.LongDouble) {
		return roundTo(t, d)
	}
	hint := fmt.Sprintf("convert it where it is made: np.save(file, a.astype(np.%s))", d)
	if !whole && d.OnWire() {
		hint += ", or round to it with --lossy"
	}
	return t, unfit(hint, "it is %s; %s, and %v", t.DType.V2(), wants(s), strings.TrimPrefix(err.Error(), "tensor: "))
}

// roundTo returns t with each element rounded to the nearest number of a float dtype.
func roundTo(t tensor.Tensor, d tensor.DType) (tensor.Tensor, error) {
	n, _ := t.Shape.Elements()
	data := make([]byte, 0, n*d.Size())
	for i := range n {
		var f float64
		switch v := element(t, i).(type) {
		case float64:
			f = v
		case int64:
			f = float64(v)
		case uint64:
			f = float64(v)
		}
		var err error
		if data, err = appendFloat(data, d, f); err != nil {
			return t, fmt.Errorf("element %d: %w", i, err)
		}
	}
	return tensor.New(d, t.Shape, data)
}

// countRows checks that all inputs have the same number of rows.
func (it *item) countRows(m model) error {
	it.rows = 1
	first := true
	for i, s := range m.inputs {
		if !batched(s) || it.inputs[i].Shape == nil || it.cuts(m, s) {
			continue
		}
		n := it.inputs[i].Rows()
		if !first && n != it.rows {
			return unfit("", "input %q has %s where the others have %d", s.Name, plural.Of(n, "row"), it.rows)
		}
		it.rows, first = n, false
	}
	if it.rows == 0 {
		return unfit("", "it has no rows")
	}
	return nil
}

// cuts reports whether the rows are regions of the one picture of an input.
func (it *item) cuts(m model, s spec) bool {
	i := slices.IndexFunc(m.inputs, func(o spec) bool { return o.regions != "" && o.regions == s.Name })
	return i >= 0 && it.inputs[i].Shape != nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func inputNames(m model) string {
	var names []string
	for _, s := range m.inputs {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}
