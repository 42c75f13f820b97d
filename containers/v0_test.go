package containers

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestGoldenV0 compares requests with those of the reference implementation: byte by byte, except
// for LZ4 frames, which have several encodings of the same texts. There both are decoded, and the
// texts compared.
func TestGoldenV0(t *testing.T) {
	text, err := os.ReadFile("testdata/gen0.json")
	if err != nil {
		t.Fatal(err)
	}
	var steps []struct {
		Scenario, Direction, Bytes string
		Decoded                    struct {
			Code    int
			Inputs  []json.RawMessage
			Outputs []float64
			Value   uint32
		}
	}
	if err := json.Unmarshal(text, &steps); err != nil {
		t.Fatal(err)
	}
	dtypes := map[int]tensor.DType{1: tensor.Int32, 2: tensor.Float64, 3: tensor.Uint8, 4: tensor.Int32,
		5: tensor.Float64, 6: tensor.Uint8, 7: tensor.Bytes}
	requests, answers := 0, 0
	for _, s := range steps {
		want, err := hex.DecodeString(s.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		d := s.Decoded
		switch {
		case s.Scenario == "shutdown" && d.Value == 0:
			if !bytes.Equal(want, v0Goodbye) {
				t.Errorf("goodbye is % x, expected % x", v0Goodbye, want)
			}
		case s.Scenario == "shutdown":
			if !bytes.Equal(want, v0Bye) {
				t.Errorf("the answer to goodbye is % x, expected % x", v0Bye, want)
			}
		case strings.HasSuffix(s.Direction, ">container"):
			requests++
			got, err := (&v0{dtype: dtypes[d.Code]}).request(batchOf(t, 1, dtypes[d.Code], d.Inputs))
			if err != nil {
				t.Fatal(err)
			}
			if d.Code != 7 {
				if !bytes.Equal(got, want) {
					t.Errorf("%s: % x, expected % x", s.Scenario, got, want)
				}
				continue
			}
			a, b := readTexts(t, got), readTexts(t, want)
			if !reflect.DeepEqual(a, b) || len(a) != len(d.Inputs) {
				t.Errorf("%s: %q, expected %q", s.Scenario, a, b)
			}
		default:
			answers++
			var b []byte
			for _, v := range d.Outputs {
				b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
			}
			if !bytes.Equal(b, want) {
				t.Errorf("%s: % x, expected % x", s.Scenario, b, want)
			}
		}
	}
	if requests != 9 || answers != 9 {
		t.Errorf("%d requests, %d answers", requests, answers)
	}
}

// readTexts reads a request of texts as a container would.
func readTexts(t testing.TB, request []byte) (texts []string) {
	t.Helper()
	n := int(binary.LittleEndian.Uint32(request[1:]))
	if size := binary.LittleEndian.Uint32(request[5:]); request[0] != 7 || int(size) != len(request)-9 {
		t.Fatalf("code %d, size %d of %d", request[0], size, len(request)-9)
	}
	sizes := request[9:]
	all, err := io.ReadAll(lz4.NewReader(bytes.NewReader(sizes[4*n:])))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		size := binary.LittleEndian.Uint32(sizes[4*i:])
		texts = append(texts, string(all[:size]))
		all = all[size:]
	}
	if string(all) != "\n" {
		t.Fatalf("%q after the texts", all)
	}
	return texts
}

// TestV0Reuse: a codec is reused, even after a request whose buffer is too large to keep.
func TestV0Reuse(t *testing.T) {
	c := v0{dtype: tensor.Bytes}
	for _, text := range []string{"first", strings.Repeat("0123456789abcdef", 1<<17), "", "last"} {
		x, err := tensor.FromStrings(tensor.Shape{2}, []string{text, "x"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.request(&scheduler.Batch{Rows: 2, Parts: []scheduler.Part{{Inputs: []tensor.Tensor{x}, Rows: 2}}})
		if err != nil {
			t.Fatal(err)
		}
		if texts := readTexts(t, got); texts[0] != text || texts[1] != "x" {
			t.Errorf("%.20q of %d bytes", texts, len(texts[0]))
		}
	}
}
