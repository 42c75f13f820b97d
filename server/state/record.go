package state

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A record is the form of an entry in the file, under its key:
//
//	| CRC-32C of the key and of what follows | revision | value |
//	| uint32, big-endian                     | uint64   |       |
//
// bbolt has no checksums on its data pages. A change of this layout needs a new format number
// (file.go).
const recordHeaderBytes = 12

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func recordSum(key string, rest []byte) uint32 {
	return crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, rest)
}

func appendRecord(b []byte, e Entry) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, e.Revision)
	b = append(b, e.Value...)
	binary.BigEndian.PutUint32(b[start:], recordSum(e.Key, b[start+4:]))
	return b
}

// decodeRecord returns a copy of the entry in b.
func decodeRecord(key string, b []byte) (Entry, error) {
	if len(b) < recordHeaderBytes {
		return Entry{}, fmt.Errorf("%w: record of %q has %d bytes, want at least %d",
			ErrCorrupt, key, len(b), recordHeaderBytes)
	}
	if got, want := recordSum(key, b[4:]), binary.BigEndian.Uint32(b); got != want {
		return Entry{}, fmt.Errorf("%w: record of %q has checksum %08x, want %08x", ErrCorrupt, key, got, want)
	}
	return Entry{Key: key, Value: append([]byte{}, b[recordHeaderBytes:]...),
		Revision: binary.BigEndian.Uint64(b[4:])}, nil
}
