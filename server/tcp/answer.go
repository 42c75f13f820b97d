package tcp

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// encode appends the answer of c to the loop's buffers.
func (l *loop) encode(c *call) {
	m := shiva.Message{Namespace: c.namespace}
	err := l.compose(c, &m)
	if err == nil {
		if l.out, l.vecs, err = shiva.AppendVectored(l.out, l.vecs, &m); err == nil {
			return
		}
		// A shape or a count of the container's answer does not fit the wire.
	}
	c.err = err
	l.refusal(c, &m, err)
	l.out, l.vecs, _ = shiva.AppendVectored(l.out, l.vecs, &m) // its parts are all ours, and fit
}

// compose makes the message that answers c. An error of it is answered instead.
func (l *loop) compose(c *call, m *shiva.Message) error {
	if err := c.failure(); err != nil {
		return err
	}
	b := append(l.metadata[:0], '{')
	if c.question.id != nil {
		b = append(b, `"id":`...)
		b = append(b, c.question.id...)
		b = append(b, ',')
	}
	if c.control != nil {
		b = append(b, c.control[len("{"):]...) // an object with members
		l.metadata, m.Metadata = b, b
		return nil
	}
	if c.Choice != nil {
		b = appendChoice(b, c.Choice)
	}
	if c.question.Timing {
		b = l.appendTiming(b, c)
	}
	var err error
	if c.Target.Spec.Flat {
		b, m.Tensors, err = l.appendFlat(b, c)
	} else {
		b, m.Tensors, err = l.appendOutputs(b, c)
	}
	if err == nil && c.Bridge {
		b, err = l.appendFields(b, c)
	}
	l.metadata = b
	m.Metadata = b
	return err
}

// appendChoice says what an application did.
func appendChoice(b []byte, c *gate.Choice) []byte {
	b = append(b, `"application":`...)
	b = shiva.AppendString(b, c.Application)
	b = append(b, `,"confidence":`...)
	b = strconv.AppendFloat(b, c.Confidence, 'g', 4, 64)
	if len(c.Missing) > 0 {
		b = append(b, `,"missing":[`...)
		for i, m := range c.Missing {
			if i > 0 {
				b = append(b, ',')
			}
			b = shiva.AppendString(b, m.Model)
		}
		b = append(b, `],"missing_because":[`...)
		for i, m := range c.Missing {
			if i > 0 {
				b = append(b, ',')
			}
			b = shiva.AppendString(b, m.Why)
		}
		b = append(b, ']')
	}
	if c.Default {
		b = append(b, `,"default":true,"default_explanation":`...)
		b = shiva.AppendString(b, c.Explanation)
	}
	return append(b, ',')
}

// appendOutputs lists the output tensors and appends the end of the metadata, with the text
// outputs, which have no dtype on this wire, under shiva.TextsKey.
func (l *loop) appendOutputs(b []byte, c *call) ([]byte, []tensor.Tensor, error) {
	l.tensors, l.texts = l.tensors[:0], l.texts[:0]
	for i, t := range c.Outputs {
		switch {
		case t.DType == tensor.Bytes:
			t.Shape = c.Shown(i)
			t.Name = c.Target.Spec.Outputs[i].Name
			l.texts = append(l.texts, t)
			continue
		case !t.DType.OnWire(): // bfloat16: float32 holds every value of it
			wide, err := tensor.Cast(t, tensor.Float32, nil) // memory of the garbage collector's: no release
			if err != nil {
				return b, nil, err
			}
			t = wide
		}
		t.Shape = c.Shown(i)
		l.tensors = append(l.tensors, t)
	}
	if len(l.texts) > 0 && !c.Bridge {
		var err error
		if b, err = appendTexts(b, l.texts); err != nil {
			return b, nil, err
		}
	}
	return c.Target.AppendAnswer(b), l.tensors, nil
}

// appendTexts appends the member with the texts of an answer.
func appendTexts(b []byte, texts []tensor.Tensor) ([]byte, error) {
	b = append(b, `"`+shiva.TextsKey+`":`...)
	b, err := shiva.AppendTexts(b, texts...)
	return append(b, ','), err
}

// appendFields adds to the metadata of an answer what makes it one in bridge form: a member for
// each output, which refers to its tensor or is its text. A member of ours gives way to an
// output of its name.
func (l *loop) appendFields(b []byte, c *call) ([]byte, error) {
	outputs := c.Target.Spec.Outputs
	named := func(key []byte) bool {
		return slices.ContainsFunc(outputs, func(s tensor.Spec) bool { return s.Name == string(key) })
	}
	clash := false
	_ = shiva.EachField(b, func(key, _ []byte) bool { clash = clash || named(key); return !clash })
	if clash {
		ours := bytes.Clone(b)
		b = append(b[:0], '{')
		_ = shiva.EachField(ours, func(key, value []byte) bool {
			if !named(key) {
				b = append(append(shiva.AppendString(b, string(key)), ':'), value...)
				b = append(b, ',')
			}
			return true
		})
	} else {
		b[len(b)-1] = ','
	}
	tensors, texts := 0, l.texts
	for i := range c.Outputs {
		b = append(shiva.AppendString(b, outputs[i].Name), ':')
		if c.Outputs[i].DType == tensor.Bytes && len(texts) > 0 {
			var err error
			if b, err = shiva.AppendText(b, texts[0]); err != nil {
				return b, err
			}
			b, texts = append(b, ','), texts[1:]
			continue
		}
		b = append(b, `"`+gate.TensorReference...)
		b = append(strconv.AppendInt(b, int64(tensors), 10), '"', ',')
		tensors++
	}
	b[len(b)-1] = '}'
	return b, nil
}

func textKey(c *call) string {
	if c.Squeeze {
		return `"output":`
	}
	return `"outputs":`
}

// appendFlat is the answer of a legacy model: one text per row, or one float in the oldest
// generations. Beside the form of all texts it has the one that clients of these models know:
// "output" (one row) or "outputs", in which a text that is JSON is what it says. If all rows
// are numbers, or lists of as many numbers, they are a float64 tensor as well.
func (l *loop) appendFlat(b []byte, c *call) ([]byte, []tensor.Tensor, error) {
	l.tensors, l.texts = l.tensors[:0], l.texts[:0]
	out := c.Outputs[0]
	if out.DType != tensor.Bytes {
		return l.appendFloats(b, c)
	}
	texts, err := tensor.Strings(out)
	if err != nil {
		return b, nil, err
	}
	out.Name = c.Target.Spec.Outputs[0].Name
	out.Shape = c.Shown(0)
	if t, ok := numbers(texts); ok {
		if c.Squeeze && len(t.Shape) > 1 {
			t.Shape = t.Shape[1:]
		}
		t.Name = out.Name
		l.tensors = append(l.tensors, t)
	}
	if !c.Bridge {
		b = appendSaid(b, c, texts)
		if b, err = appendTexts(b, []tensor.Tensor{out}); err != nil {
			return b, nil, err
		}
	} else if len(l.tensors) == 0 {
		l.texts = append(l.texts, out)
	}
	return c.Target.AppendFlatAnswer(b, len(l.tensors) > 0), l.tensors, nil
}

// appendSaid appends the texts of a legacy model as what they say.
func appendSaid(b []byte, c *call, texts []string) []byte {
	b = append(b, textKey(c)...)
	if !c.Squeeze {
		b = append(b, '[')
	}
	for i, s := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		if fitsMetadata(s) {
			b = append(b, s...)
		} else {
			b = shiva.AppendString(b, s)
		}
	}
	if !c.Squeeze {
		b = append(b, ']')
	}
	return append(b, ',')
}

// fitsMetadata reports whether a text is JSON that a client's decoder takes, which is stricter
// than encoding/json.
func fitsMetadata(s string) bool {
	const depth = 128 - 2 // a decoder's default, less the object and the list around it
	text := bytes.Trim([]byte(s), " \t\r\n")
	end, ok := shiva.SkipValue(text, 0, depth)
	return ok && end == len(text) && utf8.Valid(text)
}

// appendFloats is appendFlat for a model that answers with floats: the tensor is theirs, bit by
// bit. In the metadata, what no JSON number can say is "NaN", "+Inf" or "-Inf".
func (l *loop) appendFloats(b []byte, c *call) ([]byte, []tensor.Tensor, error) {
	l.tensors = append(l.tensors, c.Outputs[0])
	if c.Bridge {
		return c.Target.AppendFlatAnswer(b, true), l.tensors, nil
	}
	wide, err := tensor.Cast(c.Outputs[0], tensor.Float64, nil)
	if err != nil {
		return b, nil, err
	}
	defer wide.Release() // it may be the output itself
	values, err := tensor.Values[float64](wide)
	if err != nil {
		return b, nil, err
	}
	b = append(b, textKey(c)...)
	if !c.Squeeze {
		b = append(b, '[')
	}
	bits := 8 * c.Outputs[0].DType.Size()
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			b = shiva.AppendString(b, strconv.FormatFloat(v, 'g', -1, bits))
		} else {
			b = strconv.AppendFloat(b, v, 'g', -1, bits)
		}
	}
	if !c.Squeeze {
		b = append(b, ']')
	}
	b = append(b, ',')
	return c.Target.AppendFlatAnswer(b, true), l.tensors, nil
}

// numbers makes a float64 tensor of texts: shape [rows] if each is a number, [rows, n] if each
// is an array of n numbers.
func numbers(texts []string) (tensor.Tensor, bool) {
	var values []float64
	shape := tensor.Shape{len(texts)}
	for i, s := range texts {
		var row []float64
		var ok bool
		n := -1 // a bare number
		if v, err := strconv.ParseFloat(s, 64); err == nil && json.Valid([]byte(s)) {
			row = []float64{v}
		} else if row, ok = list(s); ok {
			n = len(row)
		} else {
			return tensor.Tensor{}, false
		}
		if i == 0 && n >= 0 {
			shape = append(shape, n)
		}
		if n >= 0 != (len(shape) == 2) || n >= 0 && n != shape[1] {
			return tensor.Tensor{}, false
		}
		values = append(values, row...)
	}
	t, err := tensor.FromSlice(shape, values)
	return t, err == nil
}

// list reads an array of numbers.
func list(s string) ([]float64, bool) {
	var elements []*float64 // null is no number
	if s == "" || s[0] != '[' || json.Unmarshal([]byte(s), &elements) != nil {
		return nil, false
	}
	row := make([]float64, len(elements))
	for i, e := range elements {
		if e == nil {
			return nil, false
		}
		row[i] = *e
	}
	return row, true
}

func (l *loop) appendTiming(b []byte, c *call) []byte {
	b = append(b, `"timing":{"queue_us":`...)
	b = strconv.AppendInt(b, c.Timing.Queue.Microseconds(), 10)
	b = append(b, `,"execute_us":`...)
	b = strconv.AppendInt(b, c.Timing.Exec.Microseconds(), 10)
	b = append(b, `,"batch_rows":`...)
	b = strconv.AppendInt(b, int64(c.Timing.BatchRows), 10)
	b = append(b, `,"total_us":`...)
	b = strconv.AppendInt(b, time.Since(c.arrived).Microseconds(), 10)
	return append(b, '}', ',')
}

// refusal makes m the "!error" message that answers c.
func (l *loop) refusal(c *call, m *shiva.Message, err error) {
	status := gate.StatusOf(err)
	e := shiva.RemoteError{
		Type:      status.Type,
		Message:   gate.Text(err),
		Code:      status.HTTP,
		Retryable: status.Retryable,
		ID:        string(c.question.id),
	}
	l.metadata = e.AppendMetadata(l.metadata[:0])
	*m = shiva.Message{Namespace: shiva.ErrorNamespace, Metadata: l.metadata}
}
