package load

import (
	"errors"
	"strings"
	"testing"
)

// message builds a message of header, tensors, metadata and namespace, with correct checksums.
func message(metadata, namespace string, tensors ...string) []byte {
	crc := byte(84 + len(metadata) + len(tensors) + len(namespace))
	m := []byte{6, 66, 11, 1, byte(len(metadata) >> 24), byte(len(metadata) >> 16), byte(len(metadata) >> 8),
		byte(len(metadata)),
		byte(len(tensors)), byte(len(namespace)), crc, 2 * crc}
	return append(m, strings.Join(tensors, "")+metadata+namespace...)
}

func TestAnswersAtEveryCut(t *testing.T) {
	kinds := []struct {
		bytes []byte
		fault bool
	}{
		{message("", ""), false},
		{message("{}", "x"), false},
		{message("", "!error"), true},
		{message(`{"a":1}`, ""), false},
		{message("{}", "m", "\x01\x01\x00\x00\x00\x02"+"12345678"), false}, // float32 [2]
		{message(`{"message":"!"}`, "!error"), true},
		// The tensors are bool [], longdouble [0,2^31-1] and float64 [].
		{message("", "m", "\x00\x11"+"1", "\x02\x0c\x00\x00\x00\x00\x7f\xff\xff\xff", "\x00\x02"+"!2345678"), false},
	}
	var stream []byte
	var ends []int
	var faults []bool
	for _, k := range kinds {
		stream = append(stream, k.bytes...)
		ends = append(ends, len(stream))
		faults = append(faults, k.fault)
	}
	for first := range len(stream) + 1 {
		for _, step := range []int{1, 7, len(stream)} {
			var a answers
			var found int
			for at, upTo := 0, first; at < len(stream); upTo = min(max(at, upTo)+step, len(stream)) {
				for at < upTo {
					n, done, err := a.next(stream[at:upTo])
					if err != nil {
						t.Fatalf("cut at %d, then every %d: %v", first, step, err)
					}
					at += n
					if !done {
						break
					}
					if at != ends[found] || a.fault != faults[found] {
						t.Fatalf("cut at %d, then every %d: message %d ends at %d with fault %v, want %d and %v",
							first, step, found, at, a.fault, ends[found], faults[found])
					}
					found++
				}
			}
			if found != len(kinds) {
				t.Fatalf("cut at %d, then every %d: found %d messages, want %d", first, step, found, len(kinds))
			}
		}
	}
}

func TestAnswersOutOfStep(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"magic":    append([]byte{7}, message("", "")[1:]...),
		"crc1":     {6, 66, 11, 1, 0, 0, 0, 0, 0, 0, 85, 168},
		"crc2":     {6, 66, 11, 1, 0, 0, 0, 0, 0, 0, 84, 169},
		"metadata": {6, 66, 11, 1, 255, 255, 255, 255, 0, 0, 83, 166},
		"dtype":    message("", "", "\x00\x10"),
		"code":     message("", "", "\x00\xff"),
		"rank":     message("", "", "\x41\x01"),
		"negative": message("", "", "\x01\x01\xff\xff\xff\xff"),
		"overflow": message("", "", "\x03\x01\x7f\xff\xff\xff\x7f\xff\xff\xff\x7f\xff\xff\xff"),
	} {
		var a answers
		if _, done, err := a.next(bytes); !errors.Is(err, errOutOfStep) || done {
			t.Errorf("%s: done %v, error %v, want it to be out of step", name, done, err)
		}
	}
}
