package shiva

import (
	"encoding/binary"

	"github.com/shivad/shivad/shiva/tensor"
)

// Sizes and offsets on the wire; see the package comment for the picture. They may not change.
const (
	headerBytes       = 12
	tensorHeaderBytes = 2
	dimBytes          = 4

	maxTensors        = 255       // the count is one byte
	maxNamespaceBytes = 255       // so is the namespace's size
	maxRank           = 255       // and the rank
	maxDim            = 1<<31 - 1 // a dimension is a signed 32-bit integer
	maxMetadataBytes  = 1<<31 - 1
)

var magic = [4]byte{6, 66, 11, 1}

// magicSum is what the magic adds to the checksums.
const magicSum = 6 + 66 + 11 + 1

// A header is what the first 12 bytes of a message say.
type header struct {
	metadataBytes  int32 // signed on the wire: a hostile one can be negative
	tensors        uint8
	namespaceBytes uint8
}

// checksums gives the header's two checksums. The first is the sum of the field values, not of the header's bytes,
// modulo 256: of the metadata's size only the low byte counts. The second adds the first to the same sum, which
// makes it twice the first.
func (h header) checksums() (crc1, crc2 byte) {
	sum := magicSum + byte(h.metadataBytes) + h.tensors + h.namespaceBytes
	return sum, sum + sum
}

// append writes the header's 12 bytes.
func (h header) append(dst []byte) []byte {
	crc1, crc2 := h.checksums()
	dst = append(dst, magic[:]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.metadataBytes))
	return append(dst, h.tensors, h.namespaceBytes, crc1, crc2)
}

// parseHeader reads 12 bytes. The kind is empty when they are a header; else it says what is wrong, with the
// offset of the field and the value that was expected and the one that came.
//
// The magic is looked at first, so that a peer that speaks something else is told so and not that its checksum is
// wrong; the reference looks at the checksums first.
func parseHeader(b []byte) (h header, fault headerFault) {
	h = header{
		metadataBytes:  int32(binary.BigEndian.Uint32(b[4:])),
		tensors:        b[8],
		namespaceBytes: b[9],
	}
	crc1, crc2 := h.checksums()
	switch {
	case [4]byte(b) != magic:
		fault = headerFault{KindBadMagic, "magic", 0, int64(binary.BigEndian.Uint32(magic[:])), int64(binary.BigEndian.Uint32(b))}
	case b[10] != crc1:
		fault = headerFault{KindBadCRC1, "crc1", 10, int64(crc1), int64(b[10])}
	case b[11] != crc2:
		fault = headerFault{KindBadCRC2, "crc2", 11, int64(crc2), int64(b[11])}
	case h.metadataBytes < 0:
		fault = headerFault{KindNegativeMetadataSize, "metadata size", 4, 0, int64(h.metadataBytes)}
	}
	return h, fault
}

// A headerFault is a DecodeError in the making: while the decoder looks for a header among noise, it makes
// thousands of these and reports none.
type headerFault struct {
	kind      Kind
	field     string
	offset    int64
	want, got int64
}

// hostBigEndian tells whether the host already has the order of the wire.
var hostBigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

// swapWidth is the width for tensor.SwapCopy between this host and the wire.
func swapWidth(d tensor.DType) int {
	if hostBigEndian {
		return 1
	}
	return d.SwapWidth()
}
