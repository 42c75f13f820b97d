package rest

import (
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/tensor"
)

// answer writes the answer of a model.
func (q *request) answer(a *predict.Answer) error {
	if q.Nested {
		return q.nested(a)
	}
	w := q.call.w
	forms := make([]parameter.Form, len(a.Outputs))
	following := int64(0) // bytes that follow the JSON
	binaries := false
	for i := range a.Outputs {
		if forms[i] = q.Values.Form; q.forms != nil && q.forms[i] != parameter.AsUsual {
			forms[i] = q.forms[i]
		}
		if a.Place(i).Region != "" {
			forms[i] = parameter.AsUsual // its data is not in the answer
		} else if forms[i] == parameter.Bytes {
			following += int64(len(a.Outputs[i].Data))
			binaries = true
		} else if err := writable(&a.Outputs[i]); err != nil {
			return err
		}
	}

	h := w.Header()
	h.Set("Content-Type", "application/json")
	if binaries {
		h.Set("Content-Type", "application/octet-stream")
	}
	q.timing(a)
	to, packed := q.pack()
	defer packed()
	e := emitters.Get().(*emitter)
	defer e.free()
	begin := func() io.Writer {
		q.call.begin(http.StatusOK)
		return to
	}
	if binaries {
		// The header has the length of the JSON, so all of it must be known first; a long one is
		// written twice.
		e.json(a, q.id, forms)
		length := e.length()
		h.Set(headLength, strconv.FormatInt(length, 10))
		if to == w {
			h.Set("Content-Length", strconv.FormatInt(length+following, 10))
		}
		e.begin = begin
		if e.dropped > 0 {
			e.dropped, e.buf = 0, e.buf[:0]
			e.json(a, q.id, forms)
		}
	} else {
		e.begin = begin
		e.json(a, q.id, forms)
		e.buf = append(e.buf, '\n') // for people at a terminal
		if e.to == nil && to == w {
			h.Set("Content-Length", strconv.FormatInt(e.length(), 10))
		}
	}
	e.flush()
	for i := range a.Outputs {
		if forms[i] == parameter.Bytes && e.err == nil {
			_, e.err = to.Write(a.Outputs[i].Data)
		}
	}
	return nil // an error of writing means that the client has disconnected
}

// pack returns the writer of the answer's body, which is compressed if the client wants that. end
// is called when all is written.
func (q *request) pack() (to io.Writer, end func()) {
	w := q.call.w
	i := acceptable(q.call.r.Header["Accept-Encoding"])
	if i < 0 {
		return w, func() {}
	}
	pack := packers[i].pool.Get().(packer)
	pack.Reset(w)
	w.Header().Set("Content-Encoding", packers[i].name)
	return pack, func() {
		_ = pack.Close() // an error means that the client has disconnected
		pack.Reset(nil)
		packers[i].pool.Put(pack)
	}
}

// timing adds the header that says where the time was spent, if the client wants to know.
func (q *request) timing(a *predict.Answer) {
	if q.Values.Timing {
		q.call.w.Header().
			Set("Server-Timing",
				fmt.Sprintf("queue;dur=%.3f, execute;dur=%.3f", milliseconds(a.Timing.Queue),
					milliseconds(a.Timing.Exec)))
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// writable reports whether an output can be written as JSON.
func writable(t *tensor.Tensor) error {
	if t.DType != tensor.Bytes {
		if !jsontensor.Has(t.DType) {
			return fault.Invalid("output %q: datatype %s cannot be written as JSON; ask for it with the parameter binary_data",
				t.Name, t.DType.V2())
		}
		return nil
	}
	for rest, at := t.Data, 0; len(rest) > 0; at++ {
		var elem []byte
		if elem, rest = element(rest); !utf8.Valid(elem) {
			return fault.Invalid("output %q: element %d is not UTF-8, and cannot be written as JSON; ask for it with the parameter binary_data",
				t.Name, at)
		}
	}
	return nil
}

// element splits the first element off the data of a Bytes tensor, which has been checked.
func element(data []byte) (elem, rest []byte) {
	end := 4 + int(binary.LittleEndian.Uint32(data))
	return data[4:end], data[end:]
}

// An emitter writes JSON in steps of bounded size. Without a writer, it counts the bytes that do
// not fit its buffer and drops them.
type emitter struct {
	buf     []byte
	begin   func() io.Writer // returns the writer at the first write; nil: no writer yet
	to      io.Writer
	dropped int64
	err     error // of writing
}

const (
	emitterBytes = 64 << 10
	emitterSpare = 8 << 10 // room for a few elements, or a part of a string
)

var emitters = sync.Pool{New: func() any { return &emitter{buf: make([]byte, 0, emitterBytes)} }}

func (e *emitter) free() {
	if cap(e.buf) <= 4*emitterBytes {
		*e = emitter{buf: e.buf[:0]}
		emitters.Put(e)
	}
}

// length is the number of bytes of JSON that an emitter without a writer was given.
func (e *emitter) length() int64 { return e.dropped + int64(len(e.buf)) }

// flush empties the buffer.
func (e *emitter) flush() {
	if e.begin == nil {
		e.dropped += int64(len(e.buf))
	} else {
		if e.to == nil {
			e.to = e.begin()
		}
		if e.err == nil {
			_, e.err = e.to.Write(e.buf)
		}
	}
	e.buf = e.buf[:0]
}

// room makes room for the next element.
func (e *emitter) room() {
	if len(e.buf) > emitterBytes-emitterSpare {
		e.flush()
	}
}

// head writes the JSON of an answer up to its outputs.
func (e *emitter) head(a *predict.Answer, id string) {
	b := append(e.buf, `{"model_name":`...)
	b = jsonscan.AppendString(b, a.Model)
	b = append(b, `,"model_version":`...)
	b = jsonscan.AppendString(b, a.Version)
	e.buf = b
	if id != "" {
		e.buf = append(e.buf, `,"id":`...)
		e.str([]byte(id))
	}
	e.parameters(a.Parameters())
}

// json writes the JSON of an answer.
func (e *emitter) json(a *predict.Answer, id string, forms []parameter.Form) {
	e.head(a, id)
	e.buf = append(e.buf, `,"outputs":[`...)
	for i := range a.Outputs {
		e.room()
		t := &a.Outputs[i]
		b := e.buf
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"name":`...)
		b = jsonscan.AppendString(b, t.Name)
		b = append(b, `,"datatype":"`...)
		b = append(b, t.DType.V2()...)
		b = append(b, `","shape":[`...)
		for k, n := range t.Shape {
			if k > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(n), 10)
		}
		b = append(b, ']')
		if forms[i] == parameter.Bytes {
			b = append(b, `,"parameters":{"binary_data_size":`...)
			b = strconv.AppendInt(b, int64(len(t.Data)), 10)
			e.buf = append(b, "}}"...)
			continue
		}
		if at := a.Place(i); at.Region != "" {
			e.buf = b
			e.parameters(func(yield func(string, any) bool) {
				at.Parameters()(yield)
				// Triton's C++ client requires it where there are parameters.
				yield("binary_data_size", int64(0))
			})
			e.buf = append(e.buf, '}')
			continue
		}
		e.buf = append(b, `,"data":[`...)
		e.data(t)
		e.buf = append(e.buf, "]}"...)
	}
	e.buf = append(e.buf, "]}"...)
}

// parameters writes the parameters of an answer or an output, if it has any.
func (e *emitter) parameters(all iter.Seq2[string, any]) {
	b, before := e.buf, `,"parameters":{`
	for name, value := range all {
		b = append(b, before...)
		b = append(jsonscan.AppendString(b, name), ':')
		switch v := value.(type) {
		case bool:
			b = strconv.AppendBool(b, v)
		case int64:
			b = strconv.AppendInt(b, v, 10)
		case float64:
			b = jsontensor.AppendFloat(b, v, 64)
		case string:
			b = jsonscan.AppendString(b, v)
		}
		before = ","
	}
	if before == "," {
		b = append(b, '}')
	}
	e.buf = b
}

// str writes a string, long ones in parts.
func (e *emitter) str(s []byte) {
	e.buf = append(e.buf, '"')
	for len(s) > 0 {
		e.room()
		n := min(len(s), emitterSpare/8)
		for n < len(s) && !utf8.RuneStart(s[n]) {
			n--
		}
		at := len(e.buf)
		e.buf = jsonscan.AppendString(e.buf, s[:n])
		copy(e.buf[at:], e.buf[at+1:len(e.buf)-1]) // without the quotes
		e.buf = e.buf[:len(e.buf)-2]
		s = s[n:]
	}
	e.buf = append(e.buf, '"')
}

// data writes the elements of a tensor as a flat list.
func (e *emitter) data(t *tensor.Tensor) {
	if t.DType == tensor.Bytes {
		first := true
		for rest := t.Data; len(rest) > 0; {
			e.room()
			if !first {
				e.buf = append(e.buf, ',')
			}
			first = false
			var elem []byte
			elem, rest = element(rest)
			e.str(elem)
		}
		return
	}
	size := t.DType.Size()
	write := jsontensor.Writer(t.DType)
	for i := 0; i < len(t.Data) && e.err == nil; i += size {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.room()
		e.buf = write(e.buf, t.Data[i:i+size])
	}
}
