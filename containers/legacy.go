package containers

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/shivad/shivad/containers/internal/adapter"
	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// legacy is the common part of the codecs of Clipper's generations: a container has a name, a
// version and one type of input, rows are flat vectors, and there are no messages for refused,
// welcome or goodbye.
//
// Sources: captured frames in testdata/gen*.json. DESIGN.md lists where the containers differ
// from their documents.
type legacy struct {
	limits Limits
	pool   *tensor.Pool

	// Set by bind.
	dtype     tensor.DType
	inputType uint32
}

func (*legacy) drop(*zmtp.Message) {}

const (
	// The times of containers of v2 and v3: they send a heartbeat after 5 s without a message and
	// give up on a server after 30 s. They apply to v1, too, whose containers never return once
	// their connection is lost.
	legacyBeat = 5 * time.Second
	legacyDead = 30 * time.Second

	legacyPredict = 0 // request type; 1 is feedback, which Clipper defined and never sent
)

// Message types of v2 and v3.
const (
	typeRegister  = 0
	typeMessage   = 1 // request or response
	typeHeartbeat = 2
)

// legacyTypes are the input types, by code. (Python containers misread type 0 as signed numbers.)
var legacyTypes = [...]tensor.DType{tensor.Uint8, tensor.Int32, tensor.Float32, tensor.Float64, tensor.Bytes}

// messageType reads the second frame, the type of a message in v2 and v3.
func messageType(f []zmtp.Frame) (t uint32, ok bool) {
	if len(f) < 2 || len(f[0].Data) != 0 || len(f[1].Data) != 4 {
		return 0, false
	}
	return binary.LittleEndian.Uint32(f[1].Data), true
}

// register makes a registration from the three texts that every generation sends. output is the
// dtype of its answers.
func register(name, version, code []byte, output tensor.DType) (registration, error) {
	id := scheduler.ModelID{Name: string(name[:min(len(name), 2*wire.MaxName)]),
		Version: string(version[:min(len(version), 2*wire.MaxName)])}
	if err := checkModel(id.Name, id.Version); err != nil {
		return registration{}, err
	}
	// The C++ containers give this frame the length of the version's text; after the digit comes
	// stray memory.
	if len(code) == 0 || code[0] < '0' || int(code[0]-'0') >= len(legacyTypes) {
		return registration{},
			refuse("model %q registered with input type %.16q, expected 0 (bytes), 1 (ints), 2 (floats), 3 (doubles) or 4 (strings)",
				id.Name, code)
	}
	// Clipper's containers in C++ and Java send their answers from one buffer, which ZeroMQ's own
	// thread may still read while the next batch is computed: with two in flight up to a tenth of
	// the answers belonged to another batch.
	return registration{model: id, spec: adapter.Spec(legacyTypes[code[0]-'0'], output), serial: true}, nil
}

func (c *legacy) bind(r registration) {
	c.dtype = r.spec.Inputs[0].DType
	for code, d := range legacyTypes {
		if d == c.dtype {
			c.inputType = uint32(code)
		}
	}
}

// id returns the lower 32 bits, which are unique among the few batches of a session.
func (*legacy) id(b *scheduler.Batch) uint64 { return uint64(uint32(b.ID)) }

func (*legacy) welcome(*zmtp.Outgoing, wire.WelcomeMessage) bool  { return false }
func (*legacy) refused(*zmtp.Outgoing, string) bool               { return false }
func (*legacy) goodbye(*zmtp.Outgoing, string, bool) bool         { return false }
func (*legacy) feedback(*zmtp.Outgoing, *scheduler.Feedback) bool { return false }

// nextRow splits the first row off a part's data, which the scheduler has validated.
func nextRow(d tensor.DType, data []byte, p *scheduler.Part) (row, rest []byte) {
	if d == tensor.Bytes {
		n := 4 + int(binary.LittleEndian.Uint32(data))
		return data[4:n], data[n:]
	}
	n := len(p.Inputs[0].Data) / p.Rows
	return data[:n], data[n:]
}

var (
	errNoContent = fmt.Errorf("%w: a batch of empty vectors cannot be sent to a container of RPC v1 or v2",
		scheduler.ErrInvalidInput)
	errNUL = fmt.Errorf("%w: a text with a NUL cannot be sent to a container of RPC v1 or v2, where NUL ends a text",
		scheduler.ErrInvalidInput)
)

// appendRows adds the rows of a batch in the form of v1 and v2: two frames, each preceded by a
// frame with its size if sized is set:
//
//	header   u32: input type, number of rows N, and N-1 offsets in elements, where rows begin
//	content  the rows back to back; texts end with a NUL, and their offsets only count
//
// Content of 0 bytes cannot be sent (Clipper's containers crash), and neither can a NUL.
func (c *legacy) appendRows(o *zmtp.Outgoing, b *scheduler.Batch, sized bool) error {
	texts := c.dtype == tensor.Bytes
	size, width := 0, 1
	for i := range b.Parts {
		p := &b.Parts[i]
		size += len(p.Inputs[0].Data)
		if !texts {
			continue
		}
		size -= 3 * p.Rows // a NUL instead of a length
		rest := p.Inputs[0].Data
		for range p.Rows {
			var row []byte
			if row, rest = nextRow(c.dtype, rest, p); bytes.IndexByte(row, 0) >= 0 {
				return errNUL
			}
		}
	}
	if !texts {
		width = c.dtype.Size()
	}
	switch {
	case size == 0:
		return errNoContent
	case size/width > math.MaxUint32:
		return fmt.Errorf("a batch of %d elements cannot be sent to a container of RPC v1 or v2, limit %d",
			size/width, uint32(math.MaxUint32))
	}
	header := 4 * (1 + b.Rows)
	if sized {
		putUint64(o, uint64(header))
	}
	o.Begin(header)
	copyUint32(o, c.inputType)
	copyUint32(o, uint32(b.Rows))
	at, row := 0, 0
	for i := range b.Parts {
		p := &b.Parts[i]
		each := 1
		if !texts {
			each = len(p.Inputs[0].Data) / p.Rows / width
		}
		for range p.Rows {
			at += each
			if row++; row < b.Rows {
				copyUint32(o, uint32(at))
			}
		}
	}
	if sized {
		putUint64(o, uint64(size))
	}
	o.Begin(size)
	for i := range b.Parts {
		p := &b.Parts[i]
		if !texts {
			o.Add(p.Inputs[0].Data)
			continue
		}
		rest := p.Inputs[0].Data
		for range p.Rows {
			var row []byte
			row, rest = nextRow(c.dtype, rest, p)
			o.Add(row)
			o.Copy([]byte{0})
		}
	}
	return nil
}

// acknowledges reports whether a message acknowledges feedback: frame number last, after the id,
// is "ACK". No answer to a batch has three bytes there.
func acknowledges(f []zmtp.Frame, last int) bool {
	return len(f) == last+1 && len(f[last-1].Data) >= 4 && string(f[last].Data) == "ACK"
}

func acknowledgementError(rows int) error {
	return fmt.Errorf("it sent \"ACK\", the acknowledgement of feedback, instead of an answer to a batch of %d rows",
		rows)
}

// floats parses an answer of v1, v1b and v2a: one float32 for each row.
func floats(f zmtp.Frame, rows int) (*answer, error) {
	if len(f.Data) != 4*rows {
		return nil, fmt.Errorf("answer of %d bytes to a batch of %d rows, expected a float of 4 for each",
			len(f.Data), rows)
	}
	a := newAnswer()
	a.add("output", tensor.Float32, false, tensor.Shape{rows}, f)
	a.outputs[0].Retain()
	return a, nil
}

// texts makes an answer of texts, which have size bytes in all; row returns the text of row i.
func (c *legacy) texts(rows, size int, row func(i int) []byte) (*answer, error) {
	buf, err := c.pool.Get(4*rows + size)
	if err != nil {
		return nil, err
	}
	b := buf.Bytes()[:0]
	for i := range rows {
		b = tensor.AppendElem(b, row(i))
	}
	a := newAnswer()
	a.add("output", tensor.Bytes, false, tensor.Shape{rows}, zmtp.Frame{Data: b, Buf: buf})
	return a, nil
}

func putUint32(o *zmtp.Outgoing, n uint32) {
	o.Begin(4)
	copyUint32(o, n)
}

func putUint64(o *zmtp.Outgoing, n uint64) {
	o.Begin(8)
	copyUint64(o, n)
}

func copyUint32(o *zmtp.Outgoing, n uint32) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], n)
	o.Copy(b[:])
}

func copyUint64(o *zmtp.Outgoing, n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	o.Copy(b[:])
}
