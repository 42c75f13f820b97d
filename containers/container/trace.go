package container

import (
	"context"
	"reflect"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Trace returns the server's span of request i, in the form of W3C's traceparent; "" if the server
// does not trace that request.
func (b *Batch) Trace(i int) string {
	if len(b.header.Traces) == 0 {
		return ""
	}
	return string(b.header.Traces[i])
}

// TraceState returns the data of other tracing systems about request i, in the form of W3C's
// tracestate, for functions that send requests on its behalf; "" if there is none.
func (b *Batch) TraceState(i int) string {
	if len(b.header.States) == 0 {
		return ""
	}
	return string(b.header.States[i])
}

// startSpan begins a span for a batch with requests that the server traces: a child of the first,
// linked to the others. ctx carries it, so that spans which Predict makes are its children. The
// provider that the program has set with otel.SetTracerProvider decides whether it is exported:
// without a provider, ctx carries the server's span. The span is nil then, and if no request is
// traced.
func (b *Batch) startSpan(ctx context.Context) (context.Context, trace.Span) {
	provider := otel.GetTracerProvider()
	var parent trace.SpanContext
	var links []trace.Link
	for i := range b.header.Traces {
		if len(b.header.Traces[i]) == 0 {
			continue // not traced, like nearly all requests
		}
		c := b.spanContext(i)
		switch {
		case !c.IsValid():
		case !parent.IsValid():
			if parent = c; provider == unset {
				return trace.ContextWithRemoteSpanContext(ctx, parent), nil
			}
		default:
			links = append(links, trace.Link{SpanContext: c})
		}
	}
	if !parent.IsValid() {
		return ctx, nil
	}
	return provider.Tracer("github.com/shivad/shivad/containers/container").Start(
		trace.ContextWithRemoteSpanContext(ctx, parent), "predict "+b.model.Name,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithLinks(links...),
		trace.WithAttributes(attribute.String("shivad.model", b.model.Name),
			attribute.String("shivad.version", b.model.Version), attribute.Int("shivad.rows", b.Rows)))
}

// unset is OpenTelemetry's provider while the program has set none. Its spans are exported nowhere
// and cost ten times the rest. nil: the program had set a provider before this package was
// initialised.
var unset = func() trace.TracerProvider {
	if p := otel.GetTracerProvider(); reflect.TypeOf(p).String() == "*global.tracerProvider" {
		return p
	}
	return nil
}()

// spanContext returns the server's span of request i; not valid: there is none. OpenTelemetry's
// propagator takes five times as long, and no server sends any other form.
func (b *Batch) spanContext(i int) trace.SpanContext {
	const form = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	parent := b.header.Traces[i]
	if len(parent) != len(form) || string(parent[:3]) != form[:3] || parent[35] != '-' ||
		string(parent[52:]) != form[52:] {
		return trace.SpanContext{}
	}
	id, wrong := trace.TraceIDFromHex(string(parent[3:35]))
	span, alsoWrong := trace.SpanIDFromHex(string(parent[36:52]))
	if wrong != nil || alsoWrong != nil {
		return trace.SpanContext{}
	}
	c := trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.FlagsSampled, Remote: true}
	if state := b.TraceState(i); state != "" {
		c.TraceState, _ = trace.ParseTraceState(state) // a fault in it does not affect the rest
	}
	return trace.NewSpanContext(c)
}

// ended ends the span of a batch.
func ended(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
