package containers

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// v1 is Clipper's first generation on ZeroMQ (its document of container RPC 1), and v1b, which
// has sizes:
//
//	C->S  '' | name | version | input type                           registration, text
//	S->C  '' | id | 0 | header | content                             v1
//	S->C  '' | id | 0 | size u64 | header | size u64 | content       v1b
//	C->S  '' | id | float32 for each row
//
// There are no heartbeats: only the connection and the PONGs of ZeroMQ's own thread show that a
// container is alive. Its socket reconnects by itself, but it registers only once: after a
// restart of the server it must be restarted, too.
type v1 struct {
	legacy
	sized bool // v1b
}

func (c *v1) generation() string {
	if c.sized {
		return "v1b"
	}
	return "v1"
}

func (*v1) clocks(time.Duration) clocks {
	return clocks{heartbeat: legacyBeat, dead: legacyDead, mute: true}
}

func (c *v1) parse(m *zmtp.Message) (incoming, error) {
	f := m.Frames
	switch {
	case len(f) == 4 && len(f[0].Data) == 0:
		r, err := register(f[1].Data, f[2].Data, f[3].Data, tensor.Float32)
		return incoming{event: evHello, hello: r}, err
	case len(f) == 3 && len(f[0].Data) == 0 && len(f[1].Data) >= 4:
		// Java sends 8 bytes, of which the first 4 count.
		return incoming{event: evResult, id: uint64(binary.LittleEndian.Uint32(f[1].Data))}, nil
	}
	return incoming{}, fmt.Errorf("message of %d frames, expected '' | id (4 bytes) | floats", len(f))
}

func (c *v1) batch(o *zmtp.Outgoing, b *scheduler.Batch, _ time.Time) error {
	o.Frame(nil)
	putUint32(o, uint32(b.ID))
	putUint32(o, legacyPredict)
	return c.appendRows(o, b, c.sized)
}

func (*v1) result(m *zmtp.Message, b *scheduler.Batch) (*answer, error) {
	if acknowledges(m.Frames, 2) {
		return nil, acknowledgementError(b.Rows)
	}
	return floats(m.Frames[2], b.Rows)
}

func (*v1) heartbeat(*zmtp.Outgoing, bool) bool { return false }
