package rest

import (
	"io"
	"net/http"
	"slices"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/nested"
	"github.com/shivad/shivad/shiva/tensor"
)

// checkNested refuses a request for objects that wants bytes, too.
func (q *request) checkNested() error {
	if q.Values.Form == parameter.Bytes || slices.Contains(q.forms, parameter.Bytes) {
		return fault.Invalid("a nested answer is JSON, and has no binary data: expected nested or binary_data, got both")
	}
	return nil
}

// nested writes the answer of a pipeline as objects.
func (q *request) nested(a *predict.Answer) error {
	for i := range a.Outputs {
		if err := writable(&a.Outputs[i]); err != nil {
			return err
		}
	}
	rows, err := a.Objects()
	if err != nil {
		return err
	}
	q.call.w.Header().Set("Content-Type", "application/json")
	q.timing(a)
	to, packed := q.pack()
	defer packed()
	e := emitters.Get().(*emitter)
	defer e.free()
	e.begin = func() io.Writer {
		q.call.begin(http.StatusOK)
		return to
	}
	e.head(a, q.id)
	e.buf = append(e.buf, `,"rows":`...)
	e.objects(rows)
	e.buf = append(e.buf, "}\n"...)
	e.flush()
	return nil // an error of writing means that the client has disconnected
}

func (e *emitter) objects(list []*nested.Object) {
	e.buf = append(e.buf, '[')
	for i, o := range list {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.object(o)
	}
	e.buf = append(e.buf, ']')
}

func (e *emitter) object(o *nested.Object) {
	e.buf = append(e.buf, '{')
	for i, f := range o.Fields {
		e.room()
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.buf = append(jsonscan.AppendString(e.buf, f.Name), ':')
		switch {
		case f.Object != nil:
			e.object(f.Object)
		case f.List != nil:
			e.objects(f.List)
		default:
			e.value(f.Value)
		}
	}
	e.buf = append(e.buf, '}')
}

// value writes a tensor as lists in lists, or as one element if it has no dimension.
func (e *emitter) value(t tensor.Tensor) {
	if len(t.Shape) == 0 {
		e.data(&t)
	} else {
		e.lists(t, e.value)
	}
}

// lists writes a tensor of at least one dimension as a list, which each writes the rows of.
func (e *emitter) lists(t tensor.Tensor, each func(tensor.Tensor)) {
	e.room()
	e.buf = append(e.buf, '[')
	if len(t.Shape) <= 1 {
		e.data(&t)
	} else {
		for i := range t.Shape[0] {
			if i > 0 {
				e.buf = append(e.buf, ',')
			}
			var row tensor.Tensor
			row, t, _ = t.Cut(1) // an error would mean that data and shape differ
			row.Shape = row.Shape[1:]
			each(row)
		}
	}
	e.buf = append(e.buf, ']')
}
