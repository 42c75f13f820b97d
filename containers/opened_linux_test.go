package containers_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A looker is a hand-written container of a model that gets pictures.
type looker struct {
	*liar
	id scheduler.ModelID
}

func newLooker(t *testing.T, r *rig, name string, change func(h *wire.HelloMessage)) *looker {
	t.Helper()
	pictures := &wire.Image{Channels: "rgb", Resize: "stretch", Height: 8, Width: 8, Regions: name == "read"}
	hello := wire.HelloMessage{Protocol: wire.Version, Model: name, Version: "1", Batched: new(true), Arena: true,
		Opens: true,
		Inputs: []wire.TensorMessage{{Name: "image", Datatype: "UINT8", Shape: []int{-1, -1, -1, 3},
			Format: "FORMAT_NHWC", Image: pictures}},
		Outputs: []wire.TensorMessage{{Name: "y", Datatype: "INT32", Shape: []int{-1}}}}
	change(&hello)
	l := &looker{newLiarOf(t, r, hello), scheduler.ModelID{Name: name, Version: "1"}}
	budgettest.Until(t, "the server to know that inputs are shared with "+name, func() bool {
		return slices.ContainsFunc(r.Sessions(), func(i containers.SessionInfo) bool {
			return i.Model == l.id && i.Arena != ""
		})
	})
	r.wait(t, l.id, 1)
	return l
}

// ask has the model look at a picture, of one region if it takes them; answer gets the header of
// the batch and returns members for that of the result.
func (l *looker) ask(r *rig, o *scheduler.Opened, answer func(header map[string]json.RawMessage) string) {
	l.t.Helper()
	file, err := tensor.FromElems(tensor.Shape{1}, [][]byte{[]byte("a file")}, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	file.Name = "image"
	m, _ := r.sched.Model(l.id)
	q := &scheduler.Request{Model: m, Inputs: []tensor.Tensor{file}, Rows: 1,
		Deadline: time.Now().Add(30 * time.Second), Rare: &scheduler.Rare{Opened: o}}
	if l.id.Name == "read" {
		corners, err := tensor.FromSlice(tensor.Shape{1, 4, 2}, make([]float32, 8))
		if err != nil {
			l.t.Fatal(err)
		}
		corners.Name = "image_regions"
		q.Inputs, q.Rare.Picture = append(q.Inputs, corners), scheduler.NewPicture()
	}
	done := make(chan error, 1)
	q.Owner = ownerFunc(func(q *scheduler.Request) {
		for i := range q.Outputs {
			q.Outputs[i].Release()
		}
		done <- q.Err
	})
	r.sched.Submit(q)
	batch := l.receive(wire.Batch)
	if batch == nil {
		l.t.Fatal("the session has ended")
	}
	var header map[string]json.RawMessage
	if err := json.Unmarshal(batch[2], &header); err != nil {
		l.t.Fatalf("%s: %v", batch[2], err)
	}
	l.answerWith(batch, `{"outputs":[{"name":"y","datatype":"INT32","shape":[1]}]`+answer(header)+`}`, make([]byte, 4))
	if err := <-done; err != nil {
		l.t.Error(err)
	}
}

// opens has the model find size pixels of step 2 in a picture and hand them on, wherever it may.
func (l *looker) opens(r *rig, o *scheduler.Opened, size int, fill byte) {
	l.t.Helper()
	l.ask(r, o, func(header map[string]json.RawMessage) string {
		want := fmt.Sprintf(`{"image":[{"picture":0,"step":%d}]}`, o.Wanted())
		if got := string(header["open"]); got != want {
			l.t.Errorf("the batch wants %s, expected %s", got, want)
		}
		if len(l.out) < lookedAt+size {
			return fmt.Sprintf(`,"opened":{"image":[{"picture":0,"step":2,"bytes":%d}]}`, size)
		}
		binary.LittleEndian.PutUint32(l.out[lookedAt-64:], 1)
		copy(l.out[lookedAt:], bytes.Repeat([]byte{fill}, size))
		return fmt.Sprintf(`,"opened":{"image":[{"picture":0,"step":2,"at":[%d,%d,%d]}]}`, l.no, lookedAt, size)
	})
}

// lookedAt is the place of the pixels in a segment of outputs.
const lookedAt = 4096 + 64

// TestOpenedPicture: what one container has decoded of a picture reaches those that look at it
// later, and who cannot use it is found out.
func TestOpenedPicture(t *testing.T) {
	const size = 300 << 10
	for _, tt := range []struct {
		name   string
		change func(h *wire.HelloMessage) // of the container that looks at it later
		looked int                        // the step that would do
		given  bool
		wanted int // of the next picture
	}{
		{"that will do", func(*wire.HelloMessage) {}, 4, true, 4},
		{"too coarse", func(*wire.HelloMessage) {}, 1, true, 1},
		{"by a container without it", func(h *wire.HelloMessage) { h.Opens = false }, -1, false, 0},
		{"in other colours", func(h *wire.HelloMessage) { h.Inputs[0].Image.Channels = "bgr" }, -1, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := newSharedRig(t, containers.Config{})
			find := newLooker(t, r, "find", func(*wire.HelloMessage) {})
			read := newLooker(t, r, "read", tt.change)
			opening := scheduler.NewOpening()
			first := opening.Picture()
			find.opens(r, first, size, 1) // it has no memory for it yet
			if _, given := first.Pixels(); given {
				t.Error("pixels without a place were handed on")
			}
			first.Release()
			second := opening.Picture()
			find.opens(r, second, size, 7)
			pixels, given := second.Pixels()
			if !given || len(pixels.Data) != size || bytes.Count(pixels.Data, []byte{7}) != size || pixels.Step != 2 ||
				pixels.Channels != "rgb" {
				t.Fatalf("%d pixels with step %d in %q, %v", len(pixels.Data), pixels.Step, pixels.Channels, given)
			}
			budgettest.Until(t, "the region to be free", func() bool {
				return binary.LittleEndian.Uint32(find.out[lookedAt-64:]) == 0
			})
			read.ask(r, second, func(header map[string]json.RawMessage) string {
				if _, is := header["opened"]; is != tt.given {
					t.Errorf("pixels are handed on: %v, expected %v", is, tt.given)
				}
				if !tt.given {
					return ""
				}
				var said struct{ Image []wire.Opened }
				if err := json.Unmarshal(header["opened"], &said); err != nil || len(said.Image) != 1 {
					t.Fatalf("%s: %v", header["opened"], err)
				}
				at := said.Image[0].At
				got := read.in[int64(at[0])][at[1]:][:at[2]]
				if said.Image[0].Step != 2 || !bytes.Equal(got, pixels.Data) {
					t.Errorf("%d other pixels at %v", len(got), at)
				}
				return fmt.Sprintf(`,"looked":{"image":[{"picture":0,"step":%d}]}`, tt.looked)
			})
			second.Release()
			third := opening.Picture()
			if got := third.Wanted(); got != tt.wanted {
				t.Errorf("then a picture is handed on up to step %d, expected %d", got, tt.wanted)
			}
			third.Release()
			find.Close()
			budgettest.Until(t, "all memory to be back", func() bool { return r.pool.InUse() == 0 })
		})
	}
}

// TestOpenedLies: what a container says wrongly of pictures costs nobody anything.
func TestOpenedLies(t *testing.T) {
	r, _ := newSharedRig(t, containers.Config{})
	find := newLooker(t, r, "find", func(*wire.HelloMessage) {})
	opening := scheduler.NewOpening()
	budgettest.Until(t, "a segment of outputs", func() bool {
		o := opening.Picture()
		defer o.Release()
		find.opens(r, o, 300<<10, 1)
		return find.out != nil
	})
	for _, said := range []string{
		`"opened":{"image":[{"picture":0,"step":2,"at":[%d,%d,%d]}]}`,
		`"opened":{"image":[{"picture":7,"step":2,"at":[%d,4160,64]}]}`,
		`"opened":{"other":[{"picture":0,"step":2,"at":[%d,4160,64]}]}`,
		fmt.Sprintf(`"opened":{"image":[{"picture":0,"step":2,"bytes":%d}]}`, math.MaxInt64),
		`"opened":{"image":[{"picture":0,"step":2,"bytes":-1}]}`,
		fmt.Sprintf(`"looked":{"image":[{"picture":-1,"step":%d}]}`, math.MaxInt64),
	} {
		said = strings.Replace(said, "%d,%d,%d", fmt.Sprintf("%d,4160,%d", find.no, len(find.out)), 1)
		said = strings.Replace(said, "[%d,", fmt.Sprintf("[%d,", find.no), 1)
		o := opening.Picture()
		find.ask(r, o, func(map[string]json.RawMessage) string { return "," + said })
		if _, given := o.Pixels(); given {
			t.Errorf("%s: pixels were handed on", said)
		}
		o.Release()
	}
	o := opening.Picture()
	find.opens(r, o, 300<<10, 3)
	if _, given := o.Pixels(); !given {
		t.Error("a picture after these was not handed on")
	}
	o.Release()
	find.Close()
	budgettest.Until(t, "all memory to be back", func() bool { return r.pool.InUse() == 0 })
}

// TestOpenedBound: pictures that wait for a later model take an eighth of the memory, whoever
// decodes them, and those after them are not handed on until one of them is given up.
func TestOpenedBound(t *testing.T) {
	const size = 3 * mib
	r, _ := newSharedRig(t, containers.Config{})
	find := newLooker(t, r, "find", func(*wire.HelloMessage) {})
	opening := scheduler.NewOpening()
	hand := func() (*scheduler.Opened, bool) {
		o := opening.Picture()
		find.opens(r, o, size, 1)
		_, given := o.Pixels()
		return o, given
	}
	budgettest.Until(t, "a picture to be handed on", func() bool {
		o, given := hand()
		o.Release()
		return given
	})
	before := r.pool.InUse()
	var held []*scheduler.Opened
	for given := true; given; {
		var o *scheduler.Opened
		if o, given = hand(); len(held) > 100 {
			t.Fatal("100 pictures are handed on")
		}
		held = append(held, o)
	}
	if n, most := r.pool.InUse()-before, r.pool.Budget()/8; n < most/2 || n > most {
		t.Errorf("pictures that were handed on take %d bytes, expected at most %d", n, most)
	}
	for _, o := range held {
		o.Release()
	}
	if o, given := hand(); !given {
		t.Error("a picture is not handed on when others were given up")
	} else {
		o.Release()
	}
	find.Close()
	budgettest.Until(t, "all memory to be back", func() bool { return r.pool.InUse() == 0 })
}
