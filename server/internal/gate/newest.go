package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/latest"
)

// Latest says how the newest answers of a model's streams are kept.
type Latest = latest.Settings

// latestStep ends the routes to the newest answer of a stream: "NAME/latest".
const latestStep = "/latest"

// Latest returns the model or application whose newest answers a route asks for: "name/latest" or
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

// attachLatest gives the targets of t the places of their newest answers.
func (g *Gate) attachLatest(t *Table) {
	for name, targets := range t.versions {
		kept := g.latest.Name(name, g.cfg.Options(name).Latest)
		for _, target := range targets {
			target.newest = kept
		}
	}
	for name, target := range t.apps {
		target.newest = g.latest.Name(name, g.cfg.Options(name).Latest)
	}
}

// dropLatest forgets the answers of names that are gone, now that t is in force.
func (g *Gate) dropLatest(t *Table) {
	g.latest.Keep(func(name string) bool { return t.versions[name] != nil || t.apps[name] != nil },
		func(name string) error { return t.unknown(name, predictWords) })
}

// A kept is what a newest answer needs besides its outputs.
type kept struct {
	target  *Target
	squeeze bool
	choice  *Choice
}

// keep makes the answer of a frame the newest of its stream, if anybody wants to know.
func (c *Call) keep() {
	f, n := c.Frame, c.newest
	if !n.Wanted(f.arrived) {
		return
	}
	key := f.source()
	if c.Err != nil || c.Choice != nil && c.Choice.Default {
		n.Seen(key)
		return
	}
	of := &kept{target: c.Target, squeeze: c.Squeeze}
	if c.Choice != nil {
		choice := *c.Choice
		choice.Missing = slices.Clone(choice.Missing)
		of.choice = &choice
	}
	n.Put(key, latest.Frame{Seq: f.Seq, Arrived: f.arrived, Captured: f.place.Captured, Skipped: f.Skipped, Version: c.Target.ID.Version, Of: of}, c.Outputs)
}

// source identifies the frame's stream for those who ask for its newest answer.
func (f *Frame) source() latest.Source {
	key := latest.Source{Identity: f.identity, User: f.user, Client: f.machine, Stream: f.place.Stream, Connection: f.place.Connection}
	if f.user != "" && f.place.Connection == 0 {
		key.Client = "" // it may send frames from any machine
	}
	return key
}

// A poll is a question for the newest answer of a stream, as the fan-out of its call: it asks no
// model.
type poll struct {
	latest.Poll
	call   *Call
	newest *latest.Name
}

// openLatest opens a question for the newest answer of a stream that is sent to target.
func (g *Gate) openLatest(c *Call, target *Target, r *Request) error {
	if len(r.Inputs) > 0 {
		return fault.Invalid("a question for the newest answer of a stream brings no tensors, got %d", len(r.Inputs))
	}
	q := &poll{call: c, newest: target.newest}
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

// Start implements Fanout.
func (q *poll) Start(calls []*Call) []*Call {
	q.newest.Ask(&q.Poll)
	return calls
}

// Complete answers the call.
func (q *poll) Complete(*latest.Poll) {
	c, a := q.call, q.Answer
	if c.Err = q.Err; a != nil {
		of := a.Of.(*kept)
		c.Target, c.Squeeze, c.Choice = of.target, of.squeeze, of.choice
		c.Outputs = append(c.Outputs[:0], a.Outputs...) // with their references
		c.frame = Frame{Seq: a.Seq, Age: a.Age(time.Now()), Skipped: a.Skipped, Captured: a.Captured}
		c.Frame = &c.frame
	}
	c.Finish()
}

// Cancel implements Fanout.
func (q *poll) Cancel() {
	q.Poll.Cancel(fmt.Errorf("%w: the caller gave up", scheduler.ErrCanceled))
}

// Close implements Fanout: the call has the references.
func (q *poll) Close() {}

// Voices implements Fanout.
func (q *poll) Voices() int { return 1 }
