package trace

import (
	"math"
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

// A Gap counts down the requests that are not followed until the next one that is, for a goroutine
// to which they come one after the other. It is drawn when one is followed: a random number for
// each request costs ten times as much. The zero Gap is ready for use.
type Gap struct {
	oneIn int64 // for which it was drawn
	left  int64
}

// passed counts a request, and reports whether it is followed.
func (g *Gap) passed(oneIn int64) bool {
	if oneIn <= 0 {
		return false
	}
	if g.oneIn != oneIn {
		g.oneIn, g.left = oneIn, gap(oneIn)
	}
	if g.left--; g.left >= 0 {
		return false
	}
	g.left = gap(oneIn)
	return true
}

// gap draws how many requests are not followed before the next one is, if each of them is with a
// probability of one in so many.
func gap(oneIn int64) int64 {
	if oneIn == 1 {
		return 0
	}
	const most = 1 << 62
	return int64(min(math.Log(1-rand.Float64())/math.Log1p(-1/float64(oneIn)), most))
}

// Begin follows a request that arrived by a door, or returns nil. Its parent decides, if it has
// one, and otherwise chance. The tracestate is that of the parent, as it came; "": it has none. The
// gap is the caller's; nil: its requests come from many goroutines.
func (t *Tracer) Begin(parent *Context, tracestate, door string, arrived time.Time, g *Gap) *Trace {
	switch {
	case t == nil:
		return nil
	case parent.Span != [8]byte{}:
		if !parent.Sampled {
			return nil
		}
	case g != nil:
		if !g.passed(t.oneIn.Load()) {
			return nil
		}
	default:
		if oneIn := t.oneIn.Load(); oneIn <= 0 || rand.Int64N(oneIn) != 0 {
			return nil
		}
	}
	return t.begin(parent, tracestate, door, arrived)
}

func (t *Tracer) begin(parent *Context, tracestate, door string, arrived time.Time) *Trace {
	f := traces.Get().(*Trace)
	f.tracer, f.root, f.door, f.arrived = t, newSpanID(), door, arrived.UnixNano()
	if parent.Span == [8]byte{} {
		f.id = newTraceID()
	} else {
		f.id, f.parent, f.state = parent.Trace, parent.Span, state(tracestate)
	}
	return f
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

// A Trace is a request that is followed, from its arrival to End. On the request's way only times
// are noted. Spans are made of them later and of many requests at once (see write): the same code
// takes several times as long where it runs for one in a hundred, and the caches have lost it.
//
// Times are UnixNano; 0: not yet.
type Trace struct {
	// Set once.
	tracer  *Tracer
	id      [16]byte
	state   string  // the trace's, which others keep
	parent  [8]byte // the client's span; zero: it has none
	root    [8]byte
	door    string
	arrived int64

	mu        sync.Mutex
	submitted int64 // the first of its asks
	answered  int64 // the last time that an answer was known
	ended     int64
	first     Ask // most requests have one
	asked     bool
	more      []*Ask

	// Set by End.
	name, outcome string
	fault         string // "": none
}

// Submitted notes that what the request asks is handed over.
func (t *Trace) Submitted(now time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.submitted == 0 {
		t.submitted = now.UnixNano()
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
	if t.ended == 0 {
		t.answered = time.Now().UnixNano()
	}
}

// End ends a request whose answer has been written, or given up. name is whom it asked, outcome how
// it ended in the words of the metrics, and err why it has no result.
func (t *Trace) End(name, outcome string, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.ended = time.Now().UnixNano()
	t.name, t.outcome, t.fault = name, outcome, fault(err)
	spans := 2
	if t.submitted != 0 && t.answered != 0 {
		spans++
	}
	for a := range t.asks {
		if a.told = a.done != 0; a.told {
			spans += a.spans()
		}
	}
	t.mu.Unlock()
	t.tracer.exporter.add(t, spans)
}

// asks are those of the request, under the lock or after End.
func (t *Trace) asks(yield func(*Ask) bool) {
	if !t.asked || !yield(&t.first) {
		return
	}
	for _, a := range t.more {
		if !yield(a) {
			return
		}
	}
}

// traces are those whose spans have been written. New memory for each would be cold.
var traces = sync.Pool{New: func() any { return new(Trace) }}

// recycle gives the memory to another request, unless an application asks models that have not
// answered.
func (t *Trace) recycle() {
	if len(t.more) == 0 && t.asked == t.first.told {
		*t = Trace{}
		traces.Put(t)
	}
}

// write writes the spans of the request, and of those models that answered before its End.
func (t *Trace) write(p *page) {
	at := p.begin(t, &span{id: t.root, parent: t.parent, name: "infer ", of: t.name, kind: kindServer, start: t.arrived, end: t.ended})
	p.word(attribute, "shivad.door", t.door)
	p.word(attribute, "shivad.model", t.name)
	p.word(attribute, "shivad.outcome", t.outcome)
	p.end(at, t.fault)
	door := span{id: newSpanID(), parent: t.root, name: "door", kind: kindInternal, start: t.arrived, end: t.submitted}
	if t.submitted == 0 {
		door.end = t.ended
	}
	p.end(p.begin(t, &door), "")
	for a := range t.asks {
		if a.told {
			a.write(p)
		}
	}
	if t.submitted != 0 && t.answered != 0 {
		p.end(p.begin(t, &span{id: newSpanID(), parent: t.root, name: "answer", kind: kindInternal, start: t.answered, end: t.ended}), "")
	}
	t.recycle()
}

// An Ask is the way of a followed request through one model.
type Ask struct {
	scheduler.Trace
	of        *Trace
	model     scheduler.ModelID
	submitted int64

	// Set by Done, under the lock of the trace.
	done   int64
	queued time.Duration
	rows   int
	fault  string // "": none
	told   bool   // with the trace
}

// Ask begins the way through a model, which ends with Done.
func (t *Trace) Ask(model scheduler.ModelID) *Ask {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	a := &t.first
	if t.asked {
		a = new(Ask)
		t.more = append(t.more, a)
	}
	t.asked = true
	t.mu.Unlock()
	a.of, a.model = t, model
	a.Parent, a.State = scheduler.Parent{Trace: t.id, Span: newSpanID()}, t.state
	return a
}

// Submitted notes that the model is asked now.
func (a *Ask) Submitted(now time.Time) {
	if a != nil {
		a.submitted = now.UnixNano()
		a.of.Submitted(now)
	}
}

// Done ends it, with the scheduler's answer.
func (a *Ask) Done(r *scheduler.Request) {
	if a == nil {
		return
	}
	t := a.of
	t.mu.Lock()
	a.done, a.queued, a.rows, a.fault = time.Now().UnixNano(), r.Timing.Queue, r.Rows, fault(r.Err)
	late := t.ended != 0
	t.mu.Unlock()
	if late {
		t.tracer.exporter.add(a, a.spans())
	}
}

// spans is how many it has.
func (a *Ask) spans() int {
	if a.Sent {
		return 2
	}
	return 1
}

func (a *Ask) write(p *page) {
	one := span{id: newSpanID(), parent: a.of.root, name: "queue", kind: kindInternal, start: a.submitted, end: a.done}
	switch {
	case a.Sent:
		one.end = a.submitted + int64(a.queued)
	case a.fault == "":
		one.name = "cache"
	}
	at := p.begin(a.of, &one)
	a.attributes(p)
	if !a.Sent {
		p.end(at, a.fault)
		return
	}
	p.word(attribute, "shivad.batch.reason", a.Reason.String())
	p.count("shivad.batch.rows", a.BatchRows)
	for i := range a.Batch {
		if other := &a.Batch[i]; *other != a.Parent {
			p.link(other)
		}
	}
	p.end(at, "")
	at = p.begin(a.of, &span{id: a.Parent.Span, parent: a.of.root, name: "container", kind: kindClient, start: one.end, end: a.done})
	a.attributes(p)
	p.word(attribute, "shivad.replica", a.Replica)
	p.count("shivad.rows", a.rows)
	p.end(at, a.fault)
}

// attributes adds those of the model to a span.
func (a *Ask) attributes(p *page) {
	p.word(attribute, "shivad.model", a.model.Name)
	p.word(attribute, "shivad.version", a.model.Version)
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
