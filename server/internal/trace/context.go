package trace

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/shivad/shivad/scheduler"
)

// A Context identifies a span to other systems, as W3C's traceparent does. The zero Context
// identifies none.
type Context struct {
	scheduler.Parent
	Sampled bool // the span's trace is recorded
}

// Header is the name of a traceparent as HTTP header, as gRPC metadata, and as request parameter.
const Header = "traceparent"

// StateHeader is in the same way the name of a tracestate, which accompanies a traceparent. It
// holds data of other tracing systems about the trace and is passed on unchanged.
const StateHeader = "tracestate"

// The bounds of a tracestate.
const (
	stateMembers = 32  // a tracestate with more is invalid
	stateSize    = 512 // bytes that are passed on, the standard's minimum
	memberSize   = 128 // bytes of a member; larger members are dropped first
)

// parentSize is the length of a traceparent: version, trace, span and flags in hexadecimal.
const parentSize = len("00-") + 32 + len("-") + 16 + len("-00")

// Parse parses a traceparent. An invalid one counts as absent, as the standard requires. From later
// versions it reads the fields that they share with the first.
func Parse(text string) (c Context, ok bool) {
	if len(text) < parentSize || len(text) > parentSize && (text[:2] == "00" || text[parentSize] != '-') ||
		text[2] != '-' || text[35] != '-' || text[52] != '-' || text[:2] == "ff" {
		return Context{}, false
	}
	var version, flags [1]byte
	if !unhex(version[:], text[:2]) || !unhex(c.Trace[:], text[3:35]) || !unhex(c.Span[:], text[36:52]) ||
		!unhex(flags[:], text[53:55]) ||
		c.Trace == [16]byte{} || c.Span == [8]byte{} {
		return Context{}, false
	}
	c.Sampled = flags[0]&1 != 0
	return c, true
}

// unhex decodes lower-case hexadecimal: the standard allows no other.
func unhex(to []byte, text string) bool {
	_, err := hex.Decode(to, []byte(text))
	return err == nil && !strings.ContainsAny(text, "ABCDEF")
}

// String returns the traceparent.
func (c Context) String() string {
	b := c.Append(make([]byte, 0, parentSize))
	if !c.Sampled {
		b[parentSize-1] = '0'
	}
	return string(b)
}

// state returns a tracestate in the form that is passed on. An invalid one counts as absent. One
// that is too long loses whole members: first the large ones, then the last.
func state(text string) string {
	var members []string
	size := -1 // with a comma between members
	for member := range strings.SplitSeq(text, ",") {
		if member = strings.Trim(member, " \t"); member == "" {
			continue // the standard allows empty members
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
	return strings.Clone(strings.Join(members, ",")) // the clone outlives the message
}

// stateKey reports whether a text may be the key of a member: "vendor", or "tenant@vendor".
func stateKey(text string) bool {
	const most = 256
	tenant, system, several := strings.Cut(text, "@")
	word := func(s string) bool {
		const marks = "_-*/"
		return s != "" && strings.IndexByte(marks, s[0]) < 0 &&
			strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789"+marks) == ""
	}
	return len(text) <= most && word(tenant) && (!several || word(system))
}

// stateValue reports whether a text may be the value of a member.
func stateValue(text string) bool {
	const most = 256
	return text != "" && len(text) <= most &&
		!strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' || c == '=' })
}

func newTraceID() (id [16]byte) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()|1) // all zeros would be invalid
	return id
}

func newSpanID() (id [8]byte) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}
