package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// registry returns the registry of a server's applications.
func registry(t *testing.T, s *Server) *apps.Registry {
	t.Helper()
	r, err := s.store.Registry()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// serves reports whether a live replica serves a version.
func serves(s *Server, model, version string) bool {
	target, err := s.gate.Target(model, version)
	return err == nil && target.Live > 0
}

// constant connects a container of a model that answers every request with the same label, after a
// delay.
func constant(t *testing.T, s *Server, name string, label int32, delay time.Duration) {
	t.Helper()
	c, err := containertest.Dial(t.Context(), s.containers.Listener().Dialable()[0], containertest.Model{
		Name: name, Version: "1",
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{{Name: "label", DType: tensor.Int32, Shape: tensor.Shape{-1}}},
		Answer: func(b *containertest.Batch) containertest.Reply {
			labels := make([]int32, b.Rows)
			for i := range labels {
				labels[i] = label
			}
			out, err := tensor.FromSlice(tensor.Shape{b.Rows}, labels)
			if err != nil {
				return containertest.Reply{Error: err.Error()}
			}
			return containertest.Reply{Outputs: []tensor.Tensor{out}, Delay: delay}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

// say sends a message to s and returns the answer's metadata, and its first tensor's label if it
// has one.
func say(t *testing.T, s *Server, namespace, metadata string, tensors ...tensor.Tensor) (map[string]any, int32) {
	t.Helper()
	c, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := c.Do(t.Context(), &shiva.Message{Namespace: namespace, Metadata: []byte(metadata), Tensors: tensors})
	if err != nil {
		return map[string]any{"error": err.Error()}, 0
	}
	defer m.Release()
	reply := map[string]any{}
	if err := json.Unmarshal(m.Metadata, &reply); err != nil {
		t.Fatal(err)
	}
	if len(m.Tensors) == 0 {
		return reply, 0
	}
	labels, err := tensor.Values[int32](m.Tensors[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(labels) == 0 {
		return reply, 0 // no rows
	}
	return reply, labels[0]
}

// TestApplicationOverTCP: an application that learns, from request to feedback, over real sockets
// to real containers.
func TestApplicationOverTCP(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, nil)
	constant(t, s, "good", 7, 0)
	constant(t, s, "bad", 3, 0)
	if _, err := registry(t, s).Create(t.Context(),
		apps.Definition{Name: "app", Models: []string{"good", "bad"}, Policy: "exp4"}); err != nil {
		t.Fatal(err)
	}
	x, err := tensor.FromSlice(tensor.Shape{2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the application answers", func() bool {
		reply, _ := say(t, s, "app", `{"user":"u"}`, x)
		return reply["application"] == "app"
	})
	for i := range 30 {
		id := string(rune('a' + i))
		say(t, s, "app", `{"user":"u","id":"`+id+`"}`, x)
		reply, _ := say(t, s, "app/update", `{"user":"u","id":"`+id+`","label":7}`)
		if reply["learned"] != true || reply["rounds"] != float64(i+1) || reply["id"] != id {
			t.Fatalf("feedback %d: %v", i, reply)
		}
	}
	reply, label := say(t, s, "app", `{"user":"u"}`, x)
	if label != 7 || reply["model_name"] != "good" || reply["confidence"].(float64) < 0.9 {
		t.Errorf("got %d, %v: expected the one that is right", label, reply)
	}
	if reply, _ := say(t, s, "app/update", `{"user":"u","id":"zz","label":7}`); !strings.Contains(reply["error"].(string),
		"knows no request") {
		t.Errorf("feedback about nothing: %v", reply)
	}
	if reply, _ := say(t, s, "app/update", `{"user":"u","id":"a","label":7}`); reply["learned"] != false {
		t.Errorf("the same feedback again: %v", reply)
	}
	page := metricsPage(t, s)
	for result, n := range map[string]int{"learned": 30, "repeated": 1, "failed": 1} {
		if line := fmt.Sprintf("\nshivad_feedback_total{application=\"app\",result=%q} %d\n", result,
			n); !strings.Contains(page, line) {
			t.Errorf("/metrics lacks%s", line)
		}
	}

	// A model may not take the name of an application.
	_, err = containertest.Dial(t.Context(), s.containers.Listener().Dialable()[0],
		containertest.Model{Name: "app", Version: "1",
			Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1}}},
			Outputs: []tensor.Spec{{Name: "y", DType: tensor.Int32, Shape: tensor.Shape{-1}}}})
	if err == nil || !strings.Contains(err.Error(), `there is an application "app"`) {
		t.Errorf("a model by the name of an application: %v", err)
	}
}

// An unreachable Redis does not affect serving, and the health of the server reports it until it is
// reachable.
func TestStateHealthIsShown(t *testing.T) {
	redis := statetest.StoppedRedis(t)
	s := start(t, func(c *config.Config) { c.State.At, c.State.Required = redis.Target(), false })
	shown := func(healthy bool) string {
		var ready admin.Readiness
		var status admin.Status
		code := get(t, s, "/readyz", &ready)
		get(t, s, "/v1/status", &status)
		up := fmt.Sprintf("\nshivad_state_up %d\n", map[bool]int{true: 1}[healthy])
		switch k := status.State; {
		case code != 200 || !ready.Ready || (ready.Degraded == "") != healthy:
			return fmt.Sprintf("/readyz: %d %+v", code, ready)
		case k.At != redis.Target() || k.Healthy != healthy || (k.Error == "") != healthy || k.Since.IsZero():
			return fmt.Sprintf("/v1/status: %+v", k)
		case !strings.Contains(metricsPage(t, s), up):
			return "the metrics do not have" + up
		}
		return ""
	}
	if fault := shown(false); fault != "" {
		t.Errorf("with Redis away: %s", fault)
	}
	if err := ask(t, s); err != nil {
		t.Errorf("serving with Redis away: %v", err)
	}
	redis.Start(t)
	budgettest.Until(t, "health with Redis there", func() bool { return shown(true) == "" })
	redis.Kill()
	budgettest.Until(t, "health without Redis", func() bool { return shown(false) == "" })
}

// Deleted applications leave no series behind.
func TestSeriesOfApplications(t *testing.T) {
	s := start(t, nil)
	series := func() int { return strings.Count(metricsPage(t, s), `model="passing-`) }
	const apps = 40
	for i := range apps {
		if _, err := s.sources().Applications.Create(t.Context(),
			admin.App{Name: fmt.Sprint("passing-", i), Models: []string{"echo"}, Policy: "single"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := series(); n < apps || n > 12*apps {
		t.Errorf("%d series of %d applications at rest", n, apps)
	}
	for i := range apps {
		if err := s.sources().Applications.Delete(t.Context(), fmt.Sprint("passing-", i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := series(); n > 0 {
		t.Errorf("%d series of applications that have gone", n)
	}
}

// TestApplicationsNestAsQuestions: an application's answer in bridge form nests as its question, as
// that of a model does.
func TestApplicationsNestAsQuestions(t *testing.T) {
	s := start(t, func(*config.Config) {})
	version(t, s, "1")
	budgettest.Until(t, "the model to be ready", func() bool { return serves(s, "rolled", "1") })
	if _, err := registry(t, s).Create(t.Context(),
		apps.Definition{Name: "nest", Models: []string{"rolled"}, SLO: "20s"}); err != nil {
		t.Fatal(err)
	}
	x, err := tensor.FromSlice(tensor.Shape{2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the application to answer", func() bool {
		reply, _ := say(t, s, "nest", `{"frame":{"x":"__tensor__0"}}`, x)
		if reply["application"] != "nest" {
			return false
		}
		if got := fmt.Sprint(reply["frame"]); got != "map[x:__tensor__0]" {
			t.Errorf("the answer is %v", reply)
		}
		return true
	})
}
