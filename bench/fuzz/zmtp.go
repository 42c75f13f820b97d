package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/tensor"
)

// zmtpStreams are connections on which a container shakes hands and sends frames.
type zmtpStreams struct {
	rng  *rand.Rand
	pool *tensor.Pool
	buf  []byte
	conn script
	m    zmtp.Message
}

func newZMTPStreams(seed uint64) (streams, error) {
	return &zmtpStreams{rng: rand.New(rand.NewPCG(seed, 4)), pool: tensor.NewPool(1 << 30)}, nil
}

// handshake is the greeting of ZMTP 3.0 without security, and READY of a DEALER.
var handshake = func() []byte {
	b := make([]byte, 64)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], "NULL")
	return append(b, "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"...)
}()

// maxFrames is the largest number of frames on a connection. A fault ends the connection; half of
// all connections have none.
const maxFrames = 200

func (z *zmtpStreams) one() (got stream, err error) {
	got.frames = 1 + z.rng.IntN(maxFrames)
	b := append(z.buf[:0], handshake...)
	bad := z.rng.IntN(2 * got.frames) // the number of the bad frame, if there is one
	for i := range got.frames {
		b = z.frame(b, i == bad)
		if i == bad {
			got.frames = i + 1
			break
		}
	}
	z.buf, got.bytes = b, len(b)
	z.conn = script{in: b, rng: z.rng, check: func(n int) {
		if err == nil && z.pool.InUse() > int64(10*n+24<<10) {
			err = fmt.Errorf("%d bytes held for %d that have come: %x", z.pool.InUse(), n, b)
		}
	}}
	c, openErr := zmtp.Server(&z.conn, zmtp.Config{Pool: z.pool, Limits: zmtp.Limits{MessageBytes: 64 << 20, Frames: 50}})
	if openErr != nil {
		return got, openErr
	}
	defer c.Close()
	for err == nil {
		switch fault := c.Receive(&z.m); {
		case fault == nil:
			got.messages++
			z.m.Release()
		case fault == io.EOF || errors.Is(fault, io.ErrUnexpectedEOF):
			return got, z.left(err)
		case errors.Is(fault, zmtp.ErrProtocol) || errors.Is(fault, zmtp.ErrTooLarge):
			got.faults++
			return got, z.left(err)
		default:
			return got, fmt.Errorf("an error without a name, %w: %x", fault, b)
		}
	}
	return got, err
}

// left returns an error if a connection that has ended holds memory.
func (z *zmtpStreams) left(err error) error {
	if n := z.pool.InUse(); err == nil && n != 0 {
		err = fmt.Errorf("%d bytes are not given back: %x", n, z.buf)
	}
	return err
}

// frame appends a frame: a short one, a long one or a PING, or one that is bad.
func (z *zmtpStreams) frame(b []byte, bad bool) []byte {
	n := z.rng.Uint32()
	more := byte(n >> 8 & 1)
	body := func(b []byte, size int) []byte {
		b = append(b, make([]byte, size)...)
		for i := len(b) - min(size, 8); i < len(b); i++ {
			b[i] = byte(z.rng.Uint32())
		}
		return b
	}
	switch {
	case bad && n%3 == 0: // a false length, or one beyond the limit
		return body(binary.BigEndian.AppendUint64(append(b, 2|more), z.rng.Uint64()>>z.rng.IntN(64)), z.rng.IntN(300))
	case bad && n%3 == 1: // any flags
		return body(append(b, byte(z.rng.Uint32()), 40), 40)
	case bad: // any command
		return body(append(b, 4, 20, 4), 19)
	case n%16 == 0:
		return append(b, "\x04\x0a\x04PING\x00\x00ctx"...)
	case n%16 < 4:
		size := z.rng.IntN(2000)
		return body(binary.BigEndian.AppendUint64(append(b, 2|more), uint64(size)), size)
	default:
		size := z.rng.IntN(200)
		return body(append(b, more, byte(size)), size)
	}
}

// A script is a connection on which the peer sends fixed bytes, in pieces, and closes.
type script struct {
	in    []byte
	rng   *rand.Rand
	gave  int
	check func(gave int) // called before each read, with the number of bytes so far
}

func (s *script) Read(p []byte) (int, error) {
	s.check(s.gave)
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.in[:min(len(s.in), 1+s.rng.IntN(8000))])
	s.in = s.in[n:]
	s.gave += n
	return n, nil
}

func (s *script) Write(p []byte) (int, error)      { return len(p), nil }
func (s *script) Close() error                     { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
