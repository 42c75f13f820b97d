package container

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Trace returns the server's span of request i, in the form of W3C's traceparent; "" if the server
// does not follow that request.
func (b *Batch) Trace(i int) string {
	if len(b.header.Traces) == 0 {
		return ""
	}
	return string(b.header.Traces[i])
}

// TraceState returns what others keep of the trace of request i, in the form of W3C's tracestate,
// for functions that ask others on behalf of it; "" if that is nothing.
func (b *Batch) TraceState(i int) string {
	if len(b.header.States) == 0 {
		return ""
	}
	return string(b.header.States[i])
}

// follow begins a span for a batch with requests that the server follows: a child of the first,
// linked to the others. ctx carries it, so that spans which Predict makes are its children. Whether
// it goes anywhere is up to the provider that the program has set with otel.SetTracerProvider. The
// span is nil if no request is followed.
func (b *Batch) follow(ctx context.Context) (context.Context, trace.Span) {
	var parents []trace.SpanContext
	for i, parent := range b.header.Traces {
		carrier := propagation.MapCarrier{"traceparent": string(parent), "tracestate": b.TraceState(i)}
		if c := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier)); c.IsValid() {
			parents = append(parents, c)
		}
	}
	if parents == nil {
		return ctx, nil
	}
	links := make([]trace.Link, len(parents)-1)
	for i, c := range parents[1:] {
		links[i] = trace.Link{SpanContext: c}
	}
	return otel.Tracer("github.com/shivad/shivad/containers/container").Start(
		trace.ContextWithRemoteSpanContext(ctx, parents[0]), "predict "+b.model.Name, trace.WithSpanKind(trace.SpanKindServer), trace.WithLinks(links...),
		trace.WithAttributes(attribute.String("shivad.model", b.model.Name), attribute.String("shivad.version", b.model.Version), attribute.Int("shivad.rows", b.Rows)))
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
