//go:build e2e

package e2e

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// An operator's changes and a policy's learned state survive kill -9, and a file brings them to
// another server.
func TestE2EManagedStateSurvives(t *testing.T) {
	dir := t.TempDir()
	settings := config(t, digits) + "\n[state]\nat = \"" + filepath.Join(dir, "state.db") + "\"\n"
	s := start(t, settings)
	s.waitReplicas("digits", 1)
	s.ctl("apps", "create", "digits-app", "--model", "digits", "--slo", "5s", "--default",
		`{"label": -1, "scores": [0,0,0,0,0,0,0,0,0,0]}`, "--policy", "exp4", "--param", "eta=0.3", "--param", "output=label")
	image := filepath.Join(root(t), "examples", "digits", "images", "01.png")
	s.ctl("infer", "digits-app", image, "--id", "frame-1", "--user", "anna", "--timeout", "20s")
	for range 2 { // the second is the same feedback again
		s.ctl("feedback", "digits-app", "--id", "frame-1", "--user", "anna", "--label", "7")
	}
	s.ctl("feedback", "digits-app", image, "--user", "anna", "--loss", "0.5")
	s.ctl("models", "set", "digits", "objective=20ms")
	s.ctl("versions", "set", "digits", "1")
	s.ctl("export", filepath.Join(dir, "exported.json"))

	state := func(s *shivad) string {
		return s.ctl("apps", "--json") + s.ctl("policies", "learned", "digits-app", "--json") + s.ctl("export", "-")
	}
	before := state(s)
	if !strings.Contains(before, `"rounds":2`) || !strings.Contains(before, `"objective": "20ms"`) {
		t.Errorf("before the kill:\n%s", before)
	}
	budgettest.Until(t, "the log to say what was changed", func() bool {
		return s.logs("audit: done", `\"slo\":\"5s\"`) && s.logs("audit: done", `{\"objective\":\"100ms\"}`, `{\"objective\":\"20ms\"}`)
	})
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.exited <- <-s.exited

	again := start(t, settings)
	again.waitReplicas("digits", 1)
	if after := state(again); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	if shown := again.ctl("models", "digits"); !regexp.MustCompile(`(?m)^objective +20ms$`).MatchString(shown) {
		t.Errorf("the objective was lost:\n%s", shown)
	}
	again.ctl("containers", "stop", "digits")
	again.ctl("containers", "start", "digits")
	again.waitReplicas("digits", 1)

	other := start(t, config(t, digits))
	other.waitReplicas("digits", 1)
	if dry := other.ctl("import", filepath.Join(dir, "exported.json"), "--dry-run"); strings.Count(dry, "would be made") != 3 {
		t.Errorf("a dry run:\n%s", dry)
	}
	other.ctl("import", filepath.Join(dir, "exported.json"))
	if imported := state(other); imported != before {
		t.Errorf("before\n%s\nimported\n%s", before, imported)
	}
}
