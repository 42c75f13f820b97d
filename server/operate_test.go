package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// asSDK makes the test binary a container of the SDK for the "model/version" that it names, which
// ends as containers do. A model whose name begins with slow takes time for each row.
const asSDK = "SHIVAD_TEST_SDK"

func serveEcho(id string) {
	name, version, _ := strings.Cut(id, "/")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	m := container.Model{Name: name, Version: version, Inputs: x, Outputs: x,
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil }}
	if strings.HasPrefix(name, "slow") {
		m.MaxBatch = 1
		m.Predict = func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(20 * time.Millisecond)
			return b.Inputs, nil
		}
	}
	if err := container.Serve(ctx, m); err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
}

// sdk returns a [[container]] that runs it.
func sdk(t *testing.T, name, id string, replicas int) config.Container {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	model, _, _ := strings.Cut(id, "/")
	return config.Container{Name: name, Serve: []string{model}, Command: []string{self},
		Process: config.Process{Env: map[string]string{asSDK: id}, Replicas: config.Fixed(replicas),
			StopTimeout: 10 * time.Second}}
}

// operate sends a request to the admin door as shivactl containers does.
func operateContainer(t *testing.T, s *Server, what, name string) (int, string) {
	t.Helper()
	return requestAdmin(t, s, http.MethodPost, "/v1/containers/"+name+"/"+what, jsonType, "")
}

// TestRestartUnderLoad: start returns when its processes have registered, restart rolls without an
// error for any client, and stop returns when they have ended.
func TestRestartUnderLoad(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, func(c *config.Config) { c.Supervised = []config.Container{sdk(t, "p", "rolled/1", 1)} })
	if code, text := operateContainer(t, s, "start", "p"); code != http.StatusOK || !strings.Contains(text, `"state": "READY"`) {
		t.Fatalf("start: %d %s", code, text)
	}
	load := keepBusy(t, s, "rolled", 4)
	defer load.stop()
	pids := func() (pids []int) {
		for _, p := range s.processes.List() {
			pids = append(pids, p.PID)
		}
		return pids
	}
	for range 2 {
		before, had := pids()[0], load.answered.Load()
		if code, text := operateContainer(t, s, "restart", "p"); code != http.StatusOK || !strings.Contains(text, `"state": "READY"`) {
			t.Errorf("restart: %d %s", code, text)
		}
		if after := pids()[0]; after == before || after == 0 || syscall.Kill(before, 0) == nil {
			t.Errorf("the process was %d and is %d", before, after)
		}
		budgettest.Until(t, "more answers", func() bool { return load.answered.Load() > had+10 })
	}
	load.stop()
	pid := pids()[0]
	if code, text := operateContainer(t, s, "stop", "p"); code != http.StatusOK ||
		!strings.Contains(text, `"reason": "unloaded"`) || syscall.Kill(pid, 0) == nil {
		t.Errorf("stop: %d %s", code, text)
	}
}

// TestStartTellsTheTruth: start reports a process that does not register, even if the model has a
// container from elsewhere; stop reports a process that had to be killed.
func TestStartTellsTheTruth(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Supervised = []config.Container{
			{Name: "p", Model: "echo", Command: []string{"sh", "-c", "echo no weights; exit 3"},
				Process: config.Process{Replicas: config.Fixed(1), StopTimeout: time.Second}},
			{Name: "deaf", Model: "echo", Command: []string{"sh", "-c", `trap "" TERM; echo up; while :; do sleep 0.01; done`},
				Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 50 * time.Millisecond}},
		}
	})
	if code, text := operateContainer(t, s, "start", "p"); code != http.StatusServiceUnavailable ||
		!strings.Contains(text, "exit status 3 | no weights") {
		t.Errorf("start: %d %s", code, text)
	}
	budgettest.Until(t, "it to be deaf", func() bool {
		for _, p := range s.processes.List() {
			if p.Name == "deaf" && len(p.LastLines) > 0 {
				return true
			}
		}
		return false
	})
	if code, text := operateContainer(t, s, "stop", "deaf"); code != http.StatusOK || !strings.Contains(text, "1 process did not end within stop_timeout, 50ms, and had to be killed") {
		t.Errorf("stop: %d %s", code, text)
	}
}

// TestRetiredIsStartedAgain: the refusal of a retired version names the command that starts it;
// that works, and the version stays.
func TestRetiredIsStartedAgain(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, func(c *config.Config) {
		c.Models = map[string]config.Model{"rolled": {Policy: c.Defaults, RetireAfter: time.Millisecond}}
		c.Supervised = []config.Container{sdk(t, "old", "rolled/1", 1)}
	})
	if code, text := operateContainer(t, s, "start", "old"); code != http.StatusOK {
		t.Fatalf("start: %d %s", code, text)
	}
	version(t, s, "2")
	budgettest.Until(t, "version 1 to be retired", func() bool { return s.processes.List()[0].State == "retired" })
	back := func() (int, string) {
		return requestAdmin(t, s, http.MethodPut, "/v1/models/rolled/default_version", jsonType, `{"version":"1"}`)
	}
	if code, text := back(); code != http.StatusBadRequest || !strings.Contains(text, `shivactl containers start old`) {
		t.Errorf("set-version of a retired version: %d %s", code, text)
	}
	var list admin.Containers
	if get(t, s, "/v1/containers", &list); !strings.Contains(list.Containers[0].Reason, "shivactl containers start old") &&
		list.Containers[0].State != "READY" {
		t.Errorf("the list says %+v", list.Containers[0])
	}
	if code, text := operateContainer(t, s, "start", "old"); code != http.StatusOK {
		t.Fatalf("start again: %d %s", code, text)
	}
	<-version(t, s, "0").Gone() // due versions are dismissed, and version 1 is not
	if code, text := back(); code != http.StatusOK || !strings.Contains(text, `"default_version": "1"`) {
		t.Errorf("set-version after that: %d %s", code, text)
	}
}

// TestLoadOfWhatRegistersOthers: loading ends when the process turns out to serve another
// model, and says which.
func TestLoadOfWhatRegistersOthers(t *testing.T) {
	t.Parallel() // it waits
	s := unstarted(t, nil, func(c *config.Config) {
		other := sdk(t, "p", "other/1", 1)
		other.Model = "wanted"
		c.Supervised = []config.Container{other, sdk(t, "nameless", "another/1", 1)}
	})
	s.processes.Grace = 50 * time.Millisecond
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := s.predict.Load(ctx, predict.Caller{}, "wanted", nil)
	if !errors.Is(err, scheduler.ErrUnavailable) || !strings.Contains(err.Error(), "have registered [other/1]") {
		t.Errorf("load of a name that something else registers for: %v", err)
	}
	// The configuration names no model: its name is learned during this load, or was before.
	if err := s.predict.Load(ctx, predict.Caller{}, "nameless", nil); err == nil || ctx.Err() != nil ||
		!strings.Contains(err.Error(), "another") {
		t.Errorf("load of a name that is not the model's: %v", err)
	}
	if err := s.predict.Load(ctx, predict.Caller{}, "another", nil); err != nil {
		t.Errorf("load by the name that it has registered: %v", err)
	}
}

// The lists in the status of a server that has nothing to list are empty, as the page and the
// description of the API have them, and not null.
func TestStatusOfNothing(t *testing.T) {
	s := start(t, nil)
	status, err := json.Marshal(s.report.Status())
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(status, &members); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"warnings", "routes", "streams", "models", "doors"} {
		if !strings.HasPrefix(string(members[name]), "[") {
			t.Errorf("%s is %.40s, expected a list", name, members[name])
		}
	}
}

// A client that may only infer is told that a process has ended, and nothing of its output, its
// files, or the server's configuration; whoever may load the model, or is an operator, is.
func TestOutputIsForOperators(t *testing.T) {
	t.Parallel() // it waits
	const output = "/opt/plant/weights.bin: no such file"
	s, file := loaded(t, new(logged), func(c *config.Config) {
		guarded(c)
		c.Supervised = []config.Container{{Name: "catcrash",
			Command: []string{"sh", "-c", "echo " + output + " >&2; exit 3"},
			Process: config.Process{Replicas: config.Fixed(1), StopTimeout: time.Second}}}
	})
	g := &guardedServer{Server: s, file: file}
	rest, admin := s.Addrs().REST[0].String(), s.Addrs().Admin.String()
	index := func(token string) string {
		_, body := g.http(t, rest, token, "POST", "/v2/repository/index", "")
		return body
	}
	budgettest.Until(t, "the process to end", func() bool { return strings.Contains(index(tokenOf("load")), output) })
	told := []string{index(tokenOf("infer")), fmt.Sprint(g.shiva(t, tokenOf("infer"), "catcrash", "", row()))}
	for _, path := range []string{"/v2/models/catcrash/ready", "/v2/models/catcrash", "/v2/health/ready"} {
		_, body := g.http(t, rest, tokenOf("infer"), "GET", path, "")
		told = append(told, body)
	}
	_, body := g.http(t, rest, tokenOf("infer"), "POST", "/v2/models/catcrash/infer", `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`)
	told = append(told, body)
	for _, text := range told {
		if strings.Contains(text, "/opt") || strings.Contains(text, "exit status") || strings.Contains(text, "[[container]]") {
			t.Errorf("a client is told %s", text)
		}
	}
	if text := told[1]; !strings.Contains(text, "no container has registered catcrash yet") || !strings.Contains(text, "its process has ended") {
		t.Errorf("a client is told %s, which is no help", text)
	}
	budgettest.Until(t, "an operator to be told", func() bool { // while the process does not run again
		_, body := g.http(t, admin, tokenOf("admin:read"), "GET", "/readyz", "")
		return strings.Contains(body, output)
	})
}
