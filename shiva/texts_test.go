package shiva

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

func texts(t *testing.T, shape tensor.Shape, elements ...string) tensor.Tensor {
	t.Helper()
	x, err := tensor.FromStrings(shape, elements)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// A text keeps its shape and every byte in a round trip.
func TestTextForm(t *testing.T) {
	for _, tt := range []struct {
		text tensor.Tensor
		want string
	}{
		{texts(t, tensor.Shape{}, "grün"), `"grün"`},
		{texts(t, tensor.Shape{1}, ""), `[""]`},
		{texts(t, tensor.Shape{2, 2}, "a", "b", "c", "d"), `[["a","b"],["c","d"]]`},
		{texts(t, tensor.Shape{1, 1, 2}, "\"\\\n", "null"), `[[["\"\\\n","null"]]]`},
		{texts(t, tensor.Shape{0}), `[]`},
		{texts(t, tensor.Shape{2, 0}), `[[],[]]`},
		{texts(t, tensor.Shape{2}, "a", "\xff\x00"), `["a",{"b64":"/wA="}]`},
	} {
		got, err := AppendText(nil, tt.text)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: got %s (%v), expected %s", tt.text.Shape, got, err, tt.want)
		}
		back, err := ParseText(got, nil)
		if err != nil || !back.Shape.Equal(tt.text.Shape) || string(back.Data) != string(tt.text.Data) {
			t.Errorf("%s was read as %s %q (%v)", got, back.Shape, back.Data, err)
		}
		if err := back.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestParseTextRefuses(t *testing.T) {
	for text, says := range map[string]string{
		``:                                   "expected a string",
		`5`:                                  "got \"5\"",
		`null`:                               "null",
		`["a",5]`:                            "got \"5]\"",
		`["a",["b"]]`:                        "not alike",
		`[["b"],"a"]`:                        "not alike",
		`[["a"],["b","c"]]`:                  "not alike",
		`[[],["b"]]`:                         "not alike",
		`[[],"b"]`:                           "not alike",
		`["a"`:                               "the text ends",
		`["a",]`:                             "expected a string",
		`"a" "b"`:                            "the end of the text",
		`{"b64":5}`:                          "b64",
		`{"b64":"!"}`:                        "b64",
		`{"text":"a"}`:                       "b64",
		`{"b64":null}`:                       "b64",
		strings.Repeat("[", 65):              "deeper than 64",
		`["` + strings.Repeat("a", 70) + `]`: "the text ends",
	} {
		if got, err := ParseText([]byte(text), nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: expected an error that says %s, got %v, %v", text, says, got, err)
		}
	}
}

// Memory comes from the pool, and an invalid text returns it.
func TestParseTextTakesMemoryOfThePool(t *testing.T) {
	pool := tensor.NewPool(1 << 20)
	long := `["` + strings.Repeat("x", 1<<19) + `",`
	if _, err := ParseText([]byte(long+long[1:]+`"x"]`), pool); !errors.Is(err, tensor.ErrBudget) {
		t.Errorf("expected %v, got %v", tensor.ErrBudget, err)
	}
	if _, err := ParseText([]byte(long+`{"b64":"?"}]`), pool); err == nil || pool.InUse() != 0 {
		t.Errorf("%d bytes are out after %v", pool.InUse(), err)
	}
	x, err := ParseText([]byte(long+`"x"]`), pool)
	if err != nil || pool.InUse() < 1<<19 {
		t.Errorf("%d bytes are out (%v)", pool.InUse(), err)
	}
	if x.Release(); pool.InUse() != 0 {
		t.Errorf("%d bytes are out", pool.InUse())
	}
}

// A container may declare, at no cost, a shape of any number of lists without elements.
func TestEmptyListsAreBounded(t *testing.T) {
	for _, shape := range []tensor.Shape{{1 << 30, 0}, {1 << 20, 1 << 20, 1 << 20, 0}, {1, 1<<20 + 1, 0, 5}} {
		if got, err := AppendText(nil, texts(t, shape)); err == nil {
			t.Errorf("%s was written in %d bytes", shape, len(got))
		}
	}
}

func TestMessageTexts(t *testing.T) {
	a, b := texts(t, tensor.Shape{2}, "x", "y"), texts(t, tensor.Shape{}, "z")
	a.Name, b.Name = "a", "b\""
	object, err := AppendTexts(nil, a, b)
	if err != nil {
		t.Fatal(err)
	}
	m := &Message{Metadata: fmt.Appendf(nil, `{"id":1,%q:%s}`, TextsKey, object)}
	got, err := m.Texts()
	if err != nil || len(got) != 2 || got[0].Name != a.Name || got[1].Name != b.Name ||
		string(got[0].Data) != string(a.Data) || len(got[1].Shape) != 0 {
		t.Errorf("%s: %v (%v)", m.Metadata, got, err)
	}
	if got, err := new(Message).Texts(); got != nil || err != nil {
		t.Errorf("no metadata: %v (%v)", got, err)
	}
	for _, bad := range []string{`{"__texts__":5}`, `{"__texts__":{"a":5}}`} {
		if got, err := (&Message{Metadata: []byte(bad)}).Texts(); err == nil {
			t.Errorf("%s: %v", bad, got)
		}
	}
}

// A text that can be parsed is a valid tensor, and parses to the same one after AppendText.
func FuzzParseText(f *testing.F) {
	for _, seed := range []string{`"a"`, `[["a","\u00e9"],["\"",""]]`, `[[],[]]`, `[{"b64":"/w=="}]`,
		`[[["a"]],[["b"]]]`, `[ "a" , [ ] ]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		budgettest.Input(t)
		x, err := ParseText(text, nil)
		if err != nil {
			return
		}
		if err := x.Check(); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		again, err := AppendText(nil, x)
		if err != nil || !json.Valid(again) {
			t.Fatalf("%q was written as %q (%v)", text, again, err)
		}
		y, err := ParseText(again, nil)
		if err != nil || string(y.Data) != string(x.Data) || len(x.Data) > 0 && !y.Shape.Equal(x.Shape) {
			t.Fatalf("%q: %s %q, and then %s %q (%v)", text, x.Shape, x.Data, y.Shape, y.Data, err)
		}
	})
}
