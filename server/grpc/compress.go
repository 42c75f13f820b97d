package grpc

import (
	"compress/zlib"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // registers it

	"github.com/shivad/shivad/server/internal/gate"
)

// Messages are compressed as clients ask, and answers to compressed questions likewise: gzip is
// grpc-go's own, deflate is what the clients of gRPC's C core have beside it.

func init() { encoding.RegisterCompressor(deflate{}) }

// deflate is the compression of that name: deflate in zlib's format.
type deflate struct{}

func (deflate) Name() string { return "deflate" }

func (deflate) Compress(w io.Writer) (io.WriteCloser, error) { return zlib.NewWriter(w), nil }

func (deflate) Decompress(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }

// packed reads a compressed message as it arrived.
type packed struct {
	pieces *pieces
	rest   []byte
	turn   gate.Turn
}

func (p *packed) Read(b []byte) (n int, err error) {
	if len(p.rest) == 0 {
		if p.turn.Give() { // whoever is slow keeps nobody from unpacking
			defer p.turn.Take()
		}
		if p.rest, err = p.pieces.next(); err != nil {
			return 0, err
		}
	}
	n = copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// unpacked is the source of what was in it.
type unpacked struct {
	name   string // of the compression
	packed packed
	reader io.Reader
	buf    []byte
	n      int // bytes that were in it so far
	limit  limit
	share  gate.Share
}

func unpack(name string, in *pieces, l limit, m *gate.Memory) (*unpacked, error) {
	c := encoding.GetCompressor(name)
	if c == nil {
		return nil, fmt.Errorf("%w: a compressed message with grpc-encoding %q", gate.ErrProtocol, name)
	}
	share, err := m.Unpacked(&in.came)
	if err != nil {
		return nil, err
	}
	u := &unpacked{name: name, packed: packed{pieces: in}, limit: l, share: share, buf: make([]byte, 32<<10)}
	if u.reader, err = c.Decompress(&u.packed); err != nil {
		u.free()
		return nil, u.fault(err)
	}
	return u, nil
}

func (u *unpacked) free() { u.share.Close() }

func (u *unpacked) next() ([]byte, error) {
	// So much at least, or the end.
	n, err := u.read()
	if err == io.EOF && n == 0 {
		return nil, io.EOF
	}
	if err != nil {
		return nil, u.fault(err)
	}
	if u.n += n; u.n > u.limit.bytes+u.limit.margin {
		return nil, fmt.Errorf("%w (unpacked so far; it came as %s)", u.limit.exceeded(int64(u.n)), u.name)
	}
	return u.buf[:n], nil
}

// read unpacks a piece in a turn.
func (u *unpacked) read() (int, error) {
	u.packed.turn.Take()
	defer u.packed.turn.Give()
	return io.ReadAtLeast(u.reader, u.buf, 1)
}

func (u *unpacked) atHand() int { return 0 }

// fault is the error of the transport, if there was one, or that the message is not what it says.
func (u *unpacked) fault(err error) error {
	if u.packed.pieces.err != nil {
		return u.packed.pieces.err
	}
	return fmt.Errorf("%w: the message is not %s: %w", gate.ErrProtocol, u.name, err)
}
