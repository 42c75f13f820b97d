package shiva_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

func named(name string, values ...int32) tensor.Tensor {
	t, err := tensor.FromSlice(tensor.Shape{len(values)}, values)
	if err != nil {
		panic(err)
	}
	t.Name = name
	return t
}

func text(name string, elems ...string) tensor.Tensor {
	t, err := tensor.FromStrings(tensor.Shape{len(elems)}, elems)
	if err != nil {
		panic(err)
	}
	t.Name = name
	return t
}

// echo answers with the request's tensors, and their names and texts.
func echo(c *shivatest.Conn, m *shiva.Message) { _ = c.Send(m) }

// ints formats an output of an answer, found by its name.
func ints(t *testing.T, m *shiva.Message, name string) string {
	t.Helper()
	x, err := m.Output(name)
	if err != nil {
		return err.Error()
	}
	if x.Name != name {
		t.Errorf("output %q has the name %q", name, x.Name)
	}
	if x.DType == tensor.Bytes {
		elems, err := tensor.Strings(x)
		return fmt.Sprint(elems, x.Shape, err)
	}
	values, err := tensor.Values[int32](x)
	return fmt.Sprint(values, err)
}

func TestInfer(t *testing.T) {
	withRig(t, echo, func(r *rig) {
		for _, c := range []struct {
			inputs   []tensor.Tensor
			metadata string
			outputs  map[string]string
		}{
			{[]tensor.Tensor{named("", 1, 2), named("", 3)}, ``, map[string]string{
				"0": "[1 2] <nil>", "1": "[3] <nil>", "x": `shiva: the answer has no output "x"; there are 0, 1`}},
			{[]tensor.Tensor{named("b", 1, 2), named("a\n", 3)}, `{"__tensors__":["b","a\n"]}`, map[string]string{
				"b": "[1 2] <nil>", "a\n": "[3] <nil>", "0": "shiva: the answer has no output \"0\"; there are b, a\n"}},
			{[]tensor.Tensor{text("t", "é", "\xff"), named("x", 1), text("u")},
				`{"__tensors__":["x"],"__texts__":{"t":["é",{"b64":"/w=="}],"u":[]}}`, map[string]string{
					"t": "[é \xff] [2] <nil>", "x": "[1] <nil>", "u": "[] [0] <nil>", "v": `shiva: the answer has no output "v"; there are x, t, u`}},
			{[]tensor.Tensor{text("t", "a")}, `{"__tensors__":[],"__texts__":{"t":["a"]}}`, map[string]string{"t": "[a] [1] <nil>"}},
			{nil, ``, map[string]string{"x": `shiva: the answer has no output "x": it has no outputs`}},
		} {
			m, err := r.client.Infer(r.Context(), "m/2", c.inputs...)
			if err != nil {
				r.Fatal(err)
			}
			if m.Namespace != "m/2" || string(m.Metadata) != c.metadata {
				r.Errorf("%s was asked with %s, expected %s", m.Namespace, m.Metadata, c.metadata)
			}
			for name, want := range c.outputs {
				if got := ints(r.T, m, name); got != want {
					r.Errorf("output %q of %s: %s, expected %s", name, m.Metadata, got, want)
				}
			}
			m.Release()
		}
	})
}

func TestInferTellsItsDeadline(t *testing.T) {
	withRig(t, echo, func(r *rig) {
		ctx, cancel := context.WithTimeout(r.Context(), 1500*time.Millisecond)
		defer cancel()
		m, err := r.client.Infer(ctx, "m", named("x", 1))
		if err != nil {
			r.Fatal(err)
		}
		if want := `{"timeout_ms":1500.000,"__tensors__":["x"]}`; string(m.Metadata) != want {
			r.Errorf("asked with %s, expected %s", m.Metadata, want)
		}
		m.Release()
	}, shiva.WithDeadlineMetadata())
}

func TestNewRequest(t *testing.T) {
	m, err := shiva.NewRequest("m", []byte(` { "priority": 1 } `), named("x", 1))
	if want := `{"__tensors__":["x"], "priority": 1 } `; err != nil || string(m.Metadata) != want {
		t.Errorf("got %s, %v, expected %s", m.Metadata, err, want)
	}
	for want, inputs := range map[string][]tensor.Tensor{
		"input 1 has no name, and others have one":           {named("x", 1), named("", 1)},
		"input 0 has no name, and others have one":           {named("", 1), text("t", "a")},
		"input 0 is text, which needs the name of its input": {text("", "a")},
		`two inputs have the name "x"`:                       {named("x", 1), text("t", "a"), text("x", "b")},
		`text "t": `: {
			{Name: "t", DType: tensor.Bytes, Shape: tensor.Shape{2}, Data: []byte{1, 0, 0, 0, 'a'}}},
	} {
		if _, err := shiva.NewRequest("m", nil, inputs...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, expected %s", err, want)
		}
	}
	for _, key := range []string{shiva.NamesKey, shiva.TextsKey} {
		metadata := []byte(`{"` + key + `":null}`)
		if _, err := shiva.NewRequest("m", metadata, named("x", 1)); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprintf("metadata has key %q", key)) {
			t.Errorf("%s: %v", key, err)
		}
		if m, err := shiva.NewRequest("m", metadata, named("", 1)); err != nil ||
			string(m.Metadata) != string(metadata) {
			t.Errorf("%s without names: %v, %v", key, m, err)
		}
	}
	withRig(t, echo, func(r *rig) {
		if _, err := r.client.Infer(r.Context(), "m", text("", "a")); err == nil {
			r.Error("a text without a name was sent")
		}
	})
}

// TestOutputOfOddAnswers: invalid names from other servers are an error, not a panic.
func TestOutputOfOddAnswers(t *testing.T) {
	for metadata, want := range map[string]string{
		`{"__tensors__":["x"]}`:                                   `__tensors__ of an answer with 2 tensors is ["x"]: expected a name for each tensor`,
		`{"__tensors__":["x","y","z"]}`:                           "expected a name for each tensor",
		`{"__tensors__":[1,2]}`:                                   "__tensors__ of an answer with 2 tensors is [1,2]: ",
		`{"__tensors__":"x"}`:                                     `__tensors__ of an answer with 2 tensors is "x": `,
		`{"__tensors__":[["x"],["y"]]}`:                           "__tensors__ of an answer",
		`{"__tensors__":["a","b"],"__texts__":[]}`:                "__texts__ of the answer: ",
		`{"__tensors__":["a","b"],"__texts__":{"x":[["p"],"q"]}}`: `output "x": the lists are not alike`,
	} {
		m := &shiva.Message{Metadata: []byte(metadata), Tensors: []tensor.Tensor{named("", 1), named("", 2)}}
		if x, err := m.Output("x"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, expected %s", metadata, x, err, want)
		}
	}
}

func TestStreamNamesItsTensors(t *testing.T) {
	withStream(t, echo, shiva.StreamConfig{Keep: shiva.KeepAll}, func(r *streamRig) {
		for range 2 {
			f := shiva.Frame{Tensors: []tensor.Tensor{text("t", "a"), named("x", 1)}, Metadata: []byte(`{"user":"u"}`)}
			if _, err := r.stream.Push(r.Context(), f); err != nil {
				r.Fatal(err)
			}
		}
		if _, err := r.stream.Push(r.Context(), shiva.Frame{Tensors: []tensor.Tensor{text("", "a")}}); err == nil ||
			errors.Is(err, shiva.ErrFinished) {
			r.Errorf("a text without a name was pushed: %v", err)
		}
		r.stream.Finish()
		n := int64(0)
		for a, err := range r.stream.Answers(r.Context()) {
			if err != nil {
				r.Fatal(err)
			}
			if x, u := ints(r.T, a.Message, "x"), ints(r.T, a.Message, "t"); x != "[1] <nil>" || u != "[a] [1] <nil>" ||
				a.Seq != n {
				r.Errorf("frame %d: x is %s, t is %s", a.Seq, x, u)
			}
			if user := jsonscan.Field(a.Metadata, "user"); string(user) != `"u"` {
				r.Errorf("metadata %s", a.Metadata)
			}
			a.Release()
			n++
		}
		if n != 2 {
			r.Errorf("%d answers", n)
		}
	})
}
