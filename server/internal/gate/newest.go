package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/latest"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/shiva/tensor"
)

// Latest says how the newest answers of a model's streams are kept.
type Latest = latest.Settings

// latestStep ends the routes to the newest answer of a stream: "NAME/latest".
const latestStep = "/latest"

// Latest returns the model or composite whose newest answers a route asks for: "name/latest" or
// "v2/models/name/latest". A version of the name "latest" has the first of these to itself.
func (v View) Latest(route string) (name string, ok bool) {
	name, ok = strings.CutSuffix(route, latestStep)
	if !ok {
		return "", false
	}
	t := v.table()
	if t.infer[route] != nil {
		return "", false
	}
	name = strings.TrimPrefix(name, "v2/models/")
	target := t.infer[name]
	return name, target != nil && target.ID.Name == name
}

// attachLatest gives the targets of t the places of their newest answers. Those that a redirect
// stands for are always kept: its clients cannot know that only the second question finds one.
func (g *Gate) attachLatest(t *Table) {
	redirected := make(map[string]bool)
	for _, d := range t.redirects {
		redirected[d.Model] = redirected[d.Model] || d.Latest
	}
	place := func(name string) *latest.Name {
		settings := g.cfg.Options(name).Latest
		settings.Always = settings.Always || redirected[name]
		return g.latest.Name(name, settings)
	}
	for name, targets := range t.versions {
		kept := place(name)
		for _, target := range targets {
			target.newest = kept
		}
	}
	for name, target := range t.composites {
		target.newest = place(name)
	}
}

// dropLatest forgets the answers of names that are gone, now that t is in force.
func (g *Gate) dropLatest(t *Table) {
	g.latest.Keep(func(name string) bool { return t.versions[name] != nil || t.composites[name] != nil },
		func(name string) error { return t.unknown(name, predictWords) })
}

// A kept is what a newest answer needs besides its outputs.
type kept struct {
	target  *Target
	squeeze bool
	choice  *Choice
}

// keepIn has the answer to a frame kept there, unless it is part of another answer.
func (c *Call) keepIn(n *latest.Name, r *Request) {
	if r.Asker == nil {
		c.newest = n
	}
}

// keep makes the answer of a frame the newest of its stream, if anybody wants to know. It returns
// whom to Serve when the frame's own client has been told; nil: nobody.
func (c *Call) keep() *latest.Name {
	f, n := c.Frame, c.newest
	if n == nil || f == nil || !n.Wanted(f.arrived) {
		return nil
	}
	key := f.source()
	if c.Err != nil || c.Choice != nil && c.Choice.Default {
		n.Seen(key)
		return nil
	}
	of := &kept{target: c.Target, squeeze: c.Squeeze}
	if c.Choice != nil {
		choice := *c.Choice
		choice.Missing = slices.Clone(choice.Missing)
		of.choice = &choice
	}
	awaited := n.Put(key,
		latest.Frame{Seq: f.Seq, Arrived: f.arrived, Captured: f.place.Captured, Skipped: f.Skipped,
			Version: c.Target.ID.Version, Machine: f.machine, Of: of}, c.Outputs)
	if !awaited {
		return nil
	}
	return n
}

// A Newest is the newest answer of a stream as its client would get it.
type Newest struct {
	latest.Frame
	Source  latest.Source
	Target  *Target // that answered
	Outputs []tensor.Tensor
	Choice  *Choice // how an application answered; nil for a model
}

// NewestOf returns the newest answers of the streams of a model or application, at most that many,
// and how many there are: those that the caller may ask for, or of all identities. It counts as a
// question. release gives the outputs back.
func (v View) NewestOf(name string, ofAll bool, most int) (list []Newest, all int, release func(), err error) {
	target, err := v.Asked(name, "")
	if err != nil {
		return nil, 0, nil, err
	}
	answers, all := target.newest.Answers(latest.Question{Identity: v.who.Name(), Any: ofAll || v.who == nil}, most)
	for _, a := range answers {
		of := a.Of.(*kept)
		c := Call{Target: of.target, Squeeze: of.squeeze, Outputs: a.Outputs}
		n := Newest{Frame: a.Frame, Source: a.Source, Target: of.target, Choice: of.choice,
			Outputs: slices.Clone(a.Outputs)}
		for i := range n.Outputs {
			n.Outputs[i].Name, n.Outputs[i].Shape = of.target.Spec.Outputs[i].Name, c.ClientShape(i)
		}
		list = append(list, n)
	}
	return list, all, func() { latest.Release(answers) }, nil
}

// source identifies the frame's stream for those who ask for its newest answer.
func (f *Frame) source() latest.Source {
	key := latest.Source{Identity: f.identity, User: f.user, Client: f.machine, Stream: f.place.Stream,
		Connection: f.place.Connection}
	if f.user != "" && f.place.Connection == 0 {
		key.Client = "" // it may send frames from any machine
	}
	return key
}

// A Poll is a question for the newest answer of a stream, as the fan-out of its call: it asks no
// model. While it waits it needs no call: see Detach.
type Poll struct {
	latest.Poll
	newest *latest.Name
	call   *Call // nil: it is detached
	owner  Owner // of the call that it is detached from
	use    *access.Use
	trace  *trace.Trace
}

// openLatest opens a question for the newest answer of a stream that is sent to target.
func (g *Gate) openLatest(c *Call, target *Target, r *Request) error {
	if len(r.Inputs) > 0 {
		return fault.Invalid("a question for the newest answer of a stream brings no tensors, got %d", len(r.Inputs))
	}
	q := &Poll{call: c, newest: target.newest, use: r.Use, trace: r.Trace}
	c.Target, c.Rows = target, 1
	c.Deadline = r.Arrived.Add(cmp.Or(r.Timeout, target.Deadline))
	q.Question = latest.Question{
		Stream: r.Stream, User: r.User, Version: r.Version,
		Identity: r.Who.Name(), Any: r.Who == nil, Client: r.Client,
		After: r.Newest.After, MaxAge: r.Newest.MaxAge, Wait: r.Newest.Wait,
		Asked: r.Arrived, Deadline: c.Deadline,
	}
	q.Owner = q
	c.Fanout, c.trace, c.Use = q, r.Trace, r.Use
	g.fanning.Store(true)
	return nil
}

// Detach takes a question that may wait out of its open call, which may then be closed and opened
// for another request: a call is most of what a question would cost while it waits. nil: the call
// is none. The door submits it with Ask. When it is answered, the call's Owner is told, with nil,
// and the door gets a call with the answer from Attach. In between it may only Cancel it.
func (c *Call) Detach() *Poll {
	q, ok := c.Fanout.(*Poll)
	if !ok || !q.Wait {
		return nil
	}
	q.call, q.owner, c.Fanout = nil, c.Owner, nil
	return q
}

// Ask submits a question that is detached.
func (q *Poll) Ask() { q.newest.Ask(&q.Poll) }

// Attach makes c, which is ready for Open, a call that is complete, with the answer.
func (q *Poll) Attach(c *Call) {
	c.pass(atDoor, submitted)
	c.Fanout, c.trace, c.Use = q, q.trace, q.use
	q.fill(c)
	c.pass(submitted, complete)
}

// fill gives the answer to c.
func (q *Poll) fill(c *Call) {
	a := q.Answer
	if c.Err = q.Err; a == nil {
		return
	}
	of := a.Of.(*kept)
	c.Target, c.Squeeze, c.Choice = of.target, of.squeeze, of.choice
	c.Outputs = append(c.Outputs[:0], a.Outputs...) // with their references
	c.frame = Frame{Seq: a.Seq, Age: a.Age(time.Now()), Skipped: a.Skipped, Captured: a.Captured}
	c.Frame = &c.frame
}

// Start implements Fanout.
func (q *Poll) Start(calls []*Call) []*Call {
	q.Ask()
	return calls
}

// Complete tells the owner.
func (q *Poll) Complete(*latest.Poll) {
	if c := q.call; c != nil {
		q.fill(c)
		c.Finish()
		return
	}
	q.trace.Answered()
	q.owner.Complete(nil)
}

// Cancel implements Fanout.
func (q *Poll) Cancel() {
	q.Poll.Cancel(fmt.Errorf("%w: the caller gave up", scheduler.ErrCanceled))
}

// Close implements Fanout: the call has the references.
func (q *Poll) Close() {}

// Voices implements Fanout.
func (q *Poll) Voices() int { return 1 }
