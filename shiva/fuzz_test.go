package shiva_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// parsed is a message as parseWhole returns it.
type parsed struct {
	namespace, metadata []byte
	tensors             []tensor.Tensor
	size                int  // bytes of the message
	changed             bool // its metadata has words that JSON lacks
}

// parseWhole is the reference for the decoder: it parses all bytes at once, in the most obvious
// way, with no regard for memory. It returns the kind of fault, "" for a message; for a fault that
// leaves the stream in step, p.size is set.
func parseWhole(b []byte, l shiva.Limits) (p parsed, kind shiva.Kind) {
	p.size = -1
	whole := b
	take := func(n int) []byte {
		if n > len(b) {
			return nil
		}
		part := b[:n:n]
		b = b[n:]
		return part
	}
	be := binary.BigEndian
	h := take(12)
	if h == nil {
		return p, shiva.KindTruncated
	}
	metadata, count, name := int64(int32(be.Uint32(h[4:]))), int64(h[8]), int64(h[9])
	sum := byte(6 + 66 + 11 + 1 + metadata + count + name)
	switch {
	case !bytes.Equal(h[:4], []byte{6, 66, 11, 1}):
		return p, shiva.KindBadMagic
	case h[10] != sum:
		return p, shiva.KindBadCRC1
	case h[11] != sum+sum:
		return p, shiva.KindBadCRC2
	case metadata < 0:
		return p, shiva.KindNegativeMetadataSize
	case metadata > int64(l.MetadataBytes), count > int64(l.Tensors), 12+metadata+name > l.MessageBytes:
		return p, shiva.KindTooLarge
	}
	total := 12 + metadata + name
	for range count {
		th := take(2)
		if th == nil {
			return p, shiva.KindTruncated
		}
		dtype, ok := tensor.FromWire(th[1])
		if !ok {
			return p, shiva.KindUnknownDType
		}
		if int(th[0]) > l.Rank {
			return p, shiva.KindTooLarge
		}
		shape := tensor.Shape{}
		size, empty := big.NewInt(int64(dtype.Size())), false
		for range th[0] {
			d := take(4)
			if d == nil {
				return p, shiva.KindTruncated
			}
			v := int32(be.Uint32(d))
			if v < 0 {
				return p, shiva.KindNegativeDim
			}
			if v == 0 {
				empty = true
			} else if size.Mul(size, big.NewInt(int64(v))); size.Cmp(big.NewInt(math.MaxInt)) > 0 {
				return p, shiva.KindSizeOverflow
			}
			shape = append(shape, int(v))
		}
		if empty {
			size.SetInt64(0)
		}
		total += 2 + 4*int64(th[0])
		if size.Cmp(big.NewInt(l.MessageBytes-total)) > 0 {
			return p, shiva.KindTooLarge
		}
		total += size.Int64()
		wire := take(int(size.Int64()))
		if wire == nil {
			return p, shiva.KindTruncated
		}
		// Byte by byte into the order of this host, which is little-endian.
		data := make([]byte, len(wire))
		w := dtype.SwapWidth()
		for i := range wire {
			data[i-i%w+w-1-i%w] = wire[i]
		}
		p.tensors = append(p.tensors, tensor.Tensor{DType: dtype, Shape: shape, Data: data})
	}
	if p.metadata = take(int(metadata)); p.metadata == nil {
		return p, shiva.KindTruncated
	}
	if p.namespace = take(int(name)); p.namespace == nil {
		return p, shiva.KindTruncated
	}
	p.size = len(whole) - len(b)
	if text := jsonscan.AppendFinite(nil, p.metadata); !bytes.Equal(text, p.metadata) {
		p.metadata, p.changed = text, true
	}
	if kind := metadataKind(p.metadata, l.JSONDepth); kind != "" {
		return p, kind
	}
	if !utf8.Valid(p.namespace) {
		return p, shiva.KindInvalidUTF8Namespace
	}
	return p, ""
}

// metadataKind checks metadata with package jsontext, whose own tests compare it with
// encoding/json.
func metadataKind(b []byte, depth int) shiva.Kind {
	switch {
	case len(b) == 0:
		return ""
	case !utf8.Valid(b):
		return shiva.KindInvalidUTF8Metadata
	case !jsonscan.Valid(b, depth):
		return shiva.KindInvalidJSON
	case bytes.TrimLeft(b, " \t\r\n")[0] != '{':
		return shiva.KindMetadataNotObject
	}
	return ""
}

// allocated returns how many bytes this process has ever allocated. runtime/metrics is cheaper, but
// its count lags by the small objects of every span in use, a megabyte in a large process.
func allocated() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.TotalAlloc)
}

var fuzzLimits = shiva.Limits{MessageBytes: 1 << 30, MetadataBytes: 1 << 24, Tensors: 250, Rank: 40, JSONDepth: 20}

// FuzzDecoder pushes any bytes in any pieces, and checks the decoder against parseWhole, against
// the encoders, which must return the same bytes, and against the memory that it may take for the
// bytes that have arrived.
func FuzzDecoder(f *testing.F) {
	for _, g := range readGoldens(f) {
		f.Add(g.bytes, uint64(1))
		f.Add(g.bytes, uint64(2))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		budgettest.Input(t)
		rnd := rand.New(rand.NewPCG(seed, 0))
		if seed%2 == 0 && len(stream) >= 12 {
			// Correct the checksums, or hardly any change to the first header would pass them.
			stream = bytes.Clone(stream)
			stream[10] = 84 + stream[7] + stream[8] + stream[9]
			stream[11] = 2 * stream[10]
		}
		pool := tensor.NewPool(0)
		d := shiva.NewDecoder(shiva.DecoderConfig{Limits: fuzzLimits, Pool: pool})
		want := stream            // bytes not parsed by parseWhole yet
		consumed, arrived := 0, 0 // bytes
		before := allocated()
		var judged int64 // allocated by parseWhole and the comparisons
		for rest := stream; len(rest) > 0; {
			n, m, err := d.Push(rest[:1+rnd.IntN(min(len(rest), 1+rnd.IntN(5000)))])
			rest = rest[n:]
			consumed += n
			if rnd.IntN(4) == 0 {
				more := rnd.IntN(len(rest) + 1)
				d.Arrived(more)
				arrived = consumed + more
			}
			arrived = max(arrived, consumed)
			held := pool.InUse()
			if m != nil {
				for _, b := range m.Tensors {
					held -= int64(len(b.Data))
				}
			}
			if most := int64(arrived)*11 + 64<<10; held > most {
				t.Fatalf("%d bytes held after %d", held, arrived)
			}
			if taken := allocated() - before - judged; taken > int64(arrived)*12+1<<20 {
				t.Fatalf("%d bytes allocated after %d", taken, arrived)
			}
			if m == nil && err == nil {
				continue
			}
			start := allocated()
			p, kind := parseWhole(want, fuzzLimits)
			if err != nil {
				e := err.(*shiva.DecodeError)
				if e.Kind != kind || e.Keep() != (p.size >= 0) {
					t.Fatalf("%v, keep %t; want %q, of a message of %d bytes", e, e.Keep(), kind, p.size)
				}
				if !e.Keep() {
					break
				}
			} else {
				if kind != "" {
					t.Fatalf("a message, want %s", kind)
				}
				sameMessage(t, "decoded", m,
					&shiva.Message{Namespace: string(p.namespace), Metadata: p.metadata, Tensors: p.tensors})
				if !p.changed {
					checkEncodesBack(t, m, want[:p.size])
				}
				m.Release()
			}
			want = want[p.size:]
			if len(want) != len(stream)-consumed {
				t.Fatalf("consumed %d bytes, want %d", consumed, len(stream)-len(want))
			}
			judged += allocated() - start
		}
		d.Reset()
		checkLeaks(t, pool)
	})
}

// checkEncodesBack checks that a message encodes to the bytes that it was decoded from, except for
// the twin codes and the padding of long doubles, where decoding again gives the same message. All
// encoders agree.
func checkEncodesBack(t *testing.T, m *shiva.Message, wire []byte) {
	t.Helper()
	again, err := shiva.AppendMessage(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	if size, err := shiva.MessageSize(m); err != nil || size != len(again) || size != len(wire) {
		t.Fatalf("size %d, %v; encoded %d; decoded from %d", size, err, len(again), len(wire))
	}
	_, vecs, err := shiva.AppendVectored(nil, nil, m)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(onWire(vecs), again) {
		t.Fatal("the vectored encoder gives other bytes")
	}
	exact := true
	for _, x := range m.Tensors {
		switch x.DType {
		case tensor.Float64, tensor.Int64, tensor.LongDouble:
			exact = false
		}
	}
	if exact && !bytes.Equal(again, wire) {
		t.Fatalf("encodes back to\n%x, want\n%x", again, wire)
	}
}

// FuzzResync: noise before a message causes no panic and no endless loop, and loses the message
// only if the noise contains a header.
func FuzzResync(f *testing.F) {
	for _, g := range readGoldens(f) {
		if len(g.bytes) < 5000 {
			f.Add(g.bytes)
		}
	}
	good := []byte{6, 66, 11, 1, 0, 0, 0, 0, 0, 1, 0x55, 0xaa, 'x'}
	f.Fuzz(func(t *testing.T, noise []byte) {
		budgettest.Input(t)
		pool := tensor.NewPool(0)
		d := shiva.NewDecoder(shiva.DecoderConfig{Resync: true, Pool: pool,
			Limits: shiva.Limits{MessageBytes: 1 << 20}})
		found := false
		for _, b := range [][]byte{noise, good} {
			for len(b) > 0 {
				n, m, err := d.Push(b)
				if m != nil {
					found = m.Namespace == "x" && n == len(b)
					m.Release()
				}
				if err != nil && !err.(*shiva.DecodeError).Keep() {
					t.Fatal(err)
				}
				b = b[n:]
			}
		}
		if !found && !bytes.Contains(noise, good[:4]) {
			t.Fatalf("the message after %x was not found", noise)
		}
		d.Reset()
		checkLeaks(t, pool)
	})
}

// FuzzParseError: any metadata can be parsed, and an error that we encoded is parsed back
// unchanged.
func FuzzParseError(f *testing.F) {
	f.Add([]byte(`{"type": "ValueError", "message": "x"}`), "Overloaded", "queue full", 429, true, `"id"`)
	f.Add([]byte(`{"type":1,"code":"x","retryable":"yes","id":null}`), "", "", 0, false, "")
	f.Add([]byte(`{"type":"a","type":"b","code":1e3`), "\xff", "\"", -1, true, `{"a":[]}`)
	f.Fuzz(func(t *testing.T, metadata []byte, typ, message string, code int, retryable bool, id string) {
		budgettest.Input(t)
		if e := shiva.ParseError(&shiva.Message{Namespace: shiva.ErrorNamespace, Metadata: metadata}); e == nil {
			t.Fatal("not taken for a report")
		}
		if jsonscan.Valid([]byte(id), 100) {
			id = strings.Trim(id, " \t\r\n")
		} else {
			id = ""
		}
		want := shiva.RemoteError{Type: typ, Message: message, Code: code, Retryable: retryable, ID: id}
		m := shiva.ErrorMessage(&want)
		if err := shiva.ValidObject(m.Metadata); err != nil {
			t.Fatalf("%q: %v", m.Metadata, err)
		}
		want.Type, want.Message = string([]rune(typ)), string([]rune(message))
		if got := shiva.ParseError(m); *got != want {
			t.Fatalf("%q reads as %+v, want %+v", m.Metadata, *got, want)
		}
	})
}
