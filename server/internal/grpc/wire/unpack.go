package wire

import (
	"compress/zlib"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // registers it

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
)

// Clients choose the compression of their messages, and the answers use the same one: gzip comes
// with grpc-go, deflate is what clients of gRPC's C core support besides.

func init() { encoding.RegisterCompressor(deflate{}) }

// deflate is the compression of that name, in zlib's format.
type deflate struct{}

func (deflate) Name() string { return "deflate" }

// Compress favours speed over size, as the HTTP door does.
func (deflate) Compress(w io.Writer) (io.WriteCloser, error) {
	return zlib.NewWriterLevel(w, zlib.BestSpeed)
}

func (deflate) Decompress(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }

// A packedReader reads a compressed message as it arrives.
type packedReader struct {
	*pieces
	rest []byte
	slot gate.Slot
}

func (p *packedReader) Read(b []byte) (n int, err error) {
	if len(p.rest) == 0 {
		if p.slot.Give() { // a slow client keeps no slot
			defer p.slot.Take()
		}
		if p.rest, err = p.next(); err != nil {
			return 0, err
		}
	}
	n = copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// ReadByte makes an unpacker read no further than its data goes.
func (p *packedReader) ReadByte() (byte, error) {
	if len(p.rest) == 0 {
		var one [1]byte
		_, err := p.Read(one[:])
		return one[0], err
	}
	b := p.rest[0]
	p.rest = p.rest[1:]
	return b, nil
}

// more reports whether the message has bytes that have not been read.
func (p *packedReader) more() bool { return len(p.rest) > 0 || p.hand > 0 || p.left > 0 }

// An unpacker is the source of the bytes in a compressed message.
type unpacker struct {
	encoding string
	packed   packedReader
	reader   io.Reader
	buf      []byte
	n        int // bytes unpacked so far
	bounds   *Bounds
	share    gate.Share
}

func unpack(encodingName string, in *pieces, b *Bounds) (*unpacker, error) {
	c := encoding.GetCompressor(encodingName)
	if c == nil {
		return nil, fault.Malformed("a compressed message with grpc-encoding %q", encodingName)
	}
	share, err := b.Memory.Unpacked(&in.half, &in.arrived)
	if err != nil {
		return nil, err
	}
	u := &unpacker{encoding: encodingName, packed: packedReader{pieces: in}, bounds: b, share: share,
		buf: make([]byte, 32<<10)}
	if u.reader, err = c.Decompress(&u.packed); err != nil {
		share.Close()
		return nil, u.fault(err)
	}
	return u, nil
}

func (u *unpacker) next() ([]byte, error) {
	n, err := u.read()
	if err == io.EOF && n == 0 {
		if u.packed.more() {
			return nil, fault.Malformed("the message has more bytes after the end of its %s data", u.encoding)
		}
		return nil, io.EOF
	}
	if err != nil {
		return nil, u.fault(err)
	}
	if u.n += n; u.n > u.bounds.Bytes+u.bounds.Margin {
		return nil, fmt.Errorf("%w (unpacked so far, from %s)", u.bounds.exceeded(int64(u.n)), u.encoding)
	}
	return u.buf[:n], nil
}

// read unpacks a piece with a slot.
func (u *unpacker) read() (int, error) {
	u.packed.slot.Take()
	defer u.packed.slot.Give()
	return io.ReadAtLeast(u.reader, u.buf, 1)
}

func (u *unpacker) buffered() int { return 0 }

// fault returns the transport's error, if there was one, or else that the message does not match
// its encoding.
func (u *unpacker) fault(err error) error {
	if u.packed.err != nil {
		return u.packed.err
	}
	return fault.Malformed("the message is not %s: %w", u.encoding, err)
}
