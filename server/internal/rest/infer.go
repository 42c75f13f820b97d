package rest

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/shiva/tensor"
)

// headLength is the header with the length of a body's JSON, after which binary inputs follow.
const headLength = "Inference-Header-Content-Length"

// infer answers a request for inference.
func (c *call) infer() error {
	if c.door.predict.AsksNewest(c.who, c.model) {
		return c.latest()
	}
	return c.run(&request{call: c, keys: parameter.HTTP.Keys()}, (*request).read)
}

// run answers a request that read reads.
func (c *call) run(q *request, read func(*request) error) error {
	defer q.release()
	err := read(q)
	if q.Arrived.IsZero() {
		q.Arrived = time.Now()
	}
	if err != nil {
		return c.countRefusal(err, q.Arrived)
	}
	q.Model, q.Version, q.Source, q.Client, q.Who, q.Parameters = c.model, c.version, c.conn.source, c.conn.client,
		c.who, q.pass.end()
	q.Parameters = parameter.Forward(q.Parameters, c.settings.Forward, c.r.Header.Values)
	q.Use = &c.use
	c.parent(&q.Values)
	q.complete()
	q.SetID(q.id)
	if q.Nested {
		if err := q.checkNested(); err != nil {
			return c.countRefusal(err, q.Arrived)
		}
	}
	a, err := c.door.predict.Infer(c.r.Context(), &q.Request, nil)
	if err != nil {
		return err
	}
	defer a.Release()
	return q.answer(a)
}

// parent reads the client's span from the header, unless the body names one.
func (c *call) parent(v *parameter.Values) {
	if header := c.r.Header["Traceparent"]; len(header) == 1 && v.Parent == (trace.Context{}) {
		v.Parent, _ = trace.Parse(header[0])
		v.TraceState = strings.Join(c.r.Header["Tracestate"], ",")
	}
}

// read reads the body of an inference.
func (q *request) read() error {
	c := q.call
	// A request to an unknown model gets no memory for its inputs.
	if err := c.service().CheckAsked(c.model, c.version); err != nil {
		return err
	}
	b, err := c.open()
	if err != nil {
		return err
	}
	defer b.close()
	q.body = b
	switch length, given, err := headerLength(c.r.Header); {
	case err != nil:
		return err
	case given && length == 0:
		return q.readRaw(b)
	case given:
		return q.readBinary(b, length)
	}
	buf, all, err := b.all()
	if err != nil {
		return err
	}
	defer buf.Release()
	q.Arrived = time.Now()
	err = q.parse(q.text(all))
	if err != nil && !errors.Is(err, fault.ErrProtocol) {
		return err
	}
	// Where a proxy has taken the header away, the binary data reads as malformed JSON.
	for i := range q.inputs {
		if in := &q.inputs[i]; in.size >= 0 {
			return fault.Invalid("input %q: it has binary_data_size, but the header %s is missing; it gives the length of the JSON before the binary data",
				in.Name, headLength)
		}
	}
	if err != nil {
		return err
	}
	return q.fetch(b)
}

func (q *request) text(b []byte) *text {
	l := &q.call.settings.Limits
	return newText(b, l.JSONDepth, l.MetadataBytes)
}

func headerLength(h http.Header) (length int64, given bool, err error) {
	values := h[headLength]
	if len(values) == 0 {
		return 0, false, nil
	}
	n, err := strconv.ParseUint(strings.TrimSpace(values[0]), 10, 63)
	if err != nil || len(values) > 1 {
		return 0, false, fault.Invalid("header %s: expected one number of bytes, got %q", headLength, values)
	}
	return int64(n), true, nil
}

// readBinary reads length bytes of JSON, and then the inputs that follow it.
func (q *request) readBinary(b *body, length int64) error {
	if b.length >= 0 && length > b.length {
		return fault.Invalid("header %s is %d, but the body has %d bytes", headLength, length, b.length)
	}
	if length > b.limit {
		return fault.TooLarge("header %s is %d, limits.message_bytes is %d", headLength, length, b.limit)
	}
	if err := q.readHead(b, length); err != nil {
		return err
	}
	if err := q.addUp(b, length); err != nil {
		return err
	}
	for i := range q.inputs {
		if in := &q.inputs[i]; in.size >= 0 {
			if err := in.read(b); err != nil {
				return err
			}
		}
	}
	if err := b.end(); err != nil {
		return err
	}
	return q.fetch(b)
}

// readHead reads length bytes of JSON. It releases their memory before the inputs' memory is taken.
func (q *request) readHead(b *body, length int64) error {
	head, err := b.take(int(length))
	if short := (*shortBody)(nil); errors.As(err, &short) {
		return fault.Invalid("header %s is %d, but the body has %d bytes", headLength, length, short.have)
	}
	if err != nil {
		return err
	}
	defer head.Release()
	return q.parse(q.text(head.Bytes()))
}

// addUp checks the sizes of the binary inputs before memory is taken for them.
func (q *request) addUp(b *body, sum int64) error {
	for i := range q.inputs {
		in := &q.inputs[i]
		if in.size < 0 {
			continue
		}
		count, size, err := q.bytes(in)
		switch {
		case err != nil:
			return err
		case in.DType == tensor.Bytes && in.size < int64(size):
			return fault.Invalid("%s: %d elements of shape %s take at least 4 bytes each, binary_data_size is %d",
				in.what(), count, in.Shape, in.size)
		case in.DType != tensor.Bytes && in.size != int64(size):
			return fault.Invalid("%s: %s of shape %s takes %d bytes, binary_data_size is %d", in.what(), in.DType.V2(),
				in.Shape, size, in.size)
		case in.size > b.limit-sum:
			return fault.TooLarge("the body has more than %d bytes up to the end of %s; limits.message_bytes is %d",
				b.limit, in.what(), b.limit)
		}
		sum += in.size
	}
	if b.length >= 0 && sum != b.length {
		return fault.Invalid("the JSON and the inputs' binary_data_size add up to %d bytes, but the body has %d", sum,
			b.length)
	}
	return nil
}

// read reads the bytes of an input.
func (in *input) read(b *body) error {
	buf, err := b.take(int(in.size))
	if short := (*shortBody)(nil); errors.As(err, &short) {
		return fault.Invalid("%s: binary_data_size is %d, but the body ends after %d bytes of it", in.what(), in.size,
			short.have)
	}
	if err != nil {
		return err
	}
	in.Buf, in.Data = buf, buf.Bytes()
	if in.DType == tensor.Bytes {
		if err := in.Check(); err != nil {
			return fault.Invalid("%s: %w", in.what(), err)
		}
	}
	return nil
}

// readRaw reads a body that is one bare tensor, for a model with one input.
func (q *request) readRaw(b *body) error {
	c := q.call
	m, err := c.service().Model(c.model, c.version)
	if err != nil {
		return err
	}
	spec := m.Sole()
	if spec == nil {
		return fault.Invalid("a body without JSON (%s: 0) is for models with one input; model %q has %d", headLength,
			m.Name, len(m.Inputs))
	}
	if q.Values.Form = parameter.Bytes; strings.Contains(c.r.Header.Get("Accept"), "application/json") {
		q.Values.Form = parameter.Elements
	}
	buf, data, err := b.all()
	if err != nil {
		return err
	}
	q.inputs = []input{{size: -1}}
	in := &q.inputs[0]
	in.Name, in.Buf, in.Data = spec.Name, buf, data
	in.DType, _ = tensor.FromV2(spec.Datatype)
	if in.DType == tensor.Bytes { // one element
		in.Buf, in.Data = nil, nil
		defer buf.Release()
		if in.Buf, err = b.share.Get(4 + len(data)); err != nil {
			return err
		}
		in.Data = tensor.AppendElem(in.Buf.Bytes()[:0], data)
	}
	in.Shape, err = rawShape(spec, in.DType, len(data))
	if err != nil && spec.Image != "" { // it may be a file, which has not the shape of pixels
		err = fmt.Errorf(`%w; a picture in a file needs JSON before it (%s: the bytes of that JSON): {"inputs":[{"name":%q,"datatype":"UINT8","shape":[1,%d],"parameters":{"binary_data_size":%d}}]}`,
			err, headLength, spec.Name, len(data), len(data))
	}
	return err
}

// rawShape derives the shape of a tensor of size bytes from its declaration: the size determines
// one open dimension. If two are open, the first counts rows and is 1.
func rawShape(spec *predict.TensorMetadata, d tensor.DType, size int) (tensor.Shape, error) {
	shape := append(tensor.Shape{}, spec.Shape...)
	open, each := -1, 1
	for i, n := range shape {
		switch {
		case n >= 0:
			each *= n
		case open == 0:
			shape[0], open = 1, i
		case open > 0:
			return nil, fault.Invalid("input %q: its shape %s has more dimensions of -1 than the size of a body without JSON (%s: 0) determines",
				spec.Name, tensor.Shape(spec.Shape), headLength)
		default:
			open = i
		}
	}
	unit, have := d.Size(), "bytes"
	if d == tensor.Bytes {
		unit, size, have = 1, 1, "string"
	}
	switch {
	case open >= 0 && each > 0 && size%(each*unit) == 0:
		shape[open] = size / (each * unit)
		return shape, nil
	case open < 0 && size == each*unit:
		return shape, nil
	}
	return nil, fault.Invalid("input %q: %d %s do not make a tensor of %s %s: expected %d or, with a dimension of -1, a multiple of that",
		spec.Name, size, have, spec.Datatype, tensor.Shape(spec.Shape), each*unit)
}
