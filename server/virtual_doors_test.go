package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// runShiva pipelines requests, on a new connection whenever one has ended.
func (c *client) runShiva(questions int) {
	for tries := 0; questions > 0 && tries < 50; tries++ {
		k, err := c.dial(context.Background())
		switch {
		case err != nil && c.wasCut():
			time.Sleep(10 * time.Millisecond)
		case err != nil:
			if !c.scene.stopped() {
				c.scene.history.fault("%s cannot connect: %v", c.name, err)
			}
			return
		default:
			questions -= c.converse(k, questions)
		}
	}
}

// converse sends requests on one connection, and returns how many it has begun to send.
func (c *client) converse(k halfCloser, questions int) (asked int) {
	h := c.scene.history
	_ = k.SetDeadline(time.Now().Add(patience))
	line := make(chan *question, questions)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.listen(k, line)
	}()
	pieces := c.rand.IntN(3) == 0
	var before *question
	for asked < questions {
		time.Sleep(c.wait())
		q := c.deal()
		q.before, before = before, q
		h.ask(q)
		line <- q
		asked++
		if err := c.send(k, q.message(), pieces); err != nil {
			break
		}
		h.sent(q)
		if c.shaky && c.rand.IntN(40) == 0 {
			c.leave()
			k.Close()
			break
		}
	}
	close(line)
	_ = k.CloseWrite()
	<-ended
	k.Close()
	return asked
}

// send writes bytes, optionally in pieces.
func (c *client) send(k io.Writer, p []byte, pieces bool) error {
	for len(p) > 0 {
		n := len(p)
		if pieces {
			n = min(n, 1+c.rand.IntN(40))
			if c.rand.IntN(3) == 0 {
				time.Sleep(time.Duration(c.rand.IntN(2000)) * time.Microsecond)
			}
		}
		if _, err := k.Write(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (q *question) message() []byte {
	members := map[string]any{"id": q.number, "timeout_ms": float64(q.timeout) / float64(time.Millisecond)}
	for key, value := range q.parameters() {
		members[key] = value
	}
	if q.client.token != "" {
		members["token"] = q.client.token
	}
	m := shiva.Message{Namespace: q.path()}
	if q.about != nil {
		members["id"], members["reward"] = q.about.number, 1
		delete(members, "timeout_ms")
	} else {
		if q.model == "old" {
			members["batch"] = true // otherwise it would be one row
		}
		if q.shared != nil {
			members["shared_memory"] = q.onShiva()
		}
		if q.shared["in"] {
			q.client.shares.write(q)
		} else {
			m.Tensors = []tensor.Tensor{q.input()}
		}
	}
	var err error
	if m.Metadata, err = json.Marshal(members); err != nil {
		panic(err)
	}
	b, err := shiva.AppendMessage(nil, &m)
	if err != nil {
		panic(err)
	}
	return b
}

// input returns the request's tensor.
func (q *question) input() tensor.Tensor {
	x, err := tensor.FromSlice(tensor.Shape{2 * q.rows / q.width(), q.width()}, q.inputs())
	if err != nil {
		panic(err)
	}
	return x
}

// listen reads the answers of a connection, which come in the order of the requests.
func (c *client) listen(k io.Reader, line <-chan *question) {
	h := c.scene.history
	d := shiva.NewDecoder(shiva.DecoderConfig{})
	buf := make([]byte, 4<<10)
	cut := false // the server has read its last message in part
	for {
		n, err := k.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			used, m, err := d.Push(p)
			p = p[used:]
			if err != nil {
				h.fault("%s was sent what is no message: %v", c.name, err)
				return
			}
			if m == nil {
				continue
			}
			var q *question
			select {
			case q = <-line:
			default:
			}
			if q == nil {
				h.fault("%s was sent an answer too many: %s", c.name, m.Metadata)
				return
			}
			if cut {
				h.fault("%s was sent an answer after that to a message which the server did not read on: %s", c.name,
					m.Metadata)
				return
			}
			cut = unread(m)
			h.answer(q, shivaAnswer(h, q, m))
			m.Release()
		}
		if err != nil {
			return
		}
	}
}

// unread reports whether m refuses, at a shutdown, a message that the server has read in part. It
// is the last answer of a connection, and has no id, which is in the unread part.
func unread(m *shiva.Message) bool {
	e := shiva.ParseError(m)
	return e != nil && e.Type == shiva.Draining && strings.Contains(e.Message, "bytes of the message: send the message again")
}

func shivaAnswer(h *history, q *question, m *shiva.Message) answer {
	var meta struct {
		ID            int32
		Type, Message string
		learned
	}
	id := q.number
	if q.about != nil {
		id = q.about.number
	}
	if unread(m) {
		id = 0
	}
	if err := json.Unmarshal(m.Metadata, &meta); err != nil || meta.ID != id {
		h.fault("question %d of %s got the answer to question %d: %s %s, %v", q.number, q.client.name, meta.ID,
			m.Namespace, m.Metadata, err)
	}
	switch {
	case m.Namespace == "!error":
		return answer{kind: kind(meta.Type), text: meta.Message}
	case q.about != nil:
		return meta.answer()
	}
	if q.shared["out"] {
		return answer{kind: okay, values: q.client.shares.read(q)}
	}
	if len(m.Tensors) != 1 {
		h.fault("question %d got an answer with %d tensors", q.number, len(m.Tensors))
		return answer{kind: okay}
	}
	return answer{kind: okay, values: numbers(h, q, m.Tensors[0])}
}

// learned is the answer to feedback.
type learned struct {
	Learned bool
	Rounds  int
}

func (l learned) answer() answer {
	if !l.Learned {
		l.Rounds = 0
	}
	return answer{kind: okay, rounds: l.Rounds}
}

// numbers returns the values of an output, whatever its datatype.
func numbers(h *history, q *question, x tensor.Tensor) (list []int32) {
	var err error
	switch x.DType {
	case tensor.Int32:
		var values []int32
		values, err = tensor.Values[int32](x)
		list = append(list, values...)
	case tensor.Bytes:
		var texts []string
		texts, err = tensor.Strings(x)
		for _, text := range texts {
			n, wrong := strconv.Atoi(text)
			if wrong != nil {
				err = wrong
			}
			list = append(list, int32(n))
		}
	default:
		if x, err = tensor.Cast(x, tensor.Float64, nil); err == nil {
			var values []float64
			values, err = tensor.Values[float64](x)
			for _, v := range values {
				list = append(list, int32(v))
			}
		}
	}
	if err != nil {
		h.fault("question %d: %v", q.number, err)
	}
	return list
}

func (c *client) askREST() (func(context.Context, *question) answer, func()) {
	web := c.web()
	return func(ctx context.Context, q *question) answer {
		path, body := q.overHTTP()
		r, err := http.NewRequestWithContext(ctx, "POST", "http://server/"+path, bytes.NewReader(body))
		if err != nil {
			panic(err)
		}
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		c.scene.history.sent(q)
		a, err := web.Do(r)
		if err != nil {
			return answer{kind: unanswered, text: err.Error()}
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		if err != nil {
			return answer{kind: unanswered, text: err.Error()}
		}
		return restAnswer(c.scene.history, q, a, text)
	}, web.CloseIdleConnections
}

// web returns an HTTP client that uses the client's connections.
func (c *client) web() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dialNet(ctx) }}}
}

// dialNet is dial for callers that need a net.Conn.
func (c *client) dialNet(ctx context.Context) (net.Conn, error) {
	k, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	return k.(net.Conn), nil
}

// overHTTP returns the path and the body of a request.
func (q *question) overHTTP() (path string, body []byte) {
	if q.about != nil {
		return "app/update", fmt.Appendf(nil, `{"id":"%d","reward":1}`, q.about.number)
	}
	members := map[string]any{"timeout": q.timeout.Microseconds(), "binary_data_output": true}
	for key, value := range q.parameters() {
		members[key] = value
	}
	x := map[string]any{"name": "x", "datatype": "INT32", "shape": []int{2 * q.rows / q.width(), q.width()},
		"data": q.inputs()}
	if q.model == "old" {
		x["name"] = "input"
	}
	asked := map[string]any{"id": fmt.Sprint(q.number), "parameters": members, "inputs": []any{x}}
	if q.shared["in"] {
		q.client.shares.write(q)
		delete(x, "data")
		x["parameters"] = q.places("in")
	}
	if q.shared["out"] {
		asked["outputs"] = []any{map[string]any{"name": "x", "parameters": q.places("out")}}
	}
	body, err := json.Marshal(asked)
	if err != nil {
		panic(err)
	}
	path = "v2/models/" + q.model
	if q.version != "" {
		path += "/versions/" + q.version
	}
	return path + "/infer", body
}

func restAnswer(h *history, q *question, a *http.Response, text []byte) answer {
	head := text
	if n := 0; a.Header.Get("Inference-Header-Content-Length") != "" {
		if _, err := fmt.Sscan(a.Header.Get("Inference-Header-Content-Length"), &n); err == nil && n <= len(text) {
			head = text[:n]
		}
	}
	var body struct {
		ID, Error string
		Outputs   []struct{ Datatype string }
		learned
	}
	if err := json.Unmarshal(head, &body); err != nil {
		h.fault("question %d: status %d with %q: %v", q.number, a.StatusCode, head, err)
	}
	switch {
	case a.StatusCode != http.StatusOK:
		return answer{kind: kindOf(body.Error), text: fmt.Sprintf("%d: %s", a.StatusCode, body.Error)}
	case q.about != nil:
		return body.answer()
	}
	if body.ID != fmt.Sprint(q.number) || len(body.Outputs) != 1 {
		h.fault("question %d got the answer to %s, with %d outputs", q.number, body.ID, len(body.Outputs))
		return answer{kind: okay}
	}
	if q.shared["out"] {
		return answer{kind: okay, values: q.client.shares.read(q)}
	}
	return answer{kind: okay, values: valuesOf(h, q, body.Outputs[0].Datatype, text[len(head):])}
}

// valuesOf returns the values of a tensor in bytes.
func valuesOf(h *history, q *question, datatype string, data []byte) []int32 {
	d, ok := tensor.FromV2(datatype)
	if !ok {
		h.fault("question %d: an output of %s", q.number, datatype)
		return nil
	}
	n := q.rows // of an old container's answer, which has one value for each row
	if d != tensor.Bytes {
		n = len(data) / d.Size()
	}
	return numbers(h, q, tensor.Tensor{DType: d, Shape: tensor.Shape{n}, Data: bytes.Clone(data)})
}

// connect makes a client of the door for gRPC.
func (c *client) connect() (pb.GRPCInferenceServiceClient, func()) {
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.dialNet(ctx) }))
	if err != nil {
		panic(err)
	}
	return pb.NewGRPCInferenceServiceClient(conn), func() { _ = conn.Close() }
}

// shows returns a context for calls with its token.
func (c *client) shows(ctx context.Context) context.Context {
	if c.token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
}

func (c *client) askGRPC() (func(context.Context, *question) answer, func()) {
	service, end := c.connect()
	return func(ctx context.Context, q *question) answer {
		c.scene.history.sent(q)
		a, err := service.ModelInfer(c.shows(ctx), q.request(), grpc.WaitForReady(!c.scene.troubles.stop))
		if err != nil {
			return answer{kind: kindOf(status.Convert(err).Message()), text: err.Error()}
		}
		return grpcAnswer(c.scene.history, q, a)
	}, end
}

func grpcAnswer(h *history, q *question, a *pb.ModelInferResponse) answer {
	if a.Id != fmt.Sprint(q.number) || len(a.RawOutputContents) != 1 && !q.shared["out"] {
		h.fault("question %d got the answer to %s, with %d outputs", q.number, a.Id, len(a.RawOutputContents))
		return answer{kind: okay}
	}
	if q.shared["out"] {
		return answer{kind: okay, values: q.client.shares.read(q)}
	}
	return answer{kind: okay, values: valuesOf(h, q, a.Outputs[0].Datatype, a.RawOutputContents[0])}
}

func (q *question) request() *pb.ModelInferRequest {
	x := q.input()
	name := "x"
	if q.model == "old" {
		name = "input"
	}
	r := &pb.ModelInferRequest{
		ModelName: q.model, ModelVersion: q.version, Id: fmt.Sprint(q.number),
		Parameters: map[string]*pb.InferParameter{"timeout": inferParameter(q.timeout.Microseconds())},
		Inputs: []*pb.ModelInferRequest_InferInputTensor{
			{Name: name, Datatype: "INT32", Shape: []int64{int64(x.Shape[0]), int64(x.Shape[1])}}},
		RawInputContents: [][]byte{x.Data},
	}
	for key, value := range q.parameters() {
		r.Parameters[key] = inferParameter(value)
	}
	at := func(side string) map[string]*pb.InferParameter {
		list := make(map[string]*pb.InferParameter)
		for key, value := range q.places(side) {
			list[key] = inferParameter(value)
		}
		return list
	}
	if q.shared["in"] {
		q.client.shares.write(q)
		r.Inputs[0].Parameters, r.RawInputContents = at("in"), nil
	}
	if q.shared["out"] {
		r.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "x", Parameters: at("out")}}
	}
	return r
}

// runStream sends requests on ModelStreamInfer, in a new stream whenever one has ended.
func (c *client) runStream(questions int) {
	service, end := c.connect()
	defer end()
	for tries := 0; questions > 0 && tries < 50; tries++ {
		questions -= c.stream(service, questions)
		if c.scene.stopped() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// stream sends requests on one ModelStreamInfer, and returns how many it has begun to send. Answers
// come in the order of the requests.
func (c *client) stream(service pb.GRPCInferenceServiceClient, questions int) (asked int) {
	h := c.scene.history
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	opened := time.Now()
	calls, err := service.ModelStreamInfer(c.shows(ctx), grpc.WaitForReady(!c.scene.troubles.stop))
	if err != nil {
		if !c.wasCut() && !c.scene.stopped() {
			h.fault("%s cannot open a stream: %v", c.name, err)
		}
		return 0
	}
	line := make(chan *question, questions)
	ended := make(chan error, 1)
	go func() { ended <- c.hear(calls, line) }()
	var before *question
	for asked < questions {
		time.Sleep(c.wait())
		q := c.deal()
		q.opened, q.before, before = opened, before, q
		h.ask(q)
		line <- q
		asked++
		err := calls.Send(q.request())
		if h.sent(q); err != nil {
			break
		}
		if c.shaky && c.rand.IntN(40) == 0 {
			c.leave()
			cancel()
			break
		}
	}
	_ = calls.CloseSend()
	err = <-ended
	for len(line) > 0 { // its end answers all that wait
		h.answer(<-line, answer{kind: kindOf(status.Convert(err).Message()), text: err.Error(), end: true})
	}
	return asked
}

// hear reads the answers of a stream, and returns why it has ended.
func (c *client) hear(calls pb.GRPCInferenceService_ModelStreamInferClient, line <-chan *question) error {
	h := c.scene.history
	for {
		a, err := calls.Recv()
		if err != nil {
			return err
		}
		select {
		case q := <-line:
			if a.ErrorMessage != "" {
				h.answer(q, streamFault(h, q, a))
			} else {
				h.answer(q, grpcAnswer(h, q, a.InferResponse))
			}
		default:
			h.fault("%s was sent an answer too many: %v", c.name, a)
		}
	}
}

func streamFault(h *history, q *question, a *pb.ModelStreamInferResponse) answer {
	word, text, _ := strings.Cut(a.ErrorMessage, ": ")
	// A request over a quota has not been read, so its id is unknown.
	if id := a.InferResponse.GetId(); id != fmt.Sprint(q.number) && (id != "" || word != "Overloaded") {
		h.fault("question %d got the answer to %s: %s", q.number, id, a.ErrorMessage)
	}
	return answer{kind: kind(word), text: text}
}
