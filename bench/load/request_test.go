package load

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva/tensor"
)

// A question is the content of a request, as a server decodes it.
type question struct {
	model, version string
	inputs         string // names, datatypes, shapes and bytes
	parameters     map[string]any
}

func describeInput(name, datatype string, shape any, data []byte) string {
	return fmt.Sprintf("%s %s %v %x;", name, datatype, shape, data)
}

// read decodes a request with code other than the encoder's.
func read(t *testing.T, w Wire, frame []byte) (q question) {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Fatalf("wire %d: %v in %q", w, err, frame)
		}
	}
	switch w {
	case Shiva:
		m, err := decode(frame)
		fail(err)
		q.model, q.version, _ = strings.Cut(m.Namespace, "/")
		fail(json.Unmarshal(m.Metadata, &q.parameters))
		names, _ := q.parameters["__tensors__"].([]any)
		delete(q.parameters, "__tensors__")
		for i, x := range m.Tensors {
			q.inputs += describeInput(fmt.Sprint(names[i]), x.DType.V2(), []int(x.Shape), x.Data)
		}
	case HTTP:
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(frame)))
		fail(err)
		part := strings.Split(r.URL.Path, "/") // "", v2, models, m, versions, 2, infer
		q.model, q.version = part[3], part[5]
		body, err := io.ReadAll(r.Body)
		fail(err)
		var head int
		_, err = fmt.Sscan(r.Header.Get("Inference-Header-Content-Length"), &head)
		fail(err)
		var document struct {
			Inputs []struct {
				Name, Datatype string
				Shape          []int
				Parameters     struct {
					Size int `json:"binary_data_size"`
				}
			}
			Parameters map[string]any
		}
		fail(json.Unmarshal(body[:head], &document))
		for data := body[head:]; len(document.Inputs) > 0; document.Inputs = document.Inputs[1:] {
			x := document.Inputs[0]
			q.inputs += describeInput(x.Name, x.Datatype, x.Shape, data[:x.Parameters.Size])
			data = data[x.Parameters.Size:]
		}
		q.parameters = document.Parameters
		delete(q.parameters, "binary_data_output")
	case GRPC:
		var m pb.ModelInferRequest
		fail(proto.Unmarshal(frame, &m))
		q.model, q.version, q.parameters = m.ModelName, m.ModelVersion, map[string]any{}
		for i, x := range m.Inputs {
			q.inputs += describeInput(x.Name, x.Datatype, x.Shape, m.RawInputContents[i])
		}
		for key, p := range m.Parameters {
			switch v := p.ParameterChoice.(type) {
			case *pb.InferParameter_Int64Param:
				q.parameters[key] = float64(v.Int64Param)
			case *pb.InferParameter_StringParam:
				q.parameters[key] = v.StringParam
			}
		}
	}
	return q
}

// A request has the same content on every wire, and its stamp writes the fields that differ
// between frames.
func TestRequests(t *testing.T) {
	a := tensor.Tensor{Name: "a", DType: tensor.Uint8, Shape: tensor.Shape{1, 3}, Data: []byte{7, 8, 9}}
	b := tensor.Tensor{Name: `b"`, DType: tensor.Uint8, Shape: tensor.Shape{2}, Data: []byte(`"s`)}
	const want = `a UINT8 [1 3] 070809;b" UINT8 [2] 2273;`
	for _, w := range []Wire{Shiva, HTTP, GRPC} {
		plain := Request{Model: "m", Version: "2", Inputs: []tensor.Tensor{a, b}, Names: true}
		frame, _, err := plain.Encode(w)
		if err != nil {
			t.Fatal(err)
		}
		if q := read(t, w, frame); q.model != "m" || q.version != "2" || q.inputs != want || len(q.parameters) != 0 {
			t.Errorf("wire %d: %+v", w, q)
		}
		timed := plain
		timed.Timeout = 1500 * time.Microsecond
		if frame, _, err = timed.Encode(w); err != nil {
			t.Fatal(err)
		}
		if q := read(t, w, frame); q.parameters["timeout_ms"] != 1.5 && q.parameters["timeout"] != 1500.0 {
			t.Errorf("wire %d, with a deadline: %+v", w, q)
		}
		for keep, value := range map[string]any{"": nil, "all": "all", "latest": "latest", "3": 3.0} {
			framed := plain
			framed.Stream, framed.Keep = "cam-", keep
			frame, stamp, err := framed.Encode(w)
			if err != nil {
				t.Fatal(err)
			}
			for _, tt := range []struct {
				stream        int
				seq, captured int64
			}{{0, 0, 1e12}, {42, 1234567890123456789, 1792000000123}, {9999, 7, 9999999999999}} {
				stamp.write(frame, plainPlace, tt.stream, tt.seq, tt.captured)
				q := read(t, w, frame)
				if q.inputs != want || q.parameters["stream"] != fmt.Sprintf("cam-%04d", tt.stream) ||
					q.parameters["seq"] != float64(tt.seq) ||
					q.parameters["captured_at"] != float64(tt.captured) || q.parameters["keep"] != value {
					t.Errorf("wire %d, keep %q: %+v, want %+v", w, keep, q, tt)
				}
			}
		}
	}
	long := Request{Model: strings.Repeat("m", maxFrame), Stream: "s"}
	if _, _, err := long.Encode(GRPC); err == nil {
		t.Error("parameters beyond the first frame of HTTP/2, and no error")
	}
	if _, _, err := long.Encode(9); err == nil {
		t.Error("a wire that is none, and no error")
	}
}

func plainPlace(place int) int { return place }

// In HTTP/2 frames, too, the stamp is written into the message that is sent.
func TestStampInFrames(t *testing.T) {
	q := Request{Model: "m",
		Inputs: []tensor.Tensor{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{40000},
			Data: make([]byte, 40000)}}, Stream: "cam-"}
	message, stamp, err := q.Encode(GRPC)
	if err != nil {
		t.Fatal(err)
	}
	g := newGRPCWire("")
	frames := g.encode([]byte("before"), message, true)
	stamp.write(frames, g.at, 12, 34, 56)
	stamp.write(message, plainPlace, 12, 34, 56)
	var sent []byte
	for i, at := range g.marks[1:] {
		n := int(frames[at])<<16 | int(frames[at+1])<<8 | int(frames[at+2])
		if i == 0 {
			sent = append(sent, frames[at+frameHead+messageHead:at+frameHead+n]...)
		} else {
			sent = append(sent, frames[at+frameHead:at+frameHead+n]...)
		}
	}
	if !bytes.Equal(sent, message) {
		t.Error("the frames do not have the message with its stamp")
	}
}
