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
		scope:    field(nil, 1, texted(nil, 1, "github.com/shivad/shivad")),
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
	b := append(p.bytes, tagged(2))
	at = len(b)
	b = append(append(b, tagged(1), byte(len(r.id))), r.id[:]...)
	b = append(append(b, tagged(2), byte(len(s.id))), s.id[:]...)
	if r.state != "" {
		b = texted(b, 3, r.state)
	}
	if s.parent != [8]byte{} {
		b = append(append(b, tagged(4), byte(len(s.parent))), s.parent[:]...)
	}
	of := strings.ToValidUTF8(s.of, "\uFFFD")
	b = append(append(opened(b, 5, len(s.name)+len(of)), s.name...), of...)
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
	b := p.keyed(n, key, taken(len(text)))
	p.bytes = append(opened(b, 1, len(text)), text...)
}

// count adds an attribute with a number to a span.
func (p *page) count(key string, value int) {
	b := p.keyed(attribute, key, 1+protowire.SizeVarint(uint64(value)))
	p.bytes = number(b, 3, uint64(value))
}

// keyed begins an attribute whose value takes size bytes.
func (p *page) keyed(n protowire.Number, key string, size int) []byte {
	b := opened(p.bytes, n, taken(len(key))+taken(size))
	b = append(opened(b, 1, len(key)), key...)
	return opened(b, 2, size)
}

// link links a span to another.
func (p *page) link(c *scheduler.Parent) {
	b := append(p.bytes, tagged(13), byte(2+len(c.Trace)+2+len(c.Span)))
	b = append(append(b, tagged(1), byte(len(c.Trace))), c.Trace[:]...)
	p.bytes = append(append(b, tagged(2), byte(len(c.Span))), c.Span[:]...)
}

// end ends the span that began at that offset, with the text of its error, or "".
func (p *page) end(at int, fault string) {
	if fault != "" {
		const failed = 2
		b := protowire.AppendTag(p.bytes, 15, protowire.BytesType)
		status := len(b)
		p.bytes = number(texted(b, 2, fault), 3, failed)
		p.sized(status)
	}
	p.sized(at)
	p.spans++
}

// sized inserts, at an offset, the length of the bytes from there on.
func (p *page) sized(at int) {
	size := len(p.bytes) - at
	var room [10]byte
	length := protowire.AppendVarint(room[:0], uint64(size))
	p.bytes = append(p.bytes, length...)
	copy(p.bytes[at+len(length):], p.bytes[at:at+size])
	copy(p.bytes[at:], length)
}

// tagged returns the tag of a field with a length.
func tagged(n protowire.Number) byte { return byte(n)<<3 | byte(protowire.BytesType) }

// opened appends the tag and the length of a field of size bytes.
func opened(b []byte, n protowire.Number, size int) []byte {
	if size < 1<<7 {
		return append(b, tagged(n), byte(size))
	}
	return protowire.AppendVarint(append(b, tagged(n)), uint64(size))
}

// taken returns the encoded size of a field of size bytes.
func taken(size int) int {
	if size < 1<<7 {
		return 1 + 1 + size
	}
	return 1 + protowire.SizeBytes(size)
}

func field(b []byte, n protowire.Number, value []byte) []byte {
	return append(opened(b, n, len(value)), value...)
}

// texted appends a text as valid UTF-8.
func texted(b []byte, n protowire.Number, text string) []byte {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return append(opened(b, n, len(text)), text...)
}

func number(b []byte, n protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(append(b, byte(n)<<3|byte(protowire.VarintType)), value)
}
