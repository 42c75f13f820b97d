package trace

import (
	"cmp"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// A Tracer decides which requests are traced, and sends their spans to a collector. A nil Tracer
// traces none.
type Tracer struct {
	oneIn    atomic.Int64
	exporter *exporter
}

// Sample sets that one in oneIn requests without a parent is traced; 0: none.
func (t *Tracer) Sample(oneIn int) {
	if t != nil {
		t.oneIn.Store(int64(oneIn))
	}
}

// OneIn returns the last value that Follow was given; 0 for a nil Tracer.
func (t *Tracer) OneIn() int {
	if t == nil {
		return 0
	}
	return int(t.oneIn.Load())
}

// A Gap counts down the untraced requests until the next traced one, for a goroutine that handles
// requests one after the other. It is drawn at random when a request is traced: a random number for
// each request costs ten times as much. The zero Gap is ready for use.
type Gap struct {
	oneIn int64   // the rate that it was drawn for
	mean  float64 // of the exponential distribution that it was drawn from
	left  int64
}

// passes counts a request, and reports true if the request is not traced, which is the common case.
// It is short enough to be inlined; if it returns false, follows decides.
func (g *Gap) passes(oneIn int64) bool {
	if g.oneIn != oneIn || g.left == 0 {
		return false
	}
	g.left--
	return true
}

// follows handles the ends of a countdown: its beginning and its completion.
func (g *Gap) follows(oneIn int64) bool {
	if g.oneIn != oneIn || oneIn <= 0 {
		g.oneIn, g.mean = oneIn, -1/math.Log1p(-1/float64(oneIn))
		g.draw()
		if g.passes(oneIn) {
			return false
		}
	}
	g.draw()
	return true
}

// draw draws how many requests pass before the next traced one, if each is traced with a
// probability of one in oneIn; for 0 the number has no end.
func (g *Gap) draw() {
	const most = 1 << 62
	switch {
	case g.oneIn <= 0:
		g.left = most
	case g.oneIn == 1:
		g.left = 0
	default:
		g.left = int64(min(g.mean*-math.Log(1-rand.Float64()), most))
	}
}

// Begin starts the trace of a request that arrived at a door, or returns nil. The parent decides,
// if there is one; otherwise the choice is random. tracestate is the parent's, unchanged; "": none.
// g is the caller's Gap; nil: the caller's requests come from many goroutines.
func (t *Tracer) Begin(parent *Context, tracestate, door string, arrived time.Time, g *Gap) *Trace {
	if t == nil || parent.Span == [8]byte{} && g != nil && g.passes(t.oneIn.Load()) {
		return nil
	}
	return t.decide(parent, tracestate, door, arrived, g)
}

// decide is Begin for a request that may be traced.
func (t *Tracer) decide(parent *Context, tracestate, door string, arrived time.Time, g *Gap) *Trace {
	followed := parent.Sampled
	if parent.Span == [8]byte{} {
		if oneIn := t.oneIn.Load(); g != nil {
			followed = g.follows(oneIn)
		} else {
			followed = oneIn > 0 && rand.Int64N(oneIn) == 0
		}
	}
	if !followed {
		return nil
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

// Counts returns how many spans the collector has taken, and how many were dropped because the
// queue was full or the collector refused them.
func (t *Tracer) Counts() (exported, dropped uint64) {
	return t.exporter.exported.Load(), t.exporter.dropped.Load()
}

// Close sends the spans that are left, as far as the collector takes them at once, and stops.
func (t *Tracer) Close() {
	if t != nil {
		t.exporter.close()
	}
}

// A Trace is a traced request, from its arrival to End. While the request is served, only times are
// recorded. Spans are made from them later and for many requests at once: the same code takes
// several times as long if it runs for one request in a hundred and is no longer in the processor's
// caches. For the same reason End copies the record to the end of a list, and reuses the memory for
// another request.
type Trace struct {
	tracer *Tracer
	mu     sync.Mutex
	request
	model modelPath // the model that it asks; most requests ask one
	first Ask       // for model
	asked int       // number of models in all
	more  []*Ask
}

// A request is the record of a whole request. Times are UnixNano; 0: not yet, or never.
type request struct {
	id     [16]byte
	state  string  // the trace's tracestate
	parent [8]byte // the client's span; zero: none
	root   [8]byte

	door      string
	arrived   int64
	submitted int64 // when the first of its asks was submitted
	answered  int64 // when the latest answer was known
	ended     int64

	name, outcome string
	fault         string // "": none
}

// A record is the source of spans: those of a request, or of a model that answered after the
// request had ended.
type record struct {
	request
	late  bool         // only the model's spans
	model modelPath    // none if not done
	more  []*modelPath // further models
}

// modelPath is the record of a traced request's path through one model, or through a stage of a
// pipeline.
type modelPath struct {
	scheduler.Trace
	within    [8]byte // the span of the stage that asks; zero: none does
	stage     string  // its own name, if it is a stage; "": it is a model
	id        scheduler.ModelID
	submitted int64
	done      int64 // 0: no answer yet
	queued    time.Duration
	rows      int
	fault     string // "": none
}

// Submitted records that the request is submitted.
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

// Answered records that an answer is known, other than a model's (see [Ask.Done]). Answers after
// End, such as those of an application's shadows, no longer belong to the request.
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

// End ends a request whose answer has been written, or given up. name is the model or application
// that it asked, outcome how it ended in the terms of the metrics, and err why it has no result.
// From then on the Trace may belong to another request.
func (t *Trace) End(name, outcome string, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.ended = time.Now().UnixNano()
	t.name, t.outcome, t.fault = name, outcome, fault(err)
	var model *modelPath // an ask that is not done may still be written to
	if t.model.done != 0 {
		model = &t.model
	}
	var more []*modelPath
	for _, a := range t.more {
		if a.done != 0 {
			more = append(more, a.modelPath)
		}
	}
	t.tracer.exporter.add(&t.request, false, model, more)
	// Nothing can call the Trace any more if there is a result and the only model has answered. A
	// cancelled application may still call Answered.
	over := err == nil && t.asked == 1 && model != nil
	t.mu.Unlock()
	if over {
		*t = Trace{}
		traces.Put(t)
	}
}

// traces holds ended traces for reuse. New memory for each would be cold.
var traces = sync.Pool{New: func() any { return new(Trace) }}

// spans returns how many spans the record makes.
func (r *record) spans() (n int) {
	if !r.late {
		n = 2
		if r.submitted != 0 && r.answered != 0 {
			n++
		}
	}
	n += r.model.spans()
	for _, a := range r.more {
		n += a.spans()
	}
	return n
}

// write writes the record's spans.
func (r *record) write(p *page) {
	if !r.late {
		at := p.begin(r,
			&span{id: r.root, parent: r.parent, name: "infer ", of: r.name, kind: kindServer, start: r.arrived,
				end: r.ended})
		p.word(attribute, "shivad.door", r.door)
		p.word(attribute, "shivad.model", r.name)
		p.word(attribute, "shivad.outcome", r.outcome)
		p.end(at, r.fault)
		door := span{id: newSpanID(), parent: r.root, name: "door", kind: kindInternal, start: r.arrived,
			end: cmp.Or(r.submitted, r.ended)}
		p.end(p.begin(r, &door), "")
	}
	r.model.write(p, r)
	for _, a := range r.more {
		a.write(p, r)
	}
	if !r.late && r.submitted != 0 && r.answered != 0 {
		p.end(
			p.begin(r,
				&span{id: newSpanID(), parent: r.root, name: "answer", kind: kindInternal, start: r.answered,
					end: r.ended}), "")
	}
}

// An Ask is the path of a traced request through one model, or through a stage.
type Ask struct {
	*modelPath
	trace *Trace
}

// Ask begins the path through a model, which ends with Done.
func (t *Trace) Ask(model scheduler.ModelID) *Ask {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	a := &t.first
	if t.asked == 0 {
		a.modelPath = &t.model
	} else {
		a = &Ask{modelPath: new(modelPath)}
		t.more = append(t.more, a)
	}
	t.asked++
	t.mu.Unlock()
	a.trace, a.id = t, model
	a.Parent, a.State = scheduler.Parent{Trace: t.id, Span: newSpanID()}, t.state
	return a
}

// Stage begins the path through a stage of a pipeline, which ends with Ended. The inputs of the
// stage have been there since that time. within is the stage that asks the pipeline; nil: none.
func (t *Trace) Stage(name string, model scheduler.ModelID, since time.Time, within *Ask) *Ask {
	if t == nil {
		return nil
	}
	a := &Ask{trace: t, modelPath: &modelPath{id: model, stage: name, submitted: since.UnixNano()}}
	a.Parent.Span = newSpanID()
	a.Within(within)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.more = append(t.more, a)
	t.asked++
	return a
}

// Within makes the spans of a path children of that of a stage; nil: of the request's.
func (a *Ask) Within(stage *Ask) {
	if a != nil && stage != nil {
		a.within = stage.Parent.Span
	}
}

// Ended ends a stage of so many rows, with the error of one that failed.
func (a *Ask) Ended(rows int, err error) { a.Done(&scheduler.Request{Rows: rows, Err: err}) }

// Submitted records that the request is submitted to the model.
func (a *Ask) Submitted(now time.Time) {
	if a != nil {
		a.submitted = now.UnixNano()
		a.trace.Submitted(now)
	}
}

// Done ends the Ask, with the scheduler's answer, which is known now. After that the model does not
// touch the Trace.
func (a *Ask) Done(r *scheduler.Request) {
	if a == nil {
		return
	}
	t := a.trace
	t.mu.Lock()
	defer t.mu.Unlock()
	a.done, a.queued, a.rows, a.fault = time.Now().UnixNano(), r.Timing.Queue, r.Rows, fault(r.Err)
	if t.ended == 0 {
		t.answered = a.done
	} else {
		t.tracer.exporter.add(&t.request, true, a.modelPath, nil)
	}
}

// spans returns how many spans the model has.
func (a *modelPath) spans() int {
	switch {
	case a.done == 0:
		return 0
	case a.Sent:
		return 2
	}
	return 1
}

func (a *modelPath) write(p *page, of *record) {
	if a.done == 0 {
		return
	}
	parent := of.root
	if a.within != [8]byte{} {
		parent = a.within
	}
	one := span{id: newSpanID(), parent: parent, name: "queue", kind: kindInternal, start: a.submitted, end: a.done}
	switch {
	case a.stage != "":
		one.id, one.name, one.of = a.Parent.Span, "stage ", a.stage
	case a.Sent:
		one.end = a.submitted + int64(a.queued)
	case a.fault == "":
		one.name = "cache"
	}
	at := p.begin(of, &one)
	a.attributes(p)
	if a.stage != "" {
		p.count("shivad.rows", a.rows)
	}
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
	at = p.begin(of,
		&span{id: a.Parent.Span, parent: parent, name: "container", kind: kindClient, start: one.end, end: a.done})
	a.attributes(p)
	p.word(attribute, "shivad.replica", a.Replica)
	p.count("shivad.rows", a.rows)
	p.end(at, a.fault)
}

// attributes adds the model's attributes to a span.
func (a *modelPath) attributes(p *page) {
	p.word(attribute, "shivad.model", a.id.Name)
	if a.id.Version != "" { // a composite has none
		p.word(attribute, "shivad.version", a.id.Version)
	}
}

// fault returns the text of an error for a span; "" for nil.
func fault(err error) string {
	if err == nil {
		return ""
	}
	const most = 1 << 10
	text := err.Error()
	return text[:min(len(text), most)]
}
