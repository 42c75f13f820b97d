package selection_test

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/x448/float16"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// of makes one output.
func of[T tensor.Element](name string, shape tensor.Shape, values ...T) tensor.Tensor {
	t, err := tensor.FromSlice(shape, values)
	if err != nil {
		panic(err)
	}
	t.Name = name
	return t
}

// texts makes one output of dtype Bytes, a row for each.
func texts(elems ...string) tensor.Tensor {
	t, err := tensor.FromStrings(tensor.Shape{len(elems)}, elems)
	if err != nil {
		panic(err)
	}
	return t
}

// predict makes models m0, m1, ... predict these outputs; nil is a late model.
func predict(outputs ...[]tensor.Tensor) (predictions []selection.Prediction, missing []selection.Ask) {
	for i, m := range models(len(outputs)) {
		ask := selection.Ask{Model: m, Probability: 1}
		if outputs[i] == nil {
			missing = append(missing, ask)
		} else {
			predictions = append(predictions, selection.Prediction{Ask: ask, Outputs: outputs[i]})
		}
	}
	return predictions, missing
}

// weighing returns an ensemble whose models m0, m1, ... have these weights.
func weighing(t *testing.T, params map[string]any, weights ...float64) (*selection.Policy, selection.State) {
	t.Helper()
	given := map[string]any{}
	for i, m := range models(len(weights)) {
		given[m.String()] = weights[i]
	}
	all := map[string]any{"weights": given}
	for name, v := range params {
		all[name] = v
	}
	p := parse(t, "ensemble", all)
	return p, fresh(t, p, models(len(weights)))
}

func one(t tensor.Tensor) []tensor.Tensor { return []tensor.Tensor{t} }

func TestVote(t *testing.T) {
	row := func(v ...int64) []tensor.Tensor { return one(of("label", tensor.Shape{len(v)}, v...)) }
	for _, c := range []struct {
		name       string
		weights    []float64
		say        [][]tensor.Tensor
		want       []tensor.Tensor
		confidence float64
	}{
		{"majority", []float64{1, 1, 1}, [][]tensor.Tensor{row(1), row(2), row(2)}, row(2), 2. / 3},
		{"weight against number", []float64{5, 1, 1}, [][]tensor.Tensor{row(1), row(2), row(2)}, row(1), 5. / 7},
		{"two against the heaviest", []float64{3, 2, 2}, [][]tensor.Tensor{row(1), row(2), row(2)}, row(2), 4. / 7},
		{"tie goes to the heavier", []float64{1, 2, 1}, [][]tensor.Tensor{row(1), row(2), row(1)}, row(2), 0.5},
		{"tie of equals goes to the first", []float64{1, 1}, [][]tensor.Tensor{row(8), row(7)}, row(8), 0.5},
		{"all agree", []float64{1, 1, 1}, [][]tensor.Tensor{row(4), row(4), row(4)}, row(4), 1},
		{"who is late agrees with nothing", []float64{1, 1, 2}, [][]tensor.Tensor{row(4), row(4), nil}, row(4), 0.5},
		{"one came", []float64{1, 1, 2}, [][]tensor.Tensor{nil, row(9), nil}, row(9), 0.25},
		{"no weight but alone", []float64{1, 0}, [][]tensor.Tensor{nil, row(9)}, row(9), 0},
		{"each row by itself", []float64{2, 2, 3}, [][]tensor.Tensor{row(1, 5, 3), row(1, 6, 3), row(2, 6, 9)},
			row(1, 6, 3), (4. + 5 + 4) / 21},
		{"text", []float64{1, 1, 1}, [][]tensor.Tensor{one(texts("cat", "a")), one(texts("dog", "b")), one(texts("dog", "a"))},
			one(texts("dog", "a")), 4. / 6},
		{"no rows", []float64{1, 1}, [][]tensor.Tensor{row(), row()}, row(), 1},
		{"no batch dimension", []float64{1, 1, 1},
			[][]tensor.Tensor{one(of("x", nil, 1.5)), one(of("x", nil, 2.5)), one(of("x", nil, 2.5))},
			one(of("x", nil, 2.5)), 2. / 3},
	} {
		p, s := weighing(t, nil, c.weights...)
		predictions, missing := predict(c.say...)
		a := p.Combine(s, predictions, missing)
		if !sameValues(a.Outputs, c.want) || math.Abs(a.Confidence-c.confidence) > 1e-12 {
			t.Errorf("%s: answer %v with confidence %g, want %v with %g", c.name, a.Outputs, a.Confidence, c.want,
				c.confidence)
		}
		for _, o := range a.Outputs {
			if err := o.Check(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

func sameValues(a, b []tensor.Tensor) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].DType != b[i].DType || !a[i].Shape.Equal(b[i].Shape) || string(a[i].Data) != string(b[i].Data) {
			return false
		}
	}
	return true
}

// A model has scores and labels; labels are voted on, and a row's scores are those of a model
// that predicted its label.
func TestVoteTakesTheWholeRow(t *testing.T) {
	digits := func(scores []float32, labels ...int64) []tensor.Tensor {
		return []tensor.Tensor{of("scores", tensor.Shape{len(labels), 2}, scores...),
			of("label", tensor.Shape{len(labels)}, labels...)}
	}
	p, s := weighing(t, map[string]any{"output": "label"}, 3, 2, 2)
	predictions, _ := predict(digits([]float32{.9, .1, .2, .8}, 0, 1), digits([]float32{.4, .6, .3, .7}, 1, 1),
		digits([]float32{.1, .9, .4, .6}, 1, 1))
	a := p.Combine(s, predictions, nil)
	if want := digits([]float32{.4, .6, .2, .8}, 1, 1); !sameValues(a.Outputs, want) {
		t.Errorf("answer %v, want %v", a.Outputs, want)
	}
	if want := []float64{0.5, 1, 1}; a.Voices[0].Agreement != want[0] || a.Voices[1].Agreement != want[1] ||
		a.Voices[2].Agreement != want[2] {
		t.Errorf("voices %+v, want agreements %v", a.Voices, want)
	}

	// If all rows are one model's, its tensors are the answer, without a copy.
	predictions[0].Outputs = predictions[1].Outputs
	if a := p.Combine(s, predictions, nil); &a.Outputs[0].Data[0] != &predictions[0].Outputs[0].Data[0] {
		t.Error("the answer of one model was copied")
	}

	// Outputs without common rows are decided as a whole.
	whole := func(state float64, labels ...int64) []tensor.Tensor {
		return []tensor.Tensor{of("label", tensor.Shape{len(labels)}, labels...), of("state", nil, state)}
	}
	p, s = weighing(t, nil, 3, 2, 2)
	predictions, _ = predict(whole(1, 1, 2), whole(2, 1, 3), whole(3, 4, 2))
	if a := p.Combine(s, predictions, nil); !sameValues(a.Outputs, predictions[0].Outputs) {
		t.Errorf("answer %v, want the heaviest model's", a.Outputs)
	}
}

func TestMean(t *testing.T) {
	bf := func(v ...float32) tensor.Tensor {
		b := tensor.Tensor{Name: "y", DType: tensor.BFloat16, Shape: tensor.Shape{1, len(v)}}
		for _, x := range v {
			bits := math.Float32bits(x)
			b.Data = append(b.Data, byte(bits>>16), byte(bits>>24))
		}
		return b
	}
	half := func(v ...float32) tensor.Tensor {
		var h []float16.Float16
		for _, x := range v {
			h = append(h, float16.Fromfloat32(x))
		}
		return of("y", tensor.Shape{1, len(v)}, h...)
	}
	f32 := func(v ...float32) tensor.Tensor { return of("y", tensor.Shape{1, len(v)}, v...) }
	f64 := func(v ...float64) tensor.Tensor { return of("y", tensor.Shape{1, len(v)}, v...) }
	for _, c := range []struct {
		name       string
		weights    []float64
		say        [][]tensor.Tensor
		want       tensor.Tensor
		confidence float64
	}{
		{"float64", []float64{1, 3}, [][]tensor.Tensor{one(f64(0, 1)), one(f64(0.4, 1))}, f64(0.3, 1),
			0.25*(1-0.15) + 0.75*(1-0.05)},
		{"float32", []float64{1, 1}, [][]tensor.Tensor{one(f32(0, 1)), one(f32(0.5, 0.5))}, f32(0.25, 0.75), 0.75},
		{"float16", []float64{1, 1}, [][]tensor.Tensor{one(half(0, 1)), one(half(0.5, 0.5))}, half(0.25, 0.75), 0.75},
		{"bfloat16", []float64{1, 1}, [][]tensor.Tensor{one(bf(0, 1)), one(bf(0.5, 0.5))}, bf(0.25, 0.75), 0.75},
		{"late", []float64{1, 1, 2}, [][]tensor.Tensor{one(f64(0)), one(f64(1)), nil}, f64(0.5), 0.25},
		{"far apart", []float64{1, 1}, [][]tensor.Tensor{one(f64(-9)), one(f64(9))}, f64(0), 0},
		{"one", []float64{1}, [][]tensor.Tensor{one(f64(7))}, f64(7), 1},
		{"NaN is not heard", []float64{9, 1}, [][]tensor.Tensor{one(f64(math.NaN())), one(f64(7))}, f64(7), 0.1},
		{"nor is infinity", []float64{1, 1}, [][]tensor.Tensor{one(f64(3)), one(f64(math.Inf(1)))}, f64(3), 0.5},
	} {
		p, s := weighing(t, map[string]any{"combination": "mean"}, c.weights...)
		predictions, missing := predict(c.say...)
		a := p.Combine(s, predictions, missing)
		if !nearly(a.Outputs, c.want) || math.Abs(a.Confidence-c.confidence) > 1e-6 {
			t.Errorf("%s: answer %v with confidence %g, want %v with %g", c.name, a.Outputs, a.Confidence, c.want,
				c.confidence)
		}
	}

	// An output of another dtype is that of the model closest to the mean, and is voted on if it is
	// the judged output.
	both := func(y float64, l int64) []tensor.Tensor {
		return []tensor.Tensor{f64(y), of("label", tensor.Shape{1}, l)}
	}
	p, s := weighing(t, map[string]any{"combination": "mean"}, 1, 1, 1)
	predictions, _ := predict(both(0, 1), both(0.5, 2), both(0.8, 3))
	if a := p.Combine(s, predictions, nil); len(a.Outputs) != 2 || a.Outputs[1].Data[0] != 2 {
		t.Errorf("answer %v, want the label of the middle one", a.Outputs)
	}
	p, s = weighing(t, map[string]any{"combination": "mean", "output": "label"}, 2, 1, 2)
	predictions, _ = predict(both(0, 1), both(0.5, 1), both(0.8, 3))
	if a := p.Combine(s, predictions, nil); !sameValues(a.Outputs, both(0, 1)) {
		t.Errorf("answer %v, want the first model's", a.Outputs)
	}
}

// nearly reports whether the only output has these values, in float64 to a few units in the last
// place.
func nearly(outputs []tensor.Tensor, want tensor.Tensor) bool {
	if len(outputs) != 1 || want.DType != tensor.Float64 {
		return sameValues(outputs, one(want))
	}
	a, err := tensor.Values[float64](outputs[0])
	b, _ := tensor.Values[float64](want)
	return err == nil && slices.EqualFunc(a, b, func(x, y float64) bool { return math.Abs(x-y) < 1e-12 })
}

// A bfloat16 mean is rounded to the nearest, ties to even, as numpy's and every framework's
// conversion does.
func TestMeanOfBFloat16IsRounded(t *testing.T) {
	bits := func(b uint16) []tensor.Tensor {
		return one(tensor.Tensor{Name: "y", DType: tensor.BFloat16, Shape: tensor.Shape{1},
			Data: []byte{byte(b), byte(b >> 8)}})
	}
	p, s := weighing(t, map[string]any{"combination": "mean"}, 1, 1)
	for _, c := range [][3]uint16{{0x3f80, 0x3f81, 0x3f80}, {0x3f81, 0x3f82, 0x3f82}} {
		predictions, _ := predict(bits(c[0]), bits(c[1]))
		if a := p.Combine(s, predictions, nil); !sameValues(a.Outputs, bits(c[2])) {
			t.Errorf("mean of %#x and %#x is %v, want %#x", c[0], c[1], a.Outputs[0].Data, c[2])
		}
	}
}

// A model's outputs, whatever they are, can at worst leave it unheard, with the reason.
func TestUnheard(t *testing.T) {
	l := func(v ...int64) tensor.Tensor { return of("label", tensor.Shape{len(v)}, v...) }
	broken := l(1, 2)
	broken.Data = broken.Data[:3]
	for _, c := range []struct {
		name    string
		outputs []tensor.Tensor
		reason  string
	}{
		{"late", nil, "late"},
		{"nothing", []tensor.Tensor{}, `no output ""`},
		{"another dtype", one(of("label", tensor.Shape{1}, int32(1))), "int32"},
		{"another shape", one(l(1, 2)), "[2]"},
		{"another name", one(of("class", tensor.Shape{1}, int64(1))), `"class"`},
		{"one output more", []tensor.Tensor{l(1), l(1)}, "2 outputs"},
		{"broken", one(broken), "got 3"},
	} {
		p, s := weighing(t, nil, 2, 1)
		predictions, missing := predict(one(l(7)), c.outputs)
		a := p.Combine(s, predictions, missing)
		if v := a.Voices[1]; !sameValues(a.Outputs, one(l(7))) || math.Abs(a.Confidence-2./3) > 1e-12 ||
			!strings.Contains(v.Unheard, c.reason) || v.Agreement != 0 {
			t.Errorf("%s: %v", c.name, a)
		}
		if alone := p.Combine(s, predictions[1:], append(missing, predictions[0].Ask)); c.outputs == nil &&
			(alone.Outputs != nil || alone.Confidence != 0) {
			t.Errorf("%s: nobody came, and the answer is %v", c.name, alone)
		}
	}
	p, s := weighing(t, nil, 2, 1)
	_, missing := predict(nil, nil)
	if a := p.Combine(s, nil, missing); a.Outputs != nil || a.Confidence != 0 || a.String() != "no answer: m0/1 (weight 0.667) was left out: late; m1/1 (weight 0.333) was left out: late" {
		t.Errorf("nobody came, and the answer is %v", a)
	}
	if a := p.Combine(s, nil, nil); a.Outputs != nil || len(a.Voices) != 0 {
		t.Errorf("nobody was asked, and the answer is %v", a)
	}
}

// Texts are compared for equality, even if the policy judges numbers.
func TestAgreementOfText(t *testing.T) {
	p, s := weighing(t, map[string]any{"loss": "absolute"}, 3, 1)
	predictions, _ := predict(one(texts("cat")), one(texts("dog")))
	if a := p.Combine(s, predictions, nil); !sameValues(a.Outputs, one(texts("cat"))) ||
		!(math.Abs(a.Confidence-0.75) < 1e-12) || a.Voices[1].Agreement != 0 {
		t.Errorf("answer %v", a)
	}
}

// Shadows agree or not, and do not change the answer; nor does the prediction of a model that is no
// longer a candidate, unless it is the only one.
func TestShadowsAreComparedOnly(t *testing.T) {
	p := parse(t, "shadow", map[string]any{"model": "m1"})
	s := fresh(t, p, models(3))
	plan, err := p.Select(s, selection.Request{})
	if err != nil {
		t.Fatal(err)
	}
	m := models(3)
	if want := []selection.Ask{{Model: m[1], Probability: 1}, {Model: m[0], Probability: 1, Shadow: true},
		{Model: m[2], Probability: 1, Shadow: true}}; !reflect.DeepEqual(plan.Asks, want) {
		t.Fatalf("plan %+v, want %+v", plan.Asks, want)
	}
	predictions := []selection.Prediction{{Ask: plan.Asks[0], Outputs: label(1)},
		{Ask: plan.Asks[1], Outputs: label(2)}, {Ask: plan.Asks[2], Outputs: label(2)}}
	a := p.Combine(s, predictions, nil)
	if !sameValues(a.Outputs, label(1)) || a.Confidence != 1 || a.String() != "confidence 1: m1/1 (weight 1) agrees 1; m0/1 (shadow) agrees 0; m2/1 (shadow) agrees 0" {
		t.Errorf("answer %v", a)
	}
	if a := p.Combine(s, predictions[1:], plan.Asks[:1]); a.Outputs != nil || a.Confidence != 0 {
		t.Errorf("only shadows came, and the answer is %v", a)
	}

	p, s = weighing(t, nil, 1, 1)
	stranger := selection.Prediction{Ask: selection.Ask{Model: selection.Model{Name: "gone", Version: "1"},
		Probability: 1}, Outputs: label(3)}
	predictions, _ = predict(label(1), label(2))
	if a := p.Combine(s, append(predictions, stranger), nil); !sameValues(a.Outputs, label(1)) || a.Confidence != 0.5 {
		t.Errorf("with one that is gone the answer is %v", a)
	}
	if a := p.Combine(s, []selection.Prediction{stranger}, nil); !sameValues(a.Outputs, label(3)) {
		t.Errorf("of one that is gone alone the answer is %v", a)
	}
}
