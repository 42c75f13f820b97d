package server

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/tensor"
)

// Trying a model at the admin door requires the right to read there and the right to infer, and
// counts for quotas; the answer is the same as at any door.
func TestTry(t *testing.T) {
	poor := declared("poor", "admin:read", "infer")
	poor.Quota.RequestsPerSecond, poor.Quota.Burst = 1, time.Millisecond
	s, _ := loaded(t, new(logged), func(c *config.Config) {
		c.Identities = []config.Identity{declared("tries", "admin:read", "infer:e*"), declared("reads", "admin:read"),
			declared("infers", "infer"), poor}
	})
	g := &guardedServer{Server: s}
	for name, inputs := range map[string][]tensor.Spec{
		"echo": {{Name: "f", DType: tensor.Float32, Shape: tensor.Shape{-1, 3}},
			{Name: "s", DType: tensor.Bytes, Shape: tensor.Shape{-1, 1}}},
		"easy": {{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 2}}},
		"no":   {{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 2}}},
	} {
		if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: name, Version: "1"},
			scheduler.Spec{Inputs: inputs, Outputs: inputs}, scheduler.WorkerFunc(echo),
			scheduler.ReplicaOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetApplication(t.Context(), Application{Name: "eapp", Models: []string{"easy"}}); err != nil {
		t.Fatal(err)
	}
	try := func(who, name, body string) (code int, a admin.Tried, text string) {
		code, text = g.http(t, s.Addrs().Admin.String(), tokenOf(who), "POST", "/v1/models/"+name+"/try", body)
		if code == 200 {
			if err := json.Unmarshal([]byte(text), &a); err != nil {
				t.Fatal(err)
			}
		}
		return code, a, text
	}
	_, a, text := try("tries", "easy", `{"input":[[7,8],[9,10]],"version":"1"}`)
	if len(a.Outputs) != 1 || a.Outputs[0].Elements != 4 || len(a.Outputs[0].Data) != 4 ||
		a.Outputs[0].Data[3] != 10.0 || a.Outputs[0].Datatype != "UINT8" || a.Version != "1" || a.Total <= 0 ||
		a.Rows < 1 {
		t.Errorf("%s", text)
	}
	_, a, text = try("tries", "easy", `{"input":{"b64":"`+base64.StdEncoding.EncodeToString([]byte{1, 2})+`","shape":[1,2]}}`)
	if len(a.Outputs) != 1 || a.Outputs[0].Data[1] != 2.0 {
		t.Errorf("raw bytes: %s", text)
	}
	_, a, text = try("tries", "eapp", `{"input":[[1,2]]}`)
	if a.Model != "easy" || a.Confidence == nil || len(a.Outputs) != 1 {
		t.Errorf("an application: %s", text)
	}
	picture := base64.StdEncoding.EncodeToString([]byte("\xff\xd8\x00picture"))
	_, a, text = try("tries", "echo", `{"input":{"f":[0.1,1e-30,3],"s":{"b64":"`+picture+`"}}}`)
	if len(a.Outputs) != 2 || a.Outputs[1].Data[0] != "\uFFFD\x00picture" {
		t.Errorf("a picture as an element: %s", text)
	}
	_, a, text = try("tries", "echo", `{"input":{"f":[[0.1,1e-30,3]],"s":[["a"]]}}`)
	if len(a.Outputs) != 2 || a.Outputs[0].Data[0] != 0.1 || a.Outputs[1].Data[0] != "a" {
		t.Errorf("two inputs: %s", text)
	}
	_, a, text = try("tries", "echo", `{"input":{"f":[[0,0,0],[0,0,0]],"s":[["`+strings.Repeat("a", 1<<20-1)+`"],["bc"]]}}`)
	if len(a.Outputs) != 2 || len(a.Outputs[1].Data) != 2 || len(a.Outputs[1].Data[0].(string)) != 1<<20-1 ||
		a.Outputs[1].Data[1] != "b" {
		t.Errorf("texts of a mebibyte and a byte: %.99s of %d", text, len(text))
	}
	for _, c := range []struct {
		who, name, body string
		code            int
		says            string
	}{
		{"tries", "no", `{"input":[[1,2]]}`, 403, "infer:no"},
		{"tries", "none", `{"input":[[1,2]]}`, 403, "infer:none"},
		{"tries", "emm", `{"input":[[1,2]]}`, 404, "emm"},
		{"reads", "easy", `{"input":[[1,2]]}`, 403, "infer:easy"},
		{"infers", "easy", `{"input":[[1,2]]}`, 403, "admin:read"},
		{"unknown", "easy", `{"input":[[1,2]]}`, 401, ""},
		{"tries", "easy", `{"input":[[1,2,3]]}`, 400, "[-1, 2]"},
		{"tries", "easy", `{"input":[["a","b"]]}`, 400, "x"},
		{"tries", "easy", `{"input":{"b64":"!"}}`, 400, "b64"},
		{"tries", "easy", `{"inputs":[[1,2]]}`, 400, `{\"input\":`},
		{"tries", "easy", `[`, 400, `{\"input\":`},
		{"tries", "echo", `{"input":[[1,2]]}`, 400, "each of the 2 inputs"},
	} {
		if code, _, text := try(c.who, c.name, c.body); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s tries %s with %s: %d %s, expected %d and %q", c.who, c.name, c.body, code, text, c.code,
				c.says)
		}
	}
	refused := false
	for range 3 {
		code, _, text := try("poor", "easy", `{"input":[[1,2]]}`)
		refused = refused || code == 429 && strings.Contains(text, "requests_per_second")
	}
	if !refused {
		t.Error("nobody pays for what is tried")
	}
}

// A watch reports a model's batches, their times and the curve that batches are planned with.
func TestInsights(t *testing.T) {
	s, _ := loaded(t, new(logged), nil)
	x := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}}
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "easy", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(echo),
		scheduler.ReplicaOptions{Label: "r"}); err != nil {
		t.Fatal(err)
	}
	nan := float32(math.NaN())
	in, err := tensor.FromSlice(tensor.Shape{1, 2}, []float32{1, nan})
	if err != nil {
		t.Fatal(err)
	}
	in.Name = "x"
	for range 200 {
		a, err := s.Infer(t.Context(), &Request{Name: "easy", Inputs: []tensor.Tensor{in}})
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
	}
	list := s.report.Insights("easy")
	if len(list) != 1 || len(list[0].Replicas) != 1 || len(list[0].Sentences) == 0 {
		t.Fatalf("%+v", list)
	}
	one := list[0]
	if r := one.Replicas[0]; r.Name != "r" || r.Batches != 200 || len(r.Measured) == 0 || len(r.Fitted) == 0 ||
		r.Measured[0].Rows != 1 || r.Measured[0].Took <= 0 || r.Fitted[0].Planned < r.Fitted[0].Typical {
		t.Errorf("%+v", r)
	}
	if n := len(one.Sent); n != 128 || one.Sent[n-1].Rows != 1 || one.Sent[n-1].Closed != "idle" ||
		one.Sent[0].At > one.Sent[n-1].At {
		t.Errorf("%d batches, the last %+v", n, one.Sent[max(0, n-1)])
	}
	batches := s.report.Batches()
	if len(batches) != 1 || batches[0].Batches != 200 || batches[0].Rows != 200 || batches[0].Outcomes["ok"] != 200 {
		t.Errorf("%+v", batches)
	}
	if got := s.report.Insights("nobody"); len(got) != 0 {
		t.Errorf("of a name that nothing has: %+v", got)
	}
	g := &guardedServer{Server: s}
	code, text := g.http(t, s.Addrs().Admin.String(), "", "POST", "/v1/models/easy/try",
		`{"input":{"b64":"`+base64.StdEncoding.EncodeToString(in.Data)+`","shape":[1,2]}}`)
	if code != 200 || !strings.Contains(text, "null") {
		t.Errorf("NaN: %d %s", code, text)
	}
}
