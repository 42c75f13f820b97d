package grpc

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/grpc/wire"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// Numbers of the fields that are read here, as in pb/grpc_service.proto.
const (
	requestModel, requestVersion, requestID, requestParameters   = 1, 2, 3, 4
	requestInputs, requestOutputs, requestRaw                    = 5, 6, 7
	inputName, inputDatatype, inputShape, inputParameters        = 1, 2, 3, 4
	inputContents                                                = 5
	outputName, outputParameters                                 = 1, 2
	entryKey, entryValue                                         = 1, 2
	paramBool, paramInt64, paramString, paramDouble, paramUint64 = 1, 2, 3, 4, 5
	boolContents, intContents, int64Contents, uintContents       = 1, 2, 3, 4
	uint64Contents, fp32Contents, fp64Contents, bytesContents    = 5, 6, 7, 8
)

// A request is a ModelInferRequest as it arrived. As the encoding demands, the last value of a
// repeated single field counts, repeated fields keep all values, and messages are merged.
type request struct {
	gate.Request // complete sets its tensors, read the rest
	id           string

	parameters parameters
	inputs     []input
	outputs    []output
	raw        []wire.Bytes
	fault      error // what is wrong with the parameters

	use    access.Use
	limits *gate.Limits // in effect when it began
}

// parameters are those of a request, an input or an output; a value is nil, bool, int64,
// string, float64 or uint64.
type parameters map[string]any

type input struct {
	name, datatype string
	shape          []int64
	parameters     parameters
	contents       contents
	place          parameter.Place // in shared memory; zero: in the message
}

type output struct {
	name       string
	parameters parameters
}

// release gives back the memory that was not handed on.
func (r *request) release() {
	for i := range r.raw {
		r.raw[i].Release()
	}
	for i := range r.inputs {
		r.inputs[i].contents.Release()
	}
	predict.Release(&r.Request)
	r.use.End()
}

// read fills r. The caller must release its memory, even after an error.
func (r *request) read(m *wire.Message) {
	r.readFields(m)
	r.fault = r.readParameters(parameter.GRPC.Keys())
}

// readStreamed is read for a message of a ModelStreamInfer.
func (r *request) readStreamed(m *wire.Message) {
	r.readFields(m)
	r.fault = r.readParameters(parameter.Stream.Keys())
}

func (r *request) readFields(m *wire.Message) {
	m.Fields(func(number int) {
		switch number {
		case requestModel:
			m.String(&r.Model)
		case requestVersion:
			m.String(&r.Version)
		case requestID:
			m.String(&r.id)
		case requestParameters:
			r.parameters.read(m)
		case requestInputs:
			if in := appendElement(r, m, "inputs", &r.inputs); in != nil {
				m.Fields(func(number int) { in.field(r, m, number) })
			}
		case requestOutputs:
			if out := appendElement(r, m, "outputs", &r.outputs); out != nil {
				m.Fields(func(number int) {
					switch number {
					case outputName:
						m.String(&out.name)
					case outputParameters:
						out.parameters.read(m)
					}
				})
			}
		case requestRaw:
			if raw := appendElement(r, m, "raw_input_contents", &r.raw); raw != nil {
				if n, ok := m.Delimited(); ok {
					m.Append(raw, n)
				}
			}
		}
	})
}

func (in *input) field(r *request, m *wire.Message, number int) {
	switch number {
	case inputName:
		m.String(&in.name)
	case inputDatatype:
		m.String(&in.datatype)
	case inputShape:
		m.Varints(func(v uint64) {
			if len(in.shape) == r.limits.Rank {
				m.Fail(fault.TooLarge("input %q has more dimensions than limits.rank allows, %d", in.name,
					r.limits.Rank))
				return
			}
			in.shape = append(in.shape, int64(v))
		})
	case inputParameters:
		in.parameters.read(m)
	case inputContents:
		m.Fields(func(number int) { in.contents.field(m, number) })
	}
}

// appendElement appends an element of a repeated field to a list and returns it; nil if the value
// on the wire has no length, or there are too many.
func appendElement[T any](r *request, m *wire.Message, what string, list *[]T) *T {
	if !m.IsDelimited() {
		return nil
	}
	if len(*list) == r.limits.Tensors {
		m.Fail(fault.TooLarge("there are more %s than limits.tensors allows, %d", what, r.limits.Tensors))
		return nil
	}
	var zero T
	*list = append(*list, zero)
	return &(*list)[len(*list)-1]
}

// read reads one entry of a map.
func (p *parameters) read(m *wire.Message) {
	// An entry without a key or a value takes few bytes, but must cost something.
	if !m.IsDelimited() || !m.Charge(16) {
		return
	}
	var key string
	var value any
	m.Fields(func(number int) {
		switch number {
		case entryKey:
			m.String(&key)
		case entryValue:
			m.Fields(func(number int) { readValue(m, number, &value) })
		}
	})
	if *p == nil {
		*p = parameters{}
	}
	(*p)[key] = value
}

// readValue reads one of the fields that can hold a parameter's value.
func readValue(m *wire.Message, number int, value *any) {
	switch number {
	case paramBool:
		if v, ok := m.Varint(); ok {
			*value = v != 0
		}
	case paramInt64:
		if v, ok := m.Varint(); ok {
			*value = int64(v)
		}
	case paramString:
		var s string
		if m.String(&s) {
			*value = s
		}
	case paramDouble:
		if v, ok := m.Double(); ok {
			*value = v
		}
	case paramUint64:
		if v, ok := m.Varint(); ok {
			*value = v
		}
	}
}

// complete completes the Request, which takes over the memory.
func (r *request) complete() (err error) {
	if r.fault != nil {
		return r.fault
	}
	if r.Outputs, err = wanted(r.outputs); err != nil {
		return err
	}
	placed := 0
	for i := range r.inputs {
		in := &r.inputs[i]
		if in.place, err = in.parameters.location("input", in.name); err != nil {
			return err
		}
		if in.place.Region != "" {
			placed++
		}
	}
	raw := r.raw
	if len(raw) > 0 && len(raw) != len(r.inputs)-placed {
		return fault.Invalid("expected raw_input_contents for each of %s, got %d (%d more are in shared memory)",
			plural.Of(len(r.inputs)-placed, "input"), len(raw), placed)
	}
	r.Inputs = make([]tensor.Tensor, 0, len(r.inputs))
	for i := range r.inputs {
		in := &r.inputs[i]
		t, elements, err := in.shaped()
		switch {
		case err != nil:
		case in.place.Region != "" && in.contents.count > 0:
			err = fault.Invalid("input %q is in shared memory region '%s', and has contents; expected one of them",
				in.name, in.place.Region)
		case in.place.Region != "": // see fetch
		case len(raw) > 0:
			err = in.data(&t, elements, &raw[0])
			raw = raw[1:]
		default:
			err = in.data(&t, elements, nil)
		}
		if err != nil {
			return err
		}
		r.Inputs = append(r.Inputs, t)
	}
	return nil
}

// shaped makes a tensor of an input, without its data, and counts its elements.
func (in *input) shaped() (t tensor.Tensor, elements int, err error) {
	d, ok := tensor.FromV2(in.datatype)
	if !ok {
		return t, 0, fault.Invalid("input %q: %q is not a datatype", in.name, in.datatype)
	}
	shape := make(tensor.Shape, len(in.shape))
	for i, n := range in.shape {
		if n < 0 {
			return t, 0, fault.Invalid("input %q: shape %v has a negative dimension", in.name, in.shape)
		}
		shape[i] = int(n)
	}
	if elements, ok = shape.Elements(); !ok {
		return t, 0, fault.Invalid("input %q: shape %v has too many elements", in.name, in.shape)
	}
	return tensor.Tensor{Name: in.name, DType: d, Shape: shape}, elements, nil
}

// data gives a tensor the raw contents or, if raw is nil, the input's own. The tensor takes over
// the memory.
func (in *input) data(t *tensor.Tensor, elements int, raw *wire.Bytes) error {
	data := raw
	if raw == nil {
		if err := in.contents.finish(in.name, t.DType, elements); err != nil {
			return err
		}
		data = &in.contents.Bytes
	} else if in.contents.count > 0 {
		return fault.Invalid("input %q has contents, but the request has raw_input_contents: expected one of the two for all inputs",
			in.name)
	}
	t.Data = data.Data()
	if err := t.Check(); err != nil {
		if size := t.DType.Size(); size > 0 && elements <= math.MaxInt/size {
			return fault.Invalid("input %q: expected %s of raw contents for %s %s, got %d",
				in.name, plural.Of(elements*size, "byte"), in.datatype, t.Shape, len(t.Data))
		}
		return fault.Invalid("input %q: %w", in.name, err)
	}
	t.Buf = data.Take()
	return nil
}

// readParameters reads the parameters for the server, whose keys are given, and keeps the others
// for the container.
func (r *request) readParameters(keys map[string]*parameter.Key) (err error) {
	if newest, _ := r.parameters["latest"].(bool); newest {
		return r.readQuestion()
	}
	forward := parameters{}
	for key, value := range r.parameters {
		switch {
		case keys[key] != nil:
			if err := keys[key].Read(&r.Values, parameter.Typed(value)); err != nil {
				return err
			}
		case parameter.Stream.Keys()[key] != nil:
			return fault.Invalid("parameter %q: it is for ModelStreamInfer only", key)
		case reserved(key):
			return fault.Invalid("parameter %q: the name is reserved", key)
		default:
			forward[key] = value
		}
	}
	if len(forward) > 0 {
		r.Parameters, err = forward.object()
	}
	return err
}

// readQuestion reads the parameters of a question for the newest answer of a stream. An unknown one
// is refused, as over HTTP: a robot that mistypes max_age_ms must not get an answer of any age.
func (r *request) readQuestion() error {
	keys := parameter.Latest.Keys()
	for name, value := range r.parameters {
		key := keys[name]
		if key == nil {
			return fault.Invalid("parameter %q: expected the parameters %s", name,
				strings.Join(slices.Sorted(maps.Keys(keys)), ", "))
		}
		if err := key.Read(&r.Values, parameter.Typed(value)); err != nil {
			return err
		}
	}
	return nil
}

// wanted returns the outputs that a request asks for.
func wanted(outputs []output) ([]gate.Output, error) {
	if len(outputs) == 0 {
		return nil, nil
	}
	list := make([]gate.Output, len(outputs))
	for i, o := range outputs {
		var err error
		if list[i].Place, err = o.parameters.location("output", o.name); err != nil {
			return nil, err
		}
		list[i].Name = o.name
		if value, ok := o.parameters["classification"]; ok {
			n, ok := parameter.Typed(value).Whole()
			if !ok || n > math.MaxInt32 {
				return nil, badParameter("output "+strconv.Quote(o.name)+": ", "classification", "how many classes, an integer of 0 or more", value)
			}
			list[i].Classes = int(n)
		}
	}
	return list, nil
}
