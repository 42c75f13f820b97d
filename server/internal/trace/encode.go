package trace

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shivad/shivad/scheduler"
)

// The OTLP messages that spans need, encoded directly into the memory that is sent. With the
// message types that OpenTelemetry publishes, which the tests use to decode, a traced request took
// four times as long: each attribute of a span is three messages. All fields have numbers below 16,
// so that a tag is one byte, and nearly all lengths take one byte, too: with protowire's functions,
// which compute the size of each, encoding took twice as long.
//
// Source: opentelemetry-proto, collector/trace/v1, trace/v1, common/v1 and resource/v1.

// A page holds the spans of one request to the collector: those of a ScopeSpans, after room for the
// head.
type page struct {
	bytes []byte
	spans int
}

// A head precedes the spans of a page: an ExportTraceServiceRequest with one ResourceSpans with one
// ScopeSpans, which has the spans. It includes the lengths of these messages.
type head struct {
	resource, scope []byte // fields of the two
	room            int    // that the head needs at most
}

// newHead returns the head for spans of this version of the server.
func newHead(version string) head {
	var service page
	service.word(1, "service.name", "shivad")
	service.word(1, "service.version", version)
	h := head{
		resource: field(nil, 1, service.bytes),
		scope:    field(nil, 1, appendText(nil, 1, "github.com/shivad/shivad")),
	}
	const lengths = 2 * (1 + 10) // varints with their tags
	h.room = len(h.resource) + len(h.scope) + lengths
	return h
}

// request completes a page and returns the bytes to send, in the page's memory.
func (h *head) request(p *page) []byte {
	spans := len(h.scope) + len(p.bytes) - h.room
	b := make([]byte, 0, 256)
	b = protowire.AppendVarint(protowire.AppendTag(append(b, h.resource...), 2, protowire.BytesType), uint64(spans))
	resource := len(b) + spans
	outer := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), uint64(resource))
	at := h.room - len(outer) - len(b) - len(h.scope)
	copy(p.bytes[at:], outer)
	copy(p.bytes[at+len(outer):], b)
	copy(p.bytes[h.room-len(h.scope):], h.scope)
	return p.bytes[at:]
}

// A span is a part of a request's path. Its name has two parts; the second may be "".
type span struct {
	id, parent [8]byte
	kind       kind
	name, of   string
	start, end int64 // UnixNano
}

// A kind is the role of a span, in OTLP's numbering.
type kind int32

const (
	kindInternal kind = iota + 1
	kindServer
	kindClient
)

// begin adds a span of a trace. Its attributes and links may follow; end must follow.
func (p *page) begin(r *record, s *span) (at int) {
	b := append(p.bytes, lengthTag(2))
	at = len(b)
	b = append(append(b, lengthTag(1), byte(len(r.id))), r.id[:]...)
	b = append(append(b, lengthTag(2), byte(len(s.id))), s.id[:]...)
	if r.state != "" {
		b = appendText(b, 3, r.state)
	}
	if s.parent != [8]byte{} {
		b = append(append(b, lengthTag(4), byte(len(s.parent))), s.parent[:]...)
	}
	of := strings.ToValidUTF8(s.of, "\uFFFD")
	b = append(append(appendPrefix(b, 5, len(s.name)+len(of)), s.name...), of...)
	b = append(b, 6<<3|byte(protowire.VarintType), byte(s.kind), 7<<3|byte(protowire.Fixed64Type))
	b = append(protowire.AppendFixed64(b, uint64(s.start)), 8<<3|byte(protowire.Fixed64Type))
	p.bytes = protowire.AppendFixed64(b, uint64(max(s.end, s.start)))
	return at
}

// The field of a span's attributes.
const attribute protowire.Number = 9

// word adds an attribute with a text to the field of that number: a KeyValue, whose value is an
// AnyValue.
func (p *page) word(n protowire.Number, key, text string) {
	text = strings.ToValidUTF8(text, "\uFFFD")
	b := p.beginAttribute(n, key, fieldSize(len(text)))
	p.bytes = append(appendPrefix(b, 1, len(text)), text...)
}

// count adds an attribute with a number to a span.
func (p *page) count(key string, value int) {
	b := p.beginAttribute(attribute, key, 1+protowire.SizeVarint(uint64(value)))
	p.bytes = number(b, 3, uint64(value))
}

// beginAttribute begins an attribute whose value takes size bytes.
func (p *page) beginAttribute(n protowire.Number, key string, size int) []byte {
	b := appendPrefix(p.bytes, n, fieldSize(len(key))+fieldSize(size))
	b = append(appendPrefix(b, 1, len(key)), key...)
	return appendPrefix(b, 2, size)
}

// link links a span to another.
func (p *page) link(c *scheduler.Parent) {
	b := append(p.bytes, lengthTag(13), byte(2+len(c.Trace)+2+len(c.Span)))
	b = append(append(b, lengthTag(1), byte(len(c.Trace))), c.Trace[:]...)
	p.bytes = append(append(b, lengthTag(2), byte(len(c.Span))), c.Span[:]...)
}

// end ends the span that began at that offset, with the text of its error, or "".
func (p *page) end(at int, fault string) {
	if fault != "" {
		const failed = 2
		b := protowire.AppendTag(p.bytes, 15, protowire.BytesType)
		status := len(b)
		p.bytes = number(appendText(b, 2, fault), 3, failed)
		p.insertLength(status)
	}
	p.insertLength(at)
	p.spans++
}

// insertLength inserts, at an offset, the length of the bytes from there on.
func (p *page) insertLength(at int) {
	size := len(p.bytes) - at
	var room [10]byte
	length := protowire.AppendVarint(room[:0], uint64(size))
	p.bytes = append(p.bytes, length...)
	copy(p.bytes[at+len(length):], p.bytes[at:at+size])
	copy(p.bytes[at:], length)
}

// lengthTag returns the tag of a field with a length.
func lengthTag(n protowire.Number) byte { return byte(n)<<3 | byte(protowire.BytesType) }

// appendPrefix appends the tag and the length of a field of size bytes.
func appendPrefix(b []byte, n protowire.Number, size int) []byte {
	if size < 1<<7 {
		return append(b, lengthTag(n), byte(size))
	}
	return protowire.AppendVarint(append(b, lengthTag(n)), uint64(size))
}

// taken returns the encoded size of a field of size bytes.
func fieldSize(size int) int {
	if size < 1<<7 {
		return 1 + 1 + size
	}
	return 1 + protowire.SizeBytes(size)
}

func field(b []byte, n protowire.Number, value []byte) []byte {
	return append(appendPrefix(b, n, len(value)), value...)
}

// appendText appends a text as valid UTF-8.
func appendText(b []byte, n protowire.Number, text string) []byte {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return append(appendPrefix(b, n, len(text)), text...)
}

func number(b []byte, n protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(append(b, byte(n)<<3|byte(protowire.VarintType)), value)
}
