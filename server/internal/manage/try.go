package manage

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/server/internal/quota"
	"github.com/shivad/shivad/shiva/tensor"
)

// Trials are requests of operators, which count as requests of the program itself.
type Trials struct {
	Gate *gate.Gate
	Door func() *predict.Door
}

const (
	trialTime    = 20 * time.Second // timeout for a model without a deadline
	mostElements = 4096             // shown of an output
	mostText     = 4096             // bytes of a text
)

// Try sends a request, with the rights of the operator and charged to the operator's quotas.
func (t Trials) Try(ctx context.Context, q admin.Trial) (admin.Tried, error) {
	tried, err := t.try(ctx, q, time.Now())
	return tried, refusal(err)
}

func (t Trials) try(ctx context.Context, q admin.Trial, arrived time.Time) (out admin.Tried, err error) {
	var use quota.Use
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
	a, err := door.Infer(ctx, &predict.Question{Model: q.Name, Version: q.Version, Inputs: inputs, Arrived: arrived, Source: door.NewSource(), Who: q.Who, Use: &use})
	if err != nil {
		return out, err
	}
	defer a.Release()
	out = admin.Tried{
		Model: a.Model, Version: a.Version, Outputs: []admin.TriedOutput{}, Queue: a.Timing.Queue.Seconds(), Execute: a.Timing.Exec.Seconds(),
		Total: time.Since(arrived).Seconds(), Rows: a.Timing.BatchRows,
	}
	if c := a.Choice; c != nil {
		out.Model, out.Version, _ = strings.Cut(a.Version, "/")
		out.Confidence, out.Default, out.Missing = &c.Confidence, c.Explanation, map[string]string{}
		for _, m := range c.Missing {
			out.Missing[m.Model] = m.Why
		}
	}
	for _, o := range a.Outputs {
		shown := admin.TriedOutput{Name: o.Name, Datatype: o.DType.V2(), Shape: append([]int{}, o.Shape...)}
		if shown.Data, shown.Elements, err = elements(o); err != nil {
			return out, fmt.Errorf("output %q: %w", o.Name, err)
		}
		out.Outputs = append(out.Outputs, shown)
	}
	return out, nil
}

// raw reads {"b64": "...", "shape": [...]}: the bytes of a tensor or, without a shape, one element
// of a tensor of bytes. It reports false for any other value.
func raw(value any, d tensor.DType) (t tensor.Tensor, is bool, err error) {
	object, _ := value.(map[string]any)
	text, is := object["b64"].(string)
	if !is {
		return t, false, nil
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return t, true, fmt.Errorf("b64: %w", err)
	}
	if _, shaped := object["shape"]; !shaped && d == tensor.Bytes {
		t, err = tensor.FromStrings(tensor.Shape{1}, []string{string(data)})
		return t, true, err
	} else if !shaped {
		t, err = tensor.New(d, tensor.Shape{len(data) / max(d.Size(), 1)}, data)
		return t, true, err
	}
	var shape tensor.Shape
	list, _ := object["shape"].([]any)
	for _, one := range list {
		number, _ := one.(json.Number)
		n, err := number.Int64()
		if err != nil {
			return t, true, fmt.Errorf("shape: expected a list of integers, got %v", object["shape"])
		}
		shape = append(shape, int(n))
	}
	t, err = tensor.New(d, shape, data)
	return t, true, err
}

// elements returns the first elements of a tensor, flat, in JSON form, and how many there are in
// all.
func elements(t tensor.Tensor) (list []any, all int, err error) {
	list = []any{}
	if t.DType == tensor.Bytes {
		texts, err := tensor.Strings(t)
		for _, text := range texts[:min(len(texts), mostElements)] {
			list = append(list, strings.ToValidUTF8(text[:min(len(text), mostText)], "\uFFFD"))
		}
		return list, len(texts), err
	}
	size := t.DType.Size()
	all = len(t.Data) / size
	n := min(all, mostElements)
	first := tensor.Tensor{DType: t.DType, Shape: tensor.Shape{n}, Data: t.Data[:n*size]}
	switch t.DType {
	case tensor.LongDouble, tensor.Complex64, tensor.Complex128:
		return list, all, nil // shown only by its shape
	case tensor.Bool:
		for _, b := range first.Data {
			list = append(list, b != 0)
		}
	case tensor.Int64:
		list, err = numbers[int64](first)
	case tensor.Uint64:
		list, err = numbers[uint64](first)
	case tensor.Float32:
		list, err = numbers[float32](first)
	default:
		if first, err = tensor.Cast(first, tensor.Float64, nil); err == nil {
			list, err = numbers[float64](first)
		}
	}
	return list, all, err
}

// numbers returns null for values that JSON cannot write as numbers.
func numbers[T int64 | uint64 | float32 | float64](t tensor.Tensor) ([]any, error) {
	values, err := tensor.Values[T](t)
	list := make([]any, len(values))
	for i, v := range values {
		if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
			list[i] = v
		}
	}
	return list, err
}
