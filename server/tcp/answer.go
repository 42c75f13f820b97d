package tcp

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"github.com/shivad/shivad/scheduler"
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
	if a := c.Target.Spec.Adapter; a != nil {
		b, m.Tensors, err = l.appendAdapted(b, c, a)
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

// appendAdapted is appendOutputs for a model with an adapter: beside the texts, its form of the
// answer, and the tensor that they are if they are numbers.
func (l *loop) appendAdapted(b []byte, c *call, a scheduler.Adapter) (_ []byte, _ []tensor.Tensor, err error) {
	l.tensors, l.texts = l.tensors[:0], l.texts[:0]
	out := c.Outputs[0]
	out.Name = c.Target.Spec.Outputs[0].Name
	t, numbers := a.Numbers(out, c.Squeeze)
	if numbers {
		l.tensors = append(l.tensors, t)
	}
	if out.Shape = c.Shown(0); out.DType == tensor.Bytes && !(c.Bridge && numbers) {
		l.texts = append(l.texts, out)
	}
	if !c.Bridge {
		if b, err = a.AppendMembers(b, c.Outputs[0], c.Squeeze); err != nil {
			return b, nil, err
		}
		if len(l.texts) > 0 {
			if b, err = appendTexts(b, l.texts); err != nil {
				return b, nil, err
			}
		}
	}
	return c.Target.AppendAnswerOf(b, l.tensors), l.tensors, nil
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
