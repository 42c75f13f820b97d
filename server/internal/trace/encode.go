package trace

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of OTLP as far as spans need them. With the messages that OpenTelemetry publishes,
// which tests decode by, a request that is followed took four times as long: each attribute of a
// span is three of them.
//
// Source: opentelemetry-proto, collector/trace/v1, trace/v1, common/v1 and resource/v1.

// An attribute has a text, or a whole number.
type attribute struct {
	key    string
	text   string
	number int64
	whole  bool
}

func word(key, text string) attribute   { return attribute{key: key, text: text} }
func count(key string, n int) attribute { return attribute{key: key, number: int64(n), whole: true} }

// An encoder makes ExportTraceServiceRequests. Its buffers are used again.
type encoder struct {
	resource []byte // a Resource
	scope    []byte // ScopeSpans
	span     []byte
	part     []byte // of a span
	value    []byte // of an attribute
}

// newEncoder is for spans of a resource with these attributes.
func newEncoder(resource ...attribute) *encoder {
	e := &encoder{}
	for _, a := range resource {
		e.resource = field(e.resource, 1, e.attribute(a))
	}
	return e
}

// request is a batch as the collector gets it. It is a new one each time: an HTTP client that gives
// up may still read it.
func (e *encoder) request(batch []span) []byte {
	e.part = texted(e.part[:0], 1, "github.com/shivad/shivad")
	e.scope = field(e.scope[:0], 1, e.part)
	for i := range batch {
		e.encode(&batch[i])
		e.scope = field(e.scope, 2, e.span)
	}
	e.span = field(e.span[:0], 1, e.resource)
	e.span = field(e.span, 2, e.scope)
	return field(nil, 1, e.span)
}

// encode leaves a span in e.span.
func (e *encoder) encode(s *span) {
	b := field(e.span[:0], 1, s.trace[:])
	b = field(b, 2, s.id[:])
	if s.state != "" {
		b = texted(b, 3, s.state)
	}
	if s.parent != [8]byte{} {
		b = field(b, 4, s.parent[:])
	}
	b = texted(b, 5, s.name)
	b = number(b, 6, uint64(s.kind))
	start := s.start.UnixNano()
	b = protowire.AppendFixed64(protowire.AppendTag(b, 7, protowire.Fixed64Type), uint64(start))
	b = protowire.AppendFixed64(protowire.AppendTag(b, 8, protowire.Fixed64Type), uint64(max(s.end.UnixNano(), start)))
	for _, a := range s.attributes {
		b = field(b, 9, e.attribute(a))
	}
	for i := range s.links {
		e.part = field(field(e.part[:0], 1, s.links[i].Trace[:]), 2, s.links[i].Span[:])
		b = field(b, 13, e.part)
	}
	if s.fault != "" {
		const failed = 2
		e.part = number(texted(e.part[:0], 2, s.fault), 3, failed)
		b = field(b, 15, e.part)
	}
	e.span = b
}

// attribute is a KeyValue, until the next call.
func (e *encoder) attribute(a attribute) []byte {
	if a.whole {
		e.value = number(e.value[:0], 3, uint64(a.number))
	} else {
		e.value = texted(e.value[:0], 1, a.text)
	}
	e.part = field(texted(e.part[:0], 1, a.key), 2, e.value)
	return e.part
}

func field(b []byte, n protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), value)
}

// texted appends a text, which has to be UTF-8.
func texted(b []byte, n protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), strings.ToValidUTF8(text, "\uFFFD"))
}

func number(b []byte, n protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), value)
}
