package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// AppendHead appends the tag and the length before a value of n bytes.
func AppendHead(b []byte, number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(number), protowire.BytesType), uint64(n))
}

// AppendBytes appends a field whose value is bytes, a message or packed numbers.
func AppendBytes(b []byte, number int, v []byte) []byte {
	return append(AppendHead(b, number, len(v)), v...)
}

// AppendString appends a string, unless it is empty.
func AppendString(b []byte, number int, s string) []byte {
	if s == "" {
		return b
	}
	return append(AppendHead(b, number, len(s)), s...)
}

// AppendVarint appends a whole number; a negative one as its two's complement of 64 bits.
func AppendVarint(b []byte, number int, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(number), protowire.VarintType), v)
}

// AppendDouble appends a floating-point number.
func AppendDouble(b []byte, number int, v float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, protowire.Number(number), protowire.Fixed64Type),
		math.Float64bits(v))
}

// AppendPacked appends n whole numbers as one packed field, unless there are none.
func AppendPacked(b []byte, number, n int, value func(i int) uint64) []byte {
	if n == 0 {
		return b
	}
	packed := make([]byte, 0, 2*n)
	for i := range n {
		packed = protowire.AppendVarint(packed, value(i))
	}
	return AppendBytes(b, number, packed)
}
