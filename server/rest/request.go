package rest

import (
	"fmt"
	"math"

	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// A request is the JSON of an inference, with the tensors that it has in itself.
type request struct {
	call   *call
	body   *body // that it came in
	id     string
	inputs []input
	// outputs are those asked for, none if all; forms are how they must be sent, one for each.
	outputs []predict.Output
	forms   []parameter.Form
	values  parameter.Values

	// What goes to the container: members of the request's parameters, and those of single
	// inputs and outputs by name.
	pass, inputPass, outputPass members
}

// An input is a tensor of a request. Its Data is nil as long as it has not been read.
type input struct {
	tensor.Tensor
	size int64 // binary_data_size: its bytes follow the JSON; -1: it is in the JSON
}

// release gives the memory of the inputs back. It is called once for every request, however it
// ends: an input is one of q.inputs from before it has memory, so that neither an error nor a
// panic on the way needs to know what there is.
func (q *request) release() {
	for i := range q.inputs {
		q.inputs[i].Release()
	}
	q.inputs = nil
}

// handOver gives the inputs to whoever releases them from now on.
func (q *request) handOver() []tensor.Tensor {
	list := make([]tensor.Tensor, len(q.inputs))
	for i := range q.inputs {
		list[i] = q.inputs[i].Tensor
	}
	q.inputs = nil
	return list
}

// members is a JSON object being written; nil if it has none.
type members []byte

func (m *members) add(name string, value []byte) {
	if len(*m) == 0 {
		*m = append(*m, '{')
	} else {
		*m = append(*m, ',')
	}
	*m = shiva.AppendString(*m, name)
	*m = append(*m, ':')
	*m = append(*m, value...)
}

// end returns the object, nil if it has no members.
func (m members) end() []byte {
	if m == nil {
		return nil
	}
	return append(m, '}')
}

// Names under which parameters of single tensors go to the container.
const (
	inputParameters  = "input_parameters"
	outputParameters = "output_parameters"
)

// parse reads the JSON of an inference.
func (q *request) parse(t *text) (err error) {
	limits := &q.call.settings.Limits
	inputs := false
	err = t.members(func(name string) (err error) {
		switch name {
		case "id":
			if t.peek() != '"' {
				return t.wrong(member("id"), "a string")
			}
			q.id, err = t.str("a string")
		case "parameters":
			err = q.parameters(t)
		case "inputs":
			inputs = true
			err = t.array("an array of inputs", func(i int) error {
				if i == limits.Tensors {
					return tooLarge("more than %d inputs; limits.tensors is %d", i, limits.Tensors)
				}
				return q.input(t, i)
			})
		case "outputs":
			err = t.array("an array of outputs", func(i int) error {
				if i == limits.Tensors {
					return tooLarge("more than %d outputs; limits.tensors is %d", i, limits.Tensors)
				}
				return q.output(t, i)
			})
		default:
			err = t.skip()
		}
		return err
	})
	if err == nil {
		err = t.end()
	}
	if err == nil && !inputs {
		err = invalid(`expected "inputs", which is missing`)
	}
	if p := q.inputPass.end(); p != nil {
		q.pass.add(inputParameters, p)
	}
	if p := q.outputPass.end(); p != nil {
		q.pass.add(outputParameters, p)
	}
	return err
}

// parameters reads those of the request. All that mean nothing here are the container's, also
// with null.
func (q *request) parameters(t *text) error {
	keys := parameter.HTTP.Keys()
	return t.object(func(name string) error {
		if name == inputParameters || name == outputParameters {
			return invalid("%s: that name is taken: under it the container gets the parameters of single tensors", parameterNamed(name)())
		}
		value, err := t.raw()
		if err != nil {
			return err
		}
		if key := keys[name]; key != nil {
			return key.Read(&q.values, parameter.JSON(value))
		}
		q.pass.add(name, value)
		return nil
	})
}

func formOf(t *text, what func() string) (parameter.Form, error) {
	binary, err := t.boolean(what)
	if binary {
		return parameter.Bytes, err
	}
	return parameter.Elements, err
}

// sharedMemory are parameters that say that a tensor is elsewhere, which cannot be passed on.
func sharedMemory(name string) bool {
	return name == "shared_memory_region" || name == "shared_memory_offset" || name == "shared_memory_byte_size"
}

// input reads one of the inputs.
func (q *request) input(t *text, i int) error {
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
	err := t.members(func(name string) (err error) {
		switch name {
		case "name":
			if t.peek() != '"' {
				return t.wrong(of(what, member("name")), "a string")
			}
			in.Name, err = t.str("a string")
		case "datatype":
			in.DType, err = datatype(t, what)
			typed = true
		case "shape":
			in.Shape, err = q.shape(t, what)
			shaped = true
		case "parameters":
			err = t.object(func(name string) (err error) {
				if (name == "binary_data_size" || sharedMemory(name)) && t.null() {
					return nil
				}
				if sharedMemory(name) {
					return invalid("%s: parameter %q: shared memory is not offered; send the bytes, see binary_data_size", what(), name)
				}
				if name != "binary_data_size" {
					value, err := t.raw()
					if err == nil {
						pass.add(name, value)
					}
					return err
				}
				n, err := t.whole(of(what, parameterNamed("binary_data_size")), math.MaxInt64)
				in.size = int64(n)
				return err
			})
		case "data":
			if later = -1; in.Name != "" && typed && shaped {
				err = q.data(t, in)
			} else { // what it has to be is said further on
				t.peek()
				later = t.at
				_, err = t.dataText()
			}
		default:
			err = t.skip()
		}
		return err
	})
	if err == nil {
		err = in.complete(what, typed, shaped)
	}
	if err == nil && later >= 0 {
		again := text{b: t.b, at: later, depth: t.depth - 1}
		err = q.data(&again, in)
	}
	switch has := in.Data != nil; {
	case err != nil:
	case has && in.size >= 0:
		err = invalid("%s: it has both data and binary_data_size; expected one of them", what())
	case !has && in.size < 0:
		err = invalid("%s: it has neither data nor the parameter binary_data_size", what())
	}
	if err != nil {
		return err
	}
	if p := pass.end(); p != nil {
		q.inputPass.add(in.Name, p)
	}
	return nil
}

// complete reports what an input lacks.
func (in *input) complete(what func() string, typed, shaped bool) error {
	for _, must := range []struct {
		name string
		has  bool
	}{{"name", in.Name != ""}, {"datatype", typed}, {"shape", shaped}} {
		if !must.has {
			return invalid("%s: expected %q, which is missing or empty", what(), must.name)
		}
	}
	return nil
}

func datatype(t *text, what func() string) (tensor.DType, error) {
	if t.peek() != '"' {
		return 0, t.wrong(of(what, member("datatype")), "a string")
	}
	name, err := t.str("a string")
	if err != nil {
		return 0, err
	}
	d, ok := tensor.FromV2(name)
	if !ok {
		return 0, invalid("%s: no datatype %.40q; there are BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, BYTES", what(), name)
	}
	return d, nil
}

func (q *request) shape(t *text, what func() string) (tensor.Shape, error) {
	shape := make(tensor.Shape, 0, 4)
	most := q.call.settings.Limits.Rank
	err := t.array("an array of dimensions", func(i int) error {
		if i == most {
			return tooLarge("%s: shape has more than %d dimensions; limits.rank is %d", what(), i, most)
		}
		n, err := t.whole(func() string { return fmt.Sprintf("%s: shape[%d]", what(), i) }, math.MaxInt64)
		shape = append(shape, int(n))
		return err
	})
	return shape, err
}

// what names an input in errors.
func (in *input) what() string { return fmt.Sprintf("input %q", in.Name) }

// of joins what two errors are about, the larger thing first.
func of(whole, part func() string) func() string {
	return func() string { return whole() + ": " + part() }
}

// bytes returns what the elements of an input take, without the text of Bytes.
func (q *request) bytes(in *input) (count, size int, err error) {
	limit := q.call.settings.Limits.MessageBytes
	count, ok := in.Shape.Elements()
	each := max(in.DType.Size(), 4) // of Bytes the length; small ones are rounded up
	if !ok || int64(count) > math.MaxInt64/int64(each) {
		return 0, 0, tooLarge("%s: shape %s has more elements than can be counted in bytes; limits.message_bytes is %d", in.what(), in.Shape, limit)
	}
	if in.DType != tensor.Bytes {
		each = in.DType.Size()
	}
	if size = count * each; int64(size) > limit {
		return 0, 0, tooLarge("%s: %s of shape %s takes %d bytes; limits.message_bytes is %d", in.what(), in.DType.V2(), in.Shape, size, limit)
	}
	return count, size, nil
}

// data reads an input's data into memory of the pool.
func (q *request) data(t *text, in *input) error {
	switch in.DType {
	case tensor.LongDouble, tensor.Complex64, tensor.Complex128:
		return invalid("%s: datatype %s cannot be written as JSON; send its bytes, see binary_data_size", in.what(), in.DType.V2())
	}
	count, size, err := q.bytes(in)
	if err != nil {
		return err
	}
	t.peek()
	start := t.at
	// An element takes a digit and a comma at least: a shape that has more of them than the
	// text can is a claim, for which no memory is taken.
	if left := len(t.b) - t.at; count > left/2+1 {
		return t.explain(in.what, &in.Tensor, start, -1)
	}
	if in.DType == tensor.Bytes {
		end, ok := shiva.SkipValue(t.b, t.at, t.depth)
		if !ok {
			return t.explain(in.what, &in.Tensor, start, -1)
		}
		size += end - start
	}
	buf, err := q.body.share.Get(size)
	if err != nil {
		return err
	}
	in.Buf, in.Data = buf, buf.Bytes()
	if in.DType == tensor.Bytes {
		in.Data = in.Data[:0]
	}
	if err := t.data(in.what, &in.Tensor); err != nil {
		return err
	}
	t.apart += t.at - start
	q.call.door.warnLarge(q.call.model, in.Name, t.at-start)
	return nil
}

// largeJSON is where the text of a tensor is worth a warning.
const largeJSON = 64 << 10

func (d *Door) warnLarge(model, input string, n int) {
	if n > largeJSON {
		d.largeJSON.Do(func() {
			d.log.Warn("a client sends a large tensor as JSON text, which takes many times longer than its bytes do; see binary_data_size, "+
				"which stock clients use by default (this is said once)", "model", model, "input", input, "bytes", n)
		})
	}
}

// output reads one of the outputs that are asked for.
func (q *request) output(t *text, i int) error {
	var out predict.Output
	how := parameter.AsUsual
	var pass members
	what := func() string {
		if out.Name == "" {
			return fmt.Sprintf("outputs[%d]", i)
		}
		return fmt.Sprintf("output %q", out.Name)
	}
	err := t.members(func(name string) (err error) {
		switch name {
		case "name":
			if t.peek() != '"' {
				return t.wrong(of(what, member("name")), "a string")
			}
			out.Name, err = t.str("a string")
			return err
		case "parameters":
		default:
			return t.skip()
		}
		return t.object(func(name string) (err error) {
			if (name == "binary_data" || name == "classification" || sharedMemory(name)) && t.null() {
				return nil
			}
			switch {
			case name == "binary_data":
				how, err = formOf(t, of(what, parameterNamed(name)))
			case name == "classification":
				var n uint64
				n, err = t.whole(of(what, parameterNamed(name)), math.MaxInt32)
				out.Classes = int(n)
			case sharedMemory(name):
				return invalid("%s: parameter %q: shared memory is not offered", what(), name)
			default:
				var value []byte
				if value, err = t.raw(); err == nil {
					pass.add(name, value)
				}
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	if out.Name == "" {
		return invalid("%s: expected \"name\", which is missing or empty", what())
	}
	if p := pass.end(); p != nil {
		q.outputPass.add(out.Name, p)
	}
	q.outputs = append(q.outputs, out)
	q.forms = append(q.forms, how)
	return nil
}
