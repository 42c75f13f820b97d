package rest

import (
	"bytes"
	"encoding/json"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// Clipper's clients send POST /name/predict and /name/update. The JSON members are those in the
// source of Clipper's query frontend; errors are this server's.

// maxClipper bounds the bodies of both, which are decoded as a whole.
const maxClipper = 16 << 20

// A clipperBody is the body of a predict or an update.
type clipperBody struct {
	UID   json.RawMessage   `json:"uid"` // the user, a text or a number
	Input json.RawMessage   `json:"input"`
	Batch []json.RawMessage `json:"input_batch"`

	// For updates. The gate reads the other members (label, loss, reward, losses).
	ID json.RawMessage `json:"id"` // of a request, instead of the input: a text or number

	Updates []json.RawMessage `json:"updates"` // several at once, each an object like this one
	Labels  []json.RawMessage `json:"labels"`  // of input_batch, one for each

	values parameter.Values // with the user of uid
}

// read reads an object whose parameters are those of the wire w. Absent members leave q as it is,
// and so do members that are null, as in /v2.
func (q *clipperBody) read(object []byte, w parameter.Wire) error {
	if err := json.Unmarshal(object, q); err != nil {
		return fault.Malformed(`expected a JSON object such as {"input": [1.5, 2]}: %v`, jsonscan.Words(err))
	}
	for _, value := range []*json.RawMessage{&q.UID, &q.Input, &q.ID} {
		if string(*value) == "null" {
			*value = nil
		}
	}
	err := w.Members(&q.values, object, nil)
	if err != nil || q.UID == nil {
		return err
	}
	if err := textOrNumber("uid", q.UID); err != nil {
		return err
	}
	if q.values.User = string(q.UID); q.UID[0] == '"' {
		return json.Unmarshal(q.UID, &q.values.User)
	}
	return nil
}

// textOrNumber is the error for a member that is neither.
func textOrNumber(name string, value json.RawMessage) error {
	if c := value[0]; c != '"' && c != '-' && (c < '0' || c > '9') {
		return fault.Invalid("%s: expected a string or a number, got %.60s", name, value)
	}
	return nil
}

// readClipper reads the body, with the parameters of the wire w, and also returns its text.
func (c *call) readClipper(w parameter.Wire) (q clipperBody, raw []byte, err error) {
	err = c.read(maxClipper, "the limit of this path (the paths under /v2 allow more)", func(t *text) error {
		t.Raw() // checks the depth
		if err := t.end(); err != nil {
			return err
		}
		raw = bytes.Clone(t.Text)
		return q.read(raw, w)
	})
	return q, raw, err
}

// request makes a request of one input, as one row.
func (c *call) request(q *clipperBody, raw json.RawMessage, arrived time.Time) (*gate.Request, error) {
	out := &gate.Request{Model: c.model, Values: q.values, Arrived: arrived, Source: c.conn.source, Who: c.who}
	if raw == nil {
		return out, nil
	}
	in, err := c.service().Input(c.model, raw)
	if err != nil {
		return nil, err
	}
	out.Inputs = []tensor.Tensor{in}
	return out, nil
}

// A clipperAnswer is the answer to one input.
type clipperAnswer struct {
	QueryID     uint64          `json:"query_id"`
	Output      json.RawMessage `json:"output,omitempty"`
	Default     bool            `json:"default"`
	Explanation string          `json:"default_explanation,omitempty"`
	Error       string          `json:"error,omitempty"` // for one input of a batch
}

// queries numbers the answers, as Clipper does.
var queries atomic.Uint64

// clipperPredict answers one input, or each of several.
func (c *call) clipperPredict() error {
	q, _, err := c.readClipper(parameter.Clipper)
	arrived := time.Now()
	if err == nil && (q.Input == nil) == (q.Batch == nil) {
		err = fault.Invalid(`expected exactly one of "input" and "input_batch"`)
	}
	if err != nil {
		return c.countRefusal(err, arrived)
	}
	if q.Input != nil {
		return c.answer(c.ask(&q, q.Input, arrived))
	}
	const atOnce = 64
	answers := each(c, q.Batch, atOnce, func(input json.RawMessage) (clipperAnswer, error) {
		return c.ask(&q, input, arrived)
	}, func(err error) clipperAnswer {
		return clipperAnswer{QueryID: queries.Add(1), Error: fault.Text(err)}
	})
	return c.answer(map[string][]clipperAnswer{"batch_predictions": answers}, nil)
}

// each answers every part of a body, atOnce of them at a time; failed makes the answer of an error.
// A panic is an error too: on a goroutine of its own it would end the process.
func each[T any](c *call, parts []json.RawMessage, atOnce int, answer func(part json.RawMessage) (T, error),
	failed func(error) T) []T {
	answers := make([]T, len(parts))
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, part := range parts {
		places <- struct{}{}
		all.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					c.door.log.Error("panic while serving a part of a request", "path", c.r.URL.Path, "panic", r,
						"stack", string(debug.Stack()))
					answers[i] = failed(errBug)
				}
				<-places
			}()
			var err error
			if answers[i], err = answer(part); err != nil {
				answers[i] = failed(err)
			}
		})
	}
	all.Wait()
	return answers
}

// ask answers one input.
func (c *call) ask(q *clipperBody, raw json.RawMessage, arrived time.Time) (clipperAnswer, error) {
	r, err := c.request(q, raw, arrived)
	if err != nil {
		return clipperAnswer{}, c.countRefusal(err, arrived)
	}
	part := c.use.Part()
	defer part.End()
	r.Use = &part
	c.parent(&r.Values)
	a, err := c.door.predict.Infer(c.r.Context(), r, nil)
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

// clipperOutput is the value of the only output, or an object of all outputs by name.
func clipperOutput(outputs []tensor.Tensor) (json.RawMessage, error) {
	values := make(map[string]json.RawMessage, len(outputs))
	for _, t := range outputs {
		if err := writable(&t); err != nil {
			return nil, err
		}
		if values[t.Name] = clipperLists(t); len(outputs) == 1 {
			return values[t.Name], nil
		}
	}
	return json.Marshal(values)
}

// clipperLists is a tensor as nested JSON lists, in which a list of one element, at any level, is
// that element. A single text that is JSON becomes that JSON, as in Clipper's answers.
func clipperLists(t tensor.Tensor) json.RawMessage {
	if n, _ := t.Shape.Elements(); n == 1 && t.DType == tensor.Bytes {
		if text, _ := element(t.Data); json.Valid(text) {
			return bytes.Clone(text)
		}
	}
	e := emitters.Get().(*emitter)
	defer e.free()
	var out bytes.Buffer
	e.begin = func() io.Writer { return &out }
	e.lean(t)
	e.flush()
	return out.Bytes()
}

// lean writes a tensor as clipperLists has it.
func (e *emitter) lean(t tensor.Tensor) {
	if n, _ := t.Shape.Elements(); n == 1 {
		e.data(&t)
	} else {
		e.lists(t, e.lean)
	}
}
