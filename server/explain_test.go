package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestSettingsWhileRunning: a change of settings takes effect at once and is shown; a contradictory
// one changes nothing, and its error names both figures.
func TestSettingsWhileRunning(t *testing.T) {
	s := start(t, func(c *config.Config) { c.Defaults.QueueRows = 500 })
	if status, body := requestAdmin(t, s, http.MethodPatch, "/v1/models/echo", jsonType,
		`{"objective":"20ms","max_batch":"32"}`); status != 200 || !strings.Contains(body, `"objective": "20ms"`) {
		t.Fatalf("%d: %s", status, body)
	}
	if c := s.Scheduler().ModelConfig("echo"); c.Objective != 20*time.Millisecond || c.MaxBatch != 32 ||
		c.QueueRows != 500 {
		t.Errorf("the scheduler works with objective %v, max_batch %d, queue_rows %d", c.Objective, c.MaxBatch,
			c.QueueRows)
	}
	// A setting without a value is shown with its effective value.
	if status, body := requestAdmin(t, s, http.MethodPatch, "/v1/models/echo", jsonType,
		`{"max_batch":"0"}`); status != 200 || !strings.Contains(body, `"max_batch": 128,`) ||
		strings.Contains(body, `"max_batch": 0`) || !strings.Contains(body, `"batch_bytes": "256MiB"`) {
		t.Errorf("%d: %s", status, body)
	}
	if status, body := requestAdmin(t, s, http.MethodPatch, "/v1/models/echo", jsonType,
		`{"max_batch":"32"}`); status != 200 {
		t.Fatalf("%d: %s", status, body)
	}
	for _, c := range []struct {
		path, body, contentType string
		status                  int
		want                    []string
	}{
		{"/v1/models/echo", `{"max_batch":"1000"}`, jsonType, 400, []string{"max_batch", "1000", "500"}},
		{"/v1/models/echo", `{"objective":"5ms","delay":"5ms"}`, jsonType, 400, []string{"delay", "5ms", "objective"}},
		{"/v1/models/echo", `{"objective":"5ms","deadline":"1s"}`, jsonType, 400, []string{"deadline", "queue_rows"}},
		{"/v1/models/echo", `{"objective":"soon"}`, jsonType, 400, []string{"soon"}},
		{"/v1/models/echo", `{}`, jsonType, 400, nil},
		{"/v1/models/echo", `{"objective":"5ms"}`, "text/plain", 415, nil},
		{"/v1/models/nobody", `{"objective":"5ms"}`, jsonType, 404, []string{"nobody"}},
	} {
		status, body := requestAdmin(t, s, http.MethodPatch, c.path, c.contentType, c.body)
		if status != c.status {
			t.Errorf("%s: %d, want %d: %s", c.body, status, c.status, body)
		}
		for _, want := range c.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s: want %q in %s", c.body, want, body)
			}
		}
	}
	if c := s.Scheduler().ModelConfig("echo"); c.Objective != 20*time.Millisecond || c.MaxBatch != 32 {
		t.Errorf("a refused change left objective %v, max_batch %d", c.Objective, c.MaxBatch)
	}
	a, err := http.Get("http://" + s.Addrs().Admin.String() + "/v1/models/echo/explain")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	var e admin.Explanations
	if err := json.NewDecoder(a.Body).Decode(&e); err != nil || len(e.Versions) != 1 ||
		len(e.Versions[0].Sentences) == 0 {
		t.Errorf("%v: %+v", err, e)
	}
}

// TestExplainSubset: for a model whose containers choose among servers, explain tells how many are
// connected here, even if none is, and how many are needed.
func TestExplainSubset(t *testing.T) {
	s := start(t, nil)
	x := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1}}}
	c, err := containertest.Dial(t.Context(), s.containers.Listener().Dialable()[0], containertest.Model{
		Name: "far", Version: "1", Batched: new(true), Inputs: x, Outputs: x, Subset: 16, Servers: 500,
	})
	if err != nil {
		t.Fatal(err)
	}
	explained := func() string {
		a, err := http.Get("http://" + s.Addrs().Admin.String() + "/v1/models/far/explain")
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		var e admin.Explanations
		if err := json.NewDecoder(a.Body).Decode(&e); err != nil || len(e.Versions) == 0 {
			t.Fatalf("%v: %+v", err, e)
		}
		return strings.Join(e.Versions[0].Sentences, "\n")
	}
	const about = "Each container of far/1 has sessions with 16 of 500 servers (SHIVA_SUBSET), and this server has %s. With 94 containers or more"
	for _, step := range []string{"one live replica", "no live replica"} {
		want := strings.Replace(about, "%s", step, 1)
		budgettest.Until(t, "the sentence "+want, func() bool { return strings.Contains(explained(), want) })
		c.Kill()
	}
}

// TestSentencesArePlain: the error of a model stands in the sentences of explain and in the insight
// without anything that a terminal would interpret, and in bounded length.
func TestSentencesArePlain(t *testing.T) {
	s := start(t, nil)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	fails := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		b.Fail(fmt.Errorf("\x1b]0;owned\x07\x1b[2J\rok\u009b31m\u202egnirts%s", strings.Repeat("x", 1<<20)))
		return nil
	})
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "bad", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, fails, scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	c := dial(t, s)
	defer c.Close()
	for range 20 {
		if _, err := c.Do(t.Context(), &shiva.Message{Namespace: "bad", Tensors: []tensor.Tensor{row()}}); err == nil {
			t.Fatal("it has an answer")
		}
	}
	var told admin.Explanations
	get(t, s, "/v1/models/bad/explain", &told)
	for what, text := range map[string]string{"explain": fmt.Sprint(told), "insight": fmt.Sprint(s.report.Insights("bad"))} {
		if !strings.Contains(text, "gnirts") || len(text) > 64<<10 ||
			strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%s: %d bytes: %.500q", what, len(text), text)
		}
	}
}

// TestExplainAbsent: explain says of a model that no container has registered where the
// configuration names it, and why it is not there. What nothing names is not found.
func TestExplainAbsent(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Models = map[string]config.Model{"tuned": {Policy: c.Defaults}}
		c.Server.RequiredModels = []string{"needed/2"}
		process := config.NewContainer("cell", "sleep", "600")
		process.Model = "slow"
		c.Supervised = []config.Container{process}
	})
	for model, want := range map[string][]string{
		"tuned":  {"No container of tuned has registered: ", "The configuration has it in [model.tuned]."},
		"needed": {"No container of needed has registered: ", "in server.required_models."},
		"slow":   {"No container of slow has registered (slow: ", `in [[container]] "cell".`, "shivactl logs"},
	} {
		status, body := requestAdmin(t, s, http.MethodGet, "/v1/models/"+model+"/explain", "", "")
		for _, text := range want {
			if text = strings.ReplaceAll(text, `"`, `\"`); status != http.StatusOK || !strings.Contains(body, text) {
				t.Errorf("%s: %d, expected %s in %s", model, status, text, body)
			}
		}
	}
	status, body := requestAdmin(t, s, http.MethodGet, "/v1/models/other/explain", "", "")
	if status != http.StatusNotFound {
		t.Errorf("%d: %s", status, body)
	}
}
