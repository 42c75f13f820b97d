package server

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// asContainer makes the test binary a container of the model that it names, at the address in
// the environment, until it is killed.
const asContainer = "SHIVAD_TEST_SERVES"

func TestMain(m *testing.M) {
	if id := os.Getenv(asSDK); id != "" {
		serveEcho(id)
		os.Exit(0)
	}
	if model := os.Getenv(asContainer); model != "" {
		x := []tensor.Spec{{Name: "x", DType: tensor.Int8, Shape: tensor.Shape{-1}}}
		address, _, _ := strings.Cut(os.Getenv("SHIVA_SERVERS"), ",")
		if _, err := containertest.Dial(context.Background(), address,
			containertest.Model{Name: model, Version: "1", Inputs: x, Outputs: x}); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		select {}
	}
	os.Exit(budgettest.RunWaiting(m))
}

// A server is ready if its models can be asked: those of its containers and the required ones.
// Unloaded models are not awaited.
func TestReadyWhenModelsAre(t *testing.T) {
	t.Parallel() // it waits
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(c *config.Config) {
		c.Server.RequiredModels = []string{"echo"}
		c.Supervised = []config.Container{
			// Its model is not configured, and differs from its name.
			{Name: "worker", Serve: []string{"learned"}, Command: []string{"sh", "-c", `"$0" & wait`, self},
				Process: config.Process{Env: map[string]string{asContainer: "learned"}, Replicas: config.Fixed(1),
					StopTimeout: time.Second}},
			{Name: "p", Model: "said", Command: []string{"sleep", "600"},
				Process: config.Process{Replicas: config.Fixed(1), StopTimeout: time.Second}},
		}
	})
	ready := func() (admin.Readiness, int) {
		var r admin.Readiness
		code := get(t, s, "/readyz", &r)
		return r, code
	}
	budgettest.Until(t, "the worker's model to be found out", func() bool {
		r, _ := ready()
		return strings.Join(r.Missing, " ") == "said"
	})
	r, code := ready()
	if code != http.StatusServiceUnavailable || !strings.Contains(r.Reason, "no live replica of said (said: its process has started and not registered yet)") {
		t.Errorf("%d %+v", code, r)
	}
	web := newHTTP(t, s.Addrs().REST[0])
	if err := web.call("GET", "/v2/health/ready", "", nil); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("over HTTP: %v", err)
	}
	// The process of "said" never registers; a container from elsewhere does, which suffices.
	x := []tensor.Spec{{Name: "x", DType: tensor.Int8, Shape: tensor.Shape{-1}}}
	c, err := containertest.Dial(t.Context(), s.containers.Listener().Dialable()[0],
		containertest.Model{Name: "said", Version: "1", Inputs: x, Outputs: x})
	if err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the server to be ready", func() bool { _, code := ready(); return code == http.StatusOK })
	c.Close()
	budgettest.Until(t, "the server not to be ready", func() bool {
		_, code := ready()
		return code == http.StatusServiceUnavailable
	})
	if err := s.predict.Unload(predict.Caller{}, "said"); err != nil {
		t.Fatal(err)
	}
	if r, code := ready(); code != http.StatusOK {
		t.Errorf("with what is missing unloaded: %d %+v", code, r)
	}
	begin(t, s, "p")
	if r, code := ready(); code != http.StatusServiceUnavailable {
		t.Errorf("with it loading again: %d %+v", code, r)
	}
}

// The setting for the old behaviour: only required models are awaited.
func TestReadyWhenRequired(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Server.ReadyWhen = config.ReadyRequired
		c.Supervised = []config.Container{{Name: "p", Command: []string{"sleep", "600"},
			Process: config.Process{Replicas: config.Fixed(1), StopTimeout: time.Second}}}
	})
	if code := get(t, s, "/readyz", nil); code != http.StatusOK {
		t.Errorf("%d", code)
	}
}

// The address for health has its two paths and nothing else, whoever asks, and is closed with the
// server. The admin door may be left out.
func TestHealthAddress(t *testing.T) {
	t.Parallel() // it waits
	for _, listen := range []string{"127.0.0.1:0", ""} {
		s := start(t, func(c *config.Config) {
			c.Admin.Listen, c.Admin.Health = listen, "127.0.0.1:0"
			c.Server.RequiredModels = []string{"missing"}
		})
		at := "http://" + s.Addrs().Health.String()
		for path, want := range map[string]int{
			"/livez": http.StatusOK, "/readyz": http.StatusServiceUnavailable, "/": http.StatusNotFound,
			"/metrics":   http.StatusNotFound,
			"/v1/status": http.StatusNotFound, "/v1/config": http.StatusNotFound, "/page/": http.StatusNotFound,
			"/v1/openapi.json":    http.StatusNotFound,
			"/livez/../v1/status": http.StatusNotFound, "/debug/pprof/": http.StatusNotFound,
		} {
			resp, err := http.Get(at + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s is answered %d, want %d", path, resp.StatusCode, want)
			}
		}
		stop(t, s)
		if resp, err := http.Get(at + "/livez"); err == nil {
			resp.Body.Close()
			t.Error("the address is open after the end")
		}
	}
}
