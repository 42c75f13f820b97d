package container

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/shiva/tensor"
)

// A recorder is a provider of OpenTelemetry that records the spans made with it.
type recorder struct {
	noop.TracerProvider
	spans []*span
}

type span struct {
	noop.Span
	name   string
	parent trace.SpanContext
	links  []trace.Link
	fault  string
	ended  bool
}

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{r: r} }

type tracer struct {
	noop.Tracer
	r *recorder
}

func (t tracer) Start(ctx context.Context, name string,
	options ...trace.SpanStartOption) (context.Context, trace.Span) {
	config := trace.NewSpanStartConfig(options...)
	s := &span{name: name, parent: trace.SpanContextFromContext(ctx), links: config.Links()}
	t.r.spans = append(t.r.spans, s)
	return trace.ContextWithSpan(ctx, s), s
}

func (s *span) SetStatus(code codes.Code, description string) {
	if code == codes.Error {
		s.fault = description
	}
}

func (s *span) End(...trace.SpanEndOption) { s.ended = true }

// TestFewAreFollowed: the cost of a batch depends on its traced requests, and not on the others.
func TestFewAreFollowed(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	b := &Batch{model: &Model{Name: "m", Version: "1"}, Rows: 1}
	allocations := func(requests int) float64 {
		b.header.Traces = make([][]byte, requests)
		b.header.Traces[0] = []byte(parent)
		return testing.AllocsPerRun(100, func() {
			_, span := b.startSpan(t.Context())
			ended(span, nil)
		})
	}
	if one, many := allocations(1), allocations(256); many > one {
		t.Errorf("%v allocations for one of 256 requests, and %v for one of one", many, one)
	}
	if ctx, span := b.startSpan(t.Context()); trace.SpanContextFromContext(ctx).SpanID().String() != "b7ad6b7169203331" ||
		unset == otel.GetTracerProvider() && span != nil {
		t.Errorf("the context has the span %+v, and the batch %+v", trace.SpanContextFromContext(ctx), span)
	}
}

// TestTracesGoOn: the server's spans continue here: the batch's span is a child of the first and
// linked to the others, and Predict's context carries it. Requests that are not traced have none.
func TestTracesGoOn(t *testing.T) {
	const one, other = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203332-01"
	r := &recorder{}
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(r)
	defer otel.SetTracerProvider(before)
	var within trace.Span
	var fault error
	m := &Model{Name: "m", Version: "1", Predict: func(ctx context.Context, b *Batch) ([]tensor.Tensor, error) {
		within = trace.SpanFromContext(ctx)
		if fault == nil && b.Rows == 7 {
			panic("a bug")
		}
		return nil, fault
	}}
	b := &Batch{model: m, Rows: 3}
	ask := func(traces ...string) {
		b.header = wire.BatchHeader{}
		for _, parent := range traces {
			b.header.Traces = append(b.header.Traces, []byte(parent))
		}
		_, _ = m.call(t.Context(), b, slog.New(slog.DiscardHandler))
	}
	ask()
	ask("", "rubbish")
	if len(r.spans) > 0 || b.Trace(0) != "" || b.Trace(1) != "rubbish" {
		t.Errorf("nobody is followed, and there are the spans %+v", r.spans)
	}
	ask("", one, "", other)
	if len(r.spans) != 1 || b.Trace(1) != one {
		t.Fatalf("%d spans", len(r.spans))
	}
	s := r.spans[0]
	if s.parent.TraceState().String() != "" || b.TraceState(1) != "" {
		t.Errorf("the parent has the state %q, and there was none", s.parent.TraceState())
	}
	if s.name != "predict m" || s.parent.SpanID().String() != "b7ad6b7169203331" || !s.parent.IsRemote() ||
		!s.parent.IsSampled() || within != trace.Span(s) || !s.ended || s.fault != "" {
		t.Errorf("%+v; Predict's is %+v", s, within)
	}
	if !slices.ContainsFunc(s.links, func(l trace.Link) bool { return l.SpanContext.SpanID().String() == "b7ad6b7169203332" }) ||
		len(s.links) != 1 {
		t.Errorf("links %+v", s.links)
	}
	fault = errors.New("no kernel image")
	ask(one)
	fault, b.Rows = nil, 7
	ask(one)
	if r.spans[1].fault != "no kernel image" || r.spans[2].fault != "panic: a bug" || !r.spans[2].ended {
		t.Errorf("faults %q and %q", r.spans[1].fault, r.spans[2].fault)
	}
	b.Rows = 2
	b.header = wire.BatchHeader{Traces: [][]byte{[]byte(one), []byte(other)}, States: [][]byte{[]byte("rojo=00f067aa0ba902b7,congo=t61"), nil}}
	_, _ = m.call(t.Context(), b, slog.New(slog.DiscardHandler))
	if s := r.spans[3]; s.parent.TraceState().String() != b.TraceState(0) ||
		b.TraceState(0) != "rojo=00f067aa0ba902b7,congo=t61" || s.links[0].SpanContext.TraceState().Len() != 0 {
		t.Errorf("the parent has the state %q, and its link %+v", s.parent.TraceState(), s.links)
	}
}
