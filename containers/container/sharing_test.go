package container

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/shivad/shivad/containers/internal/arena"
	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestGatheredWhereItIsAnswered: inputs of a model that answers with them are gathered where the
// server reads outputs, from its second batch on; another model leaves that memory alone.
func TestGatheredWhereItIsAnswered(t *testing.T) {
	const row = 40 << 10
	in, out := make([]byte, 8*row), make([]byte, 64*row)
	for i := range in {
		in[i] = byte(i % 251)
	}
	want := slices.Concat(in[3*row:4*row], in[:row])
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, row}}}
	n := &session{sharing: sharing{segments: map[int64]*mapping{
		1: {number: 1, mem: in, refs: 1},
		2: {number: 2, mem: out, refs: 1, writer: arena.NewWriter(out)},
	}}}
	n.sharing.out = n.sharing.segments[2]
	model := &Model{Inputs: x, Outputs: x, Batched: new(true), MessageBytes: 1 << 20}
	for i, c := range []struct{ echo, inside bool }{{true, false}, {true, true}, {true, true}, {false, true},
		{false, false}, {true, false}, {true, true}} {
		clear(out)
		b := &Batch{model: model, pool: tensor.NewPool(0), session: n}
		header := fmt.Appendf(nil, `{"rows":2,"inputs":[{"name":"x","datatype":"UINT8","shape":[2,%d],"at":[1,%d,%d,1,0,%d]}]}`,
			row, 3*row, row, row)
		b.message.Frames = []zmtp.Frame{{Data: []byte(wire.Batch)}, {Data: make([]byte, wire.IDSize)}, {Data: header},
			{}}
		if err := b.read(time.Time{}); err != nil {
			t.Fatal(err)
		}
		data := b.Inputs[0].Data
		if !bytes.Equal(data, want) {
			t.Errorf("batch %d: the rows are not those of their places", i)
		}
		inside := len(b.regions) == 1 && len(b.buffers) == 0
		outputs := slices.Clone(b.Inputs)
		if !c.echo {
			outputs[0].Data = bytes.Clone(data)
		}
		b.write(outputs, nil)
		if inside != c.inside || !b.placed[0] || !bytes.Contains(out, want) {
			t.Errorf("batch %d: gathered in the segment of outputs: %t, expected %t; the answer goes by it: %t", i,
				inside, c.inside, b.placed[0])
		}
		if b.reset(); inside && !c.echo {
			word := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(data)), -64)), 4)
			if !bytes.Equal(word, make([]byte, 4)) {
				t.Errorf("batch %d: memory that no answer names stays taken", i)
			}
		}
	}
}
