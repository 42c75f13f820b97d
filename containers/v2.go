package containers

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// v2 is Clipper's second generation (its document on container RPC 2; releases v0.1.0 to v0.2.0),
// and v2a, which answers with floats:
//
//	C->S  '' | 2                                                     heartbeat
//	S->C  '' | 2 | t                                                 its answer; t=1: register
//	C->S  '' | 0 | name | version | input type                       registration, text
//	S->C  '' | 1 | id | 0 | size u64 | header | size u64 | content
//	C->S  '' | 1 | id | content            v2: u32 N, u32 sizes, texts; v2a: float32 for each row
//
// The size frames have 8 bytes, contrary to the document: containers in Java and C++ crash on 4.
type v2 struct {
	legacy
	floats bool // v2a
}

func (c *v2) generation() string {
	if c.floats {
		return "v2a"
	}
	return "v2"
}

func (*v2) clocks(time.Duration) clocks { return clocks{heartbeat: legacyBeat, dead: legacyDead} }

func (c *v2) parse(m *zmtp.Message) (incoming, error) {
	f := m.Frames
	t, ok := messageType(f)
	switch {
	case !ok:
		return incoming{}, fmt.Errorf("message of %d frames, expected an empty one and a type of 4 bytes", len(f))
	case t == typeHeartbeat:
		return incoming{event: evHeartbeat}, nil
	case t == typeRegister:
		r, err := c.register(f)
		return incoming{event: evHello, hello: r}, err
	case t != typeMessage:
		return incoming{}, fmt.Errorf("message of type %d, expected 0 (new container), 1 (response) or 2 (heartbeat)",
			t)
	case len(f) != 4 || len(f[2].Data) < 4: // Java sends the id in 8 bytes, the first 4 count
		return incoming{}, fmt.Errorf("response of %d frames, expected '' | 1 | id | content", len(f))
	}
	return incoming{event: evResult, id: uint64(binary.LittleEndian.Uint32(f[2].Data))}, nil
}

func (c *v2) register(f []zmtp.Frame) (registration, error) {
	if len(f) != 5 {
		if len(f) == 6 {
			return registration{}, refuse("registered with an RPC version, as RPC v3 does; this address serves %s",
				c.generation())
		}
		return registration{}, refuse("registration of %d frames, expected '' | 0 | name | version | input type",
			len(f))
	}
	output := tensor.Bytes
	if c.floats {
		output = tensor.Float32
	}
	return register(f[2].Data, f[3].Data, f[4].Data, output)
}

func (c *v2) batch(o *zmtp.Outgoing, b *scheduler.Batch, _ time.Time) error {
	c.head(o, typeMessage)
	putUint32(o, uint32(b.ID))
	putUint32(o, legacyPredict)
	return c.appendRows(o, b, true)
}

func (c *v2) result(m *zmtp.Message, b *scheduler.Batch) (*answer, error) {
	f := m.Frames[3]
	if acknowledges(m.Frames, 3) {
		return nil, acknowledgementError(b.Rows)
	}
	if c.floats {
		return floats(f, b.Rows)
	}
	table := 4 * (1 + b.Rows)
	if len(f.Data) < table {
		hint := ""
		if len(f.Data) == 4*b.Rows {
			hint = " (a float for each, as RPC v2a answers, would have as many)"
		}
		return nil, fmt.Errorf("answer of %d bytes to a batch of %s: its table of sizes alone has %d%s",
			len(f.Data), plural.Of(b.Rows, "row"), table, hint)
	}
	if n := binary.LittleEndian.Uint32(f.Data); int64(n) != int64(b.Rows) {
		return nil, fmt.Errorf("%s for a batch of %s", plural.Of(n, "output"), plural.Of(b.Rows, "row"))
	}
	sizes, rest := f.Data[4:table], f.Data[table:]
	total := uint64(0)
	for i := range b.Rows {
		total += uint64(binary.LittleEndian.Uint32(sizes[4*i:]))
	}
	if total != uint64(len(rest)) {
		return nil, fmt.Errorf("answer has %d bytes of texts, its table of sizes says %d", len(rest), total)
	}
	return c.texts(b.Rows, len(rest), func(i int) []byte {
		n := binary.LittleEndian.Uint32(sizes[4*i:])
		text := rest[:n]
		rest = rest[n:]
		return text
	})
}

// head adds the empty frame and the type of a message.
func (*v2) head(o *zmtp.Outgoing, t uint32) {
	o.Frame(nil)
	putUint32(o, t)
}

// heartbeat builds the answer to a heartbeat. Every one must be answered, or the container waits
// forever.
func (c *v2) heartbeat(o *zmtp.Outgoing, registered bool) bool {
	c.head(o, typeHeartbeat)
	putUint32(o, heartbeatReply(registered))
	return true
}

// heartbeatReply is the type of the answer to a heartbeat: 1 asks the container to register.
func heartbeatReply(registered bool) uint32 {
	if registered {
		return 0
	}
	return 1
}
