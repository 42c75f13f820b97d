package containertest

import (
	"bytes"
	"net"

	"github.com/shivad/shivad/containers/zmtp"
)

// A Peer is a bare DEALER socket, which sends whatever the test tells it to. Send may be called
// from any goroutine, Receive by one at a time.
type Peer struct {
	raw  net.Conn
	conn *zmtp.Conn
}

// NewPeer performs the handshake of a container.
func NewPeer(raw net.Conn) (*Peer, error) {
	conn, err := zmtp.Client(raw, zmtp.Config{})
	if err != nil {
		return nil, err
	}
	return &Peer{raw, conn}, nil
}

// Send sends copies of the frames as one message.
func (p *Peer) Send(frames ...[]byte) error {
	var o zmtp.Outgoing
	for _, f := range frames {
		o.Frame(bytes.Clone(f))
	}
	return p.conn.Send(&o)
}

// Receive waits for a message and returns copies of its frames.
func (p *Peer) Receive() ([][]byte, error) {
	var m zmtp.Message
	if err := p.conn.Receive(&m); err != nil {
		return nil, err
	}
	defer m.Release()
	frames := make([][]byte, len(m.Frames))
	for i, f := range m.Frames {
		frames[i] = bytes.Clone(f.Data)
	}
	return frames, nil
}

// Raw returns the underlying connection, for bytes that are not frames.
func (p *Peer) Raw() net.Conn { return p.raw }

// Close ends the connection.
func (p *Peer) Close() error { return p.conn.Close() }

// Kill ends the connection as the death of the process would: a socket is reset, and unsent data
// is lost.
func (p *Peer) Kill() {
	if c, ok := p.raw.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	p.conn.Abort(net.ErrClosed)
	p.conn.Close()
}
