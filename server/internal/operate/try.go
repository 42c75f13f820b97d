package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/tensor"
)

// Trials are requests of operators, which count as requests of the program itself.
type Trials struct {
	Gate *gate.Gate
	Door func() *predict.Door
}

const (
	trialTime     = 20 * time.Second // timeout for a model without a deadline
	mostElements  = 4096             // shown of an output
	mostTriedText = 1 << 20          // bytes of the texts of an output
)

// Try sends a request, with the rights of the operator and charged to the operator's quotas.
func (t Trials) Try(ctx context.Context, q Trial) (out admin.Tried, err error) {
	arrived := time.Now()
	var use access.Use
	if err := use.Begin(q.Who.Payers(nil), int64(len(q.Input)), arrived); err != nil {
		return out, err
	}
	defer use.End()
	target, err := t.Gate.As(q.Who).Asked(q.Name, q.Version)
	if err != nil {
		return out, err
	}
	inputs, err := fromJSON(q.Input, target.Spec.Inputs)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	door := t.Door()
	a, err := door.Infer(ctx, &gate.Request{
		Model: q.Name, Version: q.Version, Inputs: inputs, Arrived: arrived, Source: door.NewSource(), Who: q.Who,
		Use: &use,
	}, nil)
	if err != nil {
		return out, err
	}
	defer a.Release()
	out = admin.Tried{
		Model: a.Model, Version: a.Version, Queue: a.Timing.Queue.Seconds(), Execute: a.Timing.Exec.Seconds(),
		Total: time.Since(arrived).Seconds(), Rows: a.Timing.BatchRows,
	}
	if c := a.Choice; c != nil {
		out.Model, out.Version, _ = strings.Cut(a.Version, "/")
		out.Confidence, out.Default, out.Missing = &c.Confidence, c.Explanation, map[string]string{}
		for _, m := range c.Missing {
			out.Missing[m.Model] = m.Why
		}
	}
	out.Outputs, err = outputs(a.Outputs)
	return out, err
}

// outputs shows the outputs of an answer.
func outputs(list []tensor.Tensor) (out []admin.TriedOutput, err error) {
	out = []admin.TriedOutput{}
	for _, o := range list {
		shown := admin.TriedOutput{Name: o.Name, Datatype: o.DType.V2(), Shape: append([]int{}, o.Shape...)}
		if shown.Data, shown.Elements, err = elements(o); err != nil {
			return out, fmt.Errorf("output %q: %w", o.Name, err)
		}
		out = append(out, shown)
	}
	return out, nil
}

// fromValue makes an input from JSON: numbers, texts or nested lists of them, or {"b64": "...",
// "shape": [...]}, the bytes of a tensor; without a shape they are those of a list, or of one
// element of Bytes.
func fromValue(value []byte, d tensor.DType) (tensor.Tensor, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(value), []byte("{")) {
		return jsontensor.Read(value, d, nil)
	}
	var raw struct {
		B64   []byte        `json:"b64"`
		Shape *tensor.Shape `json:"shape"`
	}
	if err := json.Unmarshal(value, &raw); err != nil {
		return tensor.Tensor{}, fmt.Errorf(`expected {"b64": "...", "shape": [...]}: %w`, jsonscan.Words(err))
	}
	switch {
	case raw.B64 == nil:
		return tensor.Tensor{}, errors.New(`expected a value, a list, or {"b64": "...", "shape": [...]}`)
	case raw.Shape != nil:
		return tensor.New(d, *raw.Shape, raw.B64)
	case d == tensor.Bytes:
		return tensor.FromStrings(tensor.Shape{1}, []string{string(raw.B64)})
	}
	return tensor.New(d, tensor.Shape{len(raw.B64) / max(d.Size(), 1)}, raw.B64)
}

// elements returns the first elements of a tensor, flat, in JSON form, and how many there are in
// all.
func elements(t tensor.Tensor) (list []any, all int, err error) {
	list = []any{}
	if t.DType == tensor.Bytes {
		texts, err := tensor.Strings(t)
		left := mostTriedText
		for _, text := range texts[:min(len(texts), mostElements)] {
			text = text[:min(len(text), left)]
			left -= len(text)
			list = append(list, strings.ToValidUTF8(text, "\uFFFD"))
		}
		return list, len(texts), err
	}
	size, write := t.DType.Size(), jsontensor.Writer(t.DType)
	all = len(t.Data) / size
	// What JSON lacks is shown only by its shape.
	for i := 0; i < min(all, mostElements) && write != nil; i++ {
		list = append(list, json.RawMessage(write(nil, t.Data[i*size:][:size])))
	}
	return list, all, nil
}
