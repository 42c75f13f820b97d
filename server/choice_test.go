package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A chooser asks through one door with some parameters, and returns the label of the answer. Values
// are texts, booleans or lists.
type chooser struct {
	door string
	ask  func(name string, parameters map[string]any) (int32, error)
}

func choosers(t *testing.T, s *Server) []chooser {
	t.Helper()
	x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	encode := func(v any) string { return encoded(t, v) }
	web, rpc := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0])
	return []chooser{
		{"tcp", func(name string, parameters map[string]any) (int32, error) {
			metadata := "{}"
			if parameters != nil {
				metadata = encode(parameters)
			}
			reply, label := say(t, s, name, metadata, x)
			if fault, failed := reply["error"]; failed {
				return 0, fmt.Errorf("%v", fault)
			}
			return label, nil
		}},
		{"rest", func(name string, parameters map[string]any) (int32, error) {
			var a struct{ Outputs []struct{ Data []int32 } }
			body := `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}],"parameters":` +
				encode(parameters) + `}`
			if err := web.call("POST", "/v2/models/"+name+"/infer", body, &a); err != nil {
				return 0, err
			}
			return a.Outputs[0].Data[0], nil
		}},
		{"clipper", func(name string, parameters map[string]any) (int32, error) {
			body := `{"input":[1,2]`
			for key, value := range parameters {
				body += "," + encode(key) + ":" + encode(value)
			}
			var a struct{ Output json.RawMessage }
			if err := web.call("POST", "/"+name+"/predict", body+"}", &a); err != nil {
				return 0, err
			}
			var label int32 // an echo answers with a list
			_ = json.Unmarshal(a.Output, &label)
			return label, nil
		}},
		{"grpc", func(name string, parameters map[string]any) (int32, error) {
			q := grpcQuestion(name, x, 0)
			q.RawInputContents = [][]byte{x.Data}
			q.Parameters = map[string]*pb.InferParameter{}
			for key, value := range parameters {
				switch v := value.(type) {
				case bool:
					q.Parameters[key] = &pb.InferParameter{ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: v}}
				case string:
					q.Parameters[key] = &pb.InferParameter{
						ParameterChoice: &pb.InferParameter_StringParam{StringParam: v}}
				case []string:
					q.Parameters[key] = &pb.InferParameter{
						ParameterChoice: &pb.InferParameter_StringParam{StringParam: strings.Join(v, ", ")}}
				}
			}
			a, err := rpc.client.ModelInfer(t.Context(), q)
			if err != nil {
				return 0, grpcFault(err)
			}
			return int32(a.RawOutputContents[0][0]), nil
		}},
		{"library", func(name string, parameters map[string]any) (int32, error) {
			q := &Request{Name: name, Inputs: []tensor.Tensor{x}}
			for key, value := range parameters {
				ok := true
				switch key {
				case "candidate_models":
					if q.Candidates, ok = value.([]string); !ok {
						text, _ := value.(string)
						q.Candidates = strings.Split(text, ",")
					}
				case "cache":
					var cached bool
					cached, ok = value.(bool)
					q.NoCache = !cached
				case "salt":
					q.Salt, ok = value.(string)
				}
				if !ok && key != "candidate_models" {
					return 0, fmt.Errorf("%s: the compiler refuses this", key)
				}
			}
			a, err := s.Infer(t.Context(), q)
			if err != nil {
				return 0, err
			}
			defer a.Release()
			values, err := tensor.Values[int32](a.Outputs[0])
			if err != nil {
				return 0, err
			}
			return values[0], nil
		}},
	}
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A request names the models that an application may choose among. Names that it does not link
// to are refused with the name.
func TestCandidateModels(t *testing.T) {
	s := start(t, nil)
	for i, name := range []string{"one", "two", "three"} {
		constant(t, s, name, int32(i+1), 0)
	}
	budgettest.Until(t, "three models", func() bool { return len(s.gate.Models()) == 4 })
	if _, err := registry(t, s).Create(t.Context(),
		apps.Definition{Name: "app", Models: []string{"one", "two"}, Policy: "split"}); err != nil {
		t.Fatal(err)
	}
	if _, err := registry(t, s).Create(t.Context(),
		apps.Definition{Name: "pinned", Models: []string{"one", "two"}, Policy: "single",
			Params: map[string]any{"model": "one"}}); err != nil {
		t.Fatal(err)
	}
	if apps.MaxLinks != parameter.MaxCandidates {
		t.Errorf("an application links to at most %d models, and a request names %d of them", apps.MaxLinks,
			parameter.MaxCandidates)
	}
	const either = -1
	for _, c := range choosers(t, s) {
		t.Run(c.door, func(t *testing.T) {
			for _, tc := range []struct {
				name       string
				candidates any
				label      int32
				fault      string
			}{
				{"app", []string{"two"}, 2, ""},
				{"app", []string{"two/1"}, 2, ""},
				{"app", []string{"two", "one"}, either, ""},
				{"pinned", []string{"one"}, 1, ""},
				{"pinned", []string{"two"}, 0, `excludes models that the policy needs`},
				{"app", "two", 2, ""},
				{"app", []string{"three"}, 0, `"three" is not one of the models that application "app" may ask now: one/1, two/1`},
				{"app", []string{"two", "two/7"}, 0, `"two/7" is not one of`},
				{"app", true, 0, "candidate_models"},
				{"app", "", 0, "none of them empty"},
				{"app", slices.Repeat([]string{"two"}, 65), 0, "expected 1 to 64 names"},
				{"one", []string{"one"}, 0, `"one" is a model`},
			} {
				label, err := c.ask(tc.name, map[string]any{"candidate_models": tc.candidates})
				if tc.label == either && (label == 1 || label == 2) {
					label = either
				}
				if label != tc.label || (err == nil) != (tc.fault == "") ||
					err != nil && !strings.Contains(err.Error(), tc.fault) {
					t.Errorf("%s of %v: got %d, %v, expected %d, %s", tc.name, tc.candidates, label, err, tc.label,
						tc.fault)
				}
			}
		})
	}
	web := newHTTP(t, s.Addrs().REST[0])
	var learned struct{ Learned bool }
	if err := web.call("POST", "/app/update", `{"input":[1,2],"label":2,"candidate_models":["two"]}`,
		&learned); err != nil || !learned.Learned {
		t.Errorf("feedback with an input, about one of the models: %+v %v", learned, err)
	}
	say(t, s, "app", `{"id":"known"}`, pairOfInts(t))
	if err := web.call("POST", "/app/update", `{"id":"known","label":2,"candidate_models":["two"]}`, nil); err == nil ||
		!strings.Contains(err.Error(), "is only for feedback that contains its input") {
		t.Errorf("feedback with an id, about one of the models: %v", err)
	}
}

func pairOfInts(t *testing.T) tensor.Tensor {
	t.Helper()
	x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// A request may bypass the cache, or be equal only to requests with the same salt.
func TestRequestsAndTheCache(t *testing.T) {
	s := start(t, withCache)
	container := slow(t, s, func() {})
	if _, err := registry(t, s).Create(t.Context(),
		apps.Definition{Name: "app", Models: []string{"slow"}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range choosers(t, s) {
		for _, name := range []string{"slow", "app"} {
			t.Run(c.door+" "+name, func(t *testing.T) {
				s.gate.ClearCache("slow")
				for _, tc := range []struct {
					parameters map[string]any
					more       int // executions
				}{
					{nil, 1},
					{nil, 0},
					{map[string]any{"cache": true}, 0},
					{map[string]any{"cache": false}, 1},
					{map[string]any{"salt": "a"}, 1},
					{map[string]any{"salt": "a"}, 0},
					{map[string]any{"salt": "b"}, 1},
					{map[string]any{"salt": "b", "cache": false}, 1},
					{nil, 0},
				} {
					before := executed(container)
					if _, err := c.ask(name, tc.parameters); err != nil {
						t.Fatal(tc.parameters, err)
					}
					if n := executed(container) - before; n != tc.more {
						t.Errorf("%v: %d executions, expected %d", tc.parameters, n, tc.more)
					}
				}
				for key, wrong := range map[string]any{"cache": "no", "salt": false} {
					if _, err := c.ask(name, map[string]any{key: wrong}); err == nil ||
						!strings.Contains(err.Error(), key) {
						t.Errorf("%s = %v: %v", key, wrong, err)
					}
				}
			})
		}
	}
}
