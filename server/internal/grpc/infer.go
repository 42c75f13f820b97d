package grpc

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/grpc/wire"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/server/internal/trace"
)

// receiveOne receives the one message of a call. A door that closes does not wait for the rest
// of it.
func (d *Door) receiveOne(ctx context.Context, w *wire.Stream, bounds func() wire.Bounds,
	read func(*wire.Message)) error {
	cut := context.AfterFunc(d.stopping, func() { w.End(gate.ErrDraining) })
	_, err := w.Receive(bounds, false, read)
	if !cut() && err != nil {
		return gate.ErrDraining
	}
	if err == io.EOF {
		err = wire.Lost(err)
	}
	return predict.Late(ctx, err)
}

// bounds are those of a request for inference: limits.message_bytes is about tensors; names, id and
// parameters have a limit of their own.
func (d *Door) bounds(r *request) func() wire.Bounds {
	return func() wire.Bounds {
		s := d.settings.Load()
		r.limits = &s.Limits
		return wire.Bounds{Bytes: int(s.Limits.MessageBytes), Setting: "limits.message_bytes",
			Margin: s.Limits.MetadataBytes,
			Text:   s.Limits.MetadataBytes, Timeout: s.MessageTimeout, Memory: &s.Memory}
	}
}

// charged are bounds that also charge the request to its client's quotas.
func (d *Door) charged(r *request, c *conn) func() wire.Bounds {
	bounds := d.bounds(r)
	return func() wire.Bounds {
		b := bounds()
		b.Sender.Payers = r.Who.Payers(c.Account())
		b.Admit = func(bytes int64) error { return c.charge(&r.use, r.Who, bytes) }
		b.More = func(bytes int64) error { return r.use.More(bytes, time.Now()) }
		return b
	}
}

// infer serves ModelInfer.
func (d *Door) infer(w *wire.Stream, stream grpc.ServerStream) error {
	var r request
	defer r.release()
	began := time.Now()
	r.Who = d.who(stream.Context())
	if err := d.receiveOne(stream.Context(), w, d.charged(&r, connOf(stream.Context())), r.read); err != nil {
		d.Refused(err, began)
		return err
	}
	reply, err := d.ask(stream.Context(), &r, time.Now(), connOf(stream.Context()))
	if err != nil {
		return err
	}
	defer reply.release()
	return wire.Lost(stream.SendMsg(reply))
}

// ask submits a request that was complete at arrived, and waits for its answer. Before the request
// is submitted, the answer gets its room in the outbox room.
func (d *Door) ask(ctx context.Context, r *request, arrived time.Time, room predict.Outbox) (*reply, error) {
	if r.Newest == nil && d.AsksNewest(r.Who, r.Model) {
		r.Values, r.Parameters = parameter.Values{}, nil
		r.fault = r.readQuestion()
	}
	if err := r.complete(); err != nil {
		d.Refused(err, arrived)
		return nil, err
	}
	c := connOf(ctx)
	if err := d.fetch(r, c.client); err != nil {
		d.Refused(err, arrived)
		return nil, err
	}
	if d.Follows() && r.Values.Parent == (trace.Context{}) {
		if values := metadata.ValueFromIncomingContext(ctx, trace.Header); len(values) == 1 {
			r.Values.Parent, _ = trace.Parse(values[0])
			r.Values.TraceState = strings.Join(metadata.ValueFromIncomingContext(ctx, trace.StateHeader), ",")
		}
	}
	if names := d.settings.Load().Forward; len(names) > 0 {
		r.Parameters = parameter.Forward(r.Parameters, names, func(name string) []string {
			return metadata.ValueFromIncomingContext(ctx, name)
		})
	}
	r.Arrived, r.Source, r.Client, r.Use = arrived, c.source, c.client, &r.use
	r.SetID(r.id)
	a, err := d.Infer(ctx, &r.Request, room)
	r.use.Answered()
	if err != nil {
		return nil, err
	}
	reply := &reply{answer: a, id: r.id, typed: r.Values.Form == parameter.Elements, out: c.depart(a.Size)}
	reply.out.use, r.use = r.use, access.Use{}
	if r.Values.Timing {
		reply.duration = time.Since(arrived)
	}
	return reply, nil
}

// A pipeline serves one ModelStreamInfer: one goroutine receives, one runs for each request, and
// one sends the answers in the order of the requests.
type pipeline struct {
	door *Door
	wire *wire.Stream
	ctx  context.Context

	places chan struct{}    // one element for each request that has no answer
	line   chan chan *reply // where their replies will be, in the order of the requests
	// fault is why receiving ended, set before line is closed; nil: the client has finished.
	fault error
}

// inferStream serves ModelStreamInfer.
func (d *Door) inferStream(w *wire.Stream, stream grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(stream.Context())
	most := d.settings.Load().InFlight
	p := &pipeline{door: d, wire: w, ctx: ctx, places: make(chan struct{}, most), line: make(chan chan *reply, most)}
	var work sync.WaitGroup
	work.Go(func() { p.receive(&work) })
	err := p.send(stream)
	cancel()
	// receive runs until the call ends.
	if err != nil {
		w.End(err)
	}
	for place := range p.line {
		(<-place).release()
	}
	work.Wait()
	return err
}

// send sends the answers in order, until the last. When the door closes, it still sends the answers
// to the requests received so far.
func (p *pipeline) send(stream grpc.ServerStream) error {
	for {
		var place chan *reply
		var more bool
		select {
		case place, more = <-p.line:
		case <-p.door.stopping.Done():
			select {
			case place, more = <-p.line:
			default:
				return gate.ErrDraining
			}
		}
		if !more {
			return p.fault
		}
		reply := <-place
		err := wire.Lost(stream.SendMsg(reply))
		reply.release()
		connOf(p.ctx).cancels.ended(time.Now(), answered, false)
		<-p.places
		if err != nil {
			return err
		}
	}
}

// receive receives requests and starts a goroutine of work for each, up to as many at a time as
// there are places. Beyond that gRPC's flow control holds the client back.
func (p *pipeline) receive(work *sync.WaitGroup) {
	defer close(p.line)
	var r *request
	defer func() {
		if x := recover(); x != nil {
			p.fault = p.door.bug(x)
			r.release()
		}
	}()
	d := p.door
	order := sequences{}
	shown := credentialsOf(p.ctx)
	var before chan struct{}
	for {
		select {
		case p.places <- struct{}{}:
		case <-p.ctx.Done():
			p.fault = predict.Late(p.ctx, scheduler.ErrCanceled)
			return
		}
		r = new(request)
		began := time.Now()
		bounds := d.charged(r, connOf(p.ctx))
		resumed, err := p.wire.Receive(func() wire.Bounds {
			r.Who = d.identities.Who(&shown) // as of now: a call may last for days
			return bounds()
		}, true, r.readStreamed)
		if err == io.EOF {
			return
		}
		place := make(chan *reply, 1)
		switch {
		case err == nil:
			l := &lane{conn: connOf(p.ctx), previous: before, passed: make(chan struct{}),
				position: order.take(r, cap(p.places)), frame: r.Values.Stream != ""}
			before = l.passed
			arrived := time.Now()
			r := r
			work.Go(func() {
				defer l.leave()
				defer l.position.end()
				place <- p.ask(r, arrived, l)
			})
		case resumed:
			d.Refused(err, began)
			place <- &reply{stream: true, id: r.id, err: err}
			r.release()
		default:
			p.fault = predict.Late(p.ctx, err)
			if !errors.Is(err, wire.ErrNoMessage) {
				d.Refused(p.fault, began)
			}
			r.release()
			return
		}
		p.line <- place
	}
}

// A lane gives a request of a ModelStreamInfer room for its answer after the requests before it:
// their answers leave first, and would otherwise wait for the room that it has. Only then does the
// request wait for its turn. The request after a frame goes on only when the frame is submitted, so
// that the later of two frames is the newer one.
type lane struct {
	*conn
	previous <-chan struct{} // nil: this is the first request
	passed   chan struct{}
	once     sync.Once
	position position
	frame    bool // the request is a frame of a stream
}

// Submitted implements [predict.Outbox].
func (l *lane) Submitted() { l.pass() }

func (l *lane) pass() { l.once.Do(func() { close(l.passed) }) }

// leave is pass for a request that has its answer. A request that was refused before it waited for
// those before it waits now: otherwise those after it would overtake them.
func (l *lane) leave() {
	if l.previous != nil {
		<-l.previous
	}
	l.pass()
}

// Admit implements [predict.Outbox].
func (l *lane) Admit(ctx context.Context, call *gate.Call) (room int, err error) {
	if l.previous != nil {
		select {
		case <-l.previous:
		case <-ctx.Done(): // the context of the requests before it as well
		}
	}
	if room, err = l.conn.Admit(ctx, call); err == nil {
		if !l.frame {
			l.pass()
		}
		l.position.wait(ctx)
	}
	return room, err
}

// ask returns the answer to r, which may be an error.
func (p *pipeline) ask(r *request, arrived time.Time, room predict.Outbox) (answer *reply) {
	defer r.release()
	defer func() {
		if x := recover(); x != nil {
			answer = &reply{stream: true, id: r.id, err: p.door.bug(x)}
		}
	}()
	answer, err := p.door.ask(p.ctx, r, arrived, room)
	if err != nil {
		answer = &reply{id: r.id, err: err}
	}
	answer.stream = true
	return answer
}
