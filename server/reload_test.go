package server

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/operate"
	"github.com/shivad/shivad/shiva/budgettest"
)

// loaded starts a server whose configuration is read again from a variable.
func loaded(t *testing.T, log *logged, change func(*config.Config)) (s *Server, file *config.Config) {
	t.Helper()
	return loadedIn(t, log, system, change)
}

// loadedIn is loaded in other surroundings.
func loadedIn(t *testing.T, log *logged, around surroundings,
	change func(*config.Config)) (s *Server, file *config.Config) {
	t.Helper()
	file = new(config.Config)
	*file = config.Default()
	free := config.Addrs{"127.0.0.1:0"}
	file.TCP.Listen, file.REST.Listen, file.GRPC.Listen, file.Admin.Listen, file.Containers.Listen = free, free, free,
		free[0], free
	file.Containers.ExpectedWithin = 0
	if change != nil {
		change(file)
	}
	s, err := newServer(*file, slog.New(slog.NewTextHandler(log, nil)), around)
	if err != nil {
		t.Fatal(err)
	}
	s.ReloadFrom(func() (config.Config, error) { return file.Clone(), nil }, nil)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s, file
}

// Settings that can change do so in one step, others are reported, changes by operators stay, and
// an invalid file changes nothing.
func TestReload(t *testing.T) {
	log := new(logged)
	s, file := loaded(t, log, nil)
	o := operator{t, s}
	if _, err := s.store.State().Update(t.Context(), "settings/mine", "", func([]byte) ([]byte, error) {
		return []byte(`{"objective":"70ms"}`), nil
	}); err != nil {
		t.Fatal(err)
	}
	s.settings.Read()

	file.Defaults.Objective = 50 * time.Millisecond
	file.Models = map[string]config.Model{"m": {Policy: file.Defaults, DefaultVersion: "3"},
		"mine": {Policy: file.Defaults}}
	file.Server.RequiredModels, file.Server.ReadyWhen = []string{"m"}, config.ReadyRequired
	file.Admin.Profiling = true
	file.TCP.Loops = 9
	answer := o.expect("POST", "/v1/config/reload", "", 200, `{"key":"admin.profiling","before":false,"after":true}`,
		`{"key":"model.m.default_version","before":"","after":"3"}`, `"waiting":[{"key":"tcp.loops","before":0,"after":9}]`)
	if strings.Contains(answer, "rest.") {
		t.Errorf("what is as it was is listed: %s", answer)
	}
	for model, want := range map[string]time.Duration{"m": 50 * time.Millisecond, "any": 50 * time.Millisecond,
		"mine": 70 * time.Millisecond} {
		if got := s.sched.ModelConfig(model).Objective; got != want {
			t.Errorf("objective of %s is %v, expected %v", model, got, want)
		}
	}
	o.expect("GET", "/v1/config", "", 200, `"loops":0`, `"profiling":true`, `"default_version":"3"`)
	if status, _ := o.do("GET", "/readyz", ""); status != 503 {
		t.Errorf("ready without a model that is required now: %d", status)
	}
	if !strings.Contains(log.String(), "configuration reloaded") ||
		!strings.Contains(log.String(), "door=admin action=reload what=configuration") ||
		!strings.Contains(log.String(), `{\"key\":\"admin.profiling\",\"before\":false,\"after\":true}`) {
		t.Errorf("the log does not say what was changed:\n%s", log)
	}

	delete(file.Models, "m")
	file.Server.RequiredModels = nil
	o.expect("POST", "/v1/config/reload", "", 200)
	if got := s.sched.ModelConfig("m").Objective; got != 50*time.Millisecond {
		t.Errorf("a model that the file has no more has objective %v", got)
	}

	// Invalid by itself, and together with settings that wait for a restart.
	before := o.expect("GET", "/v1/config", "", 200)
	good := file.Clone()
	file.Defaults.Objective, file.Admin.Profiling = -time.Second, false
	o.expect("POST", "/v1/config/reload", "", 400, "nothing was changed", "defaults.objective")
	*file = good.Clone()
	file.Admin.Profiling = false
	file.Limits.PayloadBytes *= 4
	file.Models = map[string]config.Model{"m": {Policy: file.Defaults, Cache: 8 << 30}}
	o.expect("POST", "/v1/config/reload", "", 400, "limits.payload_bytes", "the configuration needs a restart")
	s.ReloadFrom(func() (config.Config, error) { return config.Config{}, errors.New("no such file") }, nil)
	o.expect("POST", "/v1/config/reload", "", 400, "no such file")
	s.ReloadFrom(nil, nil)
	o.expect("POST", "/v1/config/reload", "", 409, "without a configuration file")
	if after := o.expect("GET", "/v1/config", "", 200); after != before {
		t.Errorf("a wrong configuration has changed something:\n%s\n%s", before, after)
	}
}

// Processes follow the file: a changed one is restarted, a removed one ends, an unchanged one
// continues, and one that an operator has stopped stays stopped.
func TestReloadOfContainers(t *testing.T) {
	process := func(name, seconds string, replicas int) config.Container {
		return config.Container{Name: name, Command: []string{"sh", "-c", "exec sleep " + seconds},
			Process: config.Process{Replicas: config.Fixed(replicas), StopTimeout: 10 * time.Second}}
	}
	s, file := loaded(t, new(logged), func(c *config.Config) {
		c.Supervised = []config.Container{process("same", "600", 1), process("changes", "600", 1),
			process("goes", "600", 1), process("stopped", "600", 1)}
	})
	running := func(want int) map[string][]int { // waits until that many run
		t.Helper()
		var pids map[string][]int
		budgettest.Until(t, fmt.Sprint(want, " processes run"), func() bool {
			pids = map[string][]int{}
			n := 0
			for _, p := range s.processes.List() {
				if p.PID != 0 {
					pids[p.Name] = append(pids[p.Name], p.PID)
					n++
				}
			}
			return n == want
		})
		return pids
	}
	running(4)
	if err := s.processes.Stop("stopped"); err != nil {
		t.Fatal(err)
	}
	before := running(3)
	file.Supervised = []config.Container{process("same", "600", 1), process("changes", "601", 2),
		process("stopped", "601", 1), process("new", "600", 1)}
	if _, err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	after := running(4)
	if !slices.Equal(before["same"], after["same"]) || len(after["changes"]) != 2 ||
		slices.Contains(after["changes"], before["changes"][0]) ||
		len(after["goes"]) != 0 || len(after["stopped"]) != 0 || len(after["new"]) != 1 {
		t.Errorf("processes before %v, after %v", before, after)
	}
	var names []string
	for _, c := range s.sources().Containers.List().Containers {
		names = append(names, c.Name)
	}
	if want := []string{"same", "changes", "stopped", "new"}; !slices.Equal(names, want) {
		t.Errorf("containers %q, expected %q", names, want)
	}
	stop(t, s)
	if _, err := s.Reload(); err == nil {
		t.Error("a server that has stopped reloads")
	} else if e, ok := errors.AsType[*operate.Error](err); !ok || e.Status != 503 {
		t.Errorf("after the end: %v", err)
	}
	if err := s.processes.Start(t.Context(), "same"); !errors.Is(err, scheduler.ErrDraining) {
		t.Error("a process starts after the end")
	}
}

// TestReloadUnderLoad: a changed container serves all the time. What needs other processes gets
// them one by one, and what does not keeps them; new ones that do not start, or serve another
// model, leave the old ones, and the answer and the status say why.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel() // it waits
	s, file := loaded(t, new(logged), func(c *config.Config) { c.Supervised = []config.Container{sdk(t, "p", "rolled/1", 1)} })
	if code, text := operateContainer(t, s, "start", "p"); code != http.StatusOK {
		t.Fatalf("start: %d %s", code, text)
	}
	load := keepBusy(t, s, "rolled", 2)
	defer load.stop()
	pid := func() int { return s.processes.List()[0].PID }
	for _, c := range []struct {
		what   string
		change func(*config.Container)
		stays  bool
		fault  string // of the reload and of the status
	}{
		{"the environment", func(c *config.Container) { c.Env["EDITION"] = "2" }, false, ""},
		{"the time to stop", func(c *config.Container) { c.StopTimeout = 9 * time.Second }, true, ""},
		{"the model's name, as it is", func(c *config.Container) { c.Model = "rolled" }, true, ""},
		{"what it serves", func(c *config.Container) { c.Serve = append(c.Serve, "other") }, true, ""},
		{"processors", func(c *config.Container) { c.CPUs = 1 }, false, ""},
		{"the name", func(c *config.Container) { c.Name = "q" }, false, ""},
		{"the program", func(c *config.Container) { c.Command = []string{"/nonexistent/python"} }, true, "no such file"},
		{"the program again", func(*config.Container) {}, true, "no such file"},
		{"another model", func(c *config.Container) {
			c.Command, c.Env[asSDK] = sdk(t, "", "", 1).Command, "strange/1"
		}, true, "may not serve strange/1"},
		{"back", func(c *config.Container) { c.Env[asSDK] = "rolled/1" }, true, ""},
	} {
		before, had := pid(), load.answered.Load()
		one := file.Supervised[0]
		one.Env = maps.Clone(one.Env)
		c.change(&one)
		file.Supervised = []config.Container{one}
		_, err := s.Reload()
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v", c.what, err)
		}
		if after := pid(); (after == before) != c.stays || after == 0 {
			t.Errorf("%s: the process was %d and is %d", c.what, before, after)
		}
		shown := s.sources().Containers.List().Containers[0]
		if shown.Name != one.Name || shown.State != "READY" || !strings.Contains(shown.Reason, c.fault) ||
			(shown.Reason != "") != (c.fault != "") {
			t.Errorf("%s: %+v", c.what, shown)
		}
		budgettest.Until(t, "more answers after a change of "+c.what, func() bool {
			return load.answered.Load() > had+10
		})
	}
	load.stop()
}
