package containers

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// v4 is our own generation: named, typed tensors, one frame for each in a batch. DESIGN.md
// documents it.
type v4 struct {
	limits Limits

	// Set by bind.
	spec     scheduler.Spec
	batched  bool
	announce bool
	grants   bool
	opens    bool

	share *sharing // nil: all tensors go by frames; set before bind

	// The reader's scratch.
	header wire.ResultHeader
}

func (*v4) generation() string { return "v4" }

func (*v4) clocks(heartbeat time.Duration) clocks {
	return clocks{heartbeat: heartbeat, dead: missedBeats * heartbeat, idle: idleBeats * heartbeat, beats: true,
		first: true}
}

func (c *v4) parse(m *zmtp.Message) (incoming, error) {
	f := m.Frames
	switch string(f[0].Data) {
	case wire.Heartbeat:
		if len(f) > 1 && wire.Pauses(f[1].Data) {
			return incoming{event: evPause}, nil
		}
		return incoming{event: evHeartbeat}, nil
	case wire.Draining:
		return incoming{event: evDraining}, nil
	case wire.Result:
		if len(f) < 3 || len(f[1].Data) != wire.IDSize {
			return incoming{}, fmt.Errorf("result of %d frames, expected result | id (8 bytes) | JSON | tensors",
				len(f))
		}
		return incoming{event: evResult, id: binary.LittleEndian.Uint64(f[1].Data)}, nil
	case wire.Arena:
		if c.share == nil {
			break
		}
		m, err := readArena(f)
		return incoming{event: evArena, arena: m}, err
	case wire.Grant:
		if !c.grants {
			break
		}
		m, err := readGrant(f)
		return incoming{event: evGrant, grant: m}, err
	case wire.Hello:
		if len(f) != 2 {
			return incoming{event: evHello}, refuse("hello of %d frames, expected hello | JSON", len(f))
		}
		if m.Refused != nil {
			return incoming{event: evHello}, refuse("hello: %v", m.Refused)
		}
		r, err := readHello(f[1].Data, c.limits)
		return incoming{event: evHello, hello: r}, err
	}
	return incoming{}, fmt.Errorf("message of kind %.32q, expected hello, heartbeat, result or draining", f[0].Data)
}

func (c *v4) bind(r registration) {
	c.spec = r.spec
	c.batched = r.spec.Batched()
	c.announce = r.announce
	c.grants = r.grants
	c.opens = r.opens
}

func (*v4) id(b *scheduler.Batch) uint64 { return b.ID }

// announceSize is the size of the smallest message that is announced: the slowest connection takes
// two seconds for it, the longest silence after a heartbeat.
const announceSize = 2 * setting.MessageRate

// batch builds the message of a batch. A large one is announced: a container with a ZeroMQ
// library sees whole messages only, and no heartbeat until this message is complete.
func (c *v4) batch(o *zmtp.Outgoing, b *scheduler.Batch, now time.Time) error {
	var placed bits
	if c.share != nil {
		placed = c.share.mapped(b, len(c.spec.Inputs))
		c.share.appendOffers(o)
	}
	c.announceMessage(o, inputBytes(b, &placed))
	o.FrameString(wire.Batch)
	var id [wire.IDSize]byte
	binary.LittleEndian.PutUint64(id[:], b.ID)
	o.Begin(len(id))
	o.Copy(id[:])
	o.Seal(c.appendHeader(o.Open(), b, &placed, now))
	for i := range c.spec.Inputs {
		if absent(b, i) {
			continue
		}
		if placed.has(i) {
			o.Begin(0)
			continue
		}
		size := 0
		for t := range b.Pieces(i) {
			size += len(t.Data)
		}
		o.Begin(size)
		for t := range b.Pieces(i) {
			o.Add(t.Data)
		}
	}
	return nil
}

// announceMessage announces a message of size bytes, if it is large and the container has requested
// it.
func (c *v4) announceMessage(o *zmtp.Outgoing, size int) {
	if c.announce && size >= announceSize {
		o.FrameString(wire.Heartbeat)
		o.Seal(wire.AppendComing(o.Open(), size))
		o.End()
	}
}

// feedback builds the message of feedback. Tensors of a model that is not batched have their own
// shapes, as in a batch.
func (c *v4) feedback(o *zmtp.Outgoing, f *scheduler.Feedback) bool {
	var frames [][]byte
	size := 0
	list := func(h []byte, key string, tensors []tensor.Tensor, rows bool) []byte {
		first := true
		for i := range tensors {
			t := &tensors[i]
			shape := t.Shape
			if rows && len(shape) == 0 {
				continue // an absent optional input
			}
			if rows && !c.batched {
				shape = shape[1:]
			}
			if first {
				h = append(append(append(h, `,"`...), key...), `":[`...)
			} else {
				h = append(h, ',')
			}
			first = false
			h = wire.AppendTensor(h, t.Name, t.DType, -1, shape)
			frames = append(frames, t.Data)
			size += len(t.Data)
		}
		if !first {
			h = append(h, ']')
		}
		return h
	}
	h := jsonscan.AppendString([]byte(`{"application":`), f.Application)
	if f.User != "" {
		h = jsonscan.AppendString(append(h, `,"user":`...), f.User)
	}
	h = strconv.AppendInt(append(h, `,"rows":`...), int64(f.Rows), 10)
	h = list(h, "inputs", f.Inputs, true)
	h = list(h, "outputs", f.Outputs, true)
	h = list(h, "truth", f.Truth, false)
	if f.Label != nil {
		h = append(append(h, `,"label":`...), f.Label...)
	}
	if f.Loss != nil {
		h = strconv.AppendFloat(append(h, `,"loss":`...), *f.Loss, 'g', -1, 64)
	}
	c.announceMessage(o, size)
	o.FrameString(wire.Feedback)
	o.Frame(append(h, '}'))
	for _, data := range frames {
		o.Frame(data)
	}
	return true
}

// inputBytes is the size of the inputs that are not in shared memory.
func inputBytes(b *scheduler.Batch, placed *bits) (n int) {
	for i := range b.Parts[0].Inputs {
		if !placed.has(i) {
			for t := range b.Pieces(i) {
				n += len(t.Data)
			}
		}
	}
	return n
}

// absent reports whether a batch lacks an optional input.
func absent(b *scheduler.Batch, input int) bool { return len(b.Parts[0].Inputs[input].Shape) == 0 }

func (c *v4) appendHeader(h []byte, b *scheduler.Batch, placed *bits, now time.Time) []byte {
	h = append(h, `{"rows":`...)
	h = strconv.AppendInt(h, int64(b.Rows), 10)
	h = append(h, `,"inputs":[`...)
	before, wholes := false, 0
	for i := range c.spec.Inputs {
		if absent(b, i) {
			continue
		}
		if before {
			h = append(h, ',')
		}
		before = true
		first := b.Rows
		switch {
		case !c.batched:
			first = -1 // the container sees its declared shape
		case b.Whole(i):
			first = len(b.Pictures)
			wholes++
		}
		// Rows of one batch agree in all but the first dimension.
		t := &b.Parts[0].Inputs[i]
		h = wire.AppendTensor(h, c.spec.Inputs[i].Name, t.DType, first, t.Shape[1:])
		if placed.has(i) {
			h = c.share.appendAt(h, b, i)
		}
	}
	h = append(h, ']')
	if wholes > 0 {
		h = c.appendPictures(h, b)
	}
	if !b.Deadline.IsZero() {
		h = append(h, `,"timeout_ms":`...)
		h = wire.AppendMillis(h, max(1, b.Deadline.Sub(now).Microseconds()))
	}
	// One row each, no parameters, no metadata, priority 0.
	single, plain, bare, first := true, true, true, true
	traced, stated, opened := false, false, false
	for i := range b.Parts {
		p := &b.Parts[i]
		single = single && p.Rows == 1
		plain = plain && p.Parameters == nil
		bare = bare && p.Metadata == nil
		first = first && p.Priority == 0
		traced = traced || p.Trace.Span != [8]byte{}
		stated = stated || p.TraceState != ""
		opened = opened || p.Opened != nil
	}
	if opened {
		h = c.appendOpened(h, b)
	}
	if !single {
		h = append(h, `,"requests":`...)
		for i := range b.Parts {
			h = strconv.AppendInt(separate(h, i), int64(b.Parts[i].Rows), 10)
		}
		h = append(h, ']')
	}
	if !plain {
		h = append(h, `,"parameters":`...)
		for i := range b.Parts {
			h = appendObject(separate(h, i), b.Parts[i].Parameters)
		}
		h = append(h, ']')
	}
	if !bare {
		h = append(h, `,"metadata":`...)
		for i := range b.Parts {
			h = appendObject(separate(h, i), b.Parts[i].Metadata)
		}
		h = append(h, ']')
	}
	if !first {
		h = append(h, `,"priority":`...)
		for i := range b.Parts {
			h = strconv.AppendInt(separate(h, i), int64(b.Parts[i].Priority), 10)
		}
		h = append(h, ']')
	}
	if traced {
		h = appendTraces(append(h, `,"traces":`...), b.Parts)
	}
	if stated {
		h = appendStates(append(h, `,"trace_states":`...), b.Parts)
	}
	if t := b.Grant; t.ID != 0 {
		h = wire.AppendGrantUse(h, wire.GrantUse{Grant: t.ID, Best: t.Best, Left: t.Left})
	}
	return append(h, '}')
}

// appendPictures appends of which pictures the rows are regions.
func (c *v4) appendPictures(h []byte, b *scheduler.Batch) []byte {
	h = append(h, `,"pictures":`...)
	n := 0
	for i := range c.spec.Inputs {
		if !b.Whole(i) {
			continue
		}
		if n++; n == 1 {
			h = append(h, '{')
		} else {
			h = append(h, ',')
		}
		h = wire.AppendPictures(h, c.spec.Inputs[i].Name, func(yield func(picture, rows int) bool) {
			for k := range b.Parts {
				if !yield(b.Parts[k].Picture, b.Parts[k].Rows) {
					return
				}
			}
		}, b.Pictures)
	}
	return append(h, '}')
}

func appendObject(h, object []byte) []byte {
	if object == nil {
		return append(h, "null"...)
	}
	return append(h, object...)
}

// appendTraces appends a list with the traceparent of each traced request, and null for all other
// requests, which are nearly all.
func appendTraces(h []byte, parts []scheduler.Part) []byte {
	h = append(h, '[')
	done := 0
	for i := range parts {
		if p := &parts[i].Trace; p.Span != [8]byte{} {
			h = append(appendNulls(h, i-done), '"')
			h = append(p.Append(h), `",`...)
			done = i + 1
		}
	}
	h = appendNulls(h, len(parts)-done)
	h[len(h)-1] = ']' // in place of the last comma
	return h
}

// appendNulls appends n times "null,".
func appendNulls(h []byte, n int) []byte {
	const some = "null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,"
	const one = len("null,")
	for ; n > len(some)/one; n -= len(some) / one {
		h = append(h, some...)
	}
	return append(h, some[:n*one]...)
}

// appendStates appends a list with the tracestate of each request that has one, and null for the
// others.
func appendStates(h []byte, parts []scheduler.Part) []byte {
	for i := range parts {
		h = separate(h, i)
		if text := parts[i].TraceState; text != "" {
			h = jsonscan.AppendString(h, text)
		} else {
			h = append(h, "null"...)
		}
	}
	return append(h, ']')
}

// separate appends the comma before element i of a list.
func separate(b []byte, i int) []byte {
	if i == 0 {
		return append(b, '[')
	}
	return append(b, ',')
}

// spoken is a time that a container says, of any size.
func spoken(said float64) time.Duration {
	return time.Duration(min(max(0, said), mostMillis) * float64(time.Millisecond))
}

// result puts the outputs into the declared order. Their rows, dtypes, shapes and sizes are
// checked against the declaration by Batch.Complete.
func (c *v4) result(m *zmtp.Message, b *scheduler.Batch) (*answer, error) {
	f := m.Frames
	if err := c.header.Parse(f[2].Data, b.Rows); err != nil {
		return nil, err
	}
	a, err := c.outputs(f[3:], b)
	if err != nil {
		c.share.free(&c.header)
		return nil, err
	}
	if c.share != nil {
		c.takeOpened(b)
	}
	if c.grants && c.header.Together > 0 {
		b.Executed(c.header.Together, spoken(c.header.Queued))
	}
	b.Prepared(spoken(c.header.Prepared))
	for _, e := range c.header.Errors {
		a.errors = append(a.errors, scheduler.RowError{Row: e.Row, Message: string(clip(e.Message)),
			Invalid: e.Invalid})
	}
	return a, nil
}

func (c *v4) outputs(f []zmtp.Frame, b *scheduler.Batch) (*answer, error) {
	h := &c.header
	if h.Failed {
		return nil, fmt.Errorf("%s", clip(h.Error))
	}
	if len(h.Outputs) != len(f) {
		return nil, fmt.Errorf("it describes %s but sent %s for them", plural.Of(len(h.Outputs), "output"),
			plural.Of(len(f), "frame"))
	}
	if len(h.Outputs) != len(c.spec.Outputs) {
		return nil, fmt.Errorf("it declared %s and answered with %d", plural.Of(len(c.spec.Outputs), "output"),
			len(h.Outputs))
	}
	a := newAnswer()
	large := int64(0)
	for i := range c.spec.Outputs {
		spec := &c.spec.Outputs[i]
		k := c.find(spec.Name, i)
		if k < 0 {
			a.release()
			return nil, fmt.Errorf("output %q is missing", spec.Name)
		}
		frame, err := c.share.take(&h.Outputs[k], f[k], b, c.interpreted(spec))
		if err != nil {
			a.release()
			return nil, err
		}
		if len(f[k].Data) >= minShared {
			large += int64(len(f[k].Data))
		}
		a.add(spec.Name, h.Outputs[k].DType, !c.batched, h.Outputs[k].Shape, frame)
	}
	if c.share != nil && large > 0 {
		c.share.learn(large)
	}
	return a, nil
}

// interpreted reports whether the server relies on the contents of an output, rather than only
// passing them on.
func (c *v4) interpreted(t *tensor.Spec) bool {
	if t.DType == tensor.Bytes {
		return true
	}
	for i := range c.spec.Outputs {
		if c.spec.Outputs[i].Ragged == t.Name {
			return true
		}
	}
	return false
}

// drop frees the shared memory named by an answer that completes no batch.
func (c *v4) drop(m *zmtp.Message) {
	const rows = 4096 // that may have errors
	if c.share != nil && c.header.Parse(m.Frames[2].Data, rows) == nil {
		c.share.free(&c.header)
	}
}

// find returns the index of the output with the given name in the result, which is expected at i.
func (c *v4) find(name string, i int) int {
	if string(c.header.Outputs[i].Name) == name {
		return i
	}
	for k := range c.header.Outputs {
		if string(c.header.Outputs[k].Name) == name {
			return k
		}
	}
	return -1
}

// maxErrorText bounds a container's error text in answers and log lines.
const maxErrorText = 4 << 10

func clip(text []byte) []byte { return text[:min(len(text), maxErrorText)] }

func (*v4) heartbeat(o *zmtp.Outgoing, _ bool) bool {
	o.FrameString(wire.Heartbeat)
	return true
}

func (*v4) welcome(o *zmtp.Outgoing, w wire.WelcomeMessage) bool { return say(o, wire.Welcome, w) }

func (*v4) refused(o *zmtp.Outgoing, reason string) bool {
	return say(o, wire.Refused, wire.RefusedMessage{Error: reason})
}

func (*v4) goodbye(o *zmtp.Outgoing, reason string, reconnect bool) bool {
	return say(o, wire.Goodbye, wire.GoodbyeMessage{Reason: reason, Reconnect: reconnect})
}

// say builds a message of a kind and a JSON frame.
func say(o *zmtp.Outgoing, kind string, body any) bool {
	text, err := json.Marshal(body)
	if err != nil {
		return false // unreachable for plain strings and numbers
	}
	o.FrameString(kind)
	o.Frame(text)
	return true
}

// welcomeMessage is the answer to a v4 registration.
func welcomeMessage(server string, s *Settings) wire.WelcomeMessage {
	return wire.WelcomeMessage{
		Protocol:        wire.Version,
		Server:          server,
		HeartbeatMS:     wholeMillis(s.Heartbeat),
		DeadAfterMS:     wholeMillis(missedBeats * s.Heartbeat),
		MaxMessageBytes: s.Limits.MessageBytes,
	}
}

// waitMessage is the answer to a v4 registration that has to wait.
func waitMessage(reason error, s *Settings) wire.WaitMessage {
	return wire.WaitMessage{Error: reason.Error(), HeartbeatMS: wholeMillis(s.Heartbeat),
		DeadAfterMS: wholeMillis(missedBeats * s.Heartbeat)}
}

// wholeMillis is a time in milliseconds, rounded up.
func wholeMillis(d time.Duration) int64 {
	return int64(math.Ceil(float64(d) / float64(time.Millisecond)))
}
