package containers

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// v3 is the generation of Clipper's shipped containers (RPC version 3, v0.3.0 to v0.4.1). Every
// message begins with an empty frame; numbers are little-endian; the server's messages carry
// the version, the container's do not:
//
//	C->S  '' | 2                                                   heartbeat
//	S->C  '' | 3 | 2 | t                                           its answer; t=1: register
//	C->S  '' | 0 | name | version | input type, text | rpc version registration
//	S->C  '' | 3 | 1 | id | 0 | header size | header | input...    header: u64 type, count, sizes
//	C->S  '' | 1 | id | header size | header | output...           header: u64 count, sizes
type v3 struct{ legacy }

const v3RPC = 3

func (*v3) generation() string { return "v3" }

func (*v3) clocks(time.Duration) clocks { return clocks{heartbeat: legacyBeat, dead: legacyDead} }

func (c *v3) parse(m *zmtp.Message) (incoming, error) {
	f := m.Frames
	t, ok := messageType(f)
	if !ok {
		return incoming{}, fmt.Errorf("message of %d frames, expected an empty one and a type of 4 bytes", len(f))
	}
	switch t {
	case typeHeartbeat:
		return incoming{event: evHeartbeat}, nil
	case typeRegister:
		if len(f) == 5 { // a heartbeat of v3 asked it to register, and it registered by v2
			return incoming{}, errV2
		}
		r, err := c.register(f)
		return incoming{event: evHello, hello: r}, err
	case typeMessage:
		if acknowledges(f, 3) {
			return incoming{event: evResult, id: uint64(binary.LittleEndian.Uint32(f[2].Data))}, nil
		}
		// Java containers send the id in 8 bytes, of which the first 4 count.
		if len(f) < 5 || len(f[2].Data) < 4 || len(f[3].Data) < 8 ||
			m.Refused == nil && binary.LittleEndian.Uint64(f[3].Data) != uint64(len(f[4].Data)) {
			return incoming{},
				fmt.Errorf("response of %d frames, expected '' | 1 | id | header size | header | outputs", len(f))
		}
		return incoming{event: evResult, id: uint64(binary.LittleEndian.Uint32(f[2].Data))}, nil
	default:
		return incoming{}, fmt.Errorf("message of type %d, expected 0 (new container), 1 (response) or 2 (heartbeat)",
			t)
	}
}

func (c *v3) register(f []zmtp.Frame) (registration, error) {
	if len(f) != 6 || len(f[5].Data) < 4 {
		return registration{},
			refuse("registration of %d frames, expected '' | 0 | name | version | input type | rpc version", len(f))
	}
	if v := binary.LittleEndian.Uint32(f[5].Data); v != v3RPC {
		return registration{}, refuse("registered with RPC version %d, expected %d", v, v3RPC)
	}
	return register(f[2].Data, f[3].Data, f[4].Data, tensor.Bytes)
}

func (c *v3) batch(o *zmtp.Outgoing, b *scheduler.Batch, _ time.Time) error {
	// The answer has a frame for each row and five more.
	if b.Rows+5 > c.limits.Frames {
		return fmt.Errorf("the answer to a batch of %d rows would exceed the limit of %d frames",
			b.Rows, c.limits.Frames)
	}
	c.head(o, typeMessage)
	putUint32(o, uint32(b.ID))
	putUint32(o, legacyPredict)
	size := 8 * (2 + b.Rows)
	putUint64(o, uint64(size))
	o.Begin(size)
	copyUint64(o, uint64(c.inputType))
	copyUint64(o, uint64(b.Rows))
	// Two passes over the rows: first their sizes, then their bytes.
	for _, frames := range []bool{false, true} {
		for i := range b.Parts {
			rest := b.Parts[i].Inputs[0].Data
			for range b.Parts[i].Rows {
				var row []byte
				if row, rest = nextRow(c.dtype, rest, &b.Parts[i]); frames {
					o.Frame(row)
				} else {
					copyUint64(o, uint64(len(row)))
				}
			}
		}
	}
	return nil
}

// result makes one Bytes tensor of the output frames.
func (c *v3) result(m *zmtp.Message, b *scheduler.Batch) (*answer, error) {
	if acknowledges(m.Frames, 3) {
		return nil, acknowledgementError(b.Rows)
	}
	header, outputs := m.Frames[4].Data, m.Frames[5:]
	if len(header) != 8*(1+len(outputs)) || binary.LittleEndian.Uint64(header) != uint64(len(outputs)) {
		return nil, fmt.Errorf("response header of %d bytes does not fit %s", len(header),
			plural.Of(len(outputs), "output"))
	}
	if len(outputs) != b.Rows {
		return nil, fmt.Errorf("%s for a batch of %s", plural.Of(len(outputs), "output"), plural.Of(b.Rows, "row"))
	}
	size := 0
	for i, f := range outputs {
		if claim := binary.LittleEndian.Uint64(header[8*(1+i):]); claim != uint64(len(f.Data)) {
			return nil, fmt.Errorf("output %d has %d bytes, the header says %d", i, len(f.Data), claim)
		}
		if uint64(len(f.Data)) > math.MaxUint32 {
			return nil, fmt.Errorf("output %d has %d bytes, limit %d", i, len(f.Data), uint32(math.MaxUint32))
		}
		size += len(f.Data)
	}
	return c.texts(b.Rows, size, func(i int) []byte { return outputs[i].Data })
}

// head adds the empty frame, the version and the type of a message.
func (*v3) head(o *zmtp.Outgoing, t uint32) {
	o.Frame(nil)
	putUint32(o, v3RPC)
	putUint32(o, t)
}

// heartbeat builds the answer to a heartbeat. Every one must be answered, or the container waits
// forever.
func (c *v3) heartbeat(o *zmtp.Outgoing, registered bool) bool {
	c.head(o, typeHeartbeat)
	putUint32(o, heartbeatReply(registered))
	return true
}
