package container_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

type predict = func(context.Context, []tensor.Tensor) ([]tensor.Tensor, error)

// perRow is a model that maps a text and a number to a text, row by row.
func perRow(f predict) container.Model {
	return container.Model{
		Name: "m", Version: "1", Batched: new(true),
		Inputs: []tensor.Spec{
			{Name: "text", DType: tensor.Bytes, Shape: tensor.Shape{-1}},
			{Name: "n", DType: tensor.Int32, Shape: tensor.Shape{-1, 1}},
		},
		Outputs: []tensor.Spec{
			{Name: "text", DType: tensor.Bytes, Shape: tensor.Shape{-1}},
			{Name: "many", DType: tensor.Int32, Shape: tensor.Shape{-1, -1}},
		},
		Predict: container.PerRow(f),
	}
}

// TestPerRow: rows of texts and numbers are computed one by one, and each fails alone.
func TestPerRow(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		again := []int32{0, 0} // the function's own memory, used for every row
		m := perRow(func(_ context.Context, row []tensor.Tensor) ([]tensor.Tensor, error) {
			texts, err := tensor.Strings(row[0])
			if err != nil {
				return nil, err
			}
			numbers, err := tensor.Values[int32](row[1])
			if err != nil {
				return nil, err
			}
			switch texts[0] {
			case "fail":
				return nil, errors.New("no luck")
			case "panic":
				panic("oops")
			case "nothing":
				return nil, nil
			}
			again[0], again[1] = numbers[0], -numbers[0]
			many, err := tensor.FromSlice(tensor.Shape{1, 2}, again)
			if err != nil {
				return nil, err
			}
			text, err := tensor.FromStrings(tensor.Shape{1}, []string{strings.ToUpper(texts[0])})
			return []tensor.Tensor{text, many}, err
		})
		m.Dial = n.dial
		stop := serving(m, nil, "10.0.0.1:7000")
		synctest.Wait()
		for _, tt := range []struct {
			texts []string
			want  string
		}{
			{[]string{"a", "bc", "d"}, "[A BC D] [1 -1 2 -2 3 -3]"},
			{[]string{"a", "fail"}, "no luck"},
			{[]string{"panic", "b"}, "panic: oops"},
			{[]string{"b", "nothing"}, "returned 0 outputs"},
			{[]string{"fail", "fail"}, "no luck"},
			{[]string{"z"}, "[Z] [1 -1]"},
		} {
			texts, err := tensor.FromStrings(tensor.Shape{len(tt.texts)}, tt.texts)
			if err != nil {
				t.Fatal(err)
			}
			var numbers []int32
			for i := range tt.texts {
				numbers = append(numbers, int32(i+1))
			}
			ns, err := tensor.FromSlice(tensor.Shape{len(numbers), 1}, numbers)
			if err != nil {
				t.Fatal(err)
			}
			out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{texts, ns}})
			got := fmt.Sprint(err)
			if err == nil {
				upper, _ := tensor.Strings(out[0])
				many, _ := tensor.Values[int32](out[1])
				got = fmt.Sprint(upper, many)
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("%q: %s, expected %s", tt.texts, got, tt.want)
			}
			for _, o := range out {
				o.Release()
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestCheck: faults of a model that Check finds without a server.
func TestCheck(t *testing.T) {
	all := func(m *container.Model) {
		m.Batched = new(true)
		for _, d := range []tensor.DType{tensor.Bool, tensor.Float16, tensor.BFloat16, tensor.Float64, tensor.Int8,
			tensor.LongDouble, tensor.Complex64, tensor.Bytes} {
			m.Inputs = append(m.Inputs, tensor.Spec{Name: d.String(), DType: d, Shape: tensor.Shape{-1, 2, -1}})
		}
	}
	var batches []int
	for _, tt := range []struct {
		name   string
		change func(m *container.Model)
		want   string // of the error; empty: none
	}{
		{"good", func(m *container.Model) {}, ""},
		{"every dtype", all, ""},
		{"no batch dimension", func(m *container.Model) {
			m.Inputs[0].Shape, m.Outputs[0].Shape = tensor.Shape{4, -1}, tensor.Shape{4, -1}
		}, ""},
		{"no name", func(m *container.Model) { m.Name = "" }, "no name"},
		{"warm-up", func(m *container.Model) { m.WarmUp = func(context.Context) error { return errors.New("no weights") } },
			"warm-up: no weights"},
		{"health", func(m *container.Model) { m.Health = func(context.Context) error { panic("ill") } }, "health: panic: ill"},
		{"other outputs", func(m *container.Model) { m.Outputs[0].DType = tensor.Int32 }, "declared int32"},
		{"several rows only", func(m *container.Model) {
			m.Predict = func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
				if b.Rows > 1 {
					panic("too many")
				}
				return b.Inputs, nil
			}
		}, "3 rows: panic: too many"},
		{"every row", func(m *container.Model) {
			m.Predict = container.PerRow(func(context.Context, []tensor.Tensor) ([]tensor.Tensor, error) {
				return nil, errors.New("never")
			})
		}, "every row failed: never"},
		{"at most two", func(m *container.Model) { m.MaxBatch = 2 }, ""},
	} {
		m := model(nil, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			batches = append(batches, b.Rows)
			return b.Inputs[:1], nil
		})
		m.Inputs, m.Outputs = slices.Clone(m.Inputs), slices.Clone(m.Outputs)
		tt.change(&m)
		batches = nil
		err := container.Check(t.Context(), m, 3, 2)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, expected %q", tt.name, err, tt.want)
		}
	}
	if !slices.Equal(batches, []int{1, 2}) {
		t.Errorf("batches of %v rows, expected the maximum that is declared", batches)
	}
}
