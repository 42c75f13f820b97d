//go:build e2e

package e2e

import (
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// ctl runs shivactl and returns what it printed.
func (s *shivad) ctl(args ...string) string {
	s.t.Helper()
	out, err := exec.Command(binary(s.t, "shivactl"), append(args, "--addr", s.tcp, "--admin", s.admin)...).
		CombinedOutput()
	if err != nil {
		s.t.Fatalf("shivactl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// Version 2 takes over under load when it is ready, and shivactl switches back to version 1. No
// request fails.
func TestE2ERollingUnderLoad(t *testing.T) {
	s := start(t, faultConfig)
	s.replica(s.containers)
	s.waitReplicas("affine", 1)
	l := s.begin()
	serving := func(version string) {
		t.Helper()
		budgettest.Until(t, "version "+version+" to serve", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.version == strconv.Quote(version)
		})
	}
	serving("1")
	t.Setenv(asVersion, "2")
	s.replica(s.containers)
	serving("2")
	s.ctl("models", "set-version", "affine", "1")
	serving("1")
	s.ctl("models", "set-version", "affine")
	serving("2")
	l.end(t, 100)
}

// The server is not ready without a required model, and reports that within a second of the last
// replica's end; the same when there is one again.
func TestE2EReadiness(t *testing.T) {
	s := start(t, "[server]\nrequired_models = [\"affine\"]\n")
	watch := newStopwatch(t)
	becomes := func(status int, since time.Duration) {
		t.Helper()
		budgettest.Until(t, "readiness "+strconv.Itoa(status), func() bool { return s.get("/readyz", nil) == status })
		if d := watch.read() - since; d > time.Second {
			t.Errorf("readiness was wrong for %v", d)
		}
	}
	becomes(http.StatusServiceUnavailable, watch.read())
	for range 3 {
		replica := s.replica(s.containers)
		s.waitReplicas("affine", 1)
		becomes(http.StatusOK, watch.read())
		_ = replica.Process.Kill()
		becomes(http.StatusServiceUnavailable, watch.read())
	}
	if out := s.ctl("status"); !strings.Contains(out, "NOT READY") || !strings.Contains(out, "affine") {
		t.Errorf("shivactl status:\n%s", out)
	}
}

// shivactl status shows a supervised container that does not stay up, with its last output.
func TestE2ECrashLoop(t *testing.T) {
	s := start(t, `
[[container]]
name = "broken"
command = ["sh", "-c", "echo loading; echo cannot find the weights >&2; exit 3"]
`)
	var out string
	budgettest.Until(t, "the crash loop to be shown", func() bool {
		out = s.ctl("status")
		return strings.Contains(out, "crash loop")
	})
	for _, want := range []string{"broken[0]", "exit status 3", "last lines of broken[0]:", "  cannot find the weights"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}
