package containers

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A step is one message of testdata/gen3.json, captured from Clipper's own containers or printed by its own serialiser.
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
		Outputs   []string
	}
}

// A line is two ends of a connection, to see a message's frames as they arrive.
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

// TestGoldenV3 holds the codec against every frame of the captured sessions, in both directions. The polyglot requests in
// the file, a trick to serve v2 and v3 on one port, are not used by this server.
func TestGoldenV3(t *testing.T) {
	text, err := os.ReadFile("testdata/gen3.json")
	if err != nil {
		t.Fatal(err)
	}
	var steps []step
	if err := json.Unmarshal(text, &steps); err != nil {
		t.Fatal(err)
	}
	l := newLine(t)
	var c *v3
	var asked *scheduler.Batch
	seen := map[string]int{}
	for _, s := range steps {
		where := s.Scenario + " " + string(rune('0'+s.Step))
		seen[s.Decoded.Kind]++
		if s.Step == 1 {
			first, err := recognise(message(t, s.Frames), Limits{})
			if err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			c = first.(*v3)
			c.limits = Config{}.withDefaults().Limits
		}
		switch s.Decoded.Kind {
		case "heartbeat":
			if in, err := c.parse(message(t, s.Frames)); err != nil || in.event != evHeartbeat {
				t.Errorf("%s: %+v, %v", where, in, err)
			}
		case "heartbeat_reply":
			var o zmtp.Outgoing
			c.heartbeat(&o, s.Decoded.Heartbeat == 0)
			if got := l.frames(t, &o); !reflect.DeepEqual(got, s.Frames) {
				t.Errorf("%s: %q, expected %q", where, got, s.Frames)
			}
		case "register":
			in, err := c.parse(message(t, s.Frames))
			want := scheduler.ModelID{Name: s.Decoded.Name, Version: s.Decoded.Version}
			if err != nil || in.event != evHello || in.hello.model != want || in.hello.spec.Inputs[0].DType != v3Types[s.Decoded.InputType] || !in.hello.spec.Flat {
				t.Errorf("%s: %+v, %v", where, in, err)
			}
			c.bind(in.hello)
		case "predict_request":
			asked = batchOf(t, s.Decoded.ID, c.dtype, s.Decoded.Inputs)
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
			if got, err := tensor.Strings(a.outputs[0]); err != nil || !reflect.DeepEqual(got, s.Decoded.Outputs) {
				t.Errorf("%s: %q, %v, expected %q", where, got, err, s.Decoded.Outputs)
			}
		}
	}
	for kind, n := range map[string]int{"heartbeat": 12, "register": 11, "predict_request": 16, "predict_response": 16} {
		if seen[kind] != n {
			t.Errorf("the file has %d of %s, expected %d", seen[kind], kind, n)
		}
	}
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

// Requests of several rows are cut into frames, whatever their lengths.
func TestV3Rows(t *testing.T) {
	c := &v3{limits: Config{}.withDefaults().Limits}
	c.bind(registration{spec: scheduler.Spec{Inputs: []tensor.Spec{{DType: tensor.Bytes}}}})
	two, _ := tensor.FromStrings(tensor.Shape{2}, []string{"a", "bc"})
	one, _ := tensor.FromStrings(tensor.Shape{1}, []string{"\x00"})
	b := &scheduler.Batch{ID: 1, Rows: 3, Parts: []scheduler.Part{{Inputs: []tensor.Tensor{two}, Rows: 2}, {Inputs: []tensor.Tensor{one}, Rows: 1}}}
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

// TestV3Broken: structure that cannot be trusted ends the session, a wrong answer fails the batch.
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
		{"count and frames differ", []string{"", "01000000", "01000000", "1800000000000000", "020000000000000001000000000000000100000000000000"[:48], "61"}},
		{"sizes differ", []string{"", "01000000", "01000000", "1800000000000000", "020000000000000001000000000000000200000000000000", "61", "61"}},
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

// TestRecognise tells generations apart by the first message.
func TestRecognise(t *testing.T) {
	for _, tt := range []struct {
		name   string
		frames []string
		want   string
	}{
		{"v4 hello", []string{"68656c6c6f", "7b7d"}, "v4"},
		{"v4 late result", []string{"726573756c74", "00"}, "v4"},
		{"v3 heartbeat", []string{"", "02000000"}, "v3"},
		{"v3 registration at once", []string{"", "00000000", "6d", "31", "33", "03000000"}, "v3"},
		{"v3 late response", []string{"", "01000000", "00000000", "08", "00"}, "v3"},
		{"v2 registration at once", []string{"", "00000000", "6d", "31", "33"}, "it speaks RPC v2 (registered without an RPC version); this listener serves v3 and v4"},
		{"v1", []string{"", "6d", "31", "33"}, `it speaks RPC v1 (registered "m" version "1" by its first message); this listener serves v3 and v4`},
		{"v1 of four letters", []string{"", "6d6d6d6d", "31", "33"}, `it speaks RPC v1 (registered "mmmm" version "1" by its first message); this listener serves v3 and v4`},
		{"nothing", []string{"", "00"}, "first message has 2 frames and begins with an empty one: no known RPC version"},
		{"one empty frame", []string{""}, "first message has 1 frames and begins with an empty one: no known RPC version"},
	} {
		c, err := recognise(message(t, tt.frames), Limits{})
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
