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
	oneIn int64   // for which it was drawn
	mean  float64 // of the exponential distribution that it was drawn from
	left  int64
}

// passes counts a request, and reports whether it is not followed, as nearly all are not. It is
// short enough to be inlined; where it says false, follows decides.
func (g *Gap) passes(oneIn int64) bool {
	if g.oneIn != oneIn || g.left == 0 {
		return false
	}
	g.left--
	return true
}

// follows is the rest of a countdown: it begins, or it has come to its end.
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

// draw draws how many requests are not followed before the next one is, if each of them is with a
// probability of one in so many; for 0 it is without end.
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

// Begin follows a request that arrived by a door, or returns nil. Its parent decides, if it has
// one, and otherwise chance. The tracestate is that of the parent, as it came; "": it has none. The
// gap is the caller's; nil: its requests come from many goroutines.
func (t *Tracer) Begin(parent *Context, tracestate, door string, arrived time.Time, g *Gap) *Trace {
	if t == nil || parent.Span == [8]byte{} && g != nil && g.passes(t.oneIn.Load()) {
		return nil
	}
	return t.decide(parent, tracestate, door, arrived, g)
}

// decide is Begin for a request that may be followed.
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
// are noted. Spans are made of them later and of many requests at once: the same code takes several
// times as long where it runs for one in a hundred, and the caches have lost it. For the same
// reason End copies what was noted to the end of a list, and gives the memory to another request.
type Trace struct {
	tracer *Tracer
	mu     sync.Mutex
	request
	model told // that it asks; most requests ask one
	first Ask  // of that
	asked int  // so many in all
	more  []*Ask
}

// A request is what is told of a whole request. Times are UnixNano; 0: not yet, or never.
type request struct {
	id     [16]byte
	state  string  // the trace's, which others keep
	parent [8]byte // the client's span; zero: it has none
	root   [8]byte

	door      string
	arrived   int64
	submitted int64 // the first of its asks
	answered  int64 // the last time that an answer was known
	ended     int64

	name, outcome string
	fault         string // "": none
}

// A record is what spans are made of: those of a request, or of a model that answered after it had
// ended.
type record struct {
	request
	late  bool    // only the model's
	model told    // not done: none
	more  []*told // others
}

// told is the way of a followed request through one model.
type told struct {
	scheduler.Trace
	id        scheduler.ModelID
	submitted int64
	done      int64 // 0: it has not answered
	queued    time.Duration
	rows      int
	fault     string // "": none
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

// Answered notes that an answer is known which is not a model's (see [Ask.Done]). What comes after
// End, such as an application's shadows, is not the request's any more.
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
// it ended in the words of the metrics, and err why it has no result. The Trace may be another's
// from then on.
func (t *Trace) End(name, outcome string, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.ended = time.Now().UnixNano()
	t.name, t.outcome, t.fault = name, outcome, fault(err)
	var model *told // what is not done may still be written to
	if t.model.done != 0 {
		model = &t.model
	}
	var more []*told
	for _, a := range t.more {
		if a.done != 0 {
			more = append(more, a.told)
		}
	}
	t.tracer.exporter.add(&t.request, false, model, more)
	// Nobody has anything to say any more if there is a result, and the only model has answered: an
	// application that was cancelled may still say that it has answered.
	over := err == nil && t.asked == 1 && model != nil
	t.mu.Unlock()
	if over {
		*t = Trace{}
		traces.Put(t)
	}
}

// traces are those that have ended. New memory for each would be cold.
var traces = sync.Pool{New: func() any { return new(Trace) }}

// spans is how many it makes.
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

// write writes its spans.
func (r *record) write(p *page) {
	if !r.late {
		at := p.begin(r, &span{id: r.root, parent: r.parent, name: "infer ", of: r.name, kind: kindServer, start: r.arrived, end: r.ended})
		p.word(attribute, "shivad.door", r.door)
		p.word(attribute, "shivad.model", r.name)
		p.word(attribute, "shivad.outcome", r.outcome)
		p.end(at, r.fault)
		door := span{id: newSpanID(), parent: r.root, name: "door", kind: kindInternal, start: r.arrived, end: cmp.Or(r.submitted, r.ended)}
		p.end(p.begin(r, &door), "")
	}
	r.model.write(p, r)
	for _, a := range r.more {
		a.write(p, r)
	}
	if !r.late && r.submitted != 0 && r.answered != 0 {
		p.end(p.begin(r, &span{id: newSpanID(), parent: r.root, name: "answer", kind: kindInternal, start: r.answered, end: r.ended}), "")
	}
}

// An Ask is the way of a followed request through one model.
type Ask struct {
	*told
	of *Trace
}

// Ask begins the way through a model, which ends with Done.
func (t *Trace) Ask(model scheduler.ModelID) *Ask {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	a := &t.first
	if t.asked == 0 {
		a.told = &t.model
	} else {
		a = &Ask{told: new(told)}
		t.more = append(t.more, a)
	}
	t.asked++
	t.mu.Unlock()
	a.of, a.id = t, model
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

// Done ends it, with the scheduler's answer, which is known now. The Trace is not touched after it
// on behalf of the model.
func (a *Ask) Done(r *scheduler.Request) {
	if a == nil {
		return
	}
	t := a.of
	t.mu.Lock()
	defer t.mu.Unlock()
	a.done, a.queued, a.rows, a.fault = time.Now().UnixNano(), r.Timing.Queue, r.Rows, fault(r.Err)
	if t.ended == 0 {
		t.answered = a.done
	} else {
		t.tracer.exporter.add(&t.request, true, a.told, nil)
	}
}

// spans is how many it has.
func (a *told) spans() int {
	switch {
	case a.done == 0:
		return 0
	case a.Sent:
		return 2
	}
	return 1
}

func (a *told) write(p *page, of *record) {
	if a.done == 0 {
		return
	}
	one := span{id: newSpanID(), parent: of.root, name: "queue", kind: kindInternal, start: a.submitted, end: a.done}
	switch {
	case a.Sent:
		one.end = a.submitted + int64(a.queued)
	case a.fault == "":
		one.name = "cache"
	}
	at := p.begin(of, &one)
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
	at = p.begin(of, &span{id: a.Parent.Span, parent: of.root, name: "container", kind: kindClient, start: one.end, end: a.done})
	a.attributes(p)
	p.word(attribute, "shivad.replica", a.Replica)
	p.count("shivad.rows", a.rows)
	p.end(at, a.fault)
}

// attributes adds those of the model to a span.
func (a *told) attributes(p *page) {
	p.word(attribute, "shivad.model", a.id.Name)
	p.word(attribute, "shivad.version", a.id.Version)
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
