package tcp

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
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
		// A shape or a count in the container's answer does not fit the wire format.
	}
	c.err = err
	l.refusal(c.question.ID, &m, err)
	l.out, l.vecs, _ = shiva.AppendVectored(l.out, l.vecs, &m) // the server's own parts, which fit
}

// compose makes the message that answers c. If it fails, its error is the answer instead.
func (l *loop) compose(c *call, m *shiva.Message) error {
	if err := c.failure(); err != nil {
		return err
	}
	b, err := l.appendMetadata(l.metadata[:0], c)
	l.metadata, m.Metadata, m.Tensors = b, b, l.tensors
	return err
}

// appendMetadata appends the metadata of an answer. It lists the answer's tensors in l.tensors.
func (l *loop) appendMetadata(b []byte, c *call) (_ []byte, err error) {
	l.tensors, l.texts = l.tensors[:0], l.texts[:0]
	b = append(b, '{')
	if c.question.ID != nil {
		b = append(b, `"id":`...)
		b = append(b, c.question.ID...)
		b = append(b, ',')
	}
	if c.control != nil {
		return append(b, c.control[len("{"):]...), nil // an object with members
	}
	if c.question.own != nil && !c.gate.Bridge {
		b = c.question.appendOwn(b, c)
	}
	if c.gate.Choice != nil {
		b = appendChoice(b, c.gate.Choice)
	}
	if f := c.gate.Frame; f != nil {
		b = appendFrame(b, f)
	}
	if t := c.gate.Timing; c.question.Timing {
		b = fmt.Appendf(b, `"timing":{"queue_us":%d,"execute_us":%d,"batch_rows":%d,"total_us":%d},`,
			t.Queue.Microseconds(), t.Exec.Microseconds(), t.BatchRows, time.Since(c.arrived).Microseconds())
	}
	if c.gate.Bridge || c.inBothForms() {
		l.lists = make([]tensor.Shape, len(c.gate.Outputs))
	}
	if a := c.gate.Target.Spec.Adapter; a == nil {
		err = l.listOutputs(c)
	} else {
		if !c.isPlaced(0) {
			l.listAdapted(c, a)
		}
		if !c.gate.Bridge && !c.isPlaced(0) {
			b, err = a.AppendMembers(b, c.gate.Outputs[0], c.gate.Squeeze)
		}
	}
	if err == nil {
		b, err = l.appendTexts(b, c)
	}
	switch {
	case c.shared != nil && len(c.shared.Outputs) > 0:
		b = c.gate.Target.AppendNamed(c.appendPlaces(b), l.tensors)
	case c.gate.Bridge: // an output may be several tensors
		b = c.gate.Target.AppendNamed(b, l.tensors)
	default:
		b = c.gate.Target.AppendAnswer(b, l.tensors)
	}
	if err == nil && (c.gate.Bridge || c.inBothForms()) {
		b, err = l.appendFields(b, c)
	}
	return b, err
}

// inBothForms reports whether the answer has the fields of bridge form beside the plain one: a
// request to a model without inputs looks the same in both.
func (c *call) inBothForms() bool { return len(c.gate.Target.Spec.Inputs) == 0 && c.shared == nil }

// answerKeys are the keys that an answer may have of its own. A client that sends its last answer
// as its next request has them, too.
var answerKeys = map[string]bool{
	"id": true, "seq": true, "age_ms": true, "skipped": true, "captured_at": true, "timing": true,
	"application": true, "confidence": true, "missing": true, "default": true, "default_explanation": true,
	"model_name": true, "model_version": true, "output": true, "outputs": true,
	shiva.NamesKey: true, shiva.TextsKey: true, shiva.MemoryKey: true, shiva.TokenKey: true,
	// Of requests, beside the rows of parameters.
	"version": true, "inputs": true, "parameters": true,
}

// appendOwn appends the members of the question that mean nothing to the server, as the reference's
// servers return them. Outputs replace those of their names in an answer that has them as fields.
func (q *question) appendOwn(b []byte, c *call) []byte {
	isField := func(key []byte) bool {
		return c.inBothForms() && slices.ContainsFunc(c.gate.Target.Spec.Outputs, func(s tensor.Spec) bool {
			return s.Name == string(key)
		})
	}
	for key, value := range jsonscan.Members(q.Metadata) {
		if !answerKeys[string(key)] && q.own[string(key)] == nil && !isField(key) {
			b = append(jsonscan.AppendString(b, key), ':')
			b = append(append(b, value...), ',')
		}
	}
	return b
}

// appendFrame appends what the answer says about its stream.
func appendFrame(b []byte, f *gate.Frame) []byte {
	whole := func(key string, n int64) { b = append(strconv.AppendInt(append(b, key...), n, 10), ',') }
	if f.Seq >= 0 {
		whole(`"seq":`, f.Seq)
	}
	b = strconv.AppendFloat(append(b, `"age_ms":`...), float64(f.Age)/float64(time.Millisecond), 'f', 3, 64)
	whole(`,"skipped":`, int64(f.Skipped))
	if !f.Captured.IsZero() {
		whole(`"captured_at":`, f.Captured.UnixMilli())
	}
	return b
}

// appendChoice appends how an application answered.
func appendChoice(b []byte, c *gate.Choice) []byte {
	b = append(b, `"application":`...)
	b = jsonscan.AppendString(b, c.Application)
	b = append(b, `,"confidence":`...)
	b = strconv.AppendFloat(b, c.Confidence, 'g', 4, 64)
	if len(c.Missing) > 0 {
		b = c.AppendMissing(append(b, `,"missing":`...))
	}
	if c.Default {
		b = append(b, `,"default":true,"default_explanation":`...)
		b = jsonscan.AppendString(b, c.Explanation)
	}
	return append(b, ',')
}

// listOutputs lists the tensors of an answer, and its texts, which have no dtype on this wire.
func (l *loop) listOutputs(c *call) (err error) {
	for i, t := range c.gate.Outputs {
		if c.isPlaced(i) {
			continue
		}
		t.Shape = c.gate.ClientShape(i)
		t.Name = c.gate.Target.Spec.Outputs[i].Name
		if t.DType == tensor.Bytes {
			l.texts = append(l.texts, t)
			continue
		}
		if wire, _ := t.DType.WireType(); wire != t.DType {
			t, err = tensor.Cast(t, wire, nil) // garbage-collected: no release
			if err != nil {
				return err
			}
		}
		if lists := c.gate.Lists(i, t.Shape); lists != nil && l.listParts(t, lists, len(c.gate.Outputs)-i-1) {
			l.lists[i] = lists
			continue
		}
		l.tensors = append(l.tensors, t)
	}
	return nil
}

// mostTensors is how many tensors a message can have: their count is one byte.
const mostTensors = math.MaxUint8

// listParts lists the parts of a tensor that a client gets as nested lists of tensors of these
// lengths. It lists none and returns false if the message could not have that many, in addition to
// one for each further output.
func (l *loop) listParts(t tensor.Tensor, lists tensor.Shape, further int) bool {
	n, ok := lists.Elements()
	if !ok || n == 0 || len(l.tensors)+n+further > mostTensors {
		return false
	}
	all, size := t.Data, len(t.Data)/n
	t.Shape = t.Shape[len(lists):]
	for ; n > 0; n-- {
		t.Data, all = all[:size], all[size:]
		l.tensors = append(l.tensors, t)
	}
	return true
}

// listAdapted is listOutputs for a model with an adapter, whose texts become a tensor if they are
// numbers.
func (l *loop) listAdapted(c *call, a scheduler.Adapter) {
	out := c.gate.Outputs[0]
	out.Name = c.gate.Target.Spec.Outputs[0].Name
	t, numbers := a.Numbers(out, c.gate.Squeeze)
	if numbers {
		l.tensors = append(l.tensors, t)
	}
	if out.Shape = c.gate.ClientShape(0); out.DType == tensor.Bytes && !(c.gate.Bridge && numbers) {
		l.texts = append(l.texts, out)
	}
}

// appendTexts appends the member with the texts of an answer. In bridge form, texts are fields.
func (l *loop) appendTexts(b []byte, c *call) ([]byte, error) {
	if len(l.texts) == 0 || c.gate.Bridge {
		return b, nil
	}
	b = append(b, `"`+shiva.TextsKey+`":`...)
	b, err := shiva.AppendTexts(b, l.texts...)
	return append(b, ','), err
}

// appendFields turns the metadata of an answer into bridge form: it adds the fields of all outputs,
// which refer to their tensors or are their texts. A field replaces a member of the server with the
// same name; an answer in both forms stays plain instead.
func (l *loop) appendFields(b []byte, c *call) (_ []byte, err error) {
	outputs := c.gate.Outputs
	isText := func(i int) bool { return outputs[i].DType == tensor.Bytes && len(l.texts) > 0 }
	// The index of each output's text in l.texts, or of its first tensor in l.tensors.
	at := make([]int, len(outputs))
	tensors, texts := 0, 0
	for i := range outputs {
		if isText(i) {
			at[i] = texts
			texts++
			continue
		}
		at[i] = tensors
		parts, _ := l.lists[i].Elements()
		tensors += parts
	}
	fields, failed := c.gate.AppendFields(nil, func(b []byte, i int) []byte {
		if isText(i) {
			b, err = shiva.AppendText(b, l.texts[at[i]])
			return b
		}
		b, _ = appendReferences(b, l.lists[i], at[i])
		return b
	})
	ours := bytes.Clone(b)
	b = append(b[:0], '{')
	for key, value := range jsonscan.Members(ours) {
		switch clash := jsonscan.Field(fields, string(key)) != nil; {
		case clash && !c.gate.Bridge:
			return append(b[:0], ours...), nil
		case !clash:
			b = append(append(jsonscan.AppendString(b, key), ':'), value...)
			b = append(b, ',')
		}
	}
	return append(b, fields[len("{"):]...), cmp.Or(err, failed)
}

// appendReferences appends a reference to a tensor, or nested lists of references to as many
// tensors as they need, and returns the index of the tensor that follows.
func appendReferences(b []byte, lists tensor.Shape, at int) ([]byte, int) {
	if len(lists) == 0 {
		b = append(b, `"`+gate.TensorReference...)
		return append(strconv.AppendInt(b, int64(at), 10), '"'), at + 1
	}
	for i := range lists[0] {
		b = append(b, "[,"[min(i, 1)])
		b, at = appendReferences(b, lists[1:], at)
	}
	return append(b, ']'), at
}

// refusal makes m the "!error" message that answers the request of that id, if it has one.
func (l *loop) refusal(id []byte, m *shiva.Message, err error) {
	status := fault.Of(err)
	r, told := errors.AsType[*refusal](err)
	e := shiva.RemoteError{
		Type:      status.Type,
		Message:   fault.Text(err),
		Code:      status.HTTP,
		Retryable: status.Retryable,
		ID:        string(id),
		By:        fault.By(err),
		Unshared:  told && r.unshared,
	}
	l.metadata = e.AppendMetadata(l.metadata[:0])
	*m = shiva.Message{Namespace: shiva.ErrorNamespace, Metadata: l.metadata}
}
