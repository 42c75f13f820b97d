package trace

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// A Context names a span for others, as W3C's traceparent does. The zero Context names none.
type Context struct {
	Trace   [16]byte
	Span    [8]byte
	Sampled bool // its trace is followed
}

// Header is the name of a traceparent, as HTTP header, as metadata of gRPC, and as a request's
// parameter.
const Header = "traceparent"

// parentSize is the length of a traceparent: version, trace, span and flags in hexadecimal.
const parentSize = len("00-") + 32 + len("-") + 16 + len("-00")

// Parse reads a traceparent. One that is no valid one names no span, as if it were not there: so
// the standard wants it. Of later versions it reads what they have in common with the first.
func Parse(text string) (c Context, ok bool) {
	if len(text) < parentSize || len(text) > parentSize && (text[:2] == "00" || text[parentSize] != '-') ||
		text[2] != '-' || text[35] != '-' || text[52] != '-' || text[:2] == "ff" {
		return Context{}, false
	}
	var version, flags [1]byte
	if !unhex(version[:], text[:2]) || !unhex(c.Trace[:], text[3:35]) || !unhex(c.Span[:], text[36:52]) || !unhex(flags[:], text[53:55]) ||
		c.Trace == [16]byte{} || c.Span == [8]byte{} {
		return Context{}, false
	}
	c.Sampled = flags[0]&1 != 0
	return c, true
}

// unhex decodes lower-case hexadecimal: the standard has no other.
func unhex(to []byte, text string) bool {
	for i := range to {
		high, low := digit(text[2*i]), digit(text[2*i+1])
		if high > 15 || low > 15 {
			return false
		}
		to[i] = high<<4 | low
	}
	return true
}

func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

// String is the traceparent.
func (c Context) String() string {
	b := make([]byte, 0, parentSize)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, c.Trace[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, c.Span[:])
	if c.Sampled {
		return string(append(b, "-01"...))
	}
	return string(append(b, "-00"...))
}

func newTraceID() (id [16]byte) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()|1) // all zeros are none
	return id
}

func newSpanID() (id [8]byte) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}
