package trace

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/shivad/shivad/scheduler"
)

// A Context names a span for others, as W3C's traceparent does. The zero Context names none.
type Context struct {
	scheduler.Parent
	Sampled bool // its trace is followed
}

// Header is the name of a traceparent, as HTTP header, as metadata of gRPC, and as a request's
// parameter.
const Header = "traceparent"

// StateHeader is likewise that of a tracestate, which comes with a traceparent: what other systems
// of tracing keep of the trace, and is passed on as it came.
const StateHeader = "tracestate"

// The bounds of a tracestate.
const (
	stateMembers = 32  // one with more is none
	stateSize    = 512 // bytes that are passed on; the standard wants at least these
	memberSize   = 128 // bytes of a member; a larger one is the first to go
)

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
	_, err := hex.Decode(to, []byte(text))
	return err == nil && !strings.ContainsAny(text, "ABCDEF")
}

// String is the traceparent.
func (c Context) String() string {
	b := c.Append(make([]byte, 0, parentSize))
	if !c.Sampled {
		b[parentSize-1] = '0'
	}
	return string(b)
}

// state is a tracestate as it is passed on. One that is no valid one is as if it were not there; of
// one that is too long, whole members are left out: the large ones, and then the last.
func state(text string) string {
	var members []string
	size := -1 // with a comma for each member but one
	for member := range strings.SplitSeq(text, ",") {
		if member = strings.Trim(member, " \t"); member == "" {
			continue // the standard has them
		}
		key, value, _ := strings.Cut(member, "=")
		twice := slices.ContainsFunc(members, func(m string) bool { return strings.HasPrefix(m, key+"=") })
		if !stateKey(key) || !stateValue(value) || twice || len(members) == stateMembers {
			return ""
		}
		members = append(members, member)
		size += len(member) + 1
	}
	for i := len(members) - 1; i >= 0 && size > stateSize; i-- {
		if len(members[i]) > memberSize {
			size -= len(members[i]) + 1
			members = slices.Delete(members, i, i+1)
		}
	}
	for size > stateSize {
		last := len(members) - 1
		size -= len(members[last]) + 1
		members = members[:last]
	}
	return strings.Clone(strings.Join(members, ",")) // it outlives its message
}

// stateKey reports whether a text may be the key of a member: "vendor", or "tenant@vendor".
func stateKey(text string) bool {
	const most = 256
	tenant, system, several := strings.Cut(text, "@")
	word := func(s string) bool {
		const marks = "_-*/"
		return s != "" && strings.IndexByte(marks, s[0]) < 0 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789"+marks) == ""
	}
	return len(text) <= most && word(tenant) && (!several || word(system))
}

// stateValue reports whether a text may be the value of a member.
func stateValue(text string) bool {
	const most = 256
	return text != "" && len(text) <= most && !strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' || c == '=' })
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
