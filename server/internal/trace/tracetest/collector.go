// Package tracetest has an OpenTelemetry collector for tests.
package tracetest

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A Collector receives spans as OTLP over HTTP.
type Collector struct {
	URL string

	mu    sync.Mutex
	spans []Span
}

// A Span is a received span.
type Span struct {
	Trace, ID, Parent string // in hexadecimal; Parent may be ""
	State             string // tracestate
	Name              string
	Kind              string // SERVER, CLIENT or INTERNAL
	Start, End        time.Time
	Attributes        map[string]any // string or int64
	Links             []string       // ids of spans
	Fault             string
}

// New starts a collector, which ends with the test.
func New(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// ServeHTTP receives spans.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request collectorpb.ExportTraceServiceRequest
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" ||
		proto.Unmarshal(body, &request) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, read(s))
			}
		}
	}
}

func read(s *tracepb.Span) Span {
	out := Span{
		Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId),
		Parent: hex.EncodeToString(s.ParentSpanId),
		State:  s.TraceState, Name: s.Name, Kind: strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_"),
		Start: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)),
		Attributes: map[string]any{},
	}
	for _, a := range s.Attributes {
		if text := a.Value.GetStringValue(); text != "" {
			out.Attributes[a.Key] = text
		} else {
			out.Attributes[a.Key] = a.Value.GetIntValue()
		}
	}
	for _, l := range s.Links {
		out.Links = append(out.Links, hex.EncodeToString(l.SpanId))
	}
	if s.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR {
		out.Fault = s.Status.Message
	}
	return out
}

// Spans returns the spans of a trace received so far, by their beginnings; for "" all spans.
func (c *Collector) Spans(trace string) (spans []Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if trace == "" || s.Trace == trace {
			spans = append(spans, s)
		}
	}
	slices.SortStableFunc(spans, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return spans
}
