package jsontest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Frame holds what makes a request a frame of a stream: the keys of server/manual/parameters.md
// that it has, with their values as JSON.
type Frame struct {
	Keys []Key
	ID   string // of the request, as JSON; "": none
	// Right means that no value is wrong and the frame names its stream. Otherwise the request must
	// be refused, unless it is Stray.
	Right bool
	// Stray means that no value is wrong, but the frame names no stream. It is no frame, unless the
	// door has a stream for it.
	Stray bool
}

// A Key has a value, as JSON.
type Key struct{ Name, Text string }

// There are few streams, so that most frames have others of the same stream around them; numbers go
// back as often as forward. null is not among the values: some doors treat it as absent.
var frameKeys = []struct {
	name         string
	right, wrong []string
}{
	{"stream", []string{`"a"`, `"b"`, "7"}, []string{`""`, "true", `["a"]`, `"` + strings.Repeat("x", 257) + `"`}},
	{"seq", []string{"0", "1", "2", "3", "4", "5", "9223372036854775807"},
		[]string{"-1", "1.5", `"x"`, "9223372036854775808", "false", "{}", "1e400"}},
	{"captured_at", []string{"100000000000", "1700000000000.25", "4000000000000", "1700000000", "-1", "9223372036854775807"},
		[]string{`"now"`, "true", "[]"}},
	{"keep", []string{`"latest"`, `"latest"`, "1", "2", `"all"`, "1024"},
		[]string{"0", "-1", "1025", `"newest"`, `""`, "true", "1.5", "{}"}},
}

// ChooseFrame chooses a frame. About one in five is wrong: it has a wrong value, or names no
// stream.
func ChooseFrame(c *Choices) *Frame {
	f := &Frame{ID: One(c, []string{"", `"one"`, `"two"`})}
	wrong := false
	for i, k := range frameKeys {
		switch n := c.N(24); {
		case n == 23:
			f.Keys, wrong = append(f.Keys, Key{k.name, One(c, k.wrong)}), true
		case i == 0 && n == 22: // the other keys need a stream
			f.Stray = true
		case i == 0 || n < 16 || i == 3 && len(f.Keys) == 0:
			f.Keys = append(f.Keys, Key{k.name, One(c, k.right)})
		}
	}
	f.Right, f.Stray = !wrong && !f.Stray, !wrong && f.Stray
	return f
}

func (f *Frame) String() string { return fmt.Sprintf("%v, id %q", f.Keys, f.ID) }

// Value returns the value of a key; "" if the frame does not have the key.
func (f *Frame) Value(name string) string {
	for _, k := range f.Keys {
		if k.Name == name {
			return k.Text
		}
	}
	return ""
}

// By reports whether one of others may be the newer frame that by names to f. by is the JSON of its
// number or, if it has none, of its request's id; "" if it has neither. nil among others stands for
// any frame.
func (f *Frame) By(by string, others []*Frame) bool {
	return slices.ContainsFunc(others, func(o *Frame) bool {
		return o == nil || o != f && (o.Right || o.Stray) && o.Value("stream") == f.Value("stream") &&
			by == cmp.Or(o.Value("seq"), o.ID)
	})
}

// SetFrame gives an object the keys and the id of f, in place of those that it has. It leaves
// values that are not objects unchanged, and reports false.
func (v *Value) SetFrame(f *Frame) bool {
	if v.kind != '{' {
		return false
	}
	v.setKeys(f)
	v.setID(f)
	return true
}

// SetParameters is SetFrame where the keys are members of the member "parameters".
func (v *Value) SetParameters(f *Frame) bool {
	if v.kind != '{' {
		return false
	}
	p := v.take("parameters")
	if p == nil || p.kind != '{' {
		p = &Value{kind: '{'}
	}
	p.setKeys(f)
	v.insert(len(v.items), p, "parameters")
	v.setID(f)
	return true
}

func (v *Value) setKeys(f *Frame) {
	for _, k := range frameKeys {
		v.take(k.name)
	}
	for _, k := range f.Keys {
		v.insert(len(v.items), &Value{text: k.Text}, k.Name)
	}
}

func (v *Value) setID(f *Frame) {
	v.take("id")
	if f.ID != "" {
		v.insert(len(v.items), &Value{text: f.ID}, "id")
	}
}

// take removes all members of a name from an object, and returns the first; nil: there is none.
func (v *Value) take(name string) (first *Value) {
	for i := slices.Index(v.names, name); i >= 0; i = slices.Index(v.names, name) {
		if first == nil {
			first = v.items[i]
		}
		v.remove(i)
	}
	return first
}
