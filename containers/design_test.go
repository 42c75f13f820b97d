package containers

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestDesignExample: the batch in DESIGN.md is sent byte for byte, and its result accepted.
func TestDesignExample(t *testing.T) {
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	c := &v4{limits: Settings{}.withDefaults().Limits}
	c.bind(registration{spec: scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{{Name: "sum", DType: tensor.Float32, Shape: tensor.Shape{-1}}},
	}})
	one, _ := tensor.FromSlice(tensor.Shape{1, 2}, []float32{1.5, 2})
	two, _ := tensor.FromSlice(tensor.Shape{2, 2}, []float32{3, 4, 5, -6})
	now := time.Now()
	b := &scheduler.Batch{ID: 0x0102030405060708, Rows: 3, Deadline: now.Add(48500 * time.Microsecond),
		Parts: []scheduler.Part{
			{Inputs: []tensor.Tensor{one}, Rows: 1},
			{Inputs: []tensor.Tensor{two}, Rows: 2, Parameters: []byte(`{"k":1}`)},
		}}
	var o zmtp.Outgoing
	if err := c.batch(&o, b, now); err != nil {
		t.Fatal(err)
	}
	for i, f := range newLine(t).frames(t, &o) {
		if i == 2 {
			header, _ := hex.DecodeString(f)
			f = string(header)
		}
		if !strings.Contains(string(text), "`"+f+"`") {
			t.Errorf("frame %d is %s, which is not in DESIGN.md", i, f)
		}
	}
	_, rest, _ := strings.Cut(string(text), "| 2 | `{\"outputs\"")
	header, rest, _ := strings.Cut(rest, "`")
	_, rest, _ = strings.Cut(rest, "| 3 | ")
	data, _, _ := strings.Cut(rest, " (hex)")
	m := message(t,
		[]string{hex.EncodeToString([]byte("result")), "0807060504030201",
			hex.EncodeToString([]byte(`{"outputs"` + header)), strings.NewReplacer("`", "", " ", "").Replace(data)})
	a, err := c.result(m, b)
	if err != nil {
		t.Fatal(err)
	}
	sums, err := tensor.Values[float32](a.outputs[0])
	if err != nil || len(sums) != 3 || sums[0] != 3.5 || sums[1] != 7 || sums[2] != -1 {
		t.Errorf("sums %v, %v", sums, err)
	}
	// The registration is accepted, too.
	_, rest, _ = strings.Cut(string(text), "```json\n")
	hello, _, _ := strings.Cut(rest, "```")
	if _, err := readHello([]byte(hello), c.limits); err != nil {
		t.Error(err)
	}
}

// TestAnnounced: a batch that may take long to arrive is announced with its size, in the same
// write, to a container that requests it.
func TestAnnounced(t *testing.T) {
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
	for _, tt := range []struct {
		announce bool
		size     int
		want     string
	}{{true, announceSize - 1, ""}, {true, announceSize, `{"coming_bytes":32768}`}, {false, 1 << 20, ""}} {
		c := &v4{limits: Settings{}.withDefaults().Limits}
		c.bind(registration{announce: tt.announce, spec: scheduler.Spec{Inputs: x, Outputs: x}})
		var b scheduler.Batch
		for rows, size := range []int{tt.size / 2, tt.size - tt.size/2} {
			in, err := tensor.New(tensor.Uint8, tensor.Shape{1, size}, make([]byte, size))
			if err != nil {
				t.Fatal(err)
			}
			b.Parts, b.Rows = append(b.Parts, scheduler.Part{Inputs: []tensor.Tensor{in}, Rows: 1}), rows+1
		}
		var o zmtp.Outgoing
		if err := c.batch(&o, &b, time.Now()); err != nil {
			t.Fatal(err)
		}
		l := newLine(t)
		if err := l.from.Send(&o); err != nil {
			t.Fatal(err)
		}
		got := ""
		var m zmtp.Message
		for {
			if err := l.to.Receive(&m); err != nil {
				t.Fatal(err)
			}
			if string(m.Frames[0].Data) == "batch" {
				break
			}
			got = string(m.Frames[1].Data)
			m.Release()
		}
		if !l.from.Written(&o) {
			t.Error("it came and is not written")
		}
		if len(m.Frames) != 4 || len(m.Frames[3].Data) != tt.size || got != tt.want || l.from.Writes() != 1 {
			t.Errorf("%+v: announced by %q in %d writes, %d frames", tt, got, l.from.Writes(), len(m.Frames))
		}
		m.Release()
	}
}

// TestUserIsRequested: a container requests the user of each request in its registration.
func TestUserIsRequested(t *testing.T) {
	limits := Settings{}.withDefaults().Limits
	for text, want := range map[string]bool{``: false, `"user":true,`: true, `"user":false,`: false} {
		r, err := readHello([]byte(`{"protocol":4,"model":"m","version":"1",`+text+
			`"inputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}],"outputs":[{"name":"y","datatype":"FP32","shape":[-1]}]}`), limits)
		if err != nil || r.spec.User != want {
			t.Errorf("with %q: %t, want %t (%v)", text, r.spec.User, want, err)
		}
	}
}
