package shiva_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// wireHeader returns a message's header with correct checksums.
func wireHeader(metadata int32, tensors, namespace int) []byte {
	b := append([]byte{6, 66, 11, 1}, binary.BigEndian.AppendUint32(nil, uint32(metadata))...)
	crc1 := byte(84 + int(metadata) + tensors + namespace)
	return append(b, byte(tensors), byte(namespace), crc1, 2*crc1)
}

// wireTensor returns a tensor's header.
func wireTensor(code byte, dims ...int) []byte {
	b := []byte{byte(len(dims)), code}
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, uint32(d))
	}
	return b
}

func mustEncode(t testing.TB, m *shiva.Message) []byte {
	t.Helper()
	b, err := shiva.AppendMessage(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustTensor[T tensor.Element](t testing.TB, shape tensor.Shape, values []T) tensor.Tensor {
	t.Helper()
	x, err := tensor.FromSlice(shape, values)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// firstError pushes b, releases the messages and returns the first error.
func firstError(t testing.TB, d *shiva.Decoder, b []byte) *shiva.DecodeError {
	t.Helper()
	for {
		n, m, err := d.Push(b)
		b = b[n:]
		if m != nil {
			m.Release()
		}
		if err != nil {
			e, ok := errors.AsType[*shiva.DecodeError](err)
			if !ok {
				t.Fatalf("an error of type %T: %v", err, err)
			}
			return e
		}
		if len(b) == 0 {
			return nil
		}
	}
}

// TestLimits: one below, at, and one above each limit; the error names the limit and the value, and
// comes as soon as the value is known.
func TestLimits(t *testing.T) {
	message := func(metadata, tensors, rank, size int) []byte {
		meta := `{"k":"` + strings.Repeat("x", metadata-8) + `"}`
		m := &shiva.Message{Metadata: []byte(meta)}
		for range tensors {
			shape := slices.Repeat(tensor.Shape{1}, rank)
			shape[0] = size
			m.Tensors = append(m.Tensors, mustTensor(t, shape, make([]uint8, size)))
		}
		return mustEncode(t, m)
	}
	limits := shiva.Limits{MessageBytes: 1000, MetadataBytes: 100, Tensors: 3, Rank: 5, JSONDepth: 4}
	// 12 + 10 + (2+4+976-4) = 1000 with one tensor of rank 1.
	fits := 1000 - 12 - 10 - 6
	for _, tt := range []struct {
		name  string
		bytes []byte
		field string // "": the message is accepted
		limit int64
		got   int64
		after int // bytes after which the error must come
	}{
		{"metadata at the limit", message(100, 1, 1, 1), "", 0, 0, 0},
		{"metadata above", message(101, 1, 1, 1), "metadata size", 100, 101, 12},
		{"tensors at the limit", message(10, 3, 1, 1), "", 0, 0, 0},
		{"tensors above", message(10, 4, 1, 1), "number of tensors", 3, 4, 12},
		{"rank at the limit", message(10, 1, 5, 1), "", 0, 0, 0},
		{"rank above", message(10, 1, 6, 1), "tensor 0 rank", 5, 6, 14},
		{"message at the limit", message(10, 1, 1, fits), "", 0, 0, 0},
		{"message above", message(10, 1, 1, fits+1), "tensor 0 size", 1000, 1001, 18},
		{"message above in its second tensor", message(10, 2, 1, 490), "tensor 1 size", 1000, 12 + 10 + 2*496,
			18 + 490 + 6},
	} {
		pool := tensor.NewPool(0)
		d := shiva.NewDecoder(shiva.DecoderConfig{Limits: limits, Pool: pool})
		e := firstError(t, d, tt.bytes)
		switch {
		case tt.field == "" && e != nil:
			t.Errorf("%s: %v", tt.name, e)
		case tt.field == "":
		case e == nil:
			t.Errorf("%s: accepted", tt.name)
		case e.Kind != shiva.KindTooLarge || e.Field != tt.field || e.Limit != tt.limit || e.Got != tt.got || e.Keep():
			t.Errorf("%s: %+v; want too_large of %q, limit %d, got %d, not to keep", tt.name, e, tt.field, tt.limit,
				tt.got)
		default:
			d.Reset()
			if e := firstError(t, d, tt.bytes[:tt.after-1]); e != nil {
				t.Errorf("%s: known after %d bytes already", tt.name, tt.after-1)
			}
			if e := firstError(t, d, tt.bytes[tt.after-1:tt.after]); e == nil {
				t.Errorf("%s: not known after %d bytes", tt.name, tt.after)
			}
		}
		d.Reset()
		checkLeaks(t, pool)
	}
	// The namespace and the metadata count.
	d := shiva.NewDecoder(shiva.DecoderConfig{Limits: shiva.Limits{MessageBytes: 40}})
	if e := firstError(t, d, wireHeader(20, 0, 8)); e != nil {
		t.Error(e)
	}
	d.Reset()
	if e := firstError(t, d, wireHeader(20, 0, 9)); e == nil || e.Field != "message size" || e.Got != 41 {
		t.Errorf("41 bytes: %v", e)
	}
	// JSON depth.
	for depth, want := range map[int]shiva.Kind{4: "eof", 5: shiva.KindInvalidJSON} {
		meta := strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
		r := decodeAll(t, shiva.DecoderConfig{Limits: limits}, mustEncode(t, &shiva.Message{Metadata: []byte(meta)}))
		if r.kind != want {
			t.Errorf("metadata nested %d deep: %s, want %s", depth, r.kind, want)
		}
	}
}

// TestDefaultLimits pins what the zero value means.
func TestDefaultLimits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bytes []byte
		limit int64
	}{
		{"metadata", wireHeader(1<<20+1, 0, 0), 1 << 20},
		{"rank", append(wireHeader(0, 1, 0), 65, 3), 64},
		{"message", append(wireHeader(0, 1, 0), wireTensor(3, 1<<28)...), 256 << 20},
	} {
		if e := firstError(t, shiva.NewDecoder(shiva.DecoderConfig{}), tt.bytes); e == nil || e.Limit != tt.limit {
			t.Errorf("%s: %v, want the limit %d", tt.name, e, tt.limit)
		}
	}
}

// TestMemoryByArrival: whatever a message announces, the memory held for it is at most about eight
// times the bytes that have arrived, plus 16 KiB.
func TestMemoryByArrival(t *testing.T) {
	for _, tt := range []struct {
		name  string
		head  []byte
		bytes int // of the body
	}{
		{"tensor of 200 MiB", append(wireHeader(0, 1, 0), wireTensor(1, 50<<20)...), 200 << 20},
		{"tensor of 1 MiB", append(wireHeader(0, 1, 0), wireTensor(3, 1<<20)...), 1 << 20},
		{"tensor of 5000 bytes", append(wireHeader(0, 1, 0), wireTensor(3, 5000)...), 5000},
		{"metadata of 1 MiB", wireHeader(1<<20, 0, 0), 1 << 20},
	} {
		for _, piece := range []int{1, 100, 4096, 64 << 10} {
			pool := tensor.NewPool(0)
			d := shiva.NewDecoder(shiva.DecoderConfig{Pool: pool})
			if e := firstError(t, d, tt.head); e != nil {
				t.Fatal(e)
			}
			block := make([]byte, piece)
			for received := 0; received < min(tt.bytes-1, 1000*piece, 16<<20); {
				n, _, err := d.Push(block[:min(piece, tt.bytes-1-received)])
				if err != nil {
					t.Fatal(err)
				}
				received += n
				// A class is up to a quarter larger than the requested size.
				if held, most := pool.InUse(), int64(received)*8*5/4+20<<10; held > most {
					t.Fatalf("%s in pieces of %d: %d bytes held after %d, want at most %d", tt.name, piece, held,
						received, most)
				}
			}
			d.Reset()
			checkLeaks(t, pool)
		}
	}
}

// TestLies is R4 of the reliability bars on a small scale: many connections that announce the
// largest legal message and send one byte of it hold next to no memory.
func TestLies(t *testing.T) {
	pool := tensor.NewPool(0)
	lie := append(wireHeader(1<<20, 255, 255), wireTensor(3, 255<<20-1000)...)
	for range 1000 {
		d := shiva.NewDecoder(shiva.DecoderConfig{Pool: pool})
		if e := firstError(t, d, append(lie, 0)); e != nil {
			t.Fatal(e)
		}
	}
	if held := pool.InUse(); held > 32<<20 {
		t.Errorf("1000 of them hold %d bytes", held)
	}
}

// TestOverBudget: a message whose memory is refused is consumed, its error comes at its end and has
// its id, and the next message is decoded.
func TestOverBudget(t *testing.T) {
	big := mustTensor(t, tensor.Shape{100_000}, make([]float32, 100_000))
	small := mustTensor(t, tensor.Shape{2}, []float32{1, 2})
	after := &shiva.Message{Namespace: "after", Tensors: []tensor.Tensor{small}}
	for _, tt := range []struct {
		name   string
		budget int64
		m      *shiva.Message
		id     string
	}{
		{"large tensor", 100_000,
			&shiva.Message{Namespace: "n", Metadata: []byte(`{"id":"x1"}`),
				Tensors: []tensor.Tensor{small, big, small}}, `"x1"`},
		{"sum of tensors", 600_000,
			&shiva.Message{Namespace: "n", Metadata: []byte(`{"id": 7 }`), Tensors: []tensor.Tensor{big, big}}, `7`},
		{"metadata", 10_000,
			&shiva.Message{Namespace: "n", Metadata: []byte(`{"id":1,"k":"` + strings.Repeat("x", 20_000) + `"}`)}, ``},
		{"no id", 100_000,
			&shiva.Message{Namespace: "n", Metadata: []byte(`{"i":"x1"}`), Tensors: []tensor.Tensor{big}}, ``},
		{"bad metadata after it", 100_000,
			&shiva.Message{Namespace: "n", Metadata: []byte(`{"id":1,`), Tensors: []tensor.Tensor{big}}, ``},
	} {
		wire := mustEncode(t, tt.m)
		for _, piece := range []int{1, 1000, len(wire)} {
			pool := tensor.NewPool(tt.budget)
			d := shiva.NewDecoder(shiva.DecoderConfig{Pool: pool})
			for chunk := range slices.Chunk(wire[:len(wire)-1], piece) {
				if n, m, err := d.Push(chunk); n != len(chunk) || m != nil || err != nil {
					t.Fatalf("%s: %d, %v, %v before the end", tt.name, n, m, err)
				}
			}
			e := firstError(t, d, wire[len(wire)-1:])
			if e == nil || e.Kind != shiva.KindOverBudget || !e.Keep() || !errors.Is(e, tensor.ErrBudget) ||
				e.Namespace != "n" || e.ID != tt.id || e.Limit != tt.budget {
				t.Errorf("%s in pieces of %d: %+v", tt.name, piece, e)
			}
			if held := pool.InUse(); held != 0 {
				t.Errorf("%s: %d bytes held after the error", tt.name, held)
			}
			n, m, err := d.Push(mustEncode(t, after))
			if err != nil || m == nil {
				t.Fatalf("%s: after it %d, %v, %v", tt.name, n, m, err)
			}
			sameMessage(t, tt.name, m, after)
			m.Release()
		}
	}
	// Even if the memory of a small message is refused, its id is known.
	d := shiva.NewDecoder(shiva.DecoderConfig{Pool: tensor.NewPool(1)})
	for _, m := range []*shiva.Message{{Namespace: "n", Metadata: []byte(`{"id":5}`)},
		{Namespace: "n", Metadata: []byte(`{"id":5}`), Tensors: []tensor.Tensor{small}}} {
		if e := firstError(t, d, mustEncode(t, m)); e == nil || e.Kind != shiva.KindOverBudget || e.ID != "5" {
			t.Errorf("budget of a byte: %+v", e)
		}
	}
}

// TestKeepErrors: a fault that leaves the stream in step has the known fields of the message, and
// the next message is decoded.
func TestKeepErrors(t *testing.T) {
	good := mustEncode(t, &shiva.Message{Namespace: "good"})
	for _, tt := range []struct {
		metadata, namespace string
		kind                shiva.Kind
		field               string
		offset              int64
		id, name            string
	}{
		{`{"id":1,}`, "n", shiva.KindInvalidJSON, "metadata", 12 + 8, "", "n"},
		{`[1]`, "n", shiva.KindMetadataNotObject, "metadata", 12, "", "n"},
		{"{\"id\":\"\xff\"}", "n", shiva.KindInvalidUTF8Metadata, "metadata", 12 + 7, "", "n"},
		{`{"id":{"a":[1]}}`, "n\xff", shiva.KindInvalidUTF8Namespace, "namespace", 12 + 16, `{"a":[1]}`, ""},
		{`{"id":1,}`, "n\xff", shiva.KindInvalidJSON, "metadata", 12 + 8, "", ""},
	} {
		wire := slices.Concat(wireHeader(int32(len(tt.metadata)), 0, len(tt.namespace)), []byte(tt.metadata),
			[]byte(tt.namespace))
		d := shiva.NewDecoder(shiva.DecoderConfig{})
		e := firstError(t, d, append(wire, good...))
		if e == nil || e.Kind != tt.kind || e.Field != tt.field || e.Offset != tt.offset || e.ID != tt.id ||
			e.Namespace != tt.name || !e.Keep() {
			t.Errorf("%q, %q: %+v", tt.metadata, tt.namespace, e)
		}
		if _, m, err := d.Push(good); m == nil || m.Namespace != "good" {
			t.Errorf("%q: the next message: %v, %v", tt.metadata, m, err)
		}
	}
}

// TestErrorTexts: an error's text has the expected and the received value.
func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		b    []byte
		want string
	}{
		{[]byte("GET / HTTP/1.1"),
			"shiva: bad magic: magic at byte 0: expected 06420b01, got 47455420"},
		{[]byte{6, 66, 11, 1, 0, 0, 0, 0, 0, 0, 0x55, 0xaa},
			"shiva: bad crc1: crc1 at byte 10: expected 0x54, got 0x55"},
		{[]byte{6, 66, 11, 1, 0, 0, 0, 0, 0, 0, 0x54, 0xa9},
			"shiva: bad crc2: crc2 at byte 11: expected 0xa8, got 0xa9"},
		{wireHeader(-1, 0, 0),
			"shiva: negative metadata size: metadata size at byte 4: got -1"},
		{append(wireHeader(0, 1, 0), wireTensor(16)...),
			"shiva: unknown dtype: tensor 0 dtype at byte 13: code 16 is not a dtype"},
		{append(wireHeader(0, 1, 0), wireTensor(3, 4, -2)...),
			"shiva: negative dim: tensor 0 dimension 1 at byte 18: got -2"},
		{append(wireHeader(0, 1, 0), wireTensor(3, 1<<31-1, 1<<31-1, 1<<31-1)...),
			"shiva: size overflow: tensor 0 dimension 2 at byte 22: 4611686014132420609 bytes times 2147483647 do not fit an int"},
		{wireHeader(2<<20, 0, 0),
			"shiva: too large: metadata size at byte 4: the limit is 1048576, got 2097152"},
		{append(wireHeader(0, 1, 0), wireTensor(3, 1<<30)...),
			"shiva: too large: tensor 0 size at byte 18: the limit for a message is 268435456 bytes, with this tensor's 1073741824 it has 1073741842"},
		{append(wireHeader(3, 0, 0), "{x}"...),
			"shiva: invalid json: metadata at byte 13: unexpected \"x}\""},
		{append(wireHeader(1, 0, 0), "{"...),
			"shiva: invalid json: metadata at byte 13: the JSON text ends too early"},
		{append(wireHeader(4, 0, 0), "true"...),
			"shiva: metadata not object: metadata at byte 12: expected a JSON object, got \"true\""},
		{append(wireHeader(0, 0, 1), 0xff),
			"shiva: invalid utf8 namespace: namespace at byte 12: got \"\\xff\""},
	} {
		e := firstError(t, shiva.NewDecoder(shiva.DecoderConfig{}), c.b)
		if e == nil || e.Error() != c.want {
			t.Errorf("%x:\n%v, want\n%v", c.b, e, c.want)
		}
	}
	d := shiva.NewDecoder(shiva.DecoderConfig{})
	for _, c := range []struct {
		b    []byte
		want string
	}{
		{[]byte{6, 66, 11},
			"shiva: truncated: header at byte 3: the stream ended inside a message, after 3 bytes of it"},
		{append(wireHeader(0, 1, 0), 1),
			"shiva: truncated: tensor 0 header at byte 13: the stream ended inside a message, after 13 bytes of it"},
		{append(wireHeader(0, 1, 0), wireTensor(3, 1, 1)[:6]...),
			"shiva: truncated: tensor 0 dimension 1 at byte 18: the stream ended inside a message, after 18 bytes of it"},
		{append(wireHeader(0, 1, 0), append(wireTensor(3, 2), 1)...),
			"shiva: truncated: tensor 0 data at byte 19: the stream ended inside a message, after 19 bytes of it"},
		{append(wireHeader(2, 0, 0), '{'),
			"shiva: truncated: metadata at byte 13: the stream ended inside a message, after 13 bytes of it"},
		{wireHeader(0, 0, 2),
			"shiva: truncated: namespace at byte 12: the stream ended inside a message, after 12 bytes of it"},
	} {
		if e := firstError(t, d, c.b); e != nil {
			t.Fatal(e)
		}
		if err := d.Close(); err == nil || err.Error() != c.want {
			t.Errorf("%x:\n%v, want\n%v", c.b, err, c.want)
		}
		if _, _, err := d.Push(wireHeader(0, 0, 0)); err == nil {
			t.Error("a closed decoder goes on")
		}
		d.Reset()
	}
}

// TestDirect: a body that needs no swap can be read directly into its memory, with any mixture of
// Direct and Push, and the memory still grows with the bytes that arrive.
func TestDirect(t *testing.T) {
	data := make([]byte, 300_000)
	for i := range data {
		data[i] = byte(i * 31)
	}
	x := mustTensor(t, tensor.Shape{len(data)}, data)
	y := mustTensor(t, tensor.Shape{4000}, slices.Repeat([]float32{1.5}, 4000))
	for name, m := range map[string]*shiva.Message{
		"tensor last of all":   {Tensors: []tensor.Tensor{x}},
		"with all parts":       {Namespace: "n", Metadata: []byte(`{"id":1}`), Tensors: []tensor.Tensor{y, x, y}},
		"body within an arena": {Tensors: []tensor.Tensor{mustTensor(t, tensor.Shape{900}, data[:900])}},
	} {
		wire := mustEncode(t, m)
		for _, step := range []int{1000, 4096, 100_000, 1 << 20} {
			pool := tensor.NewPool(0)
			d := shiva.NewDecoder(shiva.DecoderConfig{Pool: pool})
			var got *shiva.Message
			direct := 0
			for rest, turn := wire, 0; got == nil; turn++ {
				var n int
				if p := d.Direct(); len(p) > 0 && turn%3 != 0 {
					n = copy(p[:min(len(p), step)], rest)
					d.Advance(n)
					direct += n
					_, m, err := d.Push(nil)
					if err != nil {
						t.Fatal(err)
					}
					got = m
				} else {
					var err error
					if n, got, err = d.Push(rest[:min(step, len(rest))]); err != nil {
						t.Fatal(err)
					}
				}
				rest = rest[n:]
				if held, received := pool.InUse(), int64(len(wire)-len(rest)); held > received*8*5/4+20<<10 {
					t.Fatalf("%s: %d bytes held after %d", name, held, received)
				}
			}
			sameMessage(t, name, got, m)
			if step < 4096 && len(wire) > 10_000 && direct == 0 {
				t.Errorf("%s: nothing went directly", name)
			}
			got.Release()
			checkLeaks(t, pool)
		}
	}
	d := shiva.NewDecoder(shiva.DecoderConfig{})
	for what, b := range map[string][]byte{
		"between messages":       nil,
		"in a header":            {6, 66},
		"in a tensor of float32": append(wireHeader(0, 1, 0), wireTensor(1, 1000)...),
		"in a namespace":         wireHeader(0, 0, 200),
	} {
		d.Reset()
		if e := firstError(t, d, b); e != nil {
			t.Fatal(e)
		}
		if p := d.Direct(); p != nil {
			t.Errorf("%s: %d bytes to read into", what, len(p))
		}
	}
}

// TestArrived: a body takes memory for the bytes that have arrived in one step, and no more.
func TestArrived(t *testing.T) {
	data := make([]float32, 100_000)
	for i := range data {
		data[i] = float32(i)
	}
	sent := &shiva.Message{Tensors: []tensor.Tensor{mustTensor(t, tensor.Shape{len(data)}, data)}}
	wire := mustEncode(t, sent)
	const header = 12 + 2 + 4
	size := func(n int) int64 { // of the pool's buffer for n bytes
		p := tensor.NewPool(0)
		b, _ := p.Get(n)
		defer b.Release()
		return p.InUse()
	}
	for arrived, want := range map[int]int64{0: 0, 1: size(6256), 6250: size(6256), 6251: size(50_000),
		50_001: size(400_000), 400_000: size(400_000), 1 << 30: size(400_000)} {
		pool := tensor.NewPool(0)
		d := shiva.NewDecoder(shiva.DecoderConfig{Pool: pool})
		if _, _, err := d.Push(wire[:header]); err != nil || !d.Growing() {
			t.Fatalf("growing %t, %v", d.Growing(), err)
		}
		if d.Arrived(arrived); pool.InUse() != want || d.Growing() != (want < size(400_000)) {
			t.Errorf("%d bytes hold %d of memory, expected %d; growing %t", arrived, pool.InUse(), want, d.Growing())
		}
		const cut = header + 5003 // inside a number
		if _, _, err := d.Push(wire[header:cut]); err != nil {
			t.Fatal(err)
		}
		d.Arrived(len(wire) - cut)
		_, m, err := d.Push(wire[cut:])
		if err != nil {
			t.Fatal(err)
		}
		sameMessage(t, "grown", m, sent)
		m.Release()
		if d.Arrived(1000); d.Growing() || pool.InUse() != 0 {
			t.Error("memory is taken between messages")
		}
	}
	d := shiva.NewDecoder(shiva.DecoderConfig{Pool: tensor.NewPool(100_000)})
	if _, _, err := d.Push(wire[:header]); err != nil {
		t.Fatal(err)
	}
	if d.Arrived(400_000); d.Growing() {
		t.Error("growing beyond the budget")
	}
	if e := firstError(t, d, wire[header:]); e == nil || e.Kind != shiva.KindOverBudget {
		t.Errorf("beyond the budget: %v", e)
	}
}

// TestDirectOverBudget: a refusal in the middle of a body makes the decoder discard it, and Push
// continues.
func TestDirectOverBudget(t *testing.T) {
	x := mustTensor(t, tensor.Shape{300_000}, make([]byte, 300_000))
	wire := mustEncode(t, &shiva.Message{Namespace: "n", Tensors: []tensor.Tensor{x}})
	d := shiva.NewDecoder(shiva.DecoderConfig{Pool: tensor.NewPool(50_000)})
	n, _, err := d.Push(wire[:18])
	if err != nil {
		t.Fatal(err)
	}
	for p := d.Direct(); p != nil; p = d.Direct() {
		k := copy(p, wire[n:])
		d.Advance(k)
		n += k
	}
	if n < 1000 || n > 100_000 {
		t.Errorf("%d bytes went directly", n)
	}
	if e := firstError(t, d, wire[n:]); e == nil || e.Kind != shiva.KindOverBudget || e.Namespace != "n" {
		t.Errorf("%v", e)
	}
}

// TestResyncFaults: after every kind of fault the decoder finds the next message, however the bytes
// are split.
func TestResyncFaults(t *testing.T) {
	good := mustEncode(t, &shiva.Message{Namespace: "good"})
	for name, bad := range map[string][]byte{
		"crc1":            {6, 66, 11, 1, 0, 0, 0, 0, 0, 0, 0x55, 0xaa},
		"negative size":   wireHeader(-1, 0, 0),
		"too large":       wireHeader(1<<30, 0, 0),
		"unknown dtype":   append(wireHeader(0, 1, 0), wireTensor(16)...),
		"negative dim":    append(wireHeader(0, 1, 0), wireTensor(3, -1)...),
		"size overflow":   append(wireHeader(0, 1, 0), wireTensor(3, 1<<31-1, 1<<31-1, 1<<31-1)...),
		"rank":            append(wireHeader(0, 1, 0), 200, 3),
		"half magics":     {6, 66, 11, 6, 66, 11, 6, 66, 6, 6, 66, 11, 6, 6, 66, 11, 2, 6, 66},
		"noise":           bytes.Repeat([]byte{0x55, 6}, 5000),
		"cut header":      good[:11],
		"two cut headers": append(good[:11:11], good[:5]...),
	} {
		wire := slices.Concat(good, bad, good, good, bad, good)
		for _, piece := range []int{1, 5, 12, len(wire)} {
			pool := tensor.NewPool(0)
			r := decodeAll(t, shiva.DecoderConfig{Resync: true, Pool: pool},
				slices.Collect(slices.Chunk(wire, piece))...)
			if len(r.messages) != 4 || !r.keep || r.errors != 2 {
				t.Errorf("%s in pieces of %d: %d messages, %d errors, %s, keep %t", name, piece, len(r.messages),
					r.errors, r.kind, r.keep)
			}
			r.release()
			checkLeaks(t, pool)
		}
	}
}

// TestResyncGivesUp: the search for a header is bounded, and one fault is one error.
func TestResyncGivesUp(t *testing.T) {
	const limit = 10_000
	d := shiva.NewDecoder(shiva.DecoderConfig{Resync: true, ResyncBytes: limit})
	var faults []*shiva.DecodeError
	at := 0
	for {
		e := firstError(t, d, []byte{0x55})
		at++
		if e == nil {
			continue
		}
		if faults = append(faults, e); !e.Keep() {
			break
		}
		if !d.Buffered() {
			t.Error("a decoder that searches could be lent to another stream")
		}
	}
	if len(faults) != 2 || faults[0].Kind != shiva.KindBadMagic || at < limit || at > limit+24 ||
		!strings.Contains(faults[1].Detail, "no header in") {
		t.Errorf("%d errors, the last after %d bytes: %v", len(faults), at, faults[len(faults)-1])
	}
	d.Reset()
	if e := firstError(t, d, wireHeader(0, 0, 0)); e != nil || d.Buffered() {
		t.Errorf("after Reset: %v", e)
	}
}

// TestSetLimits changes the limits between two messages, and during a search for a header.
func TestSetLimits(t *testing.T) {
	wire := mustEncode(t, &shiva.Message{Namespace: "n", Metadata: []byte(`{"id":1}`)})
	d := shiva.NewDecoder(shiva.DecoderConfig{})
	if e := firstError(t, d, wire); e != nil {
		t.Fatal(e)
	}
	d.SetLimits(shiva.Limits{MetadataBytes: 4}, true, 0)
	if e := firstError(t, d, wire); e == nil || e.Kind != shiva.KindTooLarge || e.Limit != 4 || !e.Keep() {
		t.Errorf("8 bytes of metadata where 4 may be: %v", e)
	}
	if d.InMessage() || !d.Buffered() {
		t.Error("it does not look for a header")
	}
	d.SetLimits(shiva.Limits{}, false, 0)
	if e := firstError(t, d, append(bytes.Repeat([]byte{0x55}, 50), wire...)); e != nil || d.Buffered() {
		t.Errorf("a search that had begun: %v", e)
	}
	if e := firstError(t, d, bytes.Repeat([]byte{0x55}, 12)); e == nil || e.Keep() {
		t.Errorf("rubbish without Resync: %v", e)
	}
}

// TestBuffered follows a message through its parts.
func TestBuffered(t *testing.T) {
	x := mustTensor(t, tensor.Shape{2}, []float32{1, 2})
	wire := mustEncode(t, &shiva.Message{Namespace: "n", Metadata: []byte("{}"), Tensors: []tensor.Tensor{x}})
	d := shiva.NewDecoder(shiva.DecoderConfig{})
	for i := range wire {
		if d.Buffered() != (i > 0) || d.InMessage() != (i > 0) {
			t.Errorf("after %d bytes: buffered is %t, in a message %t", i, d.Buffered(), d.InMessage())
		}
		if e := firstError(t, d, wire[i:i+1]); e != nil {
			t.Fatal(e)
		}
	}
	if d.Buffered() {
		t.Error("buffered after the message")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	d = shiva.NewDecoder(shiva.DecoderConfig{Resync: true})
	if e := firstError(t, d, []byte("nothing of this is a header")); e == nil || !d.Buffered() || d.InMessage() {
		t.Errorf("after noise: %v; buffered is %t, in a message %t", e, d.Buffered(), d.InMessage())
	}
}

// TestRetainedTensors outlive their message.
func TestRetainedTensors(t *testing.T) {
	pool := tensor.NewPool(0)
	small, big := mustTensor(t, tensor.Shape{4}, []float32{1, 2, 3, 4}),
		mustTensor(t, tensor.Shape{5000}, slices.Repeat([]float32{7}, 5000))
	wire := mustEncode(t, &shiva.Message{Metadata: []byte("{}"), Tensors: []tensor.Tensor{small, big, small}})
	d := shiva.NewDecoder(shiva.DecoderConfig{Pool: pool})
	_, m, err := d.Push(wire)
	if err != nil {
		t.Fatal(err)
	}
	retained := slices.Clone(m.Tensors)
	for i := range retained {
		retained[i].Shape = slices.Clone(retained[i].Shape) // the message's own
		retained[i].Retain()
	}
	m.Release()
	for range 10 { // would overwrite memory that is not retained
		_, other, err := d.Push(
			mustEncode(t,
				&shiva.Message{Tensors: []tensor.Tensor{mustTensor(t, tensor.Shape{4}, []float32{9, 9, 9, 9})}}))
		if err != nil {
			t.Fatal(err)
		}
		other.Release()
	}
	for i, want := range []tensor.Tensor{small, big, small} {
		if !bytes.Equal(retained[i].Data, want.Data) {
			t.Errorf("tensor %d changed after its message was released", i)
		}
		retained[i].Release()
	}
	checkLeaks(t, pool)
}

// TestAlignment: the elements of every received tensor can be read as Go values, wherever they are
// in memory.
func TestAlignment(t *testing.T) {
	m := &shiva.Message{Metadata: []byte(`{"a":1}`)}
	for n := range 40 {
		m.Tensors = append(m.Tensors, mustTensor(t, tensor.Shape{n}, make([]uint8, n)),
			mustTensor(t, tensor.Shape{n}, make([]complex128, n)))
	}
	d := shiva.NewDecoder(shiva.DecoderConfig{Pool: tensor.NewPool(0)})
	_, got, err := d.Push(mustEncode(t, m))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	for i, x := range got.Tensors {
		if len(x.Data) <= 1024 && cap(x.Data) > len(x.Data) {
			t.Errorf("tensor %d: appending to its %d bytes would write over its neighbour", i, len(x.Data))
		}
	}
	for i := 1; i < len(got.Tensors); i += 2 {
		if v, err := tensor.Values[complex128](got.Tensors[i]); err != nil || len(v) != i/2 {
			t.Errorf("tensor %d: %d values, %v", i, len(v), err)
		}
	}
}
