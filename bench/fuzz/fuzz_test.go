package main

import (
	"errors"
	"strings"
	"testing"
)

// TestDecode: a part of the command's work, without sockets, with the same checks except that of
// time.
func TestDecode(t *testing.T) {
	for name, begin := range map[string]func(uint64) (streams, error){"shiva": newShivaStreams, "zmtp": newZMTPStreams} {
		s, err := begin(7)
		if err != nil {
			t.Fatal(err)
		}
		var all stream
		for range 2000 {
			got, err := s.one()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			all.add(got)
		}
		if all.messages < all.frames/20 || all.faults < 200 {
			t.Errorf("%s: of %d frames %d messages and %d faults, expected frames that are nearly right", name, all.frames, all.messages, all.faults)
		}
	}
}

// broken streams fail, or take more memory than they may.
type broken struct {
	err  error
	take int
	kept []byte
}

func (b *broken) one() (stream, error) {
	b.kept = make([]byte, b.take)
	return stream{frames: 1, bytes: 1}, b.err
}

// TestFaults: a wrongly decoded stream is an error, and so are allocations beyond the limit.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		broken
		says string
	}{
		{broken{take: perStream / 2}, ""},
		{broken{err: errors.New("held")}, "x: held"},
		{broken{take: 2 * perStream}, "allocated"},
	} {
		err := decode(t.Context(), "x", 1000, 1, func(uint64) (streams, error) { b := c.broken; return &b, nil })
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, expected %q", err, c.says)
		}
	}
}
