package shiva

import (
	"encoding/binary"
	"fmt"

	"github.com/shivad/shivad/shiva/tensor"
)

// Sizes and offsets on the wire; see the diagram in the package comment. They may not change.
const (
	headerBytes       = 12
	tensorHeaderBytes = 2
	dimBytes          = 4

	maxTensors        = 255       // the count is one byte
	maxNamespaceBytes = 255       // the namespace's size is one byte
	maxRank           = 255       // the rank is one byte
	maxDim            = 1<<31 - 1 // a dimension is a signed 32-bit integer
	maxMetadataBytes  = 1<<31 - 1
)

var magic = [4]byte{6, 66, 11, 1}

// magicSum is what the magic adds to the checksums.
const magicSum = 6 + 66 + 11 + 1

// A header holds the fields in the first 12 bytes of a message.
type header struct {
	metadataBytes  int32 // signed on the wire: a hostile peer can send a negative one
	tensors        uint8
	namespaceBytes uint8
}

// checksums returns the header's two checksums. The first is the sum of the field values, not of
// the header's bytes, modulo 256: only the low byte of the metadata's size counts. The second adds
// the first to the same sum, which makes it twice the first.
func (h header) checksums() (crc1, crc2 byte) {
	sum := magicSum + byte(h.metadataBytes) + h.tensors + h.namespaceBytes
	return sum, sum + sum
}

func (h header) append(dst []byte) []byte {
	crc1, crc2 := h.checksums()
	dst = append(dst, magic[:]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.metadataBytes))
	return append(dst, h.tensors, h.namespaceBytes, crc1, crc2)
}

// parseHeader reads 12 bytes and reports whether they are a header.
func parseHeader(b []byte) (h header, ok bool) {
	h = header{
		metadataBytes:  int32(binary.BigEndian.Uint32(b[4:])),
		tensors:        b[8],
		namespaceBytes: b[9],
	}
	crc1, crc2 := h.checksums()
	return h, [4]byte(b) == magic && b[10] == crc1 && b[11] == crc2 && h.metadataBytes >= 0
}

// headerError reports why the 12 bytes of h are not a header.
//
// The magic is checked first, so that a peer of another protocol is told so, rather than of a wrong
// checksum; the reference checks the checksums first.
func headerError(b []byte, h header) *DecodeError {
	crc1, crc2 := h.checksums()
	var e DecodeError
	switch {
	case [4]byte(b) != magic:
		e = DecodeError{Kind: KindBadMagic, Field: "magic", Limit: int64(binary.BigEndian.Uint32(magic[:])),
			Got: int64(binary.BigEndian.Uint32(b))}
		e.Detail = fmt.Sprintf("expected %x, got %x", magic, b[:4])
	case b[10] != crc1:
		e = DecodeError{Kind: KindBadCRC1, Field: "crc1", Offset: 10, Limit: int64(crc1), Got: int64(b[10])}
		e.Detail = fmt.Sprintf("expected %#02x, got %#02x", crc1, b[10])
	case b[11] != crc2:
		e = DecodeError{Kind: KindBadCRC2, Field: "crc2", Offset: 11, Limit: int64(crc2), Got: int64(b[11])}
		e.Detail = fmt.Sprintf("expected %#02x, got %#02x", crc2, b[11])
	default:
		e = DecodeError{Kind: KindNegativeMetadataSize, Field: "metadata size", Offset: 4, Got: int64(h.metadataBytes)}
		e.Detail = fmt.Sprintf("got %d", h.metadataBytes)
	}
	return &e
}

// hostBigEndian reports whether the host's byte order is the wire's.
var hostBigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

// swapWidth is the width for tensor.SwapCopy between this host and the wire.
func swapWidth(d tensor.DType) int {
	if hostBigEndian {
		return 1
	}
	return d.SwapWidth()
}
