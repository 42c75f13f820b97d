package gate

import (
	"strings"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// A form is where the fields of a question in bridge form were. The answer nests in the same way,
// so that a program can read question and answer with one class of fields:
//
//   - An output with the name of an input is where the field of that input was, as a list of
//     tensors if that was one.
//   - An output whose name is a path, such as "frame.mask", is in the object "frame", if the
//     question has it.
//   - Every other output is a member of the answer itself.
type form struct {
	text   []byte         // the question
	fields [][]byte       // by output: the field of the input of that name, within text; nil: none
	lists  []tensor.Shape // by output: the lengths of the lists of tensors in that field; nil: none
}

// form returns where the fields were; nil if no output depends on it.
func (b *bridge) form(outputs []tensor.Spec) *form {
	f := &form{b.Text, make([][]byte, len(outputs)), make([]tensor.Shape, len(outputs))}
	nests := false
	for o := range outputs {
		if i, ok := b.places[outputs[o].Name]; ok {
			f.fields[o], f.lists[o] = b.fields[i], b.lists[i]
		}
		nests = nests || f.fields[o] != nil || strings.Contains(outputs[o].Name, ".")
	}
	if !nests {
		return nil
	}
	return f
}

// Lists returns the lengths of the nested lists of tensors that an output with that shape is in an
// answer in bridge form; nil: it is one tensor.
func (c *Call) Lists(output int, shape tensor.Shape) tensor.Shape {
	if c.form == nil {
		return nil
	}
	lists := c.form.lists[output]
	if len(lists) > len(shape) || !shape[:len(lists)].Equal(lists) {
		return nil
	}
	return lists
}

// AppendFields appends the object of all outputs of an answer in bridge form. value appends the
// value of an output.
func (c *Call) AppendFields(b []byte, value func(b []byte, output int) []byte) ([]byte, error) {
	outputs := c.Target.Spec.Outputs
	a := &answerFields{walker: walker{rest: b}, outputs: outputs, placed: make([]bool, len(outputs)), value: value}
	a.field, a.ends = a.give, a.giveRest
	a.Text = []byte("{}")
	if c.form != nil {
		a.Text = c.form.text
		a.byField, a.byPath = make(map[*byte]int), make(map[string]int)
		for o, field := range c.form.fields {
			if field != nil {
				a.byField[&field[0]] = o
			} else {
				a.byPath[outputs[o].Name] = o
			}
		}
	}
	a.Depth, a.Rules = len(a.Text), jsonscan.KnownUTF8
	a.walk()
	return a.rest, a.Err()
}

// answerFields goes through a question, and replaces its fields with outputs.
type answerFields struct {
	walker
	outputs []tensor.Spec
	byField map[*byte]int  // outputs, by the beginning of their fields in the question
	byPath  map[string]int // all others, by name
	placed  []bool         // by output
	value   func(b []byte, output int) []byte
}

// give replaces the next value, if an output belongs there.
func (a *answerFields) give(string) (kept bool) {
	bracket := a.Peek()
	o, ok := a.byField[&a.Text[a.At]]
	if !ok && len(a.path) <= longestPath {
		o, ok = a.byPath[string(a.path)]
	}
	if ok && !a.placed[o] {
		a.Raw()
		a.placed[o] = true
		a.rest = a.value(a.rest, o)
		return true
	}
	// The client finds its id in the answer as it was, whatever the id is.
	if bracket != '{' && bracket != '[' || string(a.path) == "id" {
		a.Raw()
		return false
	}
	begin := len(a.rest)
	return a.walk() && len(a.rest) > begin+len("{}")
}

// giveRest appends to an object the outputs whose names begin with its path, and to the whole
// answer all that are left.
func (a *answerFields) giveRest(begun bool) (appended bool) {
	for o := range a.outputs {
		name := a.outputs[o].Name
		if n := len(a.path); n > 0 {
			if n >= len(name) || name[n] != '.' || name[:n] != string(a.path) || strings.Contains(name[n+1:], ".") {
				continue
			}
			name = name[n+1:]
		}
		if a.placed[o] {
			continue
		}
		if a.placed[o] = true; begun {
			a.rest = append(a.rest, ',')
		}
		a.rest = append(jsonscan.AppendString(a.rest, name), ':')
		a.rest = a.value(a.rest, o)
		begun, appended = true, true
	}
	return appended
}
