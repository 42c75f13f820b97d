package containers

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// v3 is the generation of Clipper's shipped containers (RPC version 3, v0.3.0 to v0.4.1). Every message begins with an
// empty frame; numbers are little-endian; the server's messages carry the version, the container's do not:
//
//	C->S  '' | 2                                                     heartbeat
//	S->C  '' | 3 | 2 | t                                             its answer; t=1: please register
//	C->S  '' | 0 | name | version | input type, text | rpc version   registration
//	S->C  '' | 3 | 1 | id | 0 | header size | header | input...      header: u64 type, count, size of each
//	C->S  '' | 1 | id | header size | header | output...             header: u64 count, size of each
//
// Sources: captured frames in testdata/gen3.json; what the three containers really do is in specs/wire-facts.md, B2 and B3.
type v3 struct {
	limits    Limits
	inputType uint64 // set by bind
	dtype     tensor.DType
	pool      *tensor.Pool
}

const (
	v3Register  = 0
	v3Message   = 1 // request or response
	v3Heartbeat = 2

	v3RPC     = 3
	v3Predict = 0 // request type

	// The clock of the containers: they beat after 5 s without a message and give a server up after 30 s.
	v3Beat = 5 * time.Second
	v3Dead = 30 * time.Second
)

// v3Types are the input types, by code. (Python containers read type 0 as signed numbers; that is theirs.)
var v3Types = [...]tensor.DType{tensor.Uint8, tensor.Int32, tensor.Float32, tensor.Float64, tensor.Bytes}

func (*v3) generation() string { return "v3" }

func (*v3) clocks(time.Duration) clocks { return clocks{heartbeat: v3Beat, dead: v3Dead} }

func (c *v3) parse(m *zmtp.Message) (incoming, error) {
	f := m.Frames
	if len(f) < 2 || len(f[0].Data) != 0 || len(f[1].Data) != 4 {
		return incoming{}, fmt.Errorf("message of %d frames, expected an empty one and a type of 4 bytes", len(f))
	}
	switch t := binary.LittleEndian.Uint32(f[1].Data); t {
	case v3Heartbeat:
		return incoming{event: evHeartbeat}, nil
	case v3Register:
		r, err := c.register(f)
		return incoming{event: evHello, hello: r}, err
	case v3Message:
		// Java containers send the id in 8 bytes, of which the first 4 count.
		if len(f) < 5 || len(f[2].Data) < 4 || len(f[3].Data) < 8 ||
			m.Refused == nil && binary.LittleEndian.Uint64(f[3].Data) != uint64(len(f[4].Data)) {
			return incoming{}, fmt.Errorf("response of %d frames, expected '' | 1 | id | header size | header | outputs", len(f))
		}
		return incoming{event: evResult, id: uint64(binary.LittleEndian.Uint32(f[2].Data))}, nil
	default:
		return incoming{}, fmt.Errorf("message of type %d, expected 0 (new container), 1 (response) or 2 (heartbeat)", t)
	}
}

func (c *v3) register(f []zmtp.Frame) (registration, error) {
	if len(f) != 6 || len(f[5].Data) < 4 {
		return registration{}, refuse("registration of %d frames, expected '' | 0 | name | version | input type | rpc version", len(f))
	}
	if v := binary.LittleEndian.Uint32(f[5].Data); v != v3RPC {
		return registration{}, refuse("registered with RPC version %d, expected %d", v, v3RPC)
	}
	name, version := string(f[2].Data[:min(len(f[2].Data), 2*wire.MaxName)]), string(f[3].Data[:min(len(f[3].Data), 2*wire.MaxName)])
	if err := checkModel(name, version); err != nil {
		return registration{}, err
	}
	// The C++ containers give this frame the length of the version's text; what follows the digit is stray memory.
	code := f[4].Data
	if len(code) == 0 || code[0] < '0' || int(code[0]-'0') >= len(v3Types) {
		return registration{}, refuse("model %q registered with input type %.16q, expected 0 (bytes), 1 (ints), 2 (floats), 3 (doubles) or 4 (strings)", name, code)
	}
	d := v3Types[code[0]-'0']
	shape := tensor.Shape{-1, -1}
	if d == tensor.Bytes {
		shape = tensor.Shape{-1}
	}
	return registration{
		model: scheduler.ModelID{Name: name, Version: version},
		spec: scheduler.Spec{
			Flat:    true,
			Inputs:  []tensor.Spec{{Name: "input", DType: d, Shape: shape}},
			Outputs: []tensor.Spec{{Name: "output", DType: tensor.Bytes, Shape: tensor.Shape{-1}}},
		},
	}, nil
}

func (c *v3) bind(r registration) {
	c.dtype = r.spec.Inputs[0].DType
	for code, d := range v3Types {
		if d == c.dtype {
			c.inputType = uint64(code)
		}
	}
}

// id: unique in the process in 64 bits is unique among the few batches of a session in 32.
func (*v3) id(b *scheduler.Batch) uint64 { return uint64(uint32(b.ID)) }

func (c *v3) batch(o *zmtp.Outgoing, b *scheduler.Batch, _ time.Time) error {
	// The answer has a frame for each row and five more.
	if b.Rows+5 > c.limits.Frames {
		return fmt.Errorf("a batch of %d rows would be answered with more than the %d frames allowed", b.Rows, c.limits.Frames)
	}
	c.head(o, v3Message)
	putUint32(o, uint32(b.ID))
	putUint32(o, v3Predict)
	size := 8 * (2 + b.Rows)
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], uint64(size))
	o.Begin(len(word))
	o.Copy(word[:])
	o.Begin(size)
	binary.LittleEndian.PutUint64(word[:], c.inputType)
	o.Copy(word[:])
	binary.LittleEndian.PutUint64(word[:], uint64(b.Rows))
	o.Copy(word[:])
	// Twice over the rows: first their sizes, then their bytes.
	for _, frames := range []bool{false, true} {
		for i := range b.Parts {
			rest := b.Parts[i].Inputs[0].Data
			for range b.Parts[i].Rows {
				var row []byte
				if row, rest = c.nextRow(rest, &b.Parts[i]); frames {
					o.Frame(row)
					continue
				}
				binary.LittleEndian.PutUint64(word[:], uint64(len(row)))
				o.Copy(word[:])
			}
		}
	}
	return nil
}

// nextRow cuts the first row off a part's data, which the scheduler has checked.
func (c *v3) nextRow(data []byte, p *scheduler.Part) (row, rest []byte) {
	if c.dtype == tensor.Bytes {
		n := 4 + int(binary.LittleEndian.Uint32(data))
		return data[4:n], data[n:]
	}
	n := len(p.Inputs[0].Data) / p.Rows
	return data[:n], data[n:]
}

// result makes one Bytes tensor of the output frames.
func (c *v3) result(m *zmtp.Message, b *scheduler.Batch) (*answer, error) {
	header, outputs := m.Frames[4].Data, m.Frames[5:]
	if len(header) != 8*(1+len(outputs)) || binary.LittleEndian.Uint64(header) != uint64(len(outputs)) {
		return nil, fmt.Errorf("response header of %d bytes does not fit %d outputs", len(header), len(outputs))
	}
	if len(outputs) != b.Rows {
		return nil, fmt.Errorf("%d outputs for a batch of %d rows", len(outputs), b.Rows)
	}
	size := 0
	for i, f := range outputs {
		if said := binary.LittleEndian.Uint64(header[8*(1+i):]); said != uint64(len(f.Data)) {
			return nil, fmt.Errorf("output %d has %d bytes, the header says %d", i, len(f.Data), said)
		}
		if uint64(len(f.Data)) > math.MaxUint32 {
			return nil, fmt.Errorf("output %d has %d bytes, limit %d", i, len(f.Data), uint32(math.MaxUint32))
		}
		size += 4 + len(f.Data)
	}
	buf, err := c.pool.Get(size)
	if err != nil {
		return nil, err
	}
	text := buf.Bytes()[:0]
	for _, f := range outputs {
		text = tensor.AppendElem(text, f.Data)
	}
	a := newAnswer()
	a.add("output", tensor.Bytes, false, tensor.Shape{b.Rows}, zmtp.Frame{Data: text, Buf: buf})
	return a, nil
}

// head adds the empty frame, the version and the type of a message.
func (*v3) head(o *zmtp.Outgoing, t uint32) {
	o.Frame(nil)
	putUint32(o, v3RPC)
	putUint32(o, t)
}

func putUint32(o *zmtp.Outgoing, n uint32) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], n)
	o.Begin(len(b))
	o.Copy(b[:])
}

// heartbeat answers one. Every beat must be answered, or the container waits for ever.
func (c *v3) heartbeat(o *zmtp.Outgoing, registered bool) bool {
	c.head(o, v3Heartbeat)
	if registered {
		putUint32(o, 0)
	} else {
		putUint32(o, 1)
	}
	return true
}

// v3 has no words for these.
func (*v3) welcome(*zmtp.Outgoing, wire.WelcomeMessage) bool { return false }
func (*v3) refused(*zmtp.Outgoing, string) bool              { return false }
func (*v3) goodbye(*zmtp.Outgoing, string, bool) bool        { return false }
