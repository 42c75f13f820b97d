package trace

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// A Tracer decides which requests are followed, and sends what was seen of them to a collector. A
// nil Tracer follows none.
type Tracer struct {
	oneIn    atomic.Int64
	exporter *exporter
}

// Follow has one of so many requests without a parent followed; 0: none.
func (t *Tracer) Follow(oneIn int) {
	if t != nil {
		t.oneIn.Store(int64(oneIn))
	}
}

// OneIn is what Follow was told last; of a nil Tracer it is 0.
func (t *Tracer) OneIn() int {
	if t == nil {
		return 0
	}
	return int(t.oneIn.Load())
}

// Begin follows a request that arrived by a door, or returns nil. Its parent decides, if it has
// one, and otherwise chance. The tracestate is that of the parent, as it came; "": it has none.
func (t *Tracer) Begin(parent Context, tracestate, door string, arrived time.Time) *Trace {
	if t == nil {
		return nil
	}
	if parent.Span == [8]byte{} {
		oneIn := t.oneIn.Load()
		if parent.Sampled = oneIn > 0 && rand.Int64N(oneIn) == 0; parent.Sampled {
			parent.Trace, tracestate = newTraceID(), ""
		}
	}
	if !parent.Sampled {
		return nil
	}
	return &Trace{tracer: t, id: parent.Trace, state: state(tracestate), parent: parent.Span, root: newSpanID(), door: door, arrived: arrived}
}

// Counts are the spans that the collector has taken, and those that were dropped as the queue was
// full or the collector refused them.
func (t *Tracer) Counts() (exported, dropped uint64) {
	return t.exporter.exported.Load(), t.exporter.dropped.Load()
}

// Close sends what is left, as far as the collector takes it at once, and stops.
func (t *Tracer) Close() {
	if t != nil {
		t.exporter.close()
	}
}

// A Trace is a request that is followed, from its arrival to End.
type Trace struct {
	// Set once.
	tracer  *Tracer
	id      [16]byte
	state   string  // the trace's, which others keep
	parent  [8]byte // the client's span; zero: it has none
	root    [8]byte
	door    string
	arrived time.Time

	mu        sync.Mutex
	submitted time.Time // the first of its asks; zero: none was
	answered  time.Time // the last time that an answer was known
	ended     bool
}

// Submitted notes that what the request asks is handed over.
func (t *Trace) Submitted(now time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.submitted.IsZero() {
		t.submitted = now
	}
}

// Answered notes that the answer is known. What an application's shadows answer after End is not
// the request's any more.
func (t *Trace) Answered() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.answered = time.Now()
	}
}

// End ends a request whose answer has been written, or given up. name is whom it asked, outcome how
// it ended in the words of the metrics, and err why it has no result.
func (t *Trace) End(name, outcome string, err error) {
	if t == nil {
		return
	}
	now := time.Now()
	t.mu.Lock()
	t.ended = true
	submitted, answered := t.submitted, t.answered
	t.mu.Unlock()
	door := now
	if !submitted.IsZero() {
		door = submitted
	}
	spans := []span{
		{id: t.root, parent: t.parent, name: "infer " + name, kind: kindServer, start: t.arrived, end: now, fault: fault(err),
			attributes: []attribute{word("shivad.door", t.door), word("shivad.model", name), word("shivad.outcome", outcome)}},
		{id: newSpanID(), parent: t.root, name: "door", kind: kindInternal, start: t.arrived, end: door},
	}
	if !submitted.IsZero() && !answered.IsZero() {
		spans = append(spans, span{id: newSpanID(), parent: t.root, name: "answer", kind: kindInternal, start: answered, end: now})
	}
	t.send(spans)
}

func (t *Trace) send(spans []span) {
	for i := range spans {
		spans[i].trace, spans[i].state = t.id, t.state
	}
	t.tracer.exporter.add(spans)
}

// An Ask is the way of a followed request through one model.
type Ask struct {
	scheduler.Trace
	of        *Trace
	model     scheduler.ModelID
	container [8]byte // the span
	submitted time.Time
}

// Ask begins the way through a model, which ends with Done.
func (t *Trace) Ask(model scheduler.ModelID) *Ask {
	if t == nil {
		return nil
	}
	a := &Ask{of: t, model: model, container: newSpanID()}
	a.Parent, a.State = Context{Trace: t.id, Span: a.container, Sampled: true}.String(), t.state
	return a
}

// Submitted notes that the model is asked now.
func (a *Ask) Submitted(now time.Time) {
	if a != nil {
		a.submitted = now
		a.of.Submitted(now)
	}
}

// Done ends it, with the scheduler's answer.
func (a *Ask) Done(r *scheduler.Request) {
	if a == nil {
		return
	}
	now := time.Now()
	model := []attribute{word("shivad.model", a.model.Name), word("shivad.version", a.model.Version)}
	one := span{id: newSpanID(), parent: a.of.root, name: "queue", kind: kindInternal, start: a.submitted, end: now, attributes: model}
	switch {
	case !a.Sent && r.Err == nil:
		one.name = "cache"
		a.of.send([]span{one})
	case !a.Sent:
		one.fault = fault(r.Err)
		a.of.send([]span{one})
	default:
		one.end = a.submitted.Add(r.Timing.Queue)
		one.attributes = append(one.attributes, word("shivad.batch.reason", a.Reason.String()), count("shivad.batch.rows", a.BatchRows))
		for _, other := range a.Batch {
			if c, ok := Parse(other); ok && other != a.Parent {
				one.links = append(one.links, c)
			}
		}
		a.of.send([]span{one, {
			id: a.container, parent: a.of.root, name: "container", kind: kindClient, start: one.end, end: now, fault: fault(r.Err),
			attributes: append(model[:len(model):len(model)], word("shivad.replica", a.Replica), count("shivad.rows", r.Rows)),
		}})
	}
}

// fault is an error as a span tells it, "" of none.
func fault(err error) string {
	if err == nil {
		return ""
	}
	const most = 1 << 10
	text := err.Error()
	return text[:min(len(text), most)]
}
