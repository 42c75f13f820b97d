package tcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/jsontest"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// Nearly valid conversations: messages to models, to the server itself and with feedback, whose
// metadata, tensors and order are mutated as trees and lists instead of as bytes. TestMutants is
// the short form, "make soak" runs a million of them, and FuzzMutants is guided by coverage.

// A sample is a valid message.
type sample struct {
	namespace string
	metadata  *jsontest.Value // nil: none
	tensors   []tensor.Tensor
}

// mutants holds conversations with a door that has no sockets.
type mutants struct {
	*rig
	loop    *loop
	on      *rig // the door on sockets
	samples []sample
	cameras []sample // the samples that the slow model answers
	tally   jsontest.Tally
}

func newMutants(t testing.TB) *mutants {
	m := &mutants{rig: newRig(t, nil)}
	settings := m.door.Settings()
	settings.Limits = shiva.Limits{MessageBytes: 4 << 20, MetadataBytes: 256 << 10}
	d := newDoor(Config{
		Entrance: listen.Entrance{Metrics: m.door.metrics, Log: slog.New(slog.NewTextHandler(io.Discard, nil))},
		Gate:     m.Gate, Regions: m.Regions, Describe: m.door.describe, Pool: m.Pool, Settings: settings,
	})
	m.loop = newLoop(d, func() {}, func() {})
	one := func(name string, d tensor.DType, shape ...int) {
		x := []tensor.Spec{{Name: "x", DType: d, Shape: shape}}
		m.model(name, scheduler.Spec{Inputs: x, Outputs: x, Platform: "test"}, m.readAndEcho)
	}
	one("floats", tensor.Float32, -1, 4)
	one("free", tensor.Uint8, -1, -1)
	one("texts", tensor.Bytes, -1)
	one("unbatched", tensor.Int32, 2, 2)
	old := func(d tensor.DType) scheduler.Spec {
		s := containertest.OldSpec(d, tensor.Float64)
		s.Platform = "test"
		return s
	}
	m.model("numbers", old(tensor.Float64), m.zeros)
	m.model("words", old(tensor.Bytes), m.zeros)
	two := []tensor.Spec{{Name: "a", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}},
		{Name: "b", DType: tensor.Int64, Shape: tensor.Shape{-1}}}
	m.model("two", scheduler.Spec{Inputs: two, Outputs: two, Platform: "test"}, m.readAndEcho)
	m.model("camera", floats("x"), m.Slowly)
	m.Applications(apps.Definition{Name: "app", Models: []string{"floats"}, Policy: "exp3"},
		apps.Definition{Name: "cameras", Models: []string{"camera"}, Policy: "exp3"})

	add := func(namespace, metadata string, tensors ...tensor.Tensor) {
		s := sample{namespace: namespace, tensors: tensors}
		if metadata != "" {
			s.metadata = jsontest.Parse(t, metadata)
		}
		m.samples = append(m.samples, s)
	}
	x := mustTensor(tensor.FromSlice(tensor.Shape{2, 4}, []float32{1, 2, 3, 4, 5, 6, 7, 8}))
	row := mustTensor(tensor.FromSlice(tensor.Shape{4}, []float32{1, 2, 3, 4}))
	add("camera", "{}", row)
	add("camera/1", "{}", row)
	add("cameras", `{"user":"u"}`, row)
	m.cameras = m.samples
	a, b := mustTensor(tensor.FromSlice(tensor.Shape{1, 2}, []float32{1, 2})),
		mustTensor(tensor.FromSlice(tensor.Shape{1}, []int64{3}))
	pixels := mustTensor(tensor.FromSlice(tensor.Shape{2, 3}, []uint8("abcdef")))
	numbers := mustTensor(tensor.FromSlice(tensor.Shape{2, 2}, []float64{1, 2, 3, 4}))
	square := mustTensor(tensor.FromSlice(tensor.Shape{2, 2}, []int32{1, 2, 3, 4}))
	add("floats", "", x)
	add("floats", `{"id":7,"timing":true,"timeout_ms":9000,"priority":3,"user":"u","other":{"x":[1,2,{"y":null}]},"parameters":{"threshold":0.5,"labels":["a"]}}`, x)
	add("floats/1", `{"id":"\u00e9","__tensors__":["x"],"version":"1"}`, row)
	add("two", `{"__tensors__":["b","a"],"id":{"k":[1]}}`, b, a)
	add("two", `{"parameters":{}}`, a, b)
	add("free", `{"k":1e3}`, pixels)
	add("texts", `{"__texts__":{"x":["a","[1]"]},"id":1}`)
	add("texts", `{"__texts__":{"x":{"b64":"/wA="}}}`)
	add("texts", `{"x":"\u00e9","n":5,"timeout_ms":"null"}`)
	add("two", `{"b":"__tensor__0","a":"__tensor__1","n":1}`, b, a)
	add("two", `{"q":{"b":"__tensor__0","k":[1,"null"]},"l":[{"a":"__tensor__1"}],"id":"null"}`, b, a)
	add("floats", `{"x":["__tensor__0","__tensor__1"]}`, row, row)
	add("free", `{"x":[[1,2],[3,4]]}`)
	add("numbers", `{"input":"__tensor__0"}`, numbers)
	add("words", `{"input":["a","\u00e9"]}`)
	add("words", `{"__texts__":{"input":["a","\u00e9"]}}`)
	add("numbers", `{"batch":true,"id":2}`, numbers)
	add("words", `{"inputs":["a","\u00e9",""]}`)
	add("words", "", pixels)
	add("unbatched", `{"id":3}`, square)
	add("app", `{"id":"q1","user":"u","candidate_models":["floats/1"],"cache":false,"salt":"s"}`, x)
	add("app/update", `{"user":"w","loss":0.25}`, x)
	add("app/update", `{"user":"u","loss":0.5}`, row)
	add("app/update", `{"user":"u","losses":{"floats/1":0.5}}`, row)
	for _, route := range []string{"!live", "!ready", "!server", "!models"} {
		add(route, `{"id":4}`)
	}
	return m
}

func mustTensor(t tensor.Tensor, err error) tensor.Tensor {
	if err != nil {
		panic(err)
	}
	return t
}

// readAndEcho is a container that reads parameters with a strict library.
func (m *mutants) readAndEcho(b *scheduler.Batch) error {
	for i := range b.Parts {
		if p := b.Parts[i].Parameters; p != nil {
			var v map[string]any
			if err := json.Unmarshal(p, &v); err != nil {
				return fmt.Errorf("parameters %.2000q: %w", p, err)
			}
		}
	}
	return m.Echo(b)
}

// zeros is a container of an old generation, which answers with a number for each row.
func (m *mutants) zeros(b *scheduler.Batch) error {
	out, err := m.Pool.Get(8 * b.Rows)
	if err != nil {
		return err
	}
	clear(out.Bytes())
	return b.Complete(
		[]tensor.Tensor{{DType: tensor.Float64, Shape: tensor.Shape{b.Rows}, Data: out.Bytes(), Buf: out}}, nil)
}

// A talk holds the bytes that a client sends on one connection.
type talk struct {
	bytes  []byte
	right  []bool            // which of its messages are valid
	frames []*jsontest.Frame // the frames that its messages are; nil: not a frame, or unknown
	cuts   []int             // the ends of its pieces
	end    bool              // the client ends its direction afterwards
}

func (q *talk) String() string {
	return fmt.Sprintf("%d bytes, cut at %v: %.8000q", len(q.bytes), q.cuts, q.bytes)
}

// make makes a conversation.
func (m *mutants) make(c *jsontest.Choices) *talk {
	q := new(talk)
	inStep := true // false after an inserted or removed byte, when message boundaries are unknown
	samples, most := m.samples, 4
	if c.N(4) == 3 {
		samples, most = m.cameras, 12
	}
	for range 1 + c.N(most) {
		text, frame, right := m.message(c, samples)
		if c.N(16) == 15 {
			text, inStep = jsontest.Spoil(c, text), false
		}
		if !inStep {
			frame, right = nil, false
		}
		if len(text) > 0 {
			q.bytes, q.right, q.frames = append(q.bytes, text...), append(q.right, right), append(q.frames, frame)
		}
	}
	if c.N(8) == 7 {
		q.bytes = q.bytes[:c.N(min(len(q.bytes), 1<<16-1)+1)]
	}
	for range c.N(6) {
		q.cuts = append(q.cuts, c.N(min(len(q.bytes), 1<<16-1)+1))
	}
	slices.Sort(q.cuts)
	q.cuts = append(q.cuts, len(q.bytes))
	q.end = c.N(3) == 2
	return q
}

// message makes a message, and returns which frame of a stream it is, and whether it is otherwise
// an unchanged sample.
func (m *mutants) message(c *jsontest.Choices, samples []sample) (text []byte, frame *jsontest.Frame, right bool) {
	s := jsontest.One(c, samples)
	q := shiva.Message{Namespace: s.namespace, Tensors: slices.Clone(s.tensors)}
	right = true
	if s.metadata != nil {
		v := s.metadata.Clone()
		for range c.N(5) {
			v.Mutate(c)
			right = false
		}
		if len(samples) == len(m.cameras) || c.N(8) == 7 {
			if frame = jsontest.ChooseFrame(c); !v.SetFrame(frame) {
				frame = nil
			}
		}
		q.Metadata = v.Append(nil)
	}
	switch c.N(12) {
	case 8:
		q.Namespace, right = jsontest.One(c, m.samples).namespace, false
	case 9:
		q.Namespace, right = jsontest.One(c,
			[]string{"", "!error", "!", "nobody", "floats/9", "v2/models/floats", "v2/health/ready",
				"v2/models/floats/infer", "app/1", "\xff"}), false
	case 10, 11:
		for range 1 + c.N(3) {
			q.Tensors = changed(c, q.Tensors, m.samples)
		}
		right = false
	}
	text, err := shiva.AppendMessage(nil, &q)
	if err != nil { // more tensors than the wire format allows
		return nil, nil, false
	}
	return text, frame, right && (frame == nil || frame.Right)
}

// changed returns a list of tensors with one of them missing, repeated, of another type or another
// shape.
func changed(c *jsontest.Choices, list []tensor.Tensor, samples []sample) []tensor.Tensor {
	if len(list) == 0 || c.N(6) == 5 {
		return append(list, jsontest.One(c, samples).tensors...)
	}
	i := c.N(len(list))
	t := &list[i]
	switch c.N(7) {
	case 0:
		return slices.Delete(slices.Clone(list), i, i+1)
	case 1:
		for range []int{1, 2, 100}[c.N(3)] {
			list = append(list, list[i])
		}
	case 2:
		for _, d := range []tensor.DType{tensor.Uint8, tensor.Bool, tensor.Float16, tensor.Int32, tensor.Float32,
			tensor.Complex64, tensor.LongDouble}[c.N(7):] {
			if d.Size() == t.DType.Size() {
				t.DType = d
			}
		}
	case 3: // in another shape
		t.Shape = tensor.Shape{len(t.Data) / t.DType.Size()}
	case 4:
		for range []int{1, 2, 29, 61, 70}[c.N(5)] {
			t.Shape = append(tensor.Shape{1}, t.Shape...)
		}
	case 5: // of nothing
		t.Shape = slices.Clone(t.Shape)
		if len(t.Shape) > 0 {
			t.Shape[c.N(len(t.Shape))] = 0
			t.Data = nil
		}
	case 6: // of one row less, or more
		if len(t.Shape) > 0 && t.Shape[0] > 0 {
			size := len(t.Data) / t.Shape[0]
			n := t.Shape[0] - 1 + 2*c.N(2)
			t.Shape = slices.Clone(t.Shape)
			t.Shape[0] = n
			t.Data = append(slices.Clone(t.Data), make([]byte, size)...)[:n*size]
		}
	}
	return list
}

// run runs a conversation, or two at once whose frames are of the same streams, and checks the
// answers.
func (m *mutants) run(c jsontest.Choices) {
	l := m.loop
	talks := make([]*talk, 1+max(0, c.N(4)-2))
	sessions, transports := make([]*session, len(talks)), make([]*memory, len(talks))
	defer jsontest.Within(func() string { return fmt.Sprint(talks) })()
	settings := l.door.Settings()
	settings.Streams = c.N(4) == 3
	settings.Keep = jsontest.One(&c, []setting.Keep{0, setting.KeepAll, setting.KeepLatest, 2})
	l.door.Configure(settings)
	l.begin()
	for i := range talks {
		talks[i], transports[i] = m.make(&c), new(memory)
		sessions[i] = l.newSession(uint64(1+i), transports[i])
		transports[i].s = sessions[i]
	}
	l.end()
	for turn, more := 0, true; more; turn++ {
		more = false
		for i, q := range talks {
			if turn < len(q.cuts) {
				from := 0
				if turn > 0 {
					from = q.cuts[turn-1]
				}
				sessions[i].take(q.bytes[from:q.cuts[turn]])
				more = true
			}
		}
	}
	for i, q := range talks {
		m.leave(q, sessions[i])
	}
	for i, q := range talks {
		m.judge(q, transports[i].out, talks)
		if sessions[i].phase != gone {
			transports[i].Close()
		}
	}
	l.spares.Release()
	budgettest.Until(m.T, "the memory of a conversation to come back", m.Idle)
	m.silent()
}

// leave ends the client's direction, if the talk does so, and waits for the last answer.
func (m *mutants) leave(q *talk, s *session) {
	l := m.loop
	if q.end {
		l.begin()
		if s.due() {
			s.hangUp()
		} else {
			s.closed()
		}
		l.end()
	}
	// Feedback is learned on other goroutines, and the goroutine that completes a call may take the
	// turn.
	for waiting := true; waiting; {
		l.begin()
		waiting = s.waiting > 0 && s.phase != gone
		l.end()
		if waiting {
			time.Sleep(10 * time.Microsecond) // spinning would take time from these goroutines
		}
	}
}

// silent waits until every frame has an answer, and the streams of connections are removed.
func (m *mutants) silent() {
	model, _ := m.Sched.Model(scheduler.ModelID{Name: "camera", Version: "1"})
	budgettest.Until(m.T, "the streams to fall silent", func() bool {
		for _, s := range model.Streams(1000) {
			if s.Waiting > 0 || s.Connection != 0 {
				return false
			}
		}
		return model.Stats().Requests == 0
	})
}

// judge checks the answers: one for each message, in order, each with an error of the table and
// valid JSON, and successful for valid messages.
func (m *mutants) judge(q *talk, out []byte, talks []*talk) {
	fail := func(format string, args ...any) {
		m.T.Fatalf("%s\n%v", fmt.Sprintf(format, args...), q)
	}
	asked, answers := shiva.NewDecoder(shiva.DecoderConfig{Limits: m.loop.door.Settings().Limits}),
		shiva.NewDecoder(shiva.DecoderConfig{})
	in := q.bytes
	for i := 0; ; i++ {
		n, question, fault := asked.Push(in)
		in = in[n:]
		more, right := question != nil || fault != nil, i < len(q.right) && q.right[i]
		if !more && q.end && asked.InMessage() {
			more, right, fault = true, false, asked.Close()
		}
		n, answer, err := answers.Push(out)
		out = out[n:]
		if err != nil || more != (answer != nil) {
			fail("question %d: %v, %v; its answer: %s, %v", i, describeMessage(question), fault,
				describeMessage(answer), err)
		}
		if !more {
			return
		}
		m.judgeAnswer(question, answer, right, fail)
		if question != nil && i < len(q.frames) && q.frames[i] != nil {
			m.judgeFrame(question, answer, q.frames[i], m.newer(q, i, talks), fail)
		}
		if d, ok := fault.(*shiva.DecodeError); ok && !d.Keep() {
			if len(out) > 0 {
				fail("%d bytes after the answer to a fault", len(out))
			}
			return
		}
	}
}

func (m *mutants) judgeAnswer(question, answer *shiva.Message, right bool, fail func(string, ...any)) {
	if !json.Valid(answer.Metadata) || answer.Metadata[0] != '{' {
		fail("the answer's metadata is %.500q", answer.Metadata)
	}
	if e := shiva.ParseError(answer); e != nil {
		switch e.Type {
		case shiva.Protocol, shiva.InvalidInput:
			m.tally.Refused(e.Type)
		case shiva.TooLarge, shiva.NotFound, shiva.DeadlineExceeded:
			m.tally.Other(e.Type)
		case shiva.Superseded:
			m.tally.Other(e.Type)
			right = false
		case shiva.Overloaded: // its own deadline is too short
			m.tally.Other(e.Type)
			right = right && !strings.Contains(string(question.Metadata), "timeout_ms")
		default:
			fail("answered %s", describeMessage(answer))
		}
		if right {
			fail("a right message is refused: %s", describeMessage(answer))
		}
	} else if question == nil || answer.Namespace != question.Namespace {
		fail("answered %s", describeMessage(answer))
	} else {
		m.tally.Good("good")
	}
	if question == nil {
		return
	}
	if id := jsonscan.Field(question.Metadata, "id"); id != nil &&
		!strings.Contains(string(answer.Metadata), string(id)) {
		fail("the id %.100q is not in the answer %s", id, describeMessage(answer))
	}
}

// newer returns the frames that may supersede frame i of q: those after it, and those of other
// conversations; nil for messages that may or may not be frames.
func (m *mutants) newer(q *talk, i int, talks []*talk) (frames []*jsontest.Frame) {
	for _, other := range talks {
		list := other.frames
		if other == q {
			list = list[i+1:]
		}
		for _, f := range list {
			if f != nil || m.loop.door.Settings().Streams || bytes.Contains(other.bytes, []byte(`"stream"`)) {
				frames = append(frames, f)
			}
		}
	}
	return frames
}

// judgeFrame checks the answer to a frame: an invalid one is refused, a valid one gets its number
// back, and a superseded one is told by which frame. A frame that names no stream is of its
// connection's stream, if connections are streams, otherwise none.
func (m *mutants) judgeFrame(question, answer *shiva.Message, f *jsontest.Frame, newer []*jsontest.Frame,
	fail func(string, ...any)) {
	if e := shiva.ParseError(answer); e != nil {
		if e.Type == shiva.Superseded && !f.By(e.By, newer) {
			fail("frame %v is superseded by %q", f.Keys, e.By)
		}
		return
	}
	if question.Namespace[0] == '!' || strings.HasSuffix(question.Namespace, "/update") ||
		strings.HasPrefix(question.Namespace, "v2/") {
		return
	}
	right := f.Right || f.Stray && m.loop.door.Settings().Streams
	if f.Stray && !right {
		if jsonscan.Field(answer.Metadata, "skipped") != nil {
			fail("frame %v of no stream is answered %s", f.Keys, describeMessage(answer))
		}
		return
	}
	if seq := string(jsonscan.Field(answer.Metadata, "seq")); !right || seq != f.Value("seq") ||
		jsonscan.Field(answer.Metadata, "skipped") == nil {
		fail("frame %v is answered %s", f.Keys, describeMessage(answer))
	}
}

func TestMutants(t *testing.T) {
	m := newMutants(t)
	jsontest.Drive(t, 10_000, &m.tally, m.run)
}

// TestMutantsOnSockets runs conversations through the kernel, several at a time and cut into
// pieces.
func TestMutantsOnSockets(t *testing.T) {
	onTransports(t, func(t *testing.T, newSocketRig func(testing.TB, func(*Config)) *rig) {
		m := newMutants(t)
		door := m.loop.door
		m.on = newSocketRig(t, func(c *Config) {
			c.Gate, c.Describe, c.Pool, c.Metrics, c.Settings = door.gate, door.describe, door.pool, door.metrics,
				door.Settings()
		})
		jsontest.Drive(t, 300, &m.tally, m.converse)
	})
}

// converse is run over sockets.
func (m *mutants) converse(c jsontest.Choices) {
	talks := make([]*talk, 1+max(0, c.N(4)-2))
	defer jsontest.Within(func() string { return fmt.Sprint(talks) })()
	out := make([][]byte, len(talks))
	var all sync.WaitGroup
	for i := range talks {
		q := m.make(&c)
		q.end = true // so that the client sees that no answer follows
		talks[i] = q
		w := m.on.dial()
		all.Go(func() {
			from := 0
			for _, to := range q.cuts {
				w.bytes(q.bytes[from:to])
				from = to
			}
			w.endDirection()
			var err error
			if out[i], err = io.ReadAll(w); err != nil {
				m.T.Errorf("%v\n%v", err, q)
			}
			w.Close()
		})
	}
	all.Wait()
	for i, q := range talks {
		m.judge(q, out[i], talks)
	}
	budgettest.Until(m.T, "the memory of a conversation to come back", func() bool { return m.on.open() == 0 })
	m.silent()
}

// FuzzMutants derives conversations from fuzzed bytes, guided by coverage. The first byte is the
// number of messages after the first.
func FuzzMutants(f *testing.F) {
	m := newMutants(f)
	jsontest.Fuzz(f, len(m.samples), []byte{0}, func(t *testing.T, c jsontest.Choices) {
		run := *m
		held := *m.rig
		held.Rig = m.For(t)
		run.rig = &held
		run.run(c)
	})
}
