package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A client asks questions through one door, on connections of its own.
type client struct {
	scene           *scene
	name            string
	door            string
	from            string     // its address
	identity, token string     // what it shows
	rand, deals     *rand.Rand // of what it does, and of what it asks

	shaky bool // its connections are cut, stand still, or are closed by itself
	last  bool // it comes when all is well again

	mu    sync.Mutex
	conns []*shivatest.Link
	cut   bool // one of them has been
	// faults are of its connections, which several goroutines make.
	faults *rand.Rand
}

// doorAddrs are those of the network in memory, as the configuration has them.
var doorAddrs = map[string]string{"tcp": "10.0.0.1:6174", "rest": "10.0.0.1:8000", "grpc": "10.0.0.1:8001"}

// patience is how long clients wait for answers that never come.
const patience = time.Minute

// dial makes a connection, which fails as the seed says.
func (c *client) dial(ctx context.Context) (*shivatest.Link, error) {
	k, err := c.scene.net.DialFrom(ctx, c.from, doorAddrs[c.door])
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, k)
	if !c.shaky || c.scene.calm.Err() != nil {
		return k, nil
	}
	switch c.faults.IntN(4) {
	case 0:
		c.cut = true
		k.CutAfter(c.faults.IntN(2000), -1)
	case 1:
		c.cut = true
		k.CutAfter(-1, c.faults.IntN(2000))
	case 2:
		c.cut = true
		time.AfterFunc(time.Duration(c.faults.IntN(1500))*time.Millisecond, k.Cut)
	case 3:
		sent, received := c.faults.IntN(2) == 0, c.faults.IntN(2) == 0
		time.AfterFunc(time.Duration(c.faults.IntN(1000))*time.Millisecond, func() { k.Stall(sent, received) })
		time.AfterFunc(1500*time.Millisecond, func() { k.Stall(false, false) })
	}
	return k, nil
}

// close closes its connections, and leaves none.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.conns {
		k.Close()
	}
}

// deal draws a question.
func (c *client) deal() *question {
	r, q := c.deals, &question{client: c, model: "a", rows: 1 + c.deals.IntN(4), timeout: defaultDeadline}
	switch n := r.IntN(20); {
	case n < 6:
		q.model = "b"
	case n < 7:
		q.model = "none"
	case n < 10:
		q.model = "app"
	}
	if r.IntN(3) == 0 {
		q.timeout = time.Duration(1+r.IntN(300)) * time.Millisecond
	}
	q.bad = r.IntN(30) == 0
	return q
}

// wait is the time until the next question: mostly none, so that they come in bursts.
func (c *client) wait() time.Duration {
	if c.rand.IntN(3) > 0 {
		return 0
	}
	return time.Duration(c.rand.Int64N(int64(60 * time.Millisecond)))
}

// inputs are the values of a question.
func (q *question) inputs() []int32 {
	values := make([]int32, 0, 2*q.rows)
	for row := range q.rows {
		values = append(values, q.number, int32(row))
	}
	return values
}

// by is the model that answers a question; that of the application is a.
func (q *question) by() string {
	if q.model == "app" {
		return "a"
	}
	return q.model
}

// width is the shape of a row, which of a bad question is another than the model's.
func (q *question) width() int {
	if q.bad {
		return 1
	}
	return 2
}

// run asks as many questions as it is told, and returns when all are answered or never will be.
func (c *client) run(questions int) {
	switch c.door {
	case "tcp":
		c.runShiva(questions)
	case "rest":
		ask, end := c.askREST()
		c.runWaiting(questions, ask, end)
	case "grpc":
		ask, end := c.askGRPC()
		c.runWaiting(questions, ask, end)
	}
	c.close()
}

// runShiva asks in a pipeline, on a connection that is made again when it has ended.
func (c *client) runShiva(questions int) {
	for tries := 0; questions > 0 && tries < 50; tries++ {
		k, err := c.dial(context.Background())
		if err != nil {
			if !c.scene.stopped() {
				c.scene.history.fault("%s cannot connect: %v", c.name, err)
			}
			return
		}
		questions -= c.converse(k, questions)
	}
}

// converse asks on one connection, and tells how many questions it has begun to send.
func (c *client) converse(k *shivatest.Link, questions int) (asked int) {
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
			c.mu.Lock()
			c.cut = true
			c.mu.Unlock()
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

// send writes bytes, maybe in pieces.
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
	m := shiva.Message{Namespace: q.model, Metadata: fmt.Appendf(nil, `{"id":%d,"timeout_ms":%g`, q.number, float64(q.timeout)/float64(time.Millisecond))}
	if q.client.token != "" {
		m.Metadata = fmt.Appendf(m.Metadata, `,"token":%q`, q.client.token)
	}
	m.Metadata = append(m.Metadata, '}')
	x, err := tensor.FromSlice(tensor.Shape{2 * q.rows / q.width(), q.width()}, q.inputs())
	if err != nil {
		panic(err)
	}
	m.Tensors = []tensor.Tensor{x}
	b, err := shiva.AppendMessage(nil, &m)
	if err != nil {
		panic(err)
	}
	return b
}

// listen takes the answers of a connection, which come in the order of the questions.
func (c *client) listen(k io.Reader, line <-chan *question) {
	h := c.scene.history
	d := shiva.NewDecoder(shiva.DecoderConfig{})
	buf := make([]byte, 4<<10)
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
			h.answer(q, shivaAnswer(h, q, m))
			m.Release()
		}
		if err != nil {
			return
		}
	}
}

func shivaAnswer(h *history, q *question, m *shiva.Message) answer {
	var meta struct {
		ID            int32
		Type, Message string
	}
	if err := json.Unmarshal(m.Metadata, &meta); err != nil || meta.ID != q.number {
		h.fault("question %d of %s got the answer to question %d: %s %s, %v", q.number, q.client.name, meta.ID, m.Namespace, m.Metadata, err)
	}
	if m.Namespace == "!error" {
		return answer{kind: kind(meta.Type), text: meta.Message}
	}
	values, err := tensor.Values[int32](m.Tensors[0])
	if err != nil {
		h.fault("question %d: %v", q.number, err)
	}
	return answer{kind: okay, values: append([]int32(nil), values...)}
}

// runWaiting asks some questions at a time, each with a call that waits.
func (c *client) runWaiting(questions int, ask func(context.Context, *question) answer, close func()) {
	h := c.scene.history
	var all sync.WaitGroup
	turns := make(chan struct{}, 1+c.rand.IntN(4))
	for range questions {
		time.Sleep(c.wait())
		q := c.deal()
		most := patience
		if c.shaky && c.rand.IntN(8) == 0 {
			most = time.Duration(1+c.rand.IntN(50)) * time.Millisecond
		}
		turns <- struct{}{}
		h.ask(q)
		all.Go(func() {
			defer func() { <-turns }()
			ctx, cancel := context.WithTimeout(context.Background(), most)
			defer cancel()
			a := ask(ctx, q)
			if most < patience && a.kind != okay {
				h.give(q)
			}
			h.answer(q, a)
		})
	}
	all.Wait()
	close()
}

func (c *client) askREST() (func(context.Context, *question) answer, func()) {
	transport := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		k, err := c.dial(ctx)
		if err != nil {
			return nil, err
		}
		return k, nil
	}}
	web := http.Client{Transport: transport}
	return func(ctx context.Context, q *question) answer {
		body := fmt.Appendf(nil, `{"id":"%d","parameters":{"timeout":%d,"binary_data_output":true},"inputs":[{"name":"x","datatype":"INT32","shape":[%d,%d],"data":`,
			q.number, q.timeout.Microseconds(), 2*q.rows/q.width(), q.width())
		values, _ := json.Marshal(q.inputs())
		body = append(append(body, values...), `}]}`...)
		r, err := http.NewRequestWithContext(ctx, "POST", "http://server/v2/models/"+q.model+"/infer", bytes.NewReader(body))
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
	}, transport.CloseIdleConnections
}

func restAnswer(h *history, q *question, a *http.Response, text []byte) answer {
	head := text
	if n := 0; a.Header.Get("Inference-Header-Content-Length") != "" {
		if _, err := fmt.Sscan(a.Header.Get("Inference-Header-Content-Length"), &n); err == nil && n <= len(text) {
			head = text[:n]
		}
	}
	var body struct{ ID, Error string }
	if err := json.Unmarshal(head, &body); err != nil {
		h.fault("question %d: status %d with %q: %v", q.number, a.StatusCode, head, err)
	}
	if a.StatusCode != http.StatusOK {
		return answer{kind: kindOf(body.Error), text: fmt.Sprintf("%d: %s", a.StatusCode, body.Error)}
	}
	if body.ID != fmt.Sprint(q.number) {
		h.fault("question %d got the answer to %s", q.number, body.ID)
	}
	return answer{kind: okay, values: valuesOf(h, q, text[len(head):])}
}

// valuesOf are those of a tensor in bytes.
func valuesOf(h *history, q *question, data []byte) []int32 {
	values, err := tensor.Values[int32](tensor.Tensor{DType: tensor.Int32, Shape: tensor.Shape{len(data) / 8, 2}, Data: bytes.Clone(data)})
	if err != nil {
		h.fault("question %d: %v", q.number, err)
	}
	return values
}

func (c *client) askGRPC() (func(context.Context, *question) answer, func()) {
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			k, err := c.dial(ctx)
			if err != nil {
				return nil, err
			}
			return k, nil
		}))
	if err != nil {
		panic(err)
	}
	service := pb.NewGRPCInferenceServiceClient(conn)
	return func(ctx context.Context, q *question) answer {
		if c.token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
		}
		c.scene.history.sent(q)
		a, err := service.ModelInfer(ctx, q.request(), grpc.WaitForReady(!c.scene.troubles.stop))
		if err != nil {
			return answer{kind: kindOf(status.Convert(err).Message()), text: err.Error()}
		}
		if a.Id != fmt.Sprint(q.number) || len(a.RawOutputContents) != 1 {
			c.scene.history.fault("question %d got the answer to %s, with %d outputs", q.number, a.Id, len(a.RawOutputContents))
			return answer{kind: okay}
		}
		return answer{kind: okay, values: valuesOf(c.scene.history, q, a.RawOutputContents[0])}
	}, func() { _ = conn.Close() }
}

func (q *question) request() *pb.ModelInferRequest {
	x, err := tensor.FromSlice(tensor.Shape{2 * q.rows / q.width(), q.width()}, q.inputs())
	if err != nil {
		panic(err)
	}
	return &pb.ModelInferRequest{
		ModelName: q.model, Id: fmt.Sprint(q.number),
		Parameters:       map[string]*pb.InferParameter{"timeout": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: q.timeout.Microseconds()}}},
		Inputs:           []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: []int64{int64(x.Shape[0]), int64(x.Shape[1])}}},
		RawInputContents: [][]byte{x.Data},
	}
}

// lacks tells whether its client has no right to ask a question.
func (c *client) lacks(q *question) bool {
	if !c.scene.troubles.identities {
		return false
	}
	return c.identity == "" || c.identity == "nobody" || c.identity == "onlya" && q.model != "a"
}

// expectsError tells whether a question is wrong in itself.
func (q *question) expectsError() bool {
	return q.bad || q.model == "none" || q.client.lacks(q) || q.timeout < time.Second
}
