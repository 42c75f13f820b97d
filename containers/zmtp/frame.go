package zmtp

import "encoding/binary"

// Frame flags (ZMTP 3.1, "Framing"). The other bits are reserved and must be zero.
const (
	flagMore     = 0x01
	flagLong     = 0x02
	flagCommand  = 0x04
	flagReserved = ^byte(flagMore | flagLong | flagCommand)
)

// maxHeader is the size of the longest frame header: flags and an 8-byte length.
const maxHeader = 9

// A header is a parsed frame header.
type header struct {
	flags byte
	size  uint64
}

func (h header) more() bool    { return h.flags&flagMore != 0 }
func (h header) command() bool { return h.flags&flagCommand != 0 }

// parseHeader reads a frame header from the start of p. It returns its size in bytes, or 0 when p
// is too short to tell. It judges the flags; the caller judges the length, since limits depend on
// the frames before.
func parseHeader(p []byte) (h header, n int, err error) {
	if len(p) == 0 {
		return header{}, 0, nil
	}
	h.flags = p[0]
	switch {
	case h.flags&flagReserved != 0:
		return header{}, 0, protocolError("frame flags %#02x have reserved bits", h.flags)
	case h.command() && h.more():
		return header{}, 0, protocolError("command frame with the MORE flag")
	case h.flags&flagLong != 0:
		if len(p) < maxHeader {
			return header{}, 0, nil
		}
		h.size = binary.BigEndian.Uint64(p[1:maxHeader])
		return h, maxHeader, nil
	case len(p) < 2:
		return header{}, 0, nil
	}
	h.size = uint64(p[1])
	return h, 2, nil
}

// putHeader writes the shortest header for a frame into the end of dst and returns its size.
func putHeader(dst *[maxHeader]byte, flags byte, size int) int {
	if size <= 0xff {
		dst[maxHeader-2], dst[maxHeader-1] = flags, byte(size)
		return 2
	}
	dst[0] = flags | flagLong
	binary.BigEndian.PutUint64(dst[1:], uint64(size))
	return maxHeader
}

// splitCommand reads the body of a command frame: a length byte, the name, and the rest.
func splitCommand(body []byte) (name, rest []byte, err error) {
	if len(body) == 0 || body[0] == 0 {
		return nil, nil, protocolError("command without a name")
	}
	n := int(body[0])
	if len(body) < 1+n {
		return nil, nil, protocolError("command name of %d bytes in a command of %d", n, len(body))
	}
	return body[1 : 1+n], body[1+n:], nil
}
