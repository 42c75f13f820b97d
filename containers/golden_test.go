package containers

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/internal/adapter"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A step is one message of testdata/gen*.json, captured from Clipper's own containers or
// printed by its own serialiser.
type step struct {
	Scenario  string
	Step      int
	Direction string
	Frames    []string
	Decoded   struct {
		Kind      string
		Heartbeat int    `json:"heartbeat_type"`
		ID        uint32 `json:"msg_id"`
		Name      string
		Version   string
		InputType int `json:"input_type"`
		Inputs    []json.RawMessage
		Outputs   []json.RawMessage
	}
}

// A line is both ends of a connection, to see the frames of a message as they arrive.
type line struct{ from, to *zmtp.Conn }

func newLine(t testing.TB) line {
	t.Helper()
	a, b := containertest.Pipe()
	var l line
	var err error
	var wg sync.WaitGroup
	wg.Go(func() { l.to, err = zmtp.Client(b, zmtp.Config{}) })
	from, serr := zmtp.Server(a, zmtp.Config{})
	wg.Wait()
	if err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	l.from = from
	t.Cleanup(func() {
		l.from.Close()
		l.to.Close()
	})
	return l
}

func (l line) frames(t testing.TB, o *zmtp.Outgoing) []string {
	t.Helper()
	if err := l.from.Send(o); err != nil {
		t.Fatal(err)
	}
	var m zmtp.Message
	if err := l.to.Receive(&m); err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	var list []string
	for _, f := range m.Frames {
		list = append(list, hex.EncodeToString(f.Data))
	}
	return list
}

func message(t testing.TB, frames []string) *zmtp.Message {
	t.Helper()
	m := new(zmtp.Message)
	for _, f := range frames {
		b, err := hex.DecodeString(f)
		if err != nil {
			t.Fatal(err)
		}
		m.Frames = append(m.Frames, zmtp.Frame{Data: b})
	}
	return m
}

// TestGolden compares the codecs with every frame of the captured sessions, in both directions.
// Two kinds of message in the files are not sent by this server: the polyglot requests, a trick
// to serve v2 and v3 on one port, and feedback, which Clipper never sent either and on which its
// containers crash.
func TestGolden(t *testing.T) {
	for _, tt := range []struct {
		generation string
		dialect    Dialect
		kinds      map[string]int
	}{
		{"v1", DialectV3,
			map[string]int{"register": 6, "predict_request": 10, "predict_response": 10, "feedback_request": 1, "feedback_response": 1}},
		{"v1b", DialectV1b, map[string]int{"register": 5, "predict_request": 9, "predict_response": 9}},
		{"v2", DialectV2,
			map[string]int{"heartbeat": 12, "heartbeat_reply": 10, "register": 11, "predict_request": 17,
				"predict_response": 17, "polyglot_metadata_request": 2}},
		{"v2a", DialectV2a, map[string]int{"heartbeat": 6, "heartbeat_reply": 6, "register": 5, "predict_request": 9, "predict_response": 9}},
		{"v3", DialectV3,
			map[string]int{"heartbeat": 12, "heartbeat_reply": 10, "register": 11, "predict_request": 16,
				"predict_response": 16, "polyglot_metadata_request": 2}},
	} {
		t.Run(tt.generation, func(t *testing.T) {
			text, err := os.ReadFile("testdata/gen" + tt.generation[1:] + ".json")
			if err != nil {
				t.Fatal(err)
			}
			if seen := playGolden(t, text, tt.generation, tt.dialect); !reflect.DeepEqual(seen, tt.kinds) {
				t.Errorf("the file has %v, expected %v", seen, tt.kinds)
			}
		})
	}
}

func playGolden(t *testing.T, text []byte, generation string, dialect Dialect) (seen map[string]int) {
	var steps []step
	if err := json.Unmarshal(text, &steps); err != nil {
		t.Fatal(err)
	}
	l := newLine(t)
	var c codec
	var hello registration
	var asked *scheduler.Batch
	seen = map[string]int{}
	for _, s := range steps {
		where := s.Scenario + " " + string(rune('0'+s.Step))
		seen[s.Decoded.Kind]++
		if s.Step == 1 {
			var err error
			if c, err = recognise(message(t, s.Frames), dialect, Settings{}.withDefaults().Limits, nil); err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			if c.generation() != generation {
				t.Fatalf("%s: recognised as %s", where, c.generation())
			}
		}
		switch s.Decoded.Kind {
		case "heartbeat":
			if in, err := c.parse(message(t, s.Frames)); err != nil || in.event != evHeartbeat {
				t.Errorf("%s: %+v, %v", where, in, err)
			}
		case "heartbeat_reply":
			var o zmtp.Outgoing
			if !c.heartbeat(&o, s.Decoded.Heartbeat == 0) {
				t.Errorf("%s: not answered", where)
				continue
			}
			if got := l.frames(t, &o); !reflect.DeepEqual(got, s.Frames) {
				t.Errorf("%s: %q, expected %q", where, got, s.Frames)
			}
		case "register":
			in, err := c.parse(message(t, s.Frames))
			hello = in.hello
			want := scheduler.ModelID{Name: s.Decoded.Name, Version: s.Decoded.Version}
			if err != nil || in.event != evHello || hello.model != want ||
				hello.spec.Inputs[0].DType != legacyTypes[s.Decoded.InputType] || hello.spec.Adapter == nil {
				t.Fatalf("%s: %+v, %v", where, in, err)
			}
			c.bind(hello)
		case "predict_request":
			asked = batchOf(t, s.Decoded.ID, hello.spec.Inputs[0].DType, s.Decoded.Inputs)
			var o zmtp.Outgoing
			if err := c.batch(&o, asked, time.Time{}); err != nil {
				t.Fatal(err)
			}
			if got := l.frames(t, &o); !reflect.DeepEqual(got, s.Frames) {
				t.Errorf("%s: %q, expected %q", where, got, s.Frames)
			}
		case "predict_response":
			m := message(t, s.Frames)
			in, err := c.parse(m)
			if err != nil || in.event != evResult || in.id != c.id(asked) || in.id != uint64(s.Decoded.ID) {
				t.Errorf("%s: %+v, %v", where, in, err)
			}
			a, err := c.result(m, asked)
			if err != nil {
				t.Errorf("%s: %v", where, err)
				continue
			}
			if a.outputs[0].DType != hello.spec.Outputs[0].DType ||
				!a.outputs[0].Shape.Equal(tensor.Shape{asked.Rows}) {
				t.Errorf("%s: %s %s, declared as %s", where, a.outputs[0].DType, a.outputs[0].Shape, hello.spec)
			}
			if got, want := outputs(t, a.outputs[0]),
				expected(t, hello.spec.Outputs[0].DType, s.Decoded.Outputs); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, expected %v", where, got, want)
			}
		case "feedback_response":
			// It looks like an answer to no batch.
			if in, err := c.parse(message(t, s.Frames)); err != nil || in.event != evResult {
				t.Errorf("%s: %+v, %v", where, in, err)
			}
		}
	}
	return seen
}

// outputs returns the values of a legacy answer.
func outputs(t testing.TB, o tensor.Tensor) (list []any) {
	t.Helper()
	if o.DType == tensor.Bytes {
		texts, err := tensor.Strings(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range texts {
			list = append(list, s)
		}
		return list
	}
	wide, err := tensor.Cast(o, tensor.Float64, nil)
	if err != nil {
		t.Fatal(err)
	}
	numbers, err := tensor.Values[float64](wide)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range numbers {
		list = append(list, v)
	}
	return list
}

// expected returns the values in the golden file: texts, numbers, or "inf".
func expected(t testing.TB, d tensor.DType, texts []json.RawMessage) (list []any) {
	t.Helper()
	for _, text := range texts {
		switch v := value[any](t, text); {
		case d != tensor.Bytes && v == "inf":
			list = append(list, math.Inf(1))
		default:
			list = append(list, v)
		}
	}
	return list
}

// batchOf makes a batch of one request for each input, as the scheduler would.
func batchOf(t testing.TB, id uint32, d tensor.DType, inputs []json.RawMessage) *scheduler.Batch {
	t.Helper()
	b := &scheduler.Batch{ID: 77<<32 | uint64(id), Rows: len(inputs)}
	for _, text := range inputs {
		var row tensor.Tensor
		var err error
		switch d {
		case tensor.Bytes:
			row, err = tensor.FromStrings(tensor.Shape{1}, []string{value[string](t, text)})
		case tensor.Uint8:
			var bytes []byte
			for _, n := range value[[]int](t, text) {
				bytes = append(bytes, byte(n))
			}
			row, err = tensor.FromSlice(tensor.Shape{1, len(bytes)}, bytes)
		case tensor.Int32:
			v := value[[]int32](t, text)
			row, err = tensor.FromSlice(tensor.Shape{1, len(v)}, v)
		case tensor.Float32:
			v := value[[]float32](t, text)
			row, err = tensor.FromSlice(tensor.Shape{1, len(v)}, v)
		default:
			v := value[[]float64](t, text)
			row, err = tensor.FromSlice(tensor.Shape{1, len(v)}, v)
		}
		if err != nil {
			t.Fatal(err)
		}
		b.Parts = append(b.Parts, scheduler.Part{Inputs: []tensor.Tensor{row}, Rows: 1})
	}
	return b
}

func value[T any](t testing.TB, text json.RawMessage) (v T) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestV3Rows: requests of several rows are split into frames, whatever their lengths.
func TestV3Rows(t *testing.T) {
	c := &v3{legacy{limits: Settings{}.withDefaults().Limits}}
	c.bind(registration{spec: scheduler.Spec{Inputs: []tensor.Spec{{DType: tensor.Bytes}}}})
	two, _ := tensor.FromStrings(tensor.Shape{2}, []string{"a", "bc"})
	one, _ := tensor.FromStrings(tensor.Shape{1}, []string{"\x00"})
	b := &scheduler.Batch{ID: 1, Rows: 3,
		Parts: []scheduler.Part{{Inputs: []tensor.Tensor{two}, Rows: 2}, {Inputs: []tensor.Tensor{one}, Rows: 1}}}
	var o zmtp.Outgoing
	if err := c.batch(&o, b, time.Time{}); err != nil {
		t.Fatal(err)
	}
	got := newLine(t).frames(t, &o)[7:]
	if !reflect.DeepEqual(got, []string{"61", "6263", "00"}) {
		t.Errorf("rows %q", got)
	}
	c.limits.Frames = 7
	if err := c.batch(&o, b, time.Time{}); err == nil {
		t.Error("a batch whose answer cannot be received was sent")
	}
}

// TestV3Broken: an invalid structure ends the session, a wrong answer fails the batch.
func TestV3Broken(t *testing.T) {
	for _, tt := range []struct {
		name   string
		frames []string
	}{
		{"no type", []string{""}},
		{"text type", []string{"", "68656c6c6f"}},
		{"type 9", []string{"", "09000000"}},
		{"full first frame", []string{"00", "02000000"}},
		{"response without id", []string{"", "01000000"}},
		{"short id", []string{"", "01000000", "0100", "0800000000000000", "0000000000000000"}},
		{"short header size", []string{"", "01000000", "00000000", "08000000", "0000000000000000"}},
		{"wrong header size", []string{"", "01000000", "00000000", "0900000000000000", "0000000000000000"}},
		{"registration of 4", []string{"", "00000000", "6d", "31"}},
		{"rpc version 2", []string{"", "00000000", "6d", "31", "33", "02000000"}},
		{"short rpc version", []string{"", "00000000", "6d", "31", "33", "03"}},
		{"input type 5", []string{"", "00000000", "6d", "31", "35", "03000000"}},
		{"no input type", []string{"", "00000000", "6d", "31", "", "03000000"}},
		{"name with a slash", []string{"", "00000000", "612f62", "31", "33", "03000000"}},
		{"name with a newline", []string{"", "00000000", "610a", "31", "33", "03000000"}},
		{"empty version", []string{"", "00000000", "6d", "", "33", "03000000"}},
	} {
		if in, err := new(v3).parse(message(t, tt.frames)); err == nil {
			t.Errorf("%s: parsed as %+v", tt.name, in)
		}
	}
	b := &scheduler.Batch{ID: 1, Rows: 2}
	for _, tt := range []struct {
		name   string
		frames []string
	}{
		{"one row", []string{"", "01000000", "01000000", "1000000000000000", "01000000000000000100000000000000", "61"}},
		{"count and frames differ",
			[]string{"", "01000000", "01000000", "1800000000000000",
				"020000000000000001000000000000000100000000000000"[:48], "61"}},
		{"sizes differ",
			[]string{"", "01000000", "01000000", "1800000000000000", "020000000000000001000000000000000200000000000000",
				"61", "61"}},
		{"empty header", []string{"", "01000000", "01000000", "0000000000000000", ""}},
	} {
		m := message(t, tt.frames)
		if _, err := new(v3).parse(m); err != nil {
			t.Errorf("%s: parse: %v", tt.name, err)
		}
		if a, err := new(v3).result(m, b); err == nil {
			t.Errorf("%s: answered %v", tt.name, a.outputs)
		}
	}
}

// TestJoinedRows: joined requests of several rows have offsets, and rows that cannot be encoded
// are not sent.
func TestJoinedRows(t *testing.T) {
	texts := func(s ...string) scheduler.Part {
		x, err := tensor.FromStrings(tensor.Shape{len(s)}, s)
		if err != nil {
			t.Fatal(err)
		}
		return scheduler.Part{Inputs: []tensor.Tensor{x}, Rows: len(s)}
	}
	numbers := func(rows int, v ...int32) scheduler.Part {
		x, err := tensor.FromSlice(tensor.Shape{rows, len(v) / rows}, v)
		if err != nil {
			t.Fatal(err)
		}
		return scheduler.Part{Inputs: []tensor.Tensor{x}, Rows: rows}
	}
	for _, tt := range []struct {
		name  string
		dtype tensor.DType
		parts []scheduler.Part
		want  []string // frames after the request type
		err   error
	}{
		{"ragged numbers", tensor.Int32, []scheduler.Part{numbers(2, 1, 2, 3, 4), numbers(1), numbers(1, 5)},
			[]string{"0100000004000000020000000400000004000000", "0100000002000000030000000400000005000000"}, nil},
		{"texts", tensor.Bytes, []scheduler.Part{texts("a", ""), texts("bc")},
			[]string{"04000000030000000100000002000000", "61000062" + "6300"}, nil},
		{"one empty text", tensor.Bytes, []scheduler.Part{texts("")}, []string{"0400000001000000", "00"}, nil},
		{"nothing but empty vectors", tensor.Int32, []scheduler.Part{numbers(1), numbers(1)}, nil, errNoContent},
		{"a NUL", tensor.Bytes, []scheduler.Part{texts("a"), texts("b", "c\x00d")}, nil, errNUL},
	} {
		c := &v1{}
		c.bind(registration{spec: adapter.Spec(tt.dtype, tensor.Float32)})
		b := &scheduler.Batch{ID: 1, Parts: tt.parts}
		for _, p := range tt.parts {
			b.Rows += p.Rows
		}
		var o zmtp.Outgoing
		if err := c.batch(&o, b, time.Time{}); err != tt.err {
			t.Errorf("%s: error %v, expected %v", tt.name, err, tt.err)
		}
		if tt.err == nil {
			if got := newLine(t).frames(t, &o)[3:]; !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s: %q, expected %q", tt.name, got, tt.want)
			}
		}
	}
}

// TestV1JavaID: the Java container of v1b (ucbrise/clipper, ModelContainer.java of 2f9f117c)
// sends the id in 8 bytes, as those of later generations.
func TestV1JavaID(t *testing.T) {
	c := &v1{sized: true}
	m := zmtp.Message{Frames: []zmtp.Frame{{}, {Data: []byte{4, 3, 2, 1, 0, 0, 0, 0}}, {Data: make([]byte, 8)}}}
	in, err := c.parse(&m)
	if err != nil || in.event != evResult || in.id != 0x01020304 {
		t.Fatalf("%+v, %v", in, err)
	}
	if a, err := c.result(&m, &scheduler.Batch{Rows: 2}); err != nil || len(a.outputs) != 1 {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestV1V2Broken: an invalid structure ends the session, a wrong answer fails the batch.
func TestV1V2Broken(t *testing.T) {
	for _, tt := range []struct {
		name   string
		codec  codec
		frames []string
	}{
		{"v1: short id", &v1{}, []string{"", "0100", "00000000"}},
		{"v1: two frames", &v1{}, []string{"", "01000000"}},
		{"v1: full first frame", &v1{}, []string{"00", "01000000", "00000000"}},
		{"v1: input type 5", &v1{}, []string{"", "6d", "31", "35"}},
		{"v1: name with a slash", &v1{}, []string{"", "612f62", "31", "33"}},
		{"v2: no type", &v2{}, []string{""}},
		{"v2: type 3", &v2{}, []string{"", "03000000"}},
		{"v2: registration of v3", &v2{}, []string{"", "00000000", "6d", "31", "33", "03000000"}},
		{"v2: registration of 4", &v2{}, []string{"", "00000000", "6d", "31"}},
		{"v2: short id", &v2{}, []string{"", "01000000", "0100", "00000000"}},
		{"v2: response of v3", &v2{}, []string{"", "01000000", "00000000", "0800000000000000", "0000000000000000"}},
	} {
		if in, err := tt.codec.parse(message(t, tt.frames)); err == nil {
			t.Errorf("%s: parsed as %+v", tt.name, in)
		}
	}
	b := &scheduler.Batch{ID: 1, Rows: 2}
	for _, tt := range []struct {
		name   string
		codec  codec
		frames []string
	}{
		{"v1: one row", &v1{}, []string{"", "01000000", "00000000"}},
		{"v1: half a row", &v1{}, []string{"", "01000000", "000000000000"}},
		{"v1: acknowledged feedback", &v1{}, []string{"", "01000000", "41434b"}},
		{"v2a: three rows", &v2{floats: true}, []string{"", "01000000", "01000000", "000000000000000000000000"}},
		{"v2: empty", &v2{}, []string{"", "01000000", "01000000", ""}},
		{"v2: floats", &v2{}, []string{"", "01000000", "01000000", "0000000000000000"}},
		{"v2: three rows", &v2{}, []string{"", "01000000", "01000000", "03000000000000000000000000000000"}},
		{"v2: sizes larger", &v2{}, []string{"", "01000000", "01000000", "02000000010000000200000061" + "61"}},
		{"v2: sizes overflow", &v2{}, []string{"", "01000000", "01000000", "02000000ffffffff03000000" + "6161"}},
		{"v2: bytes left over", &v2{}, []string{"", "01000000", "01000000", "020000000100000001000000616161"}},
	} {
		m := message(t, tt.frames)
		if _, err := tt.codec.parse(m); err != nil {
			t.Errorf("%s: parse: %v", tt.name, err)
		}
		if a, err := tt.codec.result(m, b); err == nil {
			t.Errorf("%s: answered %v", tt.name, a.outputs)
		}
	}
}

// TestRecognise tells generations apart by the first message.
func TestRecognise(t *testing.T) {
	const v2Here = "it speaks RPC v2 (registered without an RPC version), which needs an address of its own: " +
		"set containers.listen_v2 (or listen_v2a, if it answers with floats) and connect it there; this one serves v3"
	const late = "it sent an answer before it registered; if it speaks RPC v1, it registered with an earlier server process and must be restarted to register again"
	for _, tt := range []struct {
		name    string
		frames  []string
		dialect Dialect
		want    string
	}{
		{"v4 hello", []string{"68656c6c6f", "7b7d"}, DialectV3, "v4"},
		{"v4 hello among v2", []string{"68656c6c6f", "7b7d"}, DialectV2a, "v4"},
		{"v4 late result", []string{"726573756c74", "00"}, DialectV3, "v4"},
		{"v3 heartbeat", []string{"", "02000000"}, DialectV3, "v3"},
		{"v3 heartbeat beside v1b", []string{"", "02000000"}, DialectV1b, "v3"},
		{"v2 heartbeat", []string{"", "02000000"}, DialectV2, "v2"},
		{"v2a heartbeat", []string{"", "02000000"}, DialectV2a, "v2a"},
		{"v3 registration at once", []string{"", "00000000", "6d", "31", "33", "03000000"}, DialectV3, "v3"},
		{"v3 late response", []string{"", "01000000", "00000000", "08", "00"}, DialectV3, "v3"},
		{"v2 registration at once", []string{"", "00000000", "6d", "31", "33"}, DialectV3, v2Here},
		{"v2 registration at once, where it belongs", []string{"", "00000000", "6d", "31", "33"}, DialectV2, "v2"},
		{"v2 late response", []string{"", "01000000", "00000000", "00"}, DialectV2, "v2"},
		{"v1", []string{"", "6d", "31", "33"}, DialectV3, "v1"},
		{"v1 beside v2", []string{"", "6d", "31", "33"}, DialectV2, "v1"},
		{"v1b", []string{"", "6d", "31", "33"}, DialectV1b, "v1b"},
		{"v1 of four letters", []string{"", "6d6d6d6d", "31", "33"}, DialectV3, "v1"},
		{"v1 late answer", []string{"", "01000000", "0000803f"}, DialectV3, late},
		{"v1b late answer of Java", []string{"", "0100000000000000", "0000803f"}, DialectV1b, late},
		{"nothing", []string{"", "00"}, DialectV3, "first message has 2 frames, the first of them empty: no known RPC version"},
		{"one empty frame", []string{""}, DialectV3, "first message has 1 frame, the first of them empty: no known RPC version"},
	} {
		c, err := recognise(message(t, tt.frames), tt.dialect, Limits{}, nil)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = c.generation()
		}
		if got != tt.want {
			t.Errorf("%s: %s, expected %s", tt.name, got, tt.want)
		}
	}
}

func specs(name string) []tensor.Spec {
	return []tensor.Spec{{Name: name, DType: tensor.Float32, Shape: tensor.Shape{-1}}}
}
