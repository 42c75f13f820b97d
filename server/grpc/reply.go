package grpc

import (
	"encoding/binary"
	"math"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/tensor"
)

// Numbers of the fields that are written here, as in pb/grpc_service.proto. Those of an output
// are those of an input.
const (
	responseModel, responseVersion, responseID, responseParameters = 1, 2, 3, 4
	responseOutputs, responseRaw                                   = 5, 6
	streamError, streamResponse                                    = 1, 2
)

// codec writes replies so that their outputs' memory is referenced and not copied, and leaves
// all other messages to the generated code.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*reply); ok {
		return r.marshal(), nil
	}
	return c.CodecV2.Marshal(v)
}

// A reply is a ModelInferResponse, or a ModelStreamInferResponse around one, that is to be written.
type reply struct {
	answer *predict.Answer // nil if there is an error
	typed  bool            // outputs as contents, where all of them can be
	took   time.Duration   // from the request's arrival; 0: nobody asked where the time went
	out    *departure

	stream bool
	id     string // of a request that failed on a stream
	err    error  // likewise
}

// release gives the answer's memory back, once it has been sent or cannot be.
func (r *reply) release() {
	if r.answer != nil {
		r.answer.Release()
		r.out.done()
	}
}

// Smaller outputs are copied into the envelope: grpc-go gives buffers back above 1 KiB only,
// and a few are sooner copied than kept account of.
const minHeld = 4 << 10

// A writer writes a message: finished buffers, and bytes behind them.
type writer struct {
	out  *departure // nil for what is not held
	done mem.BufferSlice
	size int // of done
	tail []byte
}

func (w *writer) push(b mem.Buffer) {
	w.flush()
	w.done = append(w.done, b)
	w.size += b.Len()
}

// flush ends the tail.
func (w *writer) flush() {
	if len(w.tail) > 0 {
		if w.out != nil && cap(w.tail) >= minPart {
			w.done = append(w.done, w.out.hold(w.tail, nil))
		} else {
			w.done = append(w.done, mem.SliceBuffer(w.tail))
		}
		w.size += len(w.tail)
		w.tail = nil
	}
}

func (r *reply) marshal() mem.BufferSlice {
	var w writer
	if r.err != nil {
		w.tail = appendString(w.tail, responseID, r.id)
	} else {
		r.response(&w)
	}
	w.flush()
	if !r.stream {
		return w.done
	}
	var head []byte
	if r.err != nil {
		head = appendString(head, streamError, gate.StatusOf(r.err).Type+": "+text(r.err))
	}
	head = protowire.AppendTag(head, streamResponse, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(w.size))
	return append(mem.BufferSlice{mem.SliceBuffer(head)}, w.done...)
}

// yes is a parameter that is true.
func yes(name string) []byte {
	value := protowire.AppendVarint(protowire.AppendTag(nil, paramBool, protowire.VarintType), 1)
	return appendBytes(appendString(nil, entryKey, name), entryValue, value)
}

// words is a parameter that is a text.
func words(name, text string) []byte {
	return appendBytes(appendString(nil, entryKey, name), entryValue, appendString(nil, paramString, text))
}

// count is a parameter that is a whole number.
func count(name string, n int64) []byte {
	value := protowire.AppendVarint(protowire.AppendTag(nil, paramInt64, protowire.VarintType), uint64(n))
	return appendBytes(appendString(nil, entryKey, name), entryValue, value)
}

// final marks the one answer that a request on a stream has.
var final = yes("triton_final_response")

// choice appends what an application did, as parameters: the same as over HTTP.
func choice(b []byte, c *gate.Choice) []byte {
	value := protowire.AppendFixed64(protowire.AppendTag(nil, paramDouble, protowire.Fixed64Type), math.Float64bits(c.Confidence))
	b = appendBytes(b, responseParameters, appendBytes(appendString(nil, entryKey, "confidence"), entryValue, value))
	if len(c.Missing) > 0 {
		b = appendBytes(b, responseParameters, words("missing", c.Absent()))
		b = appendBytes(b, responseParameters, words("missing_because", c.Because()))
	}
	if c.Default {
		b = appendBytes(b, responseParameters, yes("default"))
		b = appendBytes(b, responseParameters, words("default_explanation", c.Explanation))
	}
	return b
}

// timing appends where the time went, as parameters: the same as over Shiva.
func timing(b []byte, t scheduler.Timing, total time.Duration) []byte {
	b = appendBytes(b, responseParameters, count("timing_queue_us", t.Queue.Microseconds()))
	b = appendBytes(b, responseParameters, count("timing_execute_us", t.Exec.Microseconds()))
	b = appendBytes(b, responseParameters, count("timing_batch_rows", int64(t.BatchRows)))
	return appendBytes(b, responseParameters, count("timing_total_us", total.Microseconds()))
}

func (r *reply) response(w *writer) {
	a := r.answer
	w.out, w.tail = r.out, make([]byte, 0, minPart)
	w.tail = appendString(w.tail, responseModel, a.Model)
	w.tail = appendString(w.tail, responseVersion, a.Version)
	w.tail = appendString(w.tail, responseID, a.ID)
	if r.stream {
		w.tail = appendBytes(w.tail, responseParameters, final)
	}
	if a.Choice != nil {
		w.tail = choice(w.tail, a.Choice)
	}
	if r.took > 0 {
		w.tail = timing(w.tail, a.Timing, r.took)
	}
	typed := r.typed
	for _, t := range a.Outputs {
		typed = typed && fieldOf(t.DType) != 0
	}
	var out []byte
	for _, t := range a.Outputs {
		out = appendString(out[:0], inputName, t.Name)
		out = appendString(out, inputDatatype, t.DType.V2())
		out = appendShape(out, t.Shape)
		if typed {
			out = appendBytes(out, inputContents, appendContents(nil, t))
		}
		w.tail = appendBytes(w.tail, responseOutputs, out)
	}
	if typed {
		return
	}
	for _, t := range a.Outputs {
		w.tail = protowire.AppendTag(w.tail, responseRaw, protowire.BytesType)
		w.tail = protowire.AppendVarint(w.tail, uint64(len(t.Data)))
		switch {
		case len(t.Data) < minHeld:
			w.tail = append(w.tail, t.Data...)
		case t.Buf == nil:
			w.push(w.out.hold(t.Data, nil)) // the garbage collector's
		default:
			w.push(w.out.hold(t.Data, t.Buf))
		}
	}
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

func appendShape(b []byte, shape tensor.Shape) []byte {
	if len(shape) == 0 {
		return b
	}
	var dims []byte
	for _, d := range shape {
		dims = protowire.AppendVarint(dims, uint64(d))
	}
	return appendBytes(b, inputShape, dims)
}

// appendContents appends a tensor's elements as InferTensorContents.
func appendContents(b []byte, t tensor.Tensor) []byte {
	if len(t.Data) == 0 {
		return b
	}
	num, data := fieldOf(t.DType), t.Data
	if t.DType == tensor.Bytes {
		for len(data) > 0 {
			n := binary.LittleEndian.Uint32(data)
			b = appendBytes(b, num, data[4:][:n])
			data = data[4+n:]
		}
		return b
	}
	if contentsFields[num].wire != protowire.VarintType {
		return appendBytes(b, num, data)
	}
	size := t.DType.Size()
	values := make([]byte, 0, len(data)/size*2)
	for ; len(data) > 0; data = data[size:] {
		values = protowire.AppendVarint(values, element(t.DType, data))
	}
	return appendBytes(b, num, values)
}

// element is the first integer or bool of data as it travels: negative ones as 64 bits of two's
// complement.
func element(d tensor.DType, data []byte) uint64 {
	switch d {
	case tensor.Bool:
		if data[0] != 0 {
			return 1
		}
		return 0
	case tensor.Int8:
		return uint64(int64(int8(data[0])))
	case tensor.Uint8:
		return uint64(data[0])
	case tensor.Int16:
		return uint64(int64(int16(binary.LittleEndian.Uint16(data))))
	case tensor.Uint16:
		return uint64(binary.LittleEndian.Uint16(data))
	case tensor.Int32:
		return uint64(int64(int32(binary.LittleEndian.Uint32(data))))
	case tensor.Uint32:
		return uint64(binary.LittleEndian.Uint32(data))
	}
	return binary.LittleEndian.Uint64(data)
}
