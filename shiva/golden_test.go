package shiva_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A golden is an entry of testdata/golden/index.json: a file of bytes from the Python reference
// implementation (or a mutation of one), and its contents.
type golden struct {
	File         string
	Valid        bool
	Error        shiva.Kind
	Namespace    string
	MetadataText string `json:"metadata_text"`
	MetadataSum  string `json:"metadata_sha256"` // instead of a text that is too long
	Tensors      []struct {
		Code       byte `json:"dtype_code"`
		Shape      []int
		DataLen    int    `json:"data_len"`
		DataHex    string `json:"data_le_hex"`
		DataSHA256 string `json:"data_le_sha256"`
	}
	Segments []struct {
		Offset, Length int
		Is             string
	}

	bytes []byte
}

func readGoldens(t testing.TB) []golden {
	t.Helper()
	dir := filepath.Join("testdata", "golden")
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index struct {
		Count   int
		Vectors []golden
	}
	if err := json.Unmarshal(text, &index); err != nil {
		t.Fatal(err)
	}
	if len(index.Vectors) != index.Count || index.Count == 0 {
		t.Fatalf("the index announces %d vectors and has %d", index.Count, len(index.Vectors))
	}
	for i := range index.Vectors {
		g := &index.Vectors[i]
		if g.bytes, err = os.ReadFile(filepath.Join(dir, g.File)); err != nil {
			t.Fatal(err)
		}
	}
	return index.Vectors
}

// wide admits everything that the protocol can express, so that a vector fails for its own fault
// and not for a limit.
var wide = shiva.Limits{MessageBytes: 1 << 40, MetadataBytes: 1<<31 - 1, Rank: 255}

// A result is the outcome of decoding a stream.
type result struct {
	messages []*shiva.Message
	kind     shiva.Kind // of the first error; "eof" if the stream ended between messages
	at       int        // bytes consumed before it
	keep     bool
	errors   int
}

// decodeAll pushes the pieces and then ends the stream. It continues after errors with Keep, and
// reports only the first.
func decodeAll(t testing.TB, cfg shiva.DecoderConfig, pieces ...[]byte) (r result) {
	t.Helper()
	d := shiva.NewDecoder(cfg)
	note := func(err error) (goOn bool) {
		e, ok := errors.AsType[*shiva.DecodeError](err)
		if !ok {
			t.Fatalf("an error of type %T: %v", err, err)
		}
		if r.errors++; r.kind == "" {
			r.kind, r.keep = e.Kind, e.Keep()
		}
		return e.Keep()
	}
	consumed := 0
	for _, p := range pieces {
		for {
			n, m, err := d.Push(p)
			if n < 0 || n > len(p) || n < len(p) && m == nil && err == nil {
				t.Fatalf("Push consumed %d of %d bytes and returned nothing", n, len(p))
			}
			consumed += n
			p = p[n:]
			if m != nil {
				if err != nil {
					t.Fatalf("a message and an error: %v", err)
				}
				r.messages = append(r.messages, m)
			}
			if err != nil {
				if r.kind == "" {
					r.at = consumed
				}
				if !note(err) {
					if _, _, again := d.Push(p); again != err {
						t.Fatalf("after the final error %v another Push says %v", err, again)
					}
					return r
				}
			}
			if len(p) == 0 {
				break
			}
		}
	}
	if err := d.Close(); err != nil {
		if r.kind == "" {
			r.at = consumed
		}
		note(err)
	} else if r.kind == "" {
		r.kind, r.at = "eof", consumed
	}
	return r
}

func (r result) release() {
	for _, m := range r.messages {
		m.Release()
	}
}

func sameMessage(t *testing.T, what string, got, want *shiva.Message) {
	t.Helper()
	if got.Namespace != want.Namespace || !bytes.Equal(got.Metadata, want.Metadata) ||
		len(got.Tensors) != len(want.Tensors) {
		t.Fatalf("%s: namespace %q, metadata %q, %d tensors; want %q, %q, %d", what,
			got.Namespace, got.Metadata, len(got.Tensors), want.Namespace, want.Metadata, len(want.Tensors))
	}
	for i, a := range got.Tensors {
		b := want.Tensors[i]
		if a.DType != b.DType || !a.Shape.Equal(b.Shape) || !bytes.Equal(a.Data, b.Data) {
			t.Fatalf("%s: tensor %d is %s %s %x, want %s %s %x", what, i, a.DType, a.Shape, a.Data, b.DType, b.Shape,
				b.Data)
		}
	}
}

// TestGoldenValid: messages of the reference decode to the contents in the index, and encode back
// to the same bytes.
func TestGoldenValid(t *testing.T) {
	pool := tensor.NewPool(0)
	for _, g := range readGoldens(t) {
		if !g.Valid {
			continue
		}
		t.Run(g.File, func(t *testing.T) {
			r := decodeAll(t, shiva.DecoderConfig{Limits: wide, Pool: pool}, g.bytes)
			defer r.release()
			want := max(len(g.Segments), 1)
			if r.kind != "eof" || len(r.messages) != want {
				t.Fatalf("%d messages, then %s; want %d, then the end", len(r.messages), r.kind, want)
			}
			var again []byte
			for _, m := range r.messages {
				checkGolden(t, g, m)
				var err error
				if again, err = shiva.AppendMessage(again, m); err != nil {
					t.Fatal(err)
				}
			}
			if want := reencoded(t, g); !bytes.Equal(again, want) {
				t.Errorf("encodes back to\n%x, want\n%x", again, want)
			}
		})
	}
	checkLeaks(t, pool)
}

func checkGolden(t *testing.T, g golden, m *shiva.Message) {
	t.Helper()
	if m.Namespace != g.Namespace || len(m.Tensors) != len(g.Tensors) {
		t.Fatalf("namespace %q, %d tensors; want %q, %d", m.Namespace, len(m.Tensors), g.Namespace, len(g.Tensors))
	}
	if sum := sha256.Sum256(m.Metadata); g.MetadataSum != "" && hex.EncodeToString(sum[:]) != g.MetadataSum {
		t.Errorf("metadata of %d bytes has the SHA-256 %x, want %s", len(m.Metadata), sum, g.MetadataSum)
	} else if g.MetadataSum == "" && string(m.Metadata) != g.MetadataText {
		t.Errorf("metadata is %q, want %q", m.Metadata, g.MetadataText)
	}
	for i, want := range g.Tensors {
		got := m.Tensors[i]
		if g.File == "cpp_client_all_types.bin" {
			// The C++ example sends in host order. The index has the bytes as sent.
			got.Data = bytes.Clone(got.Data)
			tensor.SwapCopy(got.Data, got.Data, got.DType.SwapWidth())
		}
		dtype, ok := tensor.FromWire(want.Code)
		if !ok || got.DType != dtype || !slices.Equal(got.Shape, want.Shape) || len(got.Data) != want.DataLen {
			t.Fatalf("tensor %d is %s %s of %d bytes, want code %d %v of %d", i, got.DType, got.Shape, len(got.Data),
				want.Code, want.Shape, want.DataLen)
		}
		if err := got.Check(); err != nil {
			t.Errorf("tensor %d: %v", i, err)
		}
		if want.DataHex != "" && hex.EncodeToString(got.Data) != want.DataHex {
			t.Errorf("tensor %d holds %x, want %s", i, got.Data, want.DataHex)
		}
		if sum := sha256.Sum256(got.Data); hex.EncodeToString(sum[:]) != want.DataSHA256 {
			t.Errorf("tensor %d has the SHA-256 %x, want %s", i, sum, want.DataSHA256)
		}
	}
}

// reencoded returns the bytes that a valid vector encodes back to: the same bytes, except for the
// two codes that have a twin and the padding of long doubles.
func reencoded(t *testing.T, g golden) []byte {
	t.Helper()
	b := bytes.Clone(g.bytes)
	if len(g.Segments) > 0 {
		return b // these are all float32
	}
	changed := 0
	at := 12
	for _, tt := range g.Tensors {
		if b[at+1] != tt.Code {
			t.Fatalf("the index says dtype code %d, byte %d of the file is %d", tt.Code, at+1, b[at+1])
		}
		switch tt.Code {
		case 2:
			b[at+1] = 11
			changed++
		case 10:
			b[at+1] = 13
			changed++
		}
		at += 2 + 4*len(tt.Shape)
		if tt.Code == 12 {
			for i := at; i < at+tt.DataLen; i += 16 {
				if !bytes.Equal(b[i:i+6], make([]byte, 6)) {
					clear(b[i : i+6])
					changed++
				}
			}
		}
		at += tt.DataLen
	}
	may := map[string]int{"dtype_02_float64.bin": 1, "dtype_10_int64.bin": 1,
		"dtype_12_longdouble_dirty_padding.bin": 6, "cpp_client_all_types.bin": 2}
	if changed != may[g.File] {
		t.Fatalf("%d changes to the bytes, want %d", changed, may[g.File])
	}
	return b
}

// TestGoldenCuts: the outcome does not depend on how the bytes are split.
func TestGoldenCuts(t *testing.T) {
	budgettest.OneGoroutine(t)
	pool := tensor.NewPool(0)
	cfg := shiva.DecoderConfig{Limits: wide, Pool: pool}
	for _, g := range readGoldens(t) {
		t.Run(g.File, func(t *testing.T) {
			whole := decodeAll(t, cfg, g.bytes)
			defer whole.release()
			same := func(what string, pieces ...[]byte) {
				t.Helper()
				r := decodeAll(t, cfg, pieces...)
				defer r.release()
				if r.kind != whole.kind || r.at != whole.at || r.keep != whole.keep ||
					len(r.messages) != len(whole.messages) {
					t.Fatalf("%s: %d messages, then %s at %d, keep %t; whole: %d, then %s at %d, keep %t", what,
						len(r.messages), r.kind, r.at, r.keep, len(whole.messages), whole.kind, whole.at, whole.keep)
				}
				for i, m := range r.messages {
					sameMessage(t, what, m, whole.messages[i])
				}
			}
			same("byte by byte", slices.Collect(slices.Chunk(g.bytes, 1))...)
			for _, n := range []int{2, 3, 5, 7, 11, 13, 1000, 4096} {
				same("in small pieces", slices.Collect(slices.Chunk(g.bytes, n))...)
			}
			for cut := range cuts(len(g.bytes)) {
				same("cut in two", g.bytes[:cut], g.bytes[cut:])
			}
		})
	}
	checkLeaks(t, pool)
}

// cuts yields every offset up to and including n, but only some in the middle of a large vector,
// which is one long body: all of them would take minutes.
func cuts(n int) iter.Seq[int] {
	near, most := 1500, 256
	if !budgettest.Whole() && n > 600 {
		near, most = 100, 16
	}
	return func(yield func(int) bool) {
		for cut := 0; cut <= n; cut++ {
			if !yield(cut) {
				return
			}
			if cut > near && cut < n-near {
				cut += min((n-2*near)/most, n-near-cut)
			}
		}
	}
}

// TestGoldenTruncated: cutting a vector of one message at any offset gives a clean end or a
// truncation error.
func TestGoldenTruncated(t *testing.T) {
	budgettest.OneGoroutine(t)
	pool := tensor.NewPool(0)
	for _, g := range readGoldens(t) {
		if !g.Valid || len(g.Segments) > 0 {
			continue
		}
		for cut := range cuts(len(g.bytes) - 1) {
			want := shiva.KindTruncated
			if cut == 0 {
				want = "eof"
			}
			r := decodeAll(t, shiva.DecoderConfig{Limits: wide, Pool: pool}, g.bytes[:cut])
			if r.kind != want || len(r.messages) != 0 {
				t.Fatalf("%s cut to %d bytes: %d messages, then %s, want %s", g.File, cut, len(r.messages), r.kind,
					want)
			}
		}
	}
	checkLeaks(t, pool)
}

// TestGoldenMalformed: each vector gives the kind of error that the index names first, which is the
// strict reading, except for NaN.
func TestGoldenMalformed(t *testing.T) {
	keeps := []shiva.Kind{shiva.KindInvalidJSON, shiva.KindInvalidUTF8Metadata, shiva.KindInvalidUTF8Namespace,
		shiva.KindMetadataNotObject}
	pool := tensor.NewPool(0)
	for _, g := range readGoldens(t) {
		if g.Valid {
			continue
		}
		t.Run(g.File, func(t *testing.T) {
			r := decodeAll(t, shiva.DecoderConfig{Limits: wide, Pool: pool}, g.bytes)
			defer r.release()
			good := 0
			if len(g.Segments) > 0 {
				good = 1
			}
			// NaN, which the reference sends, is taken as null.
			if g.File == "edge_metadata_nan.bin" {
				if r.kind != "eof" || len(r.messages) != 1 || string(r.messages[0].Metadata) != `{"a":null}` {
					t.Fatalf("%d messages, then %s; want one that says null", len(r.messages), r.kind)
				}
				return
			}
			if r.kind != g.Error || len(r.messages) != good {
				t.Fatalf("%d messages, then %s; want %d, then %s", len(r.messages), r.kind, good, g.Error)
			}
			if want := slices.Contains(keeps, r.kind); r.keep != want {
				t.Errorf("keep is %t, want %t", r.keep, want)
			}
			if r.keep && r.at != len(g.bytes) {
				t.Errorf("the error came after %d bytes, the message has %d", r.at, len(g.bytes))
			}
		})
	}
	checkLeaks(t, pool)
}

// TestGoldenResync: with Resync, garbage in the stream vectors causes an error, and loses no
// message.
func TestGoldenResync(t *testing.T) {
	pool := tensor.NewPool(0)
	for _, g := range readGoldens(t) {
		if g.Valid || len(g.Segments) == 0 {
			continue
		}
		for n := range 40 {
			r := decodeAll(t, shiva.DecoderConfig{Pool: pool, Resync: true},
				slices.Collect(slices.Chunk(g.bytes, n+1))...)
			if len(r.messages) != 2 || r.kind != shiva.KindBadMagic || !r.keep {
				t.Fatalf("%s in pieces of %d: %d messages, %s, keep %t", g.File, n+1, len(r.messages), r.kind, r.keep)
			}
			sameMessage(t, g.File, r.messages[1], r.messages[0])
			r.release()
		}
	}
	checkLeaks(t, pool)
}

// checkLeaks fails if buffers of the pool were not released.
func checkLeaks(t *testing.T, pool *tensor.Pool) {
	t.Helper()
	if n := pool.InUse(); n != 0 {
		t.Errorf("%d bytes were not released: %q", n, tensor.Outstanding(pool))
	}
}
