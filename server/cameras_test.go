package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A frame has a value, and the parameters that place it in a stream.
type frame struct {
	value int32
	keys  map[string]any
}

func frameOf(stream string, seq int, more ...any) frame {
	f := frame{int32(seq), map[string]any{"stream": stream, "seq": int64(seq)}}
	for i := 0; i < len(more); i += 2 {
		f.keys[more[i].(string)] = more[i+1]
	}
	return f
}

// shown is an answer to a frame.
type shown struct {
	value        int32
	seq, skipped int64
	age          float64 // ms
	err          *refusal
	by           string // of err, as JSON
}

func (s shown) String() string {
	if s.err != nil {
		return fmt.Sprintf("%s %d by %s", s.err.kind, s.err.code, s.by)
	}
	return fmt.Sprintf("frame %d is %d, skipped %d", s.seq, s.value, s.skipped)
}

// A cameraDoor sends frames through one door, over connections of its own.
type cameraDoor struct {
	t    *testing.T
	name string
	// do sends a frame for a client that disconnects when ctx ends, except over Shiva, where the
	// connection stays open.
	do func(ctx context.Context, route string, f frame) shown
}

func (d cameraDoor) send(route string, f frame) shown { return d.do(d.t.Context(), route, f) }

// cameraDoors returns all doors; that of ModelStreamInfer opens a stream for each frame.
func cameraDoors(t *testing.T, s *Server) []cameraDoor {
	t.Helper()
	web, rpc := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0])
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return []cameraDoor{
		{t, "tcp", func(ctx context.Context, route string, f frame) shown {
			m, err := client.Do(ctx, f.message(t, route))
			if remote, ok := errors.AsType[*shiva.RemoteError](err); ok {
				return shown{err: shivaFault(err).(*refusal), by: remote.By}
			} else if err != nil {
				return shown{err: &refusal{text: err.Error()}}
			}
			defer m.Release()
			return shownBy(t, m)
		}},
		{t, "rest", func(ctx context.Context, route string, f frame) shown { return askREST(ctx, t, web, route, f) }},
		{t, "grpc", func(ctx context.Context, route string, f frame) shown {
			a, err := rpc.client.ModelInfer(ctx, f.question(t, route))
			if err != nil {
				s := shown{err: grpcFault(err).(*refusal)}
				for _, d := range status.Convert(err).Details() {
					if info, ok := d.(*errdetails.ErrorInfo); ok {
						s.by = info.Metadata["by"]
					}
				}
				return s
			}
			return shownIn(a)
		}},
		{t, "grpc stream", func(ctx context.Context, route string, f frame) shown {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := rpc.client.ModelStreamInfer(ctx)
			if err == nil {
				err = stream.Send(f.question(t, route))
			}
			var a *pb.ModelStreamInferResponse
			if err == nil {
				a, err = stream.Recv()
			}
			if err != nil {
				return shown{err: grpcFault(err).(*refusal)}
			}
			return shownOn(a)
		}},
		{t, "library", func(ctx context.Context, route string, f frame) shown {
			x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{f.value, 0})
			if err != nil {
				t.Error(err)
			}
			x.Name = "x"
			a, err := s.Infer(ctx, &Request{Name: route, Inputs: []tensor.Tensor{x}, Parameters: []byte(f.json(t))})
			if err != nil {
				s := shown{err: &refusal{text: err.Error()}}
				if e, ok := errors.AsType[*scheduler.SupersededError](err); ok {
					s.by = strconv.FormatInt(e.Seq, 10)
				}
				return s
			}
			defer a.Release()
			y, err := tensor.Values[int32](a.Outputs[0])
			if err != nil {
				t.Error(err)
			}
			got := shown{value: y[0]}
			if f := a.Frame; f != nil {
				got.seq, got.skipped, got.age = f.Seq, int64(f.Skipped), float64(f.Age)/float64(time.Millisecond)
			}
			return got
		}},
	}
}

// askREST sends a frame to the door for HTTP.
func askREST(ctx context.Context, t *testing.T, web *httpClient, route string, f frame) shown {
	head := fmt.Sprintf(`{"parameters":%s,"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[%d,0]}]}`,
		f.json(t), f.value)
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, web.base+"/v2/models/"+route+"/infer",
		strings.NewReader(head))
	if err != nil {
		return shown{err: &refusal{text: err.Error()}}
	}
	q.Header.Set("Content-Type", "application/json")
	return shownOverHTTP(web, q)
}

// shownOverHTTP returns the answer of the door for HTTP.
func shownOverHTTP(web *httpClient, q *http.Request) shown {
	resp, err := web.client.Do(q)
	if err != nil {
		return shown{err: &refusal{text: err.Error()}}
	}
	defer resp.Body.Close()
	var a struct {
		Error      string
		Parameters struct {
			Seq, Skipped int64
			Age          float64 `json:"age_ms"`
			By           json.RawMessage
		}
		Outputs []struct{ Data []int32 }
	}
	text, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(text, &a); err != nil {
		return shown{err: &refusal{text: fmt.Sprintf("%v: %s", err, text)}}
	}
	if a.Error != "" {
		return shown{err: &refusal{code: resp.StatusCode, text: a.Error}, by: string(a.Parameters.By)}
	}
	return shown{value: a.Outputs[0].Data[0], seq: a.Parameters.Seq, skipped: a.Parameters.Skipped,
		age: a.Parameters.Age}
}

func (f frame) json(t *testing.T) string {
	if f.keys == nil {
		return "{}"
	}
	b, err := json.Marshal(f.keys)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// message returns f as a Shiva message.
func (f frame) message(t *testing.T, route string) *shiva.Message {
	x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{f.value, 0})
	if err != nil {
		t.Error(err)
	}
	return &shiva.Message{Namespace: route, Metadata: []byte(f.json(t)), Tensors: []tensor.Tensor{x}}
}

// question returns f as a gRPC request.
func (f frame) question(t *testing.T, route string) *pb.ModelInferRequest {
	x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{f.value, 0})
	if err != nil {
		t.Error(err)
	}
	q := grpcQuestion(route, x, 0)
	q.Id = fmt.Sprint("frame ", f.value)
	q.RawInputContents = [][]byte{x.Data}
	q.Parameters = make(map[string]*pb.InferParameter)
	for key, value := range f.keys {
		q.Parameters[key] = inferParameter(value)
	}
	return q
}

// shownBy converts a Shiva message to an answer.
func shownBy(t *testing.T, m *shiva.Message) shown {
	if e := shiva.ParseError(m); e != nil {
		return shown{err: &refusal{kind: e.Type, code: e.Code, retryable: e.Retryable, text: e.Message}, by: e.By}
	}
	var reply struct {
		Seq, Skipped int64
		Age          float64 `json:"age_ms"`
	}
	y, err := tensor.Values[int32](m.Tensors[0])
	if err = errors.Join(err, json.Unmarshal(m.Metadata, &reply)); err != nil {
		t.Error(err)
	}
	return shown{value: y[0], seq: reply.Seq, skipped: reply.Skipped, age: reply.Age}
}

func shownIn(a *pb.ModelInferResponse) shown {
	return shown{
		value: int32(a.RawOutputContents[0][0]), seq: a.Parameters["seq"].GetInt64Param(),
		skipped: a.Parameters["skipped"].GetInt64Param(), age: a.Parameters["age_ms"].GetDoubleParam(),
	}
}

func shownOn(a *pb.ModelStreamInferResponse) shown {
	if a.ErrorMessage == "" {
		return shownIn(a.InferResponse)
	}
	s := shown{err: &refusal{text: a.ErrorMessage}}
	if by := a.InferResponse.Parameters["by"]; by != nil {
		if s.by = strconv.Quote(by.GetStringParam()); by.GetStringParam() == "" {
			s.by = strconv.FormatInt(by.GetInt64Param(), 10)
		}
	}
	return s
}

// A stage is a model whose batches wait until the test answers them: each replica executes one at
// a time.
type stage struct {
	t       *testing.T
	s       *Server
	model   string
	batches []chan *scheduler.Batch // sent, by replica
}

func newStage(t *testing.T, s *Server, model string, replicas int) *stage {
	t.Helper()
	g := &stage{t: t, s: s, model: model}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	for range replicas {
		batches := make(chan *scheduler.Batch, 100)
		g.batches = append(g.batches, batches)
		w := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			batches <- b
			return nil
		})
		if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: model, Version: "1"},
			scheduler.Spec{Inputs: x, Outputs: x, MaxBatch: 1}, w, scheduler.ReplicaOptions{Slots: 1}); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// answer answers a replica's batch, which must have the given value.
func (g *stage) answer(replica int, value int32) {
	g.t.Helper()
	select {
	case b := <-g.batches[replica]:
		x, err := tensor.Values[int32](b.Parts[0].Inputs[0])
		if err != nil || x[0] != value {
			g.t.Errorf("replica %d of %s executes %d (%v), expected %d", replica, g.model, x, err, value)
		}
		if err := echo(b); err != nil {
			g.t.Error(err)
		}
	case <-time.After(20 * time.Second):
		g.t.Fatalf("replica %d of %s was not asked for %d", replica, g.model, value)
	}
}

// taken waits until the model has taken the given number of requests in all.
func (g *stage) taken(requests int) {
	g.t.Helper()
	budgettest.Until(g.t, fmt.Sprintf("%s to take %d requests", g.model, requests), func() bool {
		return stats(g.s, g.model).Submitted == uint64(requests)
	})
}

// ask sends a frame; the channel gets its answer.
func (d cameraDoor) ask(route string, f frame) <-chan shown {
	answer := make(chan shown, 1)
	go func() { answer <- d.send(route, f) }()
	return answer
}

func (g *stage) expect(answer <-chan shown, what, want string) shown {
	g.t.Helper()
	select {
	case got := <-answer:
		if got.String() != want {
			g.t.Errorf("%s: got %v (%v), expected %s", what, got, got.err, want)
		}
		return got
	case <-time.After(20 * time.Second):
		g.t.Fatalf("%s has no answer, expected %s", what, want)
	}
	return shown{}
}

// supersededAt has the error of a superseded frame at each door.
var supersededAt = map[string]string{
	"tcp": "Superseded 409 by %s", "rest": " 409 by %s", "grpc": "Superseded 10 by %s", "grpc stream": " 0 by %s",
	"library": " 0 by %s",
}
