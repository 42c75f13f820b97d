package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// An asker asks an application on one wire. timing is the timing in the answer.
type asker struct {
	wire     parameter.Wire
	forwards bool // unknown parameters go to the container
	ask      func(parameters map[string]any) (timing string, err error)
}

// askers returns one for each wire, two for feedback, and for ModelStreamInfer one with a stream
// for each request.
func askers(t *testing.T, s *Server, name string) []asker {
	t.Helper()
	x := pairOfInts(t)
	object := func(parameters map[string]any, more string) string {
		b, err := json.Marshal(parameters)
		if err != nil {
			t.Fatal(err)
		}
		return "{" + strings.Trim(more+","+string(b[1:len(b)-1]), ",") + "}"
	}
	web, rpc, manage := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0]), newHTTP(t, s.Addrs().Admin)
	question := func(parameters map[string]any) *pb.ModelInferRequest {
		q := grpcQuestion(name, x, 0)
		q.RawInputContents = [][]byte{x.Data}
		q.Parameters = make(map[string]*pb.InferParameter)
		for key, value := range parameters {
			q.Parameters[key] = inferParameter(value)
		}
		return q
	}
	timing := func(a *pb.ModelInferResponse) string {
		var reply []string
		for key, p := range a.GetParameters() {
			if strings.HasPrefix(key, "timing_") && p.GetInt64Param() >= 0 {
				reply = append(reply, key)
			}
		}
		slices.Sort(reply)
		return strings.Join(reply, " ")
	}
	feedback := func(c *httpClient, path string) func(map[string]any) (string, error) {
		return func(parameters map[string]any) (string, error) {
			q, err := http.NewRequestWithContext(t.Context(), "POST", c.base+path, strings.NewReader(object(parameters, `"input":[[1,2]],"label":[[1,2]]`)))
			if err != nil {
				return "", err
			}
			q.Header.Set("Content-Type", "application/json")
			_, _, err = c.do(q)
			return "", err
		}
	}
	return []asker{
		{parameter.Shiva, true, func(parameters map[string]any) (string, error) {
			reply, _ := say(t, s, name, object(parameters, ""), x)
			if fault, failed := reply["error"]; failed {
				return "", fmt.Errorf("%v", fault)
			}
			return spell(reply["timing"]), nil
		}},
		{parameter.HTTP, true, func(parameters map[string]any) (string, error) {
			body := `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}],"parameters":` +
				object(parameters, "") + `}`
			resp, err := web.client.Post(web.base+"/v2/models/"+name+"/infer", "application/json",
				strings.NewReader(body))
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				var reply struct{ Error string }
				return "", errors.Join(json.NewDecoder(resp.Body).Decode(&reply), errors.New(reply.Error))
			}
			return resp.Header.Get("Server-Timing"), nil
		}},
		{parameter.GRPC, true, func(parameters map[string]any) (string, error) {
			a, err := rpc.client.ModelInfer(t.Context(), question(parameters))
			return timing(a), err
		}},
		{parameter.Stream, true, func(parameters map[string]any) (string, error) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := rpc.client.ModelStreamInfer(ctx)
			if err != nil {
				return "", err
			}
			if err := stream.Send(question(parameters)); err != nil {
				return "", err
			}
			a, err := stream.Recv()
			if err == nil && a.ErrorMessage != "" {
				err = errors.New(a.ErrorMessage)
			}
			return timing(a.GetInferResponse()), err
		}},
		{parameter.Clipper, false, func(parameters map[string]any) (string, error) {
			return "", web.call("POST", "/"+name+"/predict", object(parameters, `"input":[1,2]`), nil)
		}},
		{parameter.Feedback, false, feedback(web, "/"+name+"/update")},
		{parameter.Feedback, false, feedback(manage, "/v1/apps/"+name+"/feedback")},
		{parameter.Library, true, func(parameters map[string]any) (string, error) {
			a, err := s.Infer(t.Context(),
				&Request{Name: name, Inputs: []tensor.Tensor{x}, Parameters: []byte(object(parameters, ""))})
			if err != nil {
				return "", err
			}
			a.Release()
			return "", nil
		}},
	}
}

// spell returns the members of an object, in order.
func spell(v any) string {
	object, _ := v.(map[string]any)
	var names []string
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func inferParameter(v any) *pb.InferParameter {
	switch v := v.(type) {
	case bool:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: v}}
	case string:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_StringParam{StringParam: v}}
	case int64:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: v}}
	case float64:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_DoubleParam{DoubleParam: v}}
	case json.RawMessage: // a default: a number or a boolean
		var of any
		if json.Unmarshal(v, &of) == nil {
			if n, ok := of.(float64); ok {
				of = int64(n)
			}
			return inferParameter(of)
		}
	}
	return &pb.InferParameter{}
}

// values returns some values for a key, by the kind in its schema.
func values(t *testing.T, k *parameter.Key) (right, wrong, outside []any) {
	t.Helper()
	var schema struct {
		Type    string
		AnyOf   []any
		Maximum json.Number
	}
	if err := json.Unmarshal([]byte(k.Schema()), &schema); err != nil {
		t.Fatal(err)
	}
	switch k.Name {
	case "captured_at":
		return []any{time.Now().UnixMilli(), int64(-1), 1.5, time.Now().Unix()}, []any{"1", true}, nil
	case "stream":
		return []any{"cam-3", strings.Repeat("n", 256), int64(7)}, []any{true}, []any{""}
	case "keep":
		return []any{"all", "latest", int64(1), int64(1 << 10)}, []any{"newest", true}, []any{int64(0), int64(-1), 1.5,
			int64(1<<10 + 1)}
	}
	switch schema.Type {
	case "boolean":
		return []any{true, false}, []any{"true", int64(1)}, nil
	case "string":
		return []any{"x", `a "quoted" text`, "", int64(7)}, []any{true}, nil
	case "integer":
		right, outside = []any{int64(math.MaxInt64), int64(5_000_000)}, []any{int64(-1), 1.5}
		if most, err := schema.Maximum.Int64(); err == nil {
			if right = []any{most, int64(1)}; most < math.MaxInt64 {
				outside = append(outside, most+1)
			}
		}
		return right, []any{"1", true}, outside
	case "number":
		return []any{60_000.5, int64(60_000)}, []any{"1", true}, []any{int64(0), -1.5}
	}
	return []any{"traced", "traced/1, traced"}, []any{true}, []any{"", "traced,"} // names
}

// with returns a parameter and those that it requires; "" is none.
func with(key string, value any) map[string]any {
	switch key {
	case "":
		return map[string]any{}
	case "seq", "captured_at", "keep":
		return map[string]any{key: value, "stream": "cam-3"}
	}
	return map[string]any{key: value}
}

// sight is one request as its model sees it.
type sight struct {
	parameters string
	priority   int
	left       time.Duration // until the deadline
	timing     string        // of the answer
}

// addTraced adds the model traced and an application of it, app.
func addTraced(t *testing.T, s *Server, spec scheduler.Spec, worker scheduler.Worker) {
	t.Helper()
	traced := scheduler.ModelID{Name: "traced", Version: "1"}
	if _, err := s.Scheduler().AddReplica(traced, spec, worker, scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	app := apps.Definition{Name: "app", Models: []string{"traced"}, Policy: "split"}
	if _, err := registry(t, s).Create(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the application", func() bool {
		target, err := s.gate.Target("app", "")
		return err == nil && target.Live > 0
	})
}

// Every door uses the table: a parameter with a row is read and checked as the row says, and one
// without a row on a wire goes to the container there.
func TestParametersThroughEveryDoor(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, nil)
	traces := make(chan sight, 64)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	worker := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		traces <- sight{parameters: string(b.Parts[0].Parameters), priority: b.Parts[0].Priority,
			left: time.Until(b.Deadline)}
		return echo(b)
	})
	addTraced(t, s, scheduler.Spec{Inputs: x, Outputs: x, User: true}, worker)
	all := askers(t, s, "app")
	for _, w := range parameter.Wires {
		// Questions for newest answers reach no model: see TestLatestThroughEveryDoor.
		if w.Wire != parameter.Latest && !slices.ContainsFunc(all, func(a asker) bool { return a.wire == w.Wire }) {
			t.Errorf("nobody asks over %s", w.Name)
		}
	}
	var names []string
	for _, k := range parameter.Table {
		if !slices.Contains(names, k.Name) && k.Name != "latest" {
			names = append(names, k.Name)
		}
	}
	for i, a := range all {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			tell := func(key string, value any) (seen sight) {
				t.Helper()
				timing, err := a.ask(with(key, value))
				if err != nil {
					t.Fatalf("%s = %v: %v", key, value, err)
				}
				seen = <-traces
				seen.timing = timing
				return seen
			}
			plain := tell("", nil)
			if plain.priority != 5 || plain.parameters != "" || plain.left < 20*time.Second ||
				plain.left > 30*time.Second || plain.timing != "" {
				t.Fatalf("a request without parameters: %+v", plain)
			}
			for _, name := range names {
				k := a.wire.Keys()[name]
				switch {
				case k == nil && a.wire == parameter.GRPC && parameter.Stream.Keys()[name] != nil:
					if _, err := a.ask(with(name, true)); err == nil || !strings.Contains(err.Error(), "ModelStreamInfer only") {
						t.Errorf("%s: %v", name, err)
					}
					continue
				case k != nil && name == "nested":
					if _, err := a.ask(with(name, true)); err == nil || !strings.Contains(err.Error(), "nested is for pipelines") {
						t.Errorf("%s: %v", name, err)
					}
					continue
				case k == nil && a.wire == parameter.HTTP && strings.HasPrefix(name, "triton_"):
					if _, err := a.ask(with(name, "x")); err == nil || !strings.Contains(err.Error(), "reserved") {
						t.Errorf("%s: %v", name, err)
					}
					continue
				case k == nil:
					want := ""
					if a.forwards {
						want = `{"` + name + `":"x"}`
					}
					if got := tell(name, "x"); got.parameters != want || got.priority != plain.priority ||
						got.timing != "" {
						t.Errorf("%s means nothing on this wire, and the model is told %+v", name, got)
					}
					continue
				}
				right, wrong, outside := values(t, k)
				for _, value := range right {
					if got := tell(name, value); !got.follows(k, value, a.wire) {
						t.Errorf("%s = %v: %+v", name, value, got)
					}
				}
				for _, value := range slices.Concat(wrong, outside) {
					_, err := a.ask(with(name, value))
					if err == nil || !strings.Contains(err.Error(), name) ||
						!strings.Contains(err.Error(), k.Expected()) ||
						!strings.Contains(err.Error(), fmt.Sprint(value)) {
						t.Errorf("%s = %#v: got %v, expected words on the key, %q and the value", name, value, err,
							k.Expected())
					}
				}
				if json.Valid([]byte(k.Default)) {
					if got := tell(name, json.RawMessage(k.Default)); got.priority != plain.priority ||
						got.parameters != "" || got.left < 20*time.Second || got.timing != "" {
						t.Errorf("the default of %s is not what a request has without it: %+v", name, got)
					}
				}
			}
		})
	}
}

// All keys of a message reach a model that asks for metadata, except for the token, the user and
// what describes tensors. Keys without meaning to the request, such as those of frames in one that
// names no stream, are the client's own.
func TestMetadataReachesModels(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, nil)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	seen := make(chan string, 1)
	for _, asks := range []bool{true, false} {
		name := fmt.Sprint("metadata ", asks)
		worker := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			seen <- string(b.Parts[0].Parameters) + " " + string(b.Parts[0].Metadata)
			return echo(b)
		})
		if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: name, Version: "1"},
			scheduler.Spec{Inputs: x, Outputs: x, Metadata: asks},
			worker, scheduler.ReplicaOptions{}); err != nil {
			t.Fatal(err)
		}
		for metadata, want := range map[string][2]string{
			`{"seq":5,"keep":null,"captured_at":12.5,"other":[1],"parameters":{"k":2}}`: {
				`{"other":[1],"k":2}`, `{"seq":5,"keep":null,"captured_at":12.5}`},
			`{"id":{"a":[1]},"version":1,"user":5,"timing":false,"cache":true,"batch":false,"stream":7,"inputs":[1]}`: {
				"", `{"id":{"a":[1]},"version":1,"timing":false,"cache":true,"batch":false,"stream":7}`},
			`{"__tensors__":["x"],"__texts__":null,"parameters":null,"version":null}`: {"", `{"version":null}`},
			`{"id":` + strings.Repeat("[", 80) + strings.Repeat("]", 80) + `}`:        {"", ""},
			// The answer to a request is the next request: its keys are not returned twice.
			`{"other":1,"model_name":"x","model_version":"1","__tensors__":["x"],"age_ms":1,"skipped":0}`: {
				`{"other":1,"model_name":"x","model_version":"1","age_ms":1,"skipped":0}`, ""},
			`{}`: {"", ""},
		} {
			if !asks {
				want[1] = ""
			}
			reply, _ := say(t, s, name, metadata, pairOfInts(t))
			if reply["error"] != nil {
				t.Errorf("%s: %v", metadata, reply)
				continue
			}
			var asked map[string]any
			_ = json.Unmarshal([]byte(metadata), &asked)
			if fmt.Sprint(reply["other"]) != fmt.Sprint(asked["other"]) || reply["k"] != nil ||
				fmt.Sprint(reply["id"]) != fmt.Sprint(asked["id"]) || reply["version"] != nil {
				t.Errorf("%s is answered %v", metadata, reply)
			}
			if got := <-seen; got != want[0]+" "+want[1] {
				t.Errorf("%s, asks %t: the model sees %s, expected %q", metadata, asks, got, want)
			}
		}
	}
}

// follows reports whether a model sees the effect of a valid value. choice_test.go tests the
// parameters of caches and policies.
func (s *sight) follows(k *parameter.Key, value any, w parameter.Wire) bool {
	parameters, priority, timing := "", 5, false
	least, most := 20*time.Second, 30*time.Second // the model's deadline
	deadline := func(d time.Duration) { least, most = d-min(10*time.Second, d*9/10), d }
	switch k.Name {
	case "timeout":
		deadline(time.Duration(min(value.(int64), (24*time.Hour).Microseconds())) * time.Microsecond)
	case "timeout_ms":
		deadline(time.Minute + time.Millisecond/2)
	case "priority":
		if priority = int(value.(int64)); w != parameter.Shiva {
			priority = int(min(value.(int64), 10)) - 1
		}
	case "user":
		if value != "" {
			parameters = fmt.Sprintf(`{"user":%q}`, fmt.Sprint(value))
		}
	case "timing":
		timing = value.(bool)
	}
	return s.parameters == parameters && s.priority == priority && least < s.left && s.left <= most && (s.timing != "") == timing
}
