package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A payingClient sends requests on its own connection, with a token.
type payingClient interface {
	// ask sends a model a number of rows of 8 bytes, optionally as a frame of a stream. An answer
	// has as many.
	ask(ctx context.Context, model string, rows int, stream ...string) error
	close()
}

// A payingDoor makes clients with a token, "" for none, at an address of this machine.
type payingDoor struct {
	name string
	dial func(t *testing.T, s *Server, token, from string) payingClient
}

var payingDoors = []payingDoor{
	{"tcp", func(t *testing.T, s *Server, token, ip string) payingClient {
		return payShiva(t, token, from(ip, s.Addrs().TCP[0]))
	}},
	{"rest", func(t *testing.T, s *Server, token, ip string) payingClient {
		return payREST(t, token, from(ip, s.Addrs().REST[0]))
	}},
	{"grpc", func(t *testing.T, s *Server, token, ip string) payingClient {
		return payGRPC(t, token, from(ip, s.Addrs().GRPC[0]))
	}},
	{"grpc stream", func(t *testing.T, s *Server, token, ip string) payingClient {
		return payStream{payGRPC(t, token, from(ip, s.Addrs().GRPC[0]))}
	}},
}

// A payingDialer connects to a door.
type payingDialer func(context.Context) (net.Conn, error)

// from dials a door from an address.
func from(ip string, door net.Addr) payingDialer {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", door.String()) }
}

// shivaPayer writes messages itself, to be able to disconnect.
type shivaPayer struct {
	net.Conn
	token string
	read  *shiva.Decoder
}

func payShiva(t *testing.T, token string, dial payingDialer) payingClient {
	c, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &shivaPayer{c, token, shiva.NewDecoder(shiva.DecoderConfig{})}
}

func (c *shivaPayer) close() { c.Close() }

func (c *shivaPayer) ask(ctx context.Context, model string, rows int, stream ...string) error {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if _, err := c.Write(c.message(model, rows, stream...)); err != nil {
		return err
	}
	return c.answer()
}

func (c *shivaPayer) message(model string, rows int, stream ...string) []byte {
	m := shiva.Message{Namespace: model, Tensors: []tensor.Tensor{zeros(rows)}}
	var members []string
	if c.token != "" {
		members = append(members, fmt.Sprintf(`"token":%q`, c.token))
	}
	if stream != nil {
		members = append(members, fmt.Sprintf(`"stream":%q`, stream[0]))
	}
	m.Metadata = []byte("{" + strings.Join(members, ",") + "}")
	b, err := shiva.AppendMessage(nil, &m)
	if err != nil {
		panic(err)
	}
	return b
}

func (c *shivaPayer) answer() error {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			used, m, err := c.read.Push(p)
			if err != nil {
				return err
			}
			if p = p[used:]; m != nil {
				defer m.Release()
				if e := shiva.ParseError(m); e != nil {
					return e
				}
				return nil
			}
		}
		if err != nil {
			return err
		}
	}
}

func zeros(rows int) tensor.Tensor {
	return tensor.Tensor{DType: tensor.Int32, Shape: tensor.Shape{rows, 2}, Data: make([]byte, 8*rows)}
}

type restPayer struct {
	http  http.Client
	token string

	mu    sync.Mutex
	conns []net.Conn
}

func payREST(t *testing.T, token string, dial payingDialer) payingClient {
	c := &restPayer{token: token}
	c.http.Transport = &http.Transport{MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dial(ctx)
			if err == nil {
				c.mu.Lock()
				c.conns = append(c.conns, conn)
				c.mu.Unlock()
			}
			return conn, err
		}}
	t.Cleanup(c.close)
	return c
}

// close also closes connections in use, which http.Client does not.
func (c *restPayer) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
}

func (c *restPayer) ask(ctx context.Context, model string, rows int, stream ...string) error {
	frame := ""
	if stream != nil {
		frame = fmt.Sprintf(`,"stream":%q`, stream[0])
	}
	head := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"INT32","shape":[%d,2],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true%s}}`,
		rows, 8*rows, frame)
	q, err := http.NewRequestWithContext(ctx, "POST", "http://localhost/v2/models/"+model+"/infer",
		bytes.NewReader(append([]byte(head), make([]byte, 8*rows)...)))
	if err != nil {
		return err
	}
	q.Header.Set("Inference-Header-Content-Length", fmt.Sprint(len(head)))
	if c.token != "" {
		q.Header.Set("Authorization", "Bearer "+c.token)
	}
	a, err := c.http.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode == http.StatusOK {
		return err
	}
	return &httpFault{a.StatusCode, a.Header.Get("Retry-After"), string(text)}
}

// A httpFault is an error answer.
type httpFault struct {
	status      int
	again, text string
}

func (f *httpFault) Error() string { return f.text }

type grpcPayer struct {
	conn  *grpc.ClientConn
	token string
}

func payGRPC(t *testing.T, token string, dial payingDialer) *grpcPayer {
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &grpcPayer{conn, token}
}

func (c *grpcPayer) close() { c.conn.Close() }

func (c *grpcPayer) shows(ctx context.Context) context.Context {
	if c.token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
}

func (c *grpcPayer) ask(ctx context.Context, model string, rows int, stream ...string) error {
	_, err := pb.NewGRPCInferenceServiceClient(c.conn).ModelInfer(c.shows(ctx), inferRows(model, rows, stream...))
	return err
}

func inferRows(model string, rows int, stream ...string) *pb.ModelInferRequest {
	q := inferRequest(model)
	q.Inputs[0].Shape, q.RawInputContents = []int64{int64(rows), 2}, [][]byte{make([]byte, 8*rows)}
	if stream != nil {
		q.Parameters = map[string]*pb.InferParameter{
			"stream": {ParameterChoice: &pb.InferParameter_StringParam{StringParam: stream[0]}}}
	}
	return q
}

// payStream opens a ModelStreamInfer for each request.
type payStream struct{ *grpcPayer }

func (c payStream) ask(ctx context.Context, model string, rows int, stream ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := pb.NewGRPCInferenceServiceClient(c.conn).ModelStreamInfer(c.shows(ctx))
	if err != nil {
		return err
	}
	if err := s.Send(inferRows(model, rows, stream...)); err != nil && err != io.EOF { // Recv has the reason
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	a, err := s.Recv()
	if err != nil {
		return err
	}
	if a.ErrorMessage != "" {
		return errors.New(a.ErrorMessage)
	}
	if _, err := s.Recv(); err != io.EOF {
		return fmt.Errorf("after the answer: %v", err)
	}
	return nil
}

// refusedBy checks that an error is a refusal by a quota, and returns which one.
func refusedBy(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	retryable := true
	switch e := err.(type) {
	case *shiva.RemoteError:
		retryable = e.Type == shiva.Overloaded && e.Retryable && e.Code == 429
	case *httpFault:
		retryable = e.status == 429 && e.again != ""
	default:
		if s, ok := status.FromError(err); ok {
			retryable = s.Code() == codes.ResourceExhausted &&
				slices.ContainsFunc(s.Details(), func(d any) bool { _, ok := d.(*errdetails.RetryInfo); return ok })
		}
	}
	_, text, over := strings.Cut(err.Error(), "is over its quota, ")
	if !retryable || !over {
		t.Errorf("%T: %v", err, err)
		return "?"
	}
	kind, _, _ := strings.Cut(text, " = ")
	return kind
}

// A heldModel holds its batches until letGo.
type heldModel struct {
	came chan struct{}
	mu   sync.Mutex
	gate chan struct{}
}

func (m *heldModel) Send(b *scheduler.Batch) error {
	m.mu.Lock()
	gate, came := m.gate, m.came
	m.mu.Unlock()
	go func() {
		select {
		case came <- struct{}{}:
		default: // one is enough
		}
		<-gate
		if err := echo(b); err != nil {
			b.Fail(err)
		}
	}()
	return nil
}

// hold makes batches wait from now on.
func (m *heldModel) hold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gate, m.came = make(chan struct{}), make(chan struct{}, 1)
}

// arrived returns a channel that reports the arrival of a batch.
func (m *heldModel) arrived() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.came
}

// released returns a channel that letGo closes.
func (m *heldModel) released() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gate
}

// letGo answers the held batches, and all that arrive until hold is called again.
func (m *heldModel) letGo() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.gate)
}

// withSlow gives a server the models echo and slow.
func withSlow(t *testing.T, s *Server) *heldModel {
	t.Helper()
	m := new(heldModel)
	m.hold()
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	for name, send := range map[string]scheduler.WorkerFunc{"echo": echo, "slow": m.Send} {
		if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: name, Version: "1"},
			scheduler.Spec{Inputs: x, Outputs: x}, send, scheduler.ReplicaOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// quotaOf returns a configuration with one quota.
func quotaOf(k access.Quota, n int) config.IdentityQuota {
	q := config.IdentityQuota{}
	switch k {
	case access.RequestsPerSecond:
		q.RequestsPerSecond, q.Burst = n, time.Millisecond
	case access.BytesPerSecond:
		q.BytesPerSecond, q.Burst = config.Bytes(n), time.Millisecond
	case access.RequestsInFlight:
		q.RequestsInFlight = n
	case access.BytesInFlight:
		q.BytesInFlight = config.Bytes(n)
	case access.UnreadBytes:
		q.UnreadBytes = config.Bytes(n)
	case access.GRPCStreams:
		q.GRPCStreams = n
	case access.Connections:
		q.Connections = n
	}
	return q
}

// Every quota applies on every door that has the bounded resource, to an identity by its token and
// to an address, and to no other client. All doors share it. What is given back is available again.
func TestQuotas(t *testing.T) {
	t.Parallel() // it waits
	for _, byAddress := range []bool{false, true} {
		s, file := loaded(t, new(logged), func(c *config.Config) {
			c.Server.LimitLoopback = true
			if !byAddress {
				c.Identities = []config.Identity{declared("payer", "infer"), declared("other", "infer")}
			}
		})
		slow := withSlow(t, s)
		set := func(k access.Quota, n int) {
			t.Helper()
			if q := quotaOf(k, n); byAddress {
				file.Limits.PerAddress = q.Quota
			} else {
				file.Identities[0].Quota = q
			}
			if _, err := s.Reload(); err != nil {
				t.Fatal(err)
			}
		}
		dial := func(t *testing.T, d payingDoor, whose string) payingClient {
			switch {
			case !byAddress:
				return d.dial(t, s, tokenOf(whose), "127.0.0.1")
			case whose == "payer":
				return d.dial(t, s, "", "127.0.0.1")
			}
			return d.dial(t, s, "", "127.0.0.2")
		}
		for k := range access.Quota(access.Quotas) {
			for _, d := range payingDoors {
				if k == access.GRPCStreams && !strings.HasPrefix(d.name, "grpc") ||
					k == access.Connections && byAddress {
					continue // see connections_per_address
				}
				t.Run(fmt.Sprintf("%v/%s/by address %v", k, d.name, byAddress), func(t *testing.T) {
					walkQuota(t, walk{s: s, slow: slow, kind: k, door: d, set: set, dial: dial})
				})
			}
		}
	}
}

type walk struct {
	s    *Server
	slow *heldModel
	kind access.Quota
	door payingDoor
	set  func(access.Quota, int)
	dial func(t *testing.T, d payingDoor, whose string) payingClient
}

const fewRows, manyRows = 1, 1 << 10 // 8 bytes, and 8 KiB

func walkQuota(t *testing.T, w walk) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	limit := 1
	if strings.Contains(w.kind.String(), "bytes") {
		limit = 1 << 10
	}
	w.set(w.kind, limit)
	first, second, other := w.dial(t, w.door, "payer"), w.dial(t, w.door, "payer"), w.dial(t, w.door, "other")
	wants := func(c payingClient, what string) {
		t.Helper()
		if got := refusedBy(t, c.ask(ctx, "echo", manyRows)); got != w.kind.String() {
			t.Errorf("%s is refused by %q, want %v", what, got, w.kind)
		}
	}
	switch w.kind {
	case access.RequestsPerSecond:
		// The rate admits the next request after a second, which is long for a request, but a
		// machine may stall.
		for n := 0; ; n++ {
			if err := first.ask(ctx, "echo", fewRows); err != nil {
				if got := refusedBy(t, err); got != w.kind.String() || n == 0 {
					t.Fatalf("request %d is refused by %q: %v", n, got, err)
				}
				break
			}
			if n == 1000 {
				t.Fatal("none was refused")
			}
		}
	case access.BytesPerSecond:
		if err := first.ask(ctx, "echo", 64*manyRows); err != nil { // for eight minutes
			t.Fatal(err)
		}
		wants(second, "by another connection")
	default:
		w.slow.hold()
		held := make(chan error, 1)
		if w.kind == access.Connections {
			held <- first.ask(ctx, "echo", manyRows)
		} else {
			go func() { held <- first.ask(ctx, "slow", manyRows) }()
			select {
			case <-w.slow.arrived():
			case err := <-held:
				t.Fatal(err)
			}
		}
		wants(second, "by another connection")
		for _, d := range payingDoors {
			if d.name != w.door.name && (w.kind != access.GRPCStreams || strings.HasPrefix(d.name, "grpc")) {
				c := w.dial(t, d, "payer")
				wants(c, "by "+d.name)
				c.close()
			}
		}
		if err := other.ask(ctx, "echo", manyRows); err != nil {
			t.Errorf("another one: %v", err)
		}
		w.slow.letGo()
		if err := <-held; err != nil {
			t.Errorf("the first: %v", err)
		}
		first.close()
	}
	if err := other.ask(ctx, "echo", fewRows); err != nil {
		t.Errorf("another one: %v", err)
	}
	if w.kind <= access.BytesPerSecond {
		w.set(w.kind, 2*limit) // begins with a full bucket; package access tests that time fills it
	}
	third := w.dial(t, w.door, "payer") // a connection above the quota was closed
	budgettest.Until(t, "there is room again", func() bool {
		err := third.ask(ctx, "echo", fewRows)
		if err != nil && refusedBy(t, err) != w.kind.String() {
			t.Fatal(err)
		}
		if err != nil && w.kind == access.Connections {
			third = w.dial(t, w.door, "payer")
		}
		return err == nil
	})
	// Close the connections before the next quota. They are counted while there is a quota.
	for _, c := range []payingClient{first, second, third, other} {
		c.close()
	}
	budgettest.Until(t, "nothing is left", func() bool { return takenOf(w.s) == "" })
	w.set(w.kind, 0)
}
