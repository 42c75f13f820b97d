package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// broken connects a container that fails on every batch.
func broken(t *testing.T, s *Server, name, reason string) {
	t.Helper()
	c, err := containertest.Dial(t.Context(), s.containers.Listener().Dialable()[0], containertest.Model{
		Name: name, Version: "1",
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{{Name: "label", DType: tensor.Int32, Shape: tensor.Shape{-1}}},
		Answer:  func(*containertest.Batch) containertest.Reply { return containertest.Reply{Error: reason} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

// TestDeadModelsDoNotLookHealthy: an application that answers with its default, a model that is
// always missing, and a container that fails on every batch show in metrics, status and explain.
func TestDeadModelsDoNotLookHealthy(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, func(c *config.Config) { c.Containers.ListenV2 = config.Addrs{"127.0.0.1:0"} })
	constant(t, s, "good", 7, 0)
	constant(t, s, "slow", 3, 400*time.Millisecond)
	broken(t, s, "bad", "no kernel image")
	for _, d := range []apps.Definition{
		{Name: "late", Models: []string{"slow"}, SLO: "50ms", Default: []byte(`{"label":-1}`)},
		{Name: "both", Models: []string{"good", "bad"}, Policy: "exp4", SLO: "5s"},
	} {
		if _, err := registry(t, s).Create(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	x, err := tensor.FromSlice(tensor.Shape{2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(name string, n int) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); n > 0; {
			if reply, _ := say(t, s, name, `{}`, x); reply["application"] == name {
				n--
			} else if time.Now().After(end) {
				t.Fatalf("%s: %v", name, reply)
			}
		}
	}
	ask("late", 12)
	ask("both", 12)

	for _, series := range []string{
		`shivad_requests_total{door="tcp",model="late",outcome="default",version=""} 12`,
		`shivad_in_time_total{model="late",version=""} 0`,
		`shivad_in_time_total{model="both",version=""} 12`,
		`shivad_missing_voices_total{model="both",version=""} 12`,
		`shivad_missing_voices_total{model="bad",version="1"} 12`,
		`shivad_failing_replicas{model="bad",version="1"} 1`,
		`shivad_failing_replicas{model="good",version="1"} 0`,
		`shivad_payload_refusals_total 0`,
	} {
		// Requests are counted when they have been answered.
		budgettest.Until(t, series, func() bool { return strings.Contains(metricsPage(t, s), "\n"+series+"\n") })
	}

	var status admin.Status
	get(t, s, "/v1/status", &status)
	if len(status.Listen.V2) != 1 {
		t.Errorf("status lists %+v, and the server listens for v2 too", status.Listen)
	}
	health := map[string]admin.Health{}
	for _, h := range status.Models {
		health[h.Name] = h
	}
	if h := health["late"]; h.Defaults != 12 || h.InTime != 0 || h.Requests < 12 || h.SLO != 0.05 {
		t.Errorf("late: %+v", h)
	}
	if h := health["both"]; h.InTime != 12 || h.MissingVoices != 12 {
		t.Errorf("both: %+v", h)
	}
	if h := health["bad"]; h.Failing != 1 || h.MissingVoices != 12 {
		t.Errorf("bad: %+v", h)
	}
	for _, c := range status.Sessions {
		if c.Model == "bad" && (c.State != "failing" || c.LastFailure != "no kernel image") {
			t.Errorf("the failing container shows as %q: %q", c.State, c.LastFailure)
		}
	}
	for _, want := range []string{"container of bad/1", "application late has answered", "application both has answered 100 % of its requests without"} {
		if !strings.Contains(strings.Join(status.Warnings, "\n"), want) {
			t.Errorf("no warning has %q: %q", want, status.Warnings)
		}
	}
	var ready admin.Readiness
	if get(t, s, "/readyz", &ready); !strings.Contains(ready.Degraded, "bad/1") {
		t.Errorf("readiness does not tell of the model that answers nothing: %+v", ready)
	}

	for name, want := range map[string][]string{
		"late": {"It is an application", "got its default", "0 % had a result of its models within 50ms"},
		"both": {"without the answer of bad/1", "Live replicas of bad/1 that fail on every batch: 1 of 1."},
		"bad":  {"fails on every batch", "no kernel image"},
	} {
		var e admin.Explanations
		get(t, s, "/v1/models/"+name+"/explain", &e)
		text := fmt.Sprint(e)
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("explain %s lacks %q: %s", name, part, text)
			}
		}
	}
}
