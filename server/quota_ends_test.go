package server

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Everything that a request takes of a quota is given back, however it ends, and on every door.
// TestQuotas tests refusals; here the quotas exist and are large.
func TestQuotasAreGivenBack(t *testing.T) {
	s, file := loaded(t, new(logged), func(c *config.Config) {
		c.Server.LimitLoopback = true
		anonymous := config.Identity{Name: "anonymous", May: []string{"infer"}}
		for _, q := range []*config.Quota{&anonymous.Quota.Quota, &c.Limits.PerAddress} {
			*q = config.Quota{RequestsPerSecond: 1e6, BytesPerSecond: 1 << 40, RequestsInFlight: 1e6,
				BytesInFlight: 1 << 40, UnreadBytes: 1 << 40, GRPCStreams: 1e6}
		}
		anonymous.Quota.Connections = 1e6
		c.Identities = []config.Identity{anonymous, declared("other", "infer")}
		late, slow := config.Model{Policy: c.Defaults}, config.Model{Policy: c.Defaults}
		late.Deadline, late.Objective, slow.Keep = 20*time.Millisecond, 10*time.Millisecond, 1
		c.Models = map[string]config.Model{"late": late, "slow": slow}
		c.Pipelines["line"] = admin.Pipeline{Inputs: []string{"x"}, Outputs: map[string]string{"x": "then.x"}, Keep: 1,
			Stages: []admin.Stage{
				{Name: "first", Model: "echo", Inputs: map[string]string{"x": "x"}},
				{Name: "then", Model: "slow", Inputs: map[string]string{"x": "first.x"}},
			}}
	})
	slow := withSlow(t, s)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	for name, send := range map[string]scheduler.WorkerFunc{
		"late":   slow.Send,
		"failed": func(b *scheduler.Batch) error { b.Fail(fmt.Errorf("it cannot")); return nil },
		"panics": func(*scheduler.Batch) error { panic("boom") },
	} {
		if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: name, Version: "1"},
			scheduler.Spec{Inputs: x, Outputs: x}, send, scheduler.ReplicaOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range payingDoors {
		for _, end := range append(slices.Clone(quotaEnds), endsOfPipelines()...) {
			t.Run(end.how+"/"+d.name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				slow.hold()
				e := &ending{s: s, file: file, slow: slow, ctx: ctx, asked: "slow",
					dial: func() payingClient { return d.dial(t, s, "", "127.0.0.1") }}
				end.do(t, e)
				for _, c := range e.clients {
					c.close()
				}
				select {
				case <-slow.released():
				default:
					slow.letGo()
				}
				budgettest.Until(t, "nothing is left", func() bool { return takenOf(s) == "" })
			})
		}
	}
	for name, u := range s.identities.Usage() {
		if name == "anonymous" && (u.Requests < 40 || u.Bytes == 0) {
			t.Errorf("it has not been charged: %+v", u)
		}
	}
}

// An ending is the setup for a test of one way in which requests end.
type ending struct {
	s       *Server
	file    *config.Config
	slow    *heldModel
	asked   string // slow, or what asks it
	ctx     context.Context
	dial    func() payingClient
	clients []payingClient
}

// client makes a client, which is closed at the end of the test.
func (e *ending) client() payingClient {
	c := e.dial()
	e.clients = append(e.clients, c)
	return c
}

// fails sends a request, whose error must contain words.
func (e *ending) fails(t *testing.T, model, words string) {
	t.Helper()
	// Without a deadline, which over gRPC would take the place of the model's.
	if err := e.client().ask(t.Context(), model, manyRows); err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("%v, want an error of %q", err, words)
	}
}

// holds starts a request that is executed until letGo.
func (e *ending) holds(t *testing.T, ctx context.Context, c payingClient, stream ...string) chan error {
	t.Helper()
	answered := make(chan error, 1)
	go func() { answered <- c.ask(ctx, e.asked, manyRows, stream...) }()
	select {
	case <-e.slow.arrived():
	case err := <-answered:
		t.Fatalf("it is not held: %v", err)
	}
	// The batch that has arrived may be a given-up request of the previous test.
	budgettest.Until(t, "it is counted", func() bool { return takenOf(e.s) != "" })
	return answered
}

// endsAtOnce waits for the end of the request of a client that has gone, while its batch is still
// executed. One of Shiva may have closed only one half of its connection, and read its answer yet.
func (e *ending) endsAtOnce(t *testing.T, c payingClient) {
	t.Helper()
	if _, halfClosed := c.(*shivaPayer); !halfClosed {
		budgettest.Until(t, "it ends although its batch works", func() bool { return inFlight(e.s) == 0 })
	}
}

// A quotaEnd is a way in which requests end.
type quotaEnd struct {
	how string
	do  func(t *testing.T, e *ending)
}

// endsOfPipelines are those of quotaEnds that happen while a later stage of a pipeline works.
func endsOfPipelines() (ends []quotaEnd) {
	for _, end := range quotaEnds {
		if slices.Contains([]string{"cancelled", "disconnected", "superseded"}, end.how) {
			ends = append(ends, quotaEnd{end.how + " in a pipeline", func(t *testing.T, e *ending) {
				e.asked = "line"
				end.do(t, e)
			}})
		}
	}
	return ends
}

var quotaEnds = []quotaEnd{
	{"answered", func(t *testing.T, e *ending) {
		c := e.client()
		for range 3 {
			if err := c.ask(e.ctx, "echo", manyRows); err != nil {
				t.Error(err)
			}
		}
	}},
	{"no such model", func(t *testing.T, e *ending) { e.fails(t, "nobody", "nobody") }},
	{"no rows that fit", func(t *testing.T, e *ending) {
		if err := e.client().ask(e.ctx, "echo", 1, strings.Repeat("x", 2000)); err == nil {
			t.Error("a name of 2,000 bytes is a stream's")
		}
	}},
	{"deadline", func(t *testing.T, e *ending) { e.fails(t, "late", "deadline") }},
	{"container failed", func(t *testing.T, e *ending) { e.fails(t, "failed", "it cannot") }},
	{"panic", func(t *testing.T, e *ending) { e.fails(t, "panics", "") }},
	{"cancelled", func(t *testing.T, e *ending) {
		ctx, cancel := context.WithCancel(e.ctx)
		c := e.client()
		answered := e.holds(t, ctx, c)
		cancel()
		if err := <-answered; err == nil {
			t.Error("it was answered")
		}
		e.endsAtOnce(t, c)
	}},
	{"disconnected", func(t *testing.T, e *ending) {
		c := e.client()
		ctx, cancel := context.WithCancel(e.ctx)
		answered := e.holds(t, ctx, c)
		c.close()
		cancel()
		if err := <-answered; err == nil {
			t.Error("it was answered")
		}
		e.endsAtOnce(t, c)
	}},
	{"superseded", func(t *testing.T, e *ending) {
		first := e.holds(t, e.ctx, e.client(), "s")
		others := make(chan error, 2)
		for range 2 {
			c := e.client()
			go func() { others <- c.ask(e.ctx, e.asked, fewRows, "s") }()
		}
		if err := <-others; err == nil || !strings.Contains(err.Error(), "newer frame") {
			t.Errorf("%v, want that of a superseded frame", err)
		}
		e.slow.letGo()
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := <-others; err != nil {
			t.Error(err)
		}
	}},
	{"half a message", func(t *testing.T, e *ending) {
		switch c := e.client().(type) {
		case *shivaPayer:
			m := c.message("echo", manyRows)
			if _, err := c.Write(append(c.message("echo", fewRows), m[:len(m)/2]...)); err != nil {
				t.Error(err)
			}
			if err := c.answer(); err != nil { // so the other request has arrived, or is about to
				t.Error(err)
			}
		case *restPayer:
			conn, err := from("127.0.0.1", e.s.Addrs().REST[0])(e.ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprint(conn, "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
			budgettest.Until(t, "it is charged", func() bool { return takenOf(e.s) != "" })
		case *grpcPayer:
			e.opens(t, c)
		case payStream:
			e.opens(t, c.grpcPayer)
		}
	}},
	{"unread", func(t *testing.T, e *ending) {
		const requests, rows = 16, 128 << 10 // 1 MiB each
		switch c := e.client().(type) {
		case *shivaPayer:
			for range requests {
				if _, err := c.Write(c.message("echo", rows)); err != nil {
					t.Fatal(err)
				}
			}
		case *restPayer:
			conn, err := from("127.0.0.1", e.s.Addrs().REST[0])(e.ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			head := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"INT32","shape":[%d,2],"parameters":{"binary_data_size":%d}}]}`,
				requests*rows, 8*requests*rows)
			fmt.Fprintf(conn, "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s",
				len(head), len(head)+8*requests*rows, head)
			if _, err := conn.Write(make([]byte, 8*requests*rows)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 100)); err != nil { // a part of the answer
				t.Fatal(err)
			}
		case *grpcPayer:
			e.leavesUnread(t, c, requests, rows)
		case payStream:
			e.leavesUnread(t, c.grpcPayer, requests, rows)
		}
	}},
	{"reload", func(t *testing.T, e *ending) {
		answered := e.holds(t, e.ctx, e.client())
		whole := e.file.Identities
		e.file.Identities = whole[1:] // without the client's identity
		for range 2 {
			if _, err := e.s.Reload(); err != nil {
				t.Fatal(err)
			}
		}
		e.slow.letGo()
		if err := <-answered; err != nil {
			t.Error(err)
		}
		e.file.Identities = whole
		if _, err := e.s.Reload(); err != nil {
			t.Fatal(err)
		}
	}},
}

// opens starts a call, and sends nothing.
func (e *ending) opens(t *testing.T, c *grpcPayer) {
	if _, err := pb.NewGRPCInferenceServiceClient(c.conn).ModelStreamInfer(e.ctx); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "it is charged", func() bool { return takenOf(e.s) != "" })
}

// leavesUnread sends requests, and reads one answer.
func (e *ending) leavesUnread(t *testing.T, c *grpcPayer, requests, rows int) {
	s, err := pb.NewGRPCInferenceServiceClient(c.conn).ModelStreamInfer(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range requests {
		if err := s.Send(inferRows("echo", rows)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
}
