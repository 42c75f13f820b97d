package rest

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/tensor"
)

// A request is the JSON of an inference, with its tensors.
type request struct {
	gate.Request // its Inputs are set when all have been read
	id           string

	call   *call
	body   *body
	inputs []input
	forms  []parameter.Form // of each of Outputs
	keys   map[string]*parameter.Key

	// Parameters for the container: those of the request, and those of inputs and outputs by name.
	pass, inputPass, outputPass members
}

// An input is a tensor of a request. Its Data is nil until it has been read.
type input struct {
	tensor.Tensor
	size  int64           // binary_data_size: its bytes follow the JSON; -1: none do
	place parameter.Place // in shared memory; zero: it is in the body
}

// release releases the inputs. It is called once for every request, however it ends: an input is
// added to q.inputs before it has memory, so errors and panics need no cleanup of their own.
func (q *request) release() {
	for i := range q.inputs {
		q.inputs[i].Release()
	}
	q.inputs = nil
	predict.Release(&q.Request)
}

// complete hands the inputs to the Request.
func (q *request) complete() {
	q.Inputs = make([]tensor.Tensor, len(q.inputs))
	for i := range q.inputs {
		q.Inputs[i] = q.inputs[i].Tensor
	}
	q.inputs = nil
}

// members is a JSON object under construction; nil while it is empty.
type members []byte

func (m *members) add(name, value []byte) {
	*m = jsonscan.AppendMember(*m, name, value)
}

// end returns the object; nil if it is empty.
func (m members) end() []byte {
	if m == nil {
		return nil
	}
	return append(m, '}')
}

// Keys under which parameters of single tensors go to the container.
const (
	inputParameters  = "input_parameters"
	outputParameters = "output_parameters"
)

// parse reads the JSON of an inference.
func (q *request) parse(t *text) error {
	inputs := false
	for name := range t.members {
		switch string(name) {
		case "id":
			q.id = t.str(nil, `"id"`)
		case "parameters":
			q.parameters(t)
		case "inputs":
			inputs = true
			q.tensors(t, "inputs", (*request).input)
		case "outputs":
			q.tensors(t, "outputs", (*request).output)
		default:
			t.Raw()
		}
	}
	if err := t.end(); err != nil {
		return err
	}
	if !inputs && q.Newest == nil && q.takesInputs() {
		return fault.Invalid(`expected "inputs", which is missing`)
	}
	if p := q.inputPass.end(); p != nil {
		q.pass.add([]byte(inputParameters), p)
	}
	if p := q.outputPass.end(); p != nil {
		q.pass.add([]byte(outputParameters), p)
	}
	return nil
}

// takesInputs reports whether the model is not known to be one without inputs.
func (q *request) takesInputs() bool {
	m, err := q.call.service().Model(q.call.model, q.call.version)
	return err != nil || len(m.Inputs) > 0 || len(m.Outputs) == 0
}

// tensors reads a list of inputs or outputs.
func (q *request) tensors(t *text, what string, read func(q *request, t *text, i int)) {
	most := q.call.settings.Limits.Tensors
	t.array("an array of " + what)
	for i := range t.Elements {
		if i == most {
			t.Fail(fault.TooLarge("more than %d %s; limits.tensors is %d", i, what, most))
			break
		}
		read(q, t, i)
	}
}

// parameters reads the request's parameters. Those that are not the server's go to the container,
// even if they are null.
func (q *request) parameters(t *text) {
	for name := range t.Members {
		if string(name) == inputParameters || string(name) == outputParameters {
			t.Fail(fault.Invalid("parameter %q: the name is reserved: the container gets the parameters of single tensors under it", name))
			break
		}
		if strings.HasPrefix(string(name), "triton_") {
			t.Fail(fault.Invalid("parameter %q: names that begin with triton_ are reserved", name))
			break
		}
		value := t.Raw()
		if key := q.keys[string(name)]; key == nil {
			q.pass.add(name, value)
		} else if value != nil {
			t.Fail(key.Read(&q.Values, parameter.JSON(value)))
		}
	}
}

// location reads a parameter of a tensor if it is one of those that place the tensor in shared
// memory.
func (t *text) location(what func() string, name []byte, p *parameter.Place) bool {
	key, ok := parameter.PlaceKey(string(name))
	if !ok || t.Null() {
		return ok
	}
	if value := t.Raw(); value != nil {
		if expected := p.Read(key, parameter.JSON(value)); expected != "" {
			t.Fail(fault.Invalid("%s: parameter %q: expected %s, got %s", what(), name, expected,
				parameter.JSON(value)))
		}
	}
	return true
}

// input reads one of the inputs.
func (q *request) input(t *text, i int) {
	q.inputs = append(q.inputs, input{size: -1})
	in := &q.inputs[i]
	typed, shaped, later := false, false, -1
	var pass members
	what := func() string {
		if in.Name == "" {
			return fmt.Sprintf("inputs[%d]", i)
		}
		return in.what()
	}
	for name := range t.members {
		switch string(name) {
		case "name":
			in.Name = t.str(what, `"name"`)
		case "datatype":
			in.DType = datatype(t, what)
			typed = true
		case "shape":
			in.Shape = q.shape(t, what)
			shaped = true
		case "parameters":
			for name := range t.Members {
				size := string(name) == "binary_data_size"
				switch {
				case t.location(what, name, &in.place):
				case size && t.Null():
				case size:
					in.size = int64(t.whole(what, `parameter "binary_data_size"`, math.MaxInt64))
				default:
					pass.add(name, t.Raw())
				}
			}
		case "data":
			if later = -1; in.Name != "" && typed && shaped {
				q.data(t, in)
			} else { // datatype or shape follows
				t.Peek()
				later = t.At
				t.dataText()
				t.setApart(later)
			}
		default:
			t.Raw()
		}
	}
	if t.Err() != nil {
		return
	}
	if err := in.complete(what, typed, shaped); err != nil {
		t.Fail(err)
		return
	}
	if later >= 0 {
		again := newText(t.Text, t.Depth-1, 0)
		again.At = later
		q.data(again, in)
		t.Fail(again.Err())
	}
	switch has, placed := in.Data != nil, in.place.Region != ""; {
	case in.place.Lacks() != "":
		t.Fail(fault.Invalid("%s: the parameter %s is missing, which its other shared memory parameters require",
			what(), in.place.Lacks()))
	case placed && (has || in.size >= 0):
		t.Fail(fault.Invalid("%s: it is in shared memory region '%s', and has data or binary_data_size; expected one of them",
			what(), in.place.Region))
	case has && in.size >= 0:
		t.Fail(fault.Invalid("%s: it has both data and binary_data_size; expected one of them", what()))
	case !has && in.size < 0 && !placed:
		t.Fail(fault.Invalid("%s: it has neither data nor the parameter binary_data_size", what()))
	}
	if p := pass.end(); p != nil {
		q.inputPass.add([]byte(in.Name), p)
	}
}

// complete is the error for an input without name, datatype or shape.
func (in *input) complete(what func() string, typed, shaped bool) error {
	for _, must := range []struct {
		name string
		has  bool
	}{{"name", in.Name != ""}, {"datatype", typed}, {"shape", shaped}} {
		if !must.has {
			return fault.Invalid("%s: expected %q, which is missing or empty", what(), must.name)
		}
	}
	return nil
}

func datatype(t *text, what func() string) tensor.DType {
	if t.Peek() != '"' {
		t.wrong(what, `"datatype"`, "a string")
	}
	name := t.Str()
	d, ok := tensor.FromV2(string(name))
	if !ok && name != nil {
		t.Fail(fault.Invalid("%s: unknown datatype %.40q; expected one of %s", what(), name, jsontensor.Names()))
	}
	return d
}

func (q *request) shape(t *text, what func() string) tensor.Shape {
	shape := make(tensor.Shape, 0, 4)
	most := q.call.settings.Limits.Rank
	t.array("an array of dimensions")
	for i := range t.Elements {
		if i == most {
			t.Fail(fault.TooLarge("%s: shape has more than %d dimensions; limits.rank is %d", what(), i, most))
			break
		}
		n := t.whole(func() string { return what() + ": shape[" + strconv.Itoa(i) + "]" }, "", math.MaxInt64)
		shape = append(shape, int(n))
	}
	return shape
}

// what names the input in errors.
func (in *input) what() string { return fmt.Sprintf("input %q", in.Name) }

// bytes returns the number of elements of an input and the bytes that they take, without the text
// of Bytes.
func (q *request) bytes(in *input) (count, size int, err error) {
	limit := q.call.settings.Limits.MessageBytes
	count, ok := in.Shape.Elements()
	each := max(in.DType.Size(), 4) // of Bytes the length; small dtypes are rounded up
	if !ok || int64(count) > math.MaxInt64/int64(each) {
		return 0, 0, fault.TooLarge("%s: shape %s has more elements than can be counted in bytes; limits.message_bytes is %d",
			in.what(), in.Shape, limit)
	}
	if in.DType != tensor.Bytes {
		each = in.DType.Size()
	}
	if size = count * each; int64(size) > limit {
		return 0, 0, fault.TooLarge("%s: %s of shape %s takes %d bytes; limits.message_bytes is %d", in.what(),
			in.DType.V2(), in.Shape, size, limit)
	}
	return count, size, nil
}

// data reads an input's data into memory of the pool.
func (q *request) data(t *text, in *input) {
	if !jsontensor.Has(in.DType) {
		t.Fail(fault.Invalid("%s: datatype %s cannot be written as JSON; send its bytes, see binary_data_size",
			in.what(), in.DType.V2()))
		return
	}
	count, size, err := q.bytes(in)
	if err != nil {
		t.Fail(err)
		return
	}
	t.Peek()
	start := t.At
	// An element takes at least a digit and a comma. A shape with more elements than the text can
	// hold gets no memory.
	if left := len(t.Text) - t.At; count > left/2+1 {
		t.explain(in.what, &in.Tensor, -1)
		return
	}
	if in.DType == tensor.Bytes {
		end, ok := jsonscan.Skip(t.Text, start, t.Depth)
		if !ok {
			t.explain(in.what, &in.Tensor, -1)
			return
		}
		size += end - start
	}
	buf, err := q.body.share.Get(size)
	if err != nil {
		t.Fail(err)
		return
	}
	in.Buf, in.Data = buf, buf.Bytes()
	if in.DType == tensor.Bytes {
		in.Data = in.Data[:0]
	}
	if t.data(in.what, &in.Tensor); t.Err() == nil {
		q.call.door.warnLarge(q.call.model, in.Name, t.At-start)
	}
}

// largeJSON is the size of a tensor's text that is worth a warning, in bytes.
const largeJSON = 64 << 10

func (d *Door) warnLarge(model, input string, n int) {
	if n > largeJSON {
		d.largeJSON.Do(func() {
			d.log.Warn("a client sends a large tensor as JSON text, which is many times slower than binary data; see binary_data_size, "+
				"which stock clients use by default (this warning is written once)", "model", model, "input", input, "bytes", n)
		})
	}
}

// output reads one of the requested outputs.
func (q *request) output(t *text, i int) {
	var out gate.Output
	how := parameter.AsUsual
	var pass members
	what := func() string {
		if out.Name == "" {
			return fmt.Sprintf("outputs[%d]", i)
		}
		return fmt.Sprintf("output %q", out.Name)
	}
	for name := range t.members {
		switch string(name) {
		case "name":
			out.Name = t.str(what, `"name"`)
			continue
		case "parameters":
		default:
			t.Raw()
			continue
		}
		for name := range t.Members {
			binary, classes := string(name) == "binary_data", string(name) == "classification"
			switch {
			case t.location(what, name, &out.Place):
			case (binary || classes) && t.Null():
			case binary:
				if how = parameter.Elements; t.boolean(what, `parameter "binary_data"`) {
					how = parameter.Bytes
				}
			case classes:
				out.Classes = int(t.whole(what, `parameter "classification"`, math.MaxInt32))
			default:
				pass.add(name, t.Raw())
			}
		}
	}
	if out.Name == "" {
		t.Fail(fault.Invalid("%s: expected \"name\", which is missing or empty", what()))
	}
	if lacks := out.Place.Lacks(); lacks != "" {
		t.Fail(fault.Invalid("%s: the parameter %s is missing, which its other shared memory parameters require",
			what(), lacks))
	}
	if p := pass.end(); p != nil {
		q.outputPass.add([]byte(out.Name), p)
	}
	q.Outputs = append(q.Outputs, out)
	q.forms = append(q.forms, how)
}
