package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/tensor"
)

// What Clipper's clients send and expect: POST /name/predict and /name/update with its JSON.
// Sources: Clipper's query front end, whose members these are; what it did with errors differs
// by cause, and here is as everywhere.

// maxClipper bounds the bodies of these two, which are decoded as a whole.
const maxClipper = 16 << 20

// A clipperQuestion is the body of either.
type clipperQuestion struct {
	UID   json.RawMessage   `json:"uid"` // a text or a number: whose request it is
	Input json.RawMessage   `json:"input"`
	Batch []json.RawMessage `json:"input_batch"`

	// Of an update, beside what the gate reads itself (label, loss, reward, losses).
	ID json.RawMessage `json:"id"` // of the request it is about, instead of the input: a text, or a number as Shiva's may be

	Updates []json.RawMessage `json:"updates"` // several at once, each as one by itself
	Labels  []json.RawMessage `json:"labels"`  // of input_batch, one for each

	values parameter.Values // the user is that of uid, if there is one
}

// read reads an object, whose parameters are those of w. What it does not say stays as it is. A
// member that is null counts as absent, as in /v2.
func (q *clipperQuestion) read(object []byte, w parameter.Wire) error {
	if err := json.Unmarshal(object, q); err != nil {
		return malformed(`expected a JSON object such as {"input": [1.5, 2]}: %v`, err)
	}
	for _, value := range []*json.RawMessage{&q.UID, &q.Input, &q.ID} {
		if string(*value) == "null" {
			*value = nil
		}
	}
	err := w.Members(&q.values, object, nil)
	if err == nil && q.UID != nil {
		q.values.User, err = q.user()
	}
	return err
}

// user is whose request it is, by Clipper's name.
func (q *clipperQuestion) user() (string, error) {
	var text string
	if json.Unmarshal(q.UID, &text) == nil {
		return text, nil
	}
	var number json.Number
	if err := json.Unmarshal(q.UID, &number); err != nil {
		return "", invalid("uid: expected a text or a number, got %.60s", q.UID)
	}
	return number.String(), nil
}

// readClipper reads the body, whose parameters are those of w, and gives it as it is too.
func (c *call) readClipper(w parameter.Wire) (q clipperQuestion, raw []byte, err error) {
	b, err := c.open()
	if err != nil {
		return q, nil, err
	}
	defer b.close()
	if b.limit > maxClipper {
		b.limit, b.name = maxClipper, "the limit of this path; /v2 has more room"
	}
	if b.known > b.limit {
		return q, nil, tooLarge("the body has %d bytes, %s: %d", b.known, b.name, b.limit)
	}
	buf, all, err := b.all()
	if err != nil {
		return q, nil, err
	}
	defer buf.Release()
	t := &text{b: all, depth: c.settings.Limits.JSONDepth}
	if err := t.skip(); err != nil { // depth, above all
		return q, nil, err
	}
	if err := t.end(); err != nil {
		return q, nil, err
	}
	raw = bytes.Clone(all)
	return q, raw, q.read(raw, w)
}

// question makes one of the protocol's of an input, as clipper's rows are: one at a time.
func (c *call) question(q *clipperQuestion, raw json.RawMessage, arrived time.Time) (*predict.Question, error) {
	out := &predict.Question{Model: c.model, Values: q.values, Arrived: arrived}
	if k := connOf(c.r); k != nil {
		out.Source = k.source
	}
	if raw == nil {
		return out, nil
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return nil, malformed("input: %v", err)
	}
	in, err := c.door.predict.Input(c.model, value)
	if err != nil {
		return nil, err
	}
	out.Inputs = []tensor.Tensor{in}
	return out, nil
}

// A clipperAnswer is what one input is answered with.
type clipperAnswer struct {
	QueryID     uint64          `json:"query_id"`
	Output      json.RawMessage `json:"output,omitempty"`
	Default     bool            `json:"default"`
	Explanation string          `json:"default_explanation,omitempty"`
	Error       string          `json:"error,omitempty"` // of one input in a batch
}

// queries counts what was asked through Clipper's paths, since its answers have numbers.
var queries atomic.Uint64

// clipperPredict answers one input, or each of several.
func (c *call) clipperPredict() error {
	q, _, err := c.readClipper(parameter.Clipper)
	arrived := time.Now()
	if err == nil && (q.Input == nil) == (q.Batch == nil) {
		err = invalid(`expected one of "input" and "input_batch"`)
	}
	if err != nil {
		c.door.predict.Refused(err, arrived)
		return err
	}
	if q.Input != nil {
		a, err := c.ask(&q, q.Input, arrived)
		if err != nil {
			return err
		}
		return c.write(http.StatusOK, a)
	}
	const atOnce = 64 // of a batch that are asked side by side
	answers := make([]clipperAnswer, len(q.Batch))
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, raw := range q.Batch {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			a, err := c.tryAsk(&q, raw, arrived)
			if err != nil {
				a = clipperAnswer{QueryID: queries.Add(1), Error: gate.Text(err)}
			}
			answers[i] = a
		})
	}
	all.Wait()
	return c.write(http.StatusOK, map[string][]clipperAnswer{"batch_predictions": answers})
}

// tryAsk is ask with a net below it: on a goroutine of its own, a panic would be the end of the
// process.
func (c *call) tryAsk(q *clipperQuestion, raw json.RawMessage, arrived time.Time) (a clipperAnswer, err error) {
	defer func() {
		if r := recover(); r != nil {
			c.door.log.Error("panic over one input of a batch", "path", c.r.URL.Path, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", gate.ErrInternal, r)
		}
	}()
	return c.ask(q, raw, arrived)
}

// ask answers one input.
func (c *call) ask(q *clipperQuestion, raw json.RawMessage, arrived time.Time) (clipperAnswer, error) {
	question, err := c.question(q, raw, arrived)
	if err != nil {
		c.door.predict.Refused(err, arrived)
		return clipperAnswer{}, err
	}
	a, err := c.door.predict.Infer(c.r.Context(), question)
	if err != nil {
		return clipperAnswer{}, err
	}
	defer a.Release()
	answer := clipperAnswer{QueryID: queries.Add(1)}
	if a.Choice != nil {
		answer.Default, answer.Explanation = a.Choice.Default, a.Choice.Explanation
	}
	answer.Output, err = clipperOutput(a.Outputs)
	return answer, err
}

// clipperOutput is the value of the only output, or an object of all by name. A text that is
// JSON is given as what it says, as Clipper does.
func clipperOutput(outputs []tensor.Tensor) (json.RawMessage, error) {
	values := make(map[string]json.RawMessage, len(outputs))
	for _, t := range outputs {
		if err := writable(&t); err != nil {
			return nil, err
		}
		value, err := nested(t)
		if err != nil {
			return nil, err
		}
		if len(outputs) == 1 {
			return value, nil
		}
		values[t.Name] = value
	}
	return json.Marshal(values)
}

// nested is a tensor as JSON: one element as it is, more as lists in lists.
func nested(t tensor.Tensor) (json.RawMessage, error) {
	if n, _ := t.Shape.Elements(); n == 1 && t.DType == tensor.Bytes {
		text, err := tensor.Strings(t)
		if err != nil {
			return nil, err
		}
		if json.Valid([]byte(text[0])) {
			return json.RawMessage(text[0]), nil
		}
	}
	e := emitters.Get().(*emitter)
	defer e.free()
	var flat bytes.Buffer
	e.begin = func() io.Writer { return &flat }
	e.data(&t)
	e.flush()
	var elements []json.RawMessage
	if err := json.Unmarshal(append(append([]byte{'['}, flat.Bytes()...), ']'), &elements); err != nil {
		return nil, fmt.Errorf("%w: output %q: %w", gate.ErrInternal, t.Name, err)
	}
	return json.Marshal(nest(elements, t.Shape))
}

func nest(elements []json.RawMessage, shape tensor.Shape) any {
	if len(elements) == 1 {
		return elements[0]
	}
	if len(shape) <= 1 {
		return elements
	}
	list := make([]any, shape[0])
	each := len(elements) / max(shape[0], 1)
	for i := range list {
		list[i] = nest(elements[i*each:][:each], shape[1:])
	}
	return list
}
