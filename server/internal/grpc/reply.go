package grpc

import (
	"encoding/json"
	"strconv"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/grpc/wire"
	"github.com/shivad/shivad/server/internal/predict"
)

// Numbers of the fields that are written here, as in pb/grpc_service.proto. Outputs have the same
// numbers as inputs.
const (
	responseModel, responseVersion, responseID, responseParameters = 1, 2, 3, 4
	responseOutputs, responseRaw                                   = 5, 6
	streamError, streamResponse                                    = 1, 2
)

// codec writes replies with references to their outputs' memory instead of copies, and leaves all
// other messages to the generated code.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*reply); ok {
		return r.marshal(), nil
	}
	return c.CodecV2.Marshal(v)
}

// A reply is a ModelInferResponse to write, or a ModelStreamInferResponse around one.
type reply struct {
	answer   *predict.Answer // nil if there is an error
	typed    bool            // outputs as contents, if each datatype has a field there
	duration time.Duration   // from the request's arrival; 0: the request did not ask for timing
	out      *departure

	stream bool
	id     string // of the request
	err    error  // why it failed, on a stream
}

// release gives back the answer's memory, after it has been sent or cannot be.
func (r *reply) release() {
	if r.answer != nil {
		r.answer.Release()
		r.out.done()
	}
}

// Outputs smaller than minHeld are copied into the envelope: grpc-go returns only buffers above 1
// KiB, and copying a little is faster than accounting for it.
const minHeld = 4 << 10

// A writer builds a message: finished buffers, and a tail of bytes behind them.
type writer struct {
	out  *departure // nil: no buffer is held
	done mem.BufferSlice
	tail []byte
}

// flush finishes the tail as a buffer.
func (w *writer) flush() {
	if len(w.tail) > 0 {
		if w.out != nil && cap(w.tail) >= minPart {
			w.done = append(w.done, w.out.hold(w.tail, nil))
		} else {
			w.done = append(w.done, mem.SliceBuffer(w.tail))
		}
		w.tail = nil
	}
}

func (r *reply) marshal() mem.BufferSlice {
	var w writer
	if r.err != nil {
		w.tail = wire.AppendString(w.tail, responseID, r.id)
		w.tail = appendBy(w.tail, fault.By(r.err))
	} else {
		r.response(&w)
	}
	w.flush()
	if !r.stream {
		return w.done
	}
	var head []byte
	if r.err != nil {
		head = wire.AppendString(head, streamError, fault.Of(r.err).Type+": "+text(r.err))
	}
	head = wire.AppendHead(head, streamResponse, w.done.Len())
	return append(mem.BufferSlice{mem.SliceBuffer(head)}, w.done...)
}

// appendParameter appends a parameter of an answer, or of an output, whose field has the same
// number: a bool, int64, float64 or string.
func appendParameter(b []byte, key string, value any) []byte {
	var v []byte
	switch value := value.(type) {
	case bool:
		v = wire.AppendVarint(nil, paramBool, map[bool]uint64{true: 1}[value])
	case int64:
		v = wire.AppendVarint(nil, paramInt64, uint64(value))
	case float64:
		v = wire.AppendDouble(nil, paramDouble, value)
	case string:
		v = wire.AppendString(nil, paramString, value)
	}
	return wire.AppendBytes(b, responseParameters,
		wire.AppendBytes(wire.AppendString(nil, entryKey, key), entryValue, v))
}

// appendBy appends the parameter by, which names the newer frame in the answer of a superseded one:
// a number, or the id of a request.
func appendBy(b []byte, by string) []byte {
	if by == "" {
		return b
	}
	if seq, err := strconv.ParseInt(by, 10, 64); err == nil {
		return appendParameter(b, "by", seq)
	}
	var id string
	if json.Unmarshal([]byte(by), &id) == nil {
		by = id
	}
	return appendParameter(b, "by", by)
}

// final marks the only answer to a request on a stream.
var final = appendParameter(nil, "triton_final_response", true)

// appendTiming appends the timing of a request as parameters, the same as over Shiva.
func appendTiming(b []byte, t scheduler.Timing, total time.Duration) []byte {
	b = appendParameter(b, "timing_queue_us", t.Queue.Microseconds())
	b = appendParameter(b, "timing_execute_us", t.Exec.Microseconds())
	b = appendParameter(b, "timing_batch_rows", int64(t.BatchRows))
	return appendParameter(b, "timing_total_us", total.Microseconds())
}

func (r *reply) response(w *writer) {
	a := r.answer
	w.out, w.tail = r.out, make([]byte, 0, minPart)
	w.tail = wire.AppendString(w.tail, responseModel, a.Model)
	w.tail = wire.AppendString(w.tail, responseVersion, a.Version)
	w.tail = wire.AppendString(w.tail, responseID, r.id)
	if r.stream {
		w.tail = append(w.tail, final...)
	}
	for name, value := range a.Parameters() {
		w.tail = appendParameter(w.tail, name, value)
	}
	if r.duration > 0 {
		w.tail = appendTiming(w.tail, a.Timing, r.duration)
	}
	typed := r.typed
	for _, t := range a.Outputs {
		typed = typed && dtypeFields[t.DType] != 0
	}
	var out []byte
	for i, t := range a.Outputs {
		out = wire.AppendString(out[:0], inputName, t.Name)
		out = wire.AppendString(out, inputDatatype, t.DType.V2())
		out = wire.AppendPacked(out, inputShape, len(t.Shape), func(i int) uint64 { return uint64(t.Shape[i]) })
		if at := a.Place(i); at.Region != "" {
			for name, value := range at.Parameters() {
				out = appendParameter(out, name, value)
			}
		} else if typed {
			out = wire.AppendBytes(out, inputContents, appendContents(nil, t))
		}
		w.tail = wire.AppendBytes(w.tail, responseOutputs, out)
	}
	if typed {
		return
	}
	for i, t := range a.Outputs {
		if a.Place(i).Region != "" {
			t.Data = nil // clients find an output's contents by its position
		}
		w.tail = wire.AppendHead(w.tail, responseRaw, len(t.Data))
		if len(t.Data) < minHeld {
			w.tail = append(w.tail, t.Data...)
		} else {
			w.flush()
			w.done = append(w.done, w.out.hold(t.Data, t.Buf))
		}
	}
}
