package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A way is one of the doors of a server, from the view of a client of its wire.
type way struct {
	name string
	// ask sends one tensor x to a model and returns the tensor of the answer. An error that the
	// server reports is a *refusal. timeout 0 means the model's.
	ask func(ctx context.Context, model string, x tensor.Tensor, timeout time.Duration) (tensor.Tensor, error)
	// garbage sends invalid bytes, and returns the answer; nil if the wire cannot carry them.
	garbage func() error
	// shows returns the form of a row of the table of errors on this wire.
	shows func(condition) refusal
}

// A condition is a row of the table of errors, which server/manual/errors.md shows.
type condition struct {
	kind      string // of Shiva
	http      int
	grpc      int
	retryable bool
}

// A refusal is an error as the wire shows it; fields that the wire does not have are zero.
type refusal struct {
	kind      string
	code      int
	retryable bool
	text      string // not compared
}

func (f *refusal) Error() string {
	return fmt.Sprintf("%q %d, retryable: %v: %s", f.kind, f.code, f.retryable, f.text)
}

// ways returns all ways. Each has its own connections.
func ways(t *testing.T, s *Server) []way {
	http := newHTTP(t, s.Addrs().REST[0])
	rpc := newGRPC(t, s.Addrs().GRPC[0])
	tcp := newTCP(t, s.Addrs().TCP[0])
	ofGRPC := func(c condition) refusal { return refusal{kind: c.kind, code: c.grpc, retryable: c.retryable} }
	// 429 and 503 tell when to retry; the wire has no such field for the other conditions.
	ofHTTP := func(c condition) refusal { return refusal{code: c.http, retryable: c.http == 429 || c.http == 503} }
	return []way{
		{name: "tcp", ask: tcp.ask, garbage: tcp.garbage,
			shows: func(c condition) refusal { return refusal{kind: c.kind, code: c.http, retryable: c.retryable} }},
		{name: "rest json", ask: http.askJSON, garbage: func() error { return http.garbage(`{"inputs":[`, "") },
			shows: ofHTTP},
		{name: "rest binary", ask: http.askBinary, garbage: func() error { return http.garbage(`{"inputs":[`, "11") },
			shows: ofHTTP},
		{name: "grpc raw", ask: rpc.askRaw, garbage: rpc.garbage, shows: ofGRPC},
		{name: "grpc typed", ask: rpc.askTyped, garbage: rpc.garbage, shows: ofGRPC},
		{name: "library",
			ask: func(ctx context.Context, model string, x tensor.Tensor, timeout time.Duration) (
				tensor.Tensor, error) {
				return askLibrary(ctx, s, model, x, timeout)
			}, shows: func(c condition) refusal { return refusal{kind: c.kind} }},
	}
}

// tcpClient speaks Shiva.
type tcpClient struct {
	addr   string
	client *shiva.Client
}

func newTCP(t *testing.T, addr net.Addr) *tcpClient {
	t.Helper()
	c, err := shiva.Dial(t.Context(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &tcpClient{addr.String(), c}
}

func shivaFault(err error) error {
	if remote, ok := errors.AsType[*shiva.RemoteError](err); ok {
		return &refusal{kind: remote.Type, code: remote.Code, retryable: remote.Retryable, text: remote.Message}
	}
	return err
}

func (c *tcpClient) ask(ctx context.Context, model string, x tensor.Tensor,
	timeout time.Duration) (tensor.Tensor, error) {
	metadata := map[string]any{}
	if timeout > 0 {
		metadata["timeout_ms"] = timeout.Seconds() * 1000
	}
	m := &shiva.Message{Namespace: model}
	if x.DType == tensor.Bytes { // text is not a tensor on this wire
		x.Name = "x"
		object, err := shiva.AppendTexts(nil, x)
		if err != nil {
			return x, err
		}
		metadata[shiva.TextsKey] = json.RawMessage(object)
	} else {
		on, _ := x.DType.WireType() // float32 holds the values of a float that is not on this wire
		sent, err := tensor.Cast(x, on, nil)
		if err != nil {
			return x, err
		}
		m.Tensors = []tensor.Tensor{sent}
	}
	var err error
	if m.Metadata, err = json.Marshal(metadata); err != nil {
		return x, err
	}
	a, err := c.client.Do(ctx, m)
	if err != nil {
		return x, shivaFault(err)
	}
	defer a.Release()
	if x.DType == tensor.Bytes {
		texts, err := a.Texts()
		if err != nil || len(texts) != 1 {
			return x, fmt.Errorf("%d texts in the answer %s (%v)", len(texts), a.Metadata, err)
		}
		return texts[0], nil
	}
	if len(a.Tensors) != 1 {
		return x, fmt.Errorf("%d tensors in the answer %s", len(a.Tensors), a.Metadata)
	}
	y := a.Tensors[0]
	if !x.DType.OnWire() {
		return tensor.Cast(y, x.DType, nil)
	}
	return tensor.Tensor{DType: y.DType, Shape: slices.Clone(y.Shape), Data: bytes.Clone(y.Data)}, nil
}

// garbage sends bytes with another magic number.
func (c *tcpClient) garbage() error { return c.send([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) }

// send sends bytes over a new connection, and returns the error in the answer.
func (c *tcpClient) send(message []byte) error {
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(message); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	decoder := shiva.NewDecoder(shiva.DecoderConfig{})
	defer decoder.Close()
	for b := make([]byte, 4096); ; {
		n, err := conn.Read(b)
		if err != nil {
			return err
		}
		_, m, err := decoder.Push(b[:n])
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		defer m.Release()
		var reply shiva.RemoteError // its fields have the names of the metadata's
		if err := json.Unmarshal(m.Metadata, &reply); err != nil {
			return err
		}
		return shivaFault(&reply)
	}
}

// httpClient speaks V2 over HTTP.
type httpClient struct {
	base   string
	client http.Client
}

func newHTTP(t *testing.T, addr net.Addr) *httpClient {
	c := &httpClient{base: "http://" + addr.String(),
		client: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	t.Cleanup(c.client.CloseIdleConnections)
	return c
}

// post sends a request, and returns the JSON of the answer and the bytes that follow it.
func (c *httpClient) post(ctx context.Context, model string, head, data []byte) (answer, rest []byte, err error) {
	q, err := http.NewRequestWithContext(ctx, "POST", c.base+"/v2/models/"+model+"/infer",
		bytes.NewReader(slices.Concat(head, data)))
	if err != nil {
		return nil, nil, err
	}
	if data != nil {
		q.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
	}
	return c.do(q)
}

func (c *httpClient) do(q *http.Request) (answer, rest []byte, err error) {
	resp, err := c.client.Do(q)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusOK {
		var reply struct{ Error string }
		if err := json.Unmarshal(body, &reply); err != nil || reply.Error == "" {
			return nil, nil, fmt.Errorf("%d with a body that is no error: %q", resp.StatusCode, body)
		}
		return nil, nil, &refusal{code: resp.StatusCode, retryable: resp.Header.Get("Retry-After") != "",
			text: reply.Error}
	}
	if n := resp.Header.Get("Inference-Header-Content-Length"); n != "" {
		size, err := strconv.Atoi(n)
		if err != nil || size > len(body) {
			return nil, nil, fmt.Errorf("a head of %s bytes in a body of %d", n, len(body))
		}
		return body[:size], body[size:], nil
	}
	return body, nil, nil
}

// httpTensor is an input or output.
type httpTensor struct {
	Name       string         `json:"name"`
	Datatype   string         `json:"datatype"`
	Shape      []int          `json:"shape"`
	Data       []any          `json:"data,omitzero"` // also of none
	Parameters map[string]int `json:"parameters,omitempty"`
}

func (c *httpClient) infer(ctx context.Context, model string, in httpTensor, data []byte,
	timeout time.Duration) (out httpTensor, rest []byte, err error) {
	parameters := map[string]any{"binary_data_output": data != nil}
	if timeout > 0 {
		parameters["timeout"] = timeout.Microseconds()
	}
	head, err := json.Marshal(map[string]any{"parameters": parameters, "inputs": []httpTensor{in}})
	if err != nil {
		return out, nil, err
	}
	text, rest, err := c.post(ctx, model, head, data)
	if err != nil {
		return out, nil, err
	}
	var answer struct{ Outputs []httpTensor }
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&answer); err != nil || len(answer.Outputs) != 1 {
		return out, nil, fmt.Errorf("%d outputs in %s: %w", len(answer.Outputs), text, err)
	}
	return answer.Outputs[0], rest, nil
}

func (c *httpClient) askJSON(ctx context.Context, model string, x tensor.Tensor,
	timeout time.Duration) (tensor.Tensor, error) {
	in := httpTensor{Name: "x", Datatype: x.DType.V2(), Shape: x.Shape, Data: jsonValues(x)}
	out, _, err := c.infer(ctx, model, in, nil, timeout)
	if err != nil {
		return x, err
	}
	d, _ := tensor.FromV2(out.Datatype)
	data, err := fromDecimals(d, out.Data)
	if err != nil {
		return x, err
	}
	return tensor.New(d, out.Shape, data)
}

func (c *httpClient) askBinary(ctx context.Context, model string, x tensor.Tensor,
	timeout time.Duration) (tensor.Tensor, error) {
	in := httpTensor{Name: "x", Datatype: x.DType.V2(), Shape: x.Shape,
		Parameters: map[string]int{"binary_data_size": len(x.Data)}}
	out, data, err := c.infer(ctx, model, in, x.Data, timeout)
	if err != nil {
		return x, err
	}
	if out.Parameters["binary_data_size"] != len(data) {
		return x, fmt.Errorf("%d bytes follow, binary_data_size is %d", len(data), out.Parameters["binary_data_size"])
	}
	d, _ := tensor.FromV2(out.Datatype)
	return tensor.New(d, out.Shape, data)
}

func (c *httpClient) garbage(body, head string) error {
	q, err := http.NewRequest("POST", c.base+"/v2/models/m/infer", bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	if head != "" {
		q.Header.Set("Inference-Header-Content-Length", head)
	}
	_, _, err = c.do(q)
	return err
}

// jsonValues returns a tensor's elements as a client would write them; those that JSON cannot
// express are 0, which the server refuses by the datatype.
func jsonValues(x tensor.Tensor) []any {
	count, _ := x.Shape.Elements()
	values := make([]any, count)
	size := x.DType.Size()
	texts, _ := tensor.Strings(x)
	for i := range values {
		b := x.Data[min(i*size, len(x.Data)):]
		switch d := x.DType; {
		case d == tensor.Bool:
			values[i] = b[0] != 0
		case d == tensor.Bytes:
			values[i] = texts[i]
		case d.IsFloat():
			values[i] = json.Number(strconv.FormatFloat(d.Float(b), 'g', -1, 64))
		case d.Ordered():
			values[i] = json.Number(integer(d, b))
		default:
			values[i] = 0
		}
	}
	return values
}

// integer returns the first integer of b in decimal digits.
func integer(d tensor.DType, b []byte) string {
	switch d {
	case tensor.Int8:
		return strconv.Itoa(int(int8(b[0])))
	case tensor.Uint8:
		return strconv.Itoa(int(b[0]))
	case tensor.Int16:
		return strconv.Itoa(int(int16(binary.NativeEndian.Uint16(b))))
	case tensor.Uint16:
		return strconv.Itoa(int(binary.NativeEndian.Uint16(b)))
	case tensor.Int32:
		return strconv.Itoa(int(int32(binary.NativeEndian.Uint32(b))))
	case tensor.Uint32:
		return strconv.FormatUint(uint64(binary.NativeEndian.Uint32(b)), 10)
	case tensor.Int64:
		return strconv.FormatInt(int64(binary.NativeEndian.Uint64(b)), 10)
	}
	return strconv.FormatUint(binary.NativeEndian.Uint64(b), 10)
}

// fromDecimals converts the numbers of an answer as a client would, without losing digits.
func fromDecimals(d tensor.DType, values []any) (data []byte, err error) {
	for _, v := range values {
		switch v := v.(type) {
		case bool:
			data = append(data, map[bool]byte{true: 1}[v])
		case string:
			data = tensor.AppendElem(data, v)
		case json.Number:
			if data, err = appendNumber(data, d, string(v)); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%T %v among the data", v, v)
		}
	}
	return data, nil
}

func appendNumber(data []byte, d tensor.DType, text string) ([]byte, error) {
	bits := 8 * d.Size()
	var v uint64
	var err error
	if d.IsFloat() {
		f, err := strconv.ParseFloat(text, max(bits, 32))
		if err != nil {
			return nil, err
		}
		one, _ := tensor.FromSlice(tensor.Shape{}, []float64{f})
		if one, err = tensor.Cast(one, d, nil); err != nil {
			return nil, err
		}
		return append(data, one.Data...), nil
	}
	switch d {
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		var n int64
		n, err = strconv.ParseInt(text, 10, bits)
		v = uint64(n)
	default:
		v, err = strconv.ParseUint(text, 10, bits)
	}
	return append(data, binary.LittleEndian.AppendUint64(nil, v)[:d.Size()]...), err
}

// askLibrary asks like a program that embeds the server.
func askLibrary(ctx context.Context, s *Server, model string, x tensor.Tensor,
	timeout time.Duration) (tensor.Tensor, error) {
	a, err := s.Infer(ctx, &Request{Name: model, Inputs: []tensor.Tensor{x}, Timeout: timeout})
	if err != nil {
		return x, &refusal{kind: fault.Of(err).Type, text: err.Error()}
	}
	defer a.Release()
	y := a.Outputs[0]
	return tensor.Tensor{DType: y.DType, Shape: slices.Clone(y.Shape), Data: bytes.Clone(y.Data)}, nil
}

// join connects a container, over a socket, of a model of one input and output x.
func join(t *testing.T, s *Server, model string, d tensor.DType, shape tensor.Shape,
	answer func(*containertest.Batch) containertest.Reply) *containertest.Container {
	t.Helper()
	x := []tensor.Spec{{Name: "x", DType: d, Shape: shape}}
	c, err := containertest.Dial(t.Context(), s.Addrs().Containers[0].String(),
		containertest.Model{Name: model, Version: "1", Inputs: x, Outputs: x, Answer: answer})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	budgettest.Until(t, "the container to serve", func() bool { return serves(s, model, "1") })
	return c
}
