package grpc

import (
	"fmt"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
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

// A request is a ModelInferRequest as it arrived.
type request struct {
	model, version, id string
	parameters         parameters
	inputs             []input
	outputs            []output
	raw                []store
	streamed           bool // it came on a ModelStreamInfer

	values  parameter.Values // of parameters, when all has been read
	forward []byte           // likewise: those that are the container's, a JSON object; nil = none
	fault   error            // likewise: what is wrong with them
}

// parameters are those of a request, an input or an output; a value is nil, bool, int64,
// string, float64 or uint64.
type parameters map[string]any

type input struct {
	name, datatype string
	shape          []int64
	parameters     parameters
	contents       contents
}

type output struct {
	name       string
	parameters parameters
}

// release gives back the memory of what was not handed on.
func (r *request) release() {
	for i := range r.raw {
		r.raw[i].release()
	}
	for i := range r.inputs {
		r.inputs[i].contents.release()
	}
}

// A reader reads a request from a scanner. Fields may come in any order and more than once, as
// the encoding allows: of single values the last one counts, of repeated ones all, and messages
// are merged.
type reader struct {
	*scanner
	request *request
	limits  Limits
	from    gate.Share
	room    int // for names, ids and parameters
}

// readRequest fills r, whose memory is the caller's to release whatever comes of it.
func readRequest(s *scanner, r *request) {
	limits := s.settings.Limits
	rd := &reader{scanner: s, request: r, limits: limits, from: s.settings.Memory.Plain(), room: limits.MetadataBytes}
	if u, ok := s.source.(*unpacked); ok {
		rd.from = u.share
	}
	for s.more() {
		if num, typ := s.tag(); s.err == nil {
			rd.field(num, typ)
		}
	}
	if s.err == nil {
		r.fault = r.readParameters()
	}
}

func (r *reader) field(num protowire.Number, typ protowire.Type) {
	if typ != protowire.BytesType {
		r.skip(num, typ)
		return
	}
	q := r.request
	switch num {
	case requestModel:
		q.model = r.string()
	case requestVersion:
		q.version = r.string()
	case requestID:
		q.id = r.string()
	case requestParameters:
		r.parameter(&q.parameters)
	case requestInputs:
		if r.counted("inputs", len(q.inputs)) {
			q.inputs = append(q.inputs, input{})
			in := &q.inputs[len(q.inputs)-1]
			r.inside(func(num protowire.Number, typ protowire.Type) { r.inputField(in, num, typ) })
		}
	case requestOutputs:
		if r.counted("outputs", len(q.outputs)) {
			q.outputs = append(q.outputs, output{})
			out := &q.outputs[len(q.outputs)-1]
			r.inside(func(num protowire.Number, typ protowire.Type) { r.outputField(out, num, typ) })
		}
	case requestRaw:
		if r.counted("raw_input_contents", len(q.raw)) {
			q.raw = append(q.raw, store{})
			n := r.length()
			q.raw[len(q.raw)-1].fill(r.scanner, r.from, n, n)
		}
	default:
		r.skip(num, typ)
	}
}

func (r *reader) inputField(in *input, num protowire.Number, typ protowire.Type) {
	switch {
	case num == inputName && typ == protowire.BytesType:
		in.name = r.string()
	case num == inputDatatype && typ == protowire.BytesType:
		in.datatype = r.string()
	case num == inputShape && typ == protowire.BytesType:
		r.packed(r.length(), func() { r.dimension(in) })
	case num == inputShape && typ == protowire.VarintType:
		r.dimension(in)
	case num == inputParameters && typ == protowire.BytesType:
		r.parameter(&in.parameters)
	case num == inputContents && typ == protowire.BytesType:
		r.inside(func(num protowire.Number, typ protowire.Type) { in.contents.field(r, num, typ) })
	default:
		r.skip(num, typ)
	}
}

func (r *reader) outputField(out *output, num protowire.Number, typ protowire.Type) {
	switch {
	case num == outputName && typ == protowire.BytesType:
		out.name = r.string()
	case num == outputParameters && typ == protowire.BytesType:
		r.parameter(&out.parameters)
	default:
		r.skip(num, typ)
	}
}

func (r *reader) dimension(in *input) {
	d := int64(r.varint())
	if len(in.shape) == r.limits.Rank {
		r.fail(fmt.Errorf("%w: input %q has more than limits.rank, %d, dimensions", scheduler.ErrTooLarge, in.name, r.limits.Rank))
		return
	}
	in.shape = append(in.shape, d)
}

// parameter reads one entry of a map.
func (r *reader) parameter(into *parameters) {
	var key string
	var value any
	r.inside(func(num protowire.Number, typ protowire.Type) {
		switch {
		case num == entryKey && typ == protowire.BytesType:
			key = r.string()
		case num == entryValue && typ == protowire.BytesType:
			r.inside(func(num protowire.Number, typ protowire.Type) { r.choice(&value, num, typ) })
		default:
			r.skip(num, typ)
		}
	})
	// An entry without a key or a value is short, and must not be free.
	if r.room -= 16; r.room < 0 {
		r.fail(r.metadataTooLong(16))
	}
	if r.err != nil {
		return
	}
	if *into == nil {
		*into = parameters{}
	}
	(*into)[key] = value
}

func (r *reader) choice(value *any, num protowire.Number, typ protowire.Type) {
	switch {
	case num == paramBool && typ == protowire.VarintType:
		*value = r.varint() != 0
	case num == paramInt64 && typ == protowire.VarintType:
		*value = int64(r.varint())
	case num == paramString && typ == protowire.BytesType:
		*value = r.string()
	case num == paramDouble && typ == protowire.Fixed64Type:
		*value = math.Float64frombits(r.fixed64())
	case num == paramUint64 && typ == protowire.VarintType:
		*value = r.varint()
	default:
		r.skip(num, typ)
	}
}

func (r *reader) string() string { return r.text(&r.room, r.metadataTooLong) }

func (r *reader) metadataTooLong(n int) error {
	return fmt.Errorf("%w: names, id and parameters have %d bytes and more, above limits.metadata_bytes, %d",
		scheduler.ErrTooLarge, r.limits.MetadataBytes-r.room+n, r.limits.MetadataBytes)
}

// counted reports whether one more of a repeated field is within the limit.
func (r *reader) counted(what string, have int) bool {
	if have == r.limits.Tensors {
		r.fail(fmt.Errorf("%w: there are more %s than limits.tensors, %d", scheduler.ErrTooLarge, what, r.limits.Tensors))
		return false
	}
	return true
}

// question makes a question of the request, which loses its memory to it.
func (r *request) question() (q *predict.Question, err error) {
	if r.fault != nil {
		return nil, r.fault
	}
	q = &predict.Question{Model: r.model, Version: r.version, ID: r.id, Values: r.values, Parameters: r.forward}
	if q.Outputs, err = wanted(r.outputs); err != nil {
		return nil, err
	}
	if len(r.raw) > 0 && len(r.raw) != len(r.inputs) {
		return nil, fmt.Errorf("%w: expected raw_input_contents for each of %d inputs, got %d",
			scheduler.ErrInvalidInput, len(r.inputs), len(r.raw))
	}
	q.Inputs = make([]tensor.Tensor, 0, len(r.inputs))
	for i := range r.inputs {
		in := &r.inputs[i]
		var data *store
		if len(r.raw) > 0 {
			data = &r.raw[i]
		}
		t, err := in.tensor(data)
		if err != nil {
			for _, t := range q.Inputs {
				t.Release()
			}
			return nil, err
		}
		q.Inputs = append(q.Inputs, t)
	}
	return q, nil
}

// tensor makes a tensor of an input with raw contents, or of one with its own if raw is nil. It
// takes the memory.
func (in *input) tensor(raw *store) (tensor.Tensor, error) {
	if err := onlyMessages("input", in.name, in.parameters); err != nil {
		return tensor.Tensor{}, err
	}
	d, ok := tensor.FromV2(in.datatype)
	if !ok {
		return tensor.Tensor{}, fmt.Errorf("%w: input %q: %q is not a datatype", scheduler.ErrInvalidInput, in.name, in.datatype)
	}
	shape := make(tensor.Shape, len(in.shape))
	for i, n := range in.shape {
		if n < 0 {
			return tensor.Tensor{}, fmt.Errorf("%w: input %q: shape %v has a negative dimension", scheduler.ErrInvalidInput, in.name, in.shape)
		}
		shape[i] = int(n)
	}
	elements, ok := shape.Elements()
	if !ok {
		return tensor.Tensor{}, fmt.Errorf("%w: input %q: shape %v has too many elements", scheduler.ErrInvalidInput, in.name, in.shape)
	}
	data := raw
	if raw == nil {
		if err := in.contents.settle(in.name, d, elements); err != nil {
			return tensor.Tensor{}, err
		}
		data = &in.contents.store
	} else if in.contents.count > 0 {
		return tensor.Tensor{}, fmt.Errorf("%w: input %q has contents, and there are raw_input_contents: it must be either for all inputs", scheduler.ErrInvalidInput, in.name)
	}
	t := tensor.Tensor{Name: in.name, DType: d, Shape: shape, Data: data.bytes(), Buf: data.buf}
	if err := t.Check(); err != nil {
		if size := d.Size(); size > 0 && elements <= math.MaxInt/size {
			return tensor.Tensor{}, fmt.Errorf("%w: input %q: expected %d bytes of raw contents for %s %s, got %d",
				scheduler.ErrInvalidInput, in.name, elements*size, in.datatype, shape, len(t.Data))
		}
		return tensor.Tensor{}, fmt.Errorf("%w: input %q: %w", scheduler.ErrInvalidInput, in.name, err)
	}
	*data = store{}
	return t, nil
}

// readParameters reads what a request's parameters say to the server, and keeps the others for
// the container.
func (r *request) readParameters() (err error) {
	keys := parameter.GRPC.Keys()
	if r.streamed {
		keys = parameter.Stream.Keys()
	}
	forward := parameters{}
	for key, value := range r.parameters {
		switch {
		case keys[key] != nil:
			if err := keys[key].Read(&r.values, parameter.Typed(value)); err != nil {
				return err
			}
		case parameter.Stream.Keys()[key] != nil:
			return fmt.Errorf("%w: parameter %q: it has a meaning on a ModelStreamInfer only", scheduler.ErrInvalidInput, key)
		case reserved(key):
			return fmt.Errorf("%w: parameter %q: the name is reserved", scheduler.ErrInvalidInput, key)
		default:
			forward[key] = value
		}
	}
	if len(forward) > 0 {
		r.forward, err = forward.object()
	}
	return err
}

// wanted are the outputs that a request asks for.
func wanted(outputs []output) ([]predict.Output, error) {
	if len(outputs) == 0 {
		return nil, nil
	}
	list := make([]predict.Output, len(outputs))
	for i, o := range outputs {
		if err := onlyMessages("output", o.name, o.parameters); err != nil {
			return nil, err
		}
		list[i].Name = o.name
		if value, ok := o.parameters["classification"]; ok {
			n, ok := natural(value)
			if !ok || n > math.MaxInt32 {
				return nil, badParameter("output "+strconv.Quote(o.name)+": ", "classification", "how many classes, an integer of 0 or more", value)
			}
			list[i].Classes = int(n)
		}
	}
	return list, nil
}
