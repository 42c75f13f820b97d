package shiva_test

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestSmallestMessages(t *testing.T) {
	for want, m := range map[string]*shiva.Message{
		"06420b0100000000000054a8":                 {},
		"06420b0100000000000155aa78":               {Namespace: "x"},
		"06420b010000000800005cb87b2261223a20317d": {Metadata: []byte(`{"a": 1}`)},
	} {
		if got := hex.EncodeToString(mustEncode(t, m)); got != want {
			t.Errorf("%+v is %s, want %s", m, got, want)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	one := mustTensor(t, tensor.Shape{1}, []uint8{1})
	words, _ := tensor.FromStrings(tensor.Shape{1}, []string{"a"})
	for name, tt := range map[string]struct {
		m    shiva.Message
		says []string
	}{
		"tensors":   {shiva.Message{Tensors: slices.Repeat([]tensor.Tensor{one}, 256)}, []string{"256 tensors", "255"}},
		"namespace": {shiva.Message{Namespace: strings.Repeat("é", 128)}, []string{"256 bytes", "255"}},
		"utf8":      {shiva.Message{Namespace: "a\xff"}, []string{`"a\xff"`, "UTF-8"}},
		"bytes":     {shiva.Message{Tensors: []tensor.Tensor{one, words}}, []string{"tensor 1", "bytes", "no code"}},
		"bfloat16": {
			shiva.Message{Tensors: []tensor.Tensor{{Name: "x", DType: tensor.BFloat16, Shape: tensor.Shape{0}}}},
			[]string{`tensor 0 ("x")`, "bfloat16"}},
		"no dtype": {shiva.Message{Tensors: []tensor.Tensor{{DType: 2, Shape: tensor.Shape{0}}}}, []string{"dtype(2)"}},
		"rank": {
			shiva.Message{
				Tensors: []tensor.Tensor{{DType: tensor.Uint8, Shape: slices.Repeat(tensor.Shape{1}, 256),
					Data: []byte{1}}}}, []string{"rank is 256", "255"}},
		"dimension": {shiva.Message{Tensors: []tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{0, 1 << 31}}}},
			[]string{"2147483648", "2147483647"}},
		"negative": {shiva.Message{Tensors: []tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{-1}}}},
			[]string{"[-1]"}},
		"data length": {
			shiva.Message{
				Tensors: []tensor.Tensor{{DType: tensor.Uint16, Shape: tensor.Shape{2}, Data: make([]byte, 3)}}},
			[]string{"uint16", "[2]", "got 3"}},
	} {
		before := []byte("before")
		b, err := shiva.AppendMessage(before, &tt.m)
		if err == nil || string(b) != "before" {
			t.Errorf("%s: %q, %v", name, b, err)
			continue
		}
		for _, s := range tt.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q does not say %q", name, err, s)
			}
		}
		if !strings.HasPrefix(err.Error(), "shiva: ") {
			t.Errorf("%s: %q does not begin with the package's name", name, err)
		}
		vecs := []shiva.Vec{{Data: before, Width: 1}}
		scratch, vecs, verr := shiva.AppendVectored(before, vecs, &tt.m)
		if verr == nil || verr.Error() != err.Error() || string(scratch) != "before" || len(vecs) != 1 {
			t.Errorf("%s: vectored: %q, %d vecs, %v", name, scratch, len(vecs), verr)
		}
	}
}

// onWire returns the bytes of vecs as they are written.
func onWire(vecs []shiva.Vec) (wire []byte) {
	for _, v := range vecs {
		start := len(wire)
		wire = append(wire, v.Data...)
		tensor.SwapCopy(wire[start:], v.Data, v.Width)
	}
	return wire
}

// TestAppendVectored: several messages gathered for one write are the same bytes as appended ones;
// large tensors are not copied, and adjacent copied bytes are one vec.
func TestAppendVectored(t *testing.T) {
	image := mustTensor(t, tensor.Shape{100, 100}, make([]uint8, 10_000))
	for i := range image.Data {
		image.Data[i] = byte(i)
	}
	floats := mustTensor(t, tensor.Shape{3000}, slices.Repeat([]float32{1.5, 2, -3}, 1000))
	long := mustTensor(t, tensor.Shape{30_000}, slices.Repeat([]float32{1.5, 2, -3}, 10_000))
	padded, err := tensor.New(tensor.LongDouble, tensor.Shape{8000},
		bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0, 0, 0, 0, 9}, 8000))
	if err != nil {
		t.Fatal(err)
	}
	small := mustTensor(t, tensor.Shape{3}, []uint8{1, 2, 3})
	messages := []*shiva.Message{
		{Namespace: "a", Tensors: []tensor.Tensor{small}},
		{Namespace: "b", Metadata: []byte(`{"id":1}`), Tensors: []tensor.Tensor{floats, image, small}},
		{Tensors: []tensor.Tensor{image, image}}, // nothing after the last tensor
		// Long doubles with different padding.
		{Tensors: []tensor.Tensor{long, padded}},
		{Namespace: "d"},
		{},
	}
	var want []byte
	for _, m := range messages {
		want = append(want, mustEncode(t, m)...)
	}
	// With and without reallocation of scratch between messages.
	for _, room := range []int{0, 1 << 20} {
		scratch, vecs := make([]byte, 0, room), []shiva.Vec(nil)
		for _, m := range messages {
			var err error
			if scratch, vecs, err = shiva.AppendVectored(scratch, vecs, m); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(onWire(vecs), want) {
			t.Errorf("with room for %d: other bytes than appended", room)
		}
		var images, longs int
		for _, v := range vecs {
			switch &v.Data[0] {
			case &image.Data[0]:
				images++
			case &long.Data[0]:
				longs++
			}
		}
		if images != 3 || longs != 1 {
			t.Errorf("with room for %d: the image was referenced %d times of 3, the floats %d of 1", room, images,
				longs)
		}
		// a and b's beginning, image, b's end and c's beginning, image, tensor header, image, the
		// header of long, long, the rest.
		if room > 0 && len(vecs) != 9 {
			t.Errorf("%d vecs, want 9", len(vecs))
		}
	}
}

// TestAppendVectoredBetween: bytes that the caller put into scratch are not taken for a message's.
func TestAppendVectoredBetween(t *testing.T) {
	m := &shiva.Message{Namespace: "x"}
	scratch, vecs, err := shiva.AppendVectored(make([]byte, 0, 100), nil, m)
	if err != nil {
		t.Fatal(err)
	}
	if _, vecs, err = shiva.AppendVectored(append(scratch, "mine"...), vecs, m); err != nil {
		t.Fatal(err)
	}
	if want := bytes.Repeat(mustEncode(t, m), 2); !bytes.Equal(onWire(vecs), want) {
		t.Errorf("%q, want %q", onWire(vecs), want)
	}
}

// TestAppendKeeps: the previous contents of dst stay.
func TestAppendKeeps(t *testing.T) {
	m := &shiva.Message{Namespace: "x"}
	b, err := shiva.AppendMessage([]byte("before"), m)
	if err != nil || !bytes.Equal(b, append([]byte("before"), mustEncode(t, m)...)) {
		t.Errorf("%q, %v", b, err)
	}
}
