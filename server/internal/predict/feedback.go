package predict

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/tensor"
)

// Feedback makes an application learn how a request turned out: the request with that ID or,
// without one, r's inputs, for which the models then predict again. v is the judgement; nil means
// that r.Parameters has it, a JSON object.
func (d *Door) Feedback(ctx context.Context, r *gate.Request, v *gate.Verdict) (gate.Learned, error) {
	d.metrics.Began()
	defer Release(r)
	reply, err := d.feedback(ctx, r, v)
	d.metrics.Answered(d.gate.Unrouted(), fault.Outcome(err), time.Since(r.Arrived), 0, 0)
	return reply, err
}

func (d *Door) feedback(ctx context.Context, r *gate.Request, v *gate.Verdict) (reply gate.Learned, err error) {
	r.Batch = len(r.Inputs) > 0 && len(r.Inputs[0].Shape) > 1 // as in infer
	f, err := d.gate.OpenFeedback(r, v)
	if err != nil {
		if _, unknown := d.gate.As(r.Who).Target(r.Model, ""); unknown != nil && errors.Is(err, scheduler.ErrNotFound) {
			err = unknown // in the terms of this protocol
		}
		return reply, err
	}
	defer f.Close()
	return gate.Learn(ctx, f)
}

// Input makes the only input of a model from JSON in the form that Clipper's clients send: numbers,
// texts or lists of them, or base64 for UINT8.
func (s *Service) Input(model string, value []byte) (tensor.Tensor, error) {
	target, err := s.view.Known(model, "")
	if err != nil {
		return tensor.Tensor{}, err
	}
	if target.Model == nil { // an application none of whose models has declared its inputs
		if t, err := input(value, tensor.Float64); err == nil {
			return t, nil
		}
		t, err := input(value, tensor.Bytes)
		if err != nil {
			err = fault.Invalid("input: %w", err)
		}
		return t, err
	}
	sole := tensor.Sole(target.Spec.Inputs)
	if sole < 0 {
		return tensor.Tensor{}, fault.Invalid("a single value is only for models with one input; model %q has %d",
			model, len(target.Spec.Inputs))
	}
	spec := target.Spec.Inputs[sole]
	t, err := input(value, spec.DType)
	if err != nil {
		return t, fault.Invalid("input %q: %w", spec.Name, err)
	}
	t.Name = spec.Name
	return t, nil
}

func input(value []byte, d tensor.DType) (tensor.Tensor, error) {
	if text, isText := jsonscan.Unquote(value); isText && d == tensor.Uint8 {
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return tensor.Tensor{}, fmt.Errorf("expected bytes as base64: %w", err)
		}
		return tensor.New(tensor.Uint8, tensor.Shape{len(data)}, data)
	}
	return jsontensor.Read(value, d, nil)
}
