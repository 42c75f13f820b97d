//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What an operator makes and a policy learns is there after kill -9, and a file brings it to another server.
func TestE2EManagedStateSurvives(t *testing.T) {
	dir := t.TempDir()
	settings := config(t, digits) + "\n[state]\nat = \"" + filepath.Join(dir, "state.db") + "\"\n"
	s := start(t, settings)
	s.waitReplicas("digits", 1)
	s.ctl("apps", "create", "digits-app", "--model", "digits", "--slo", "5s", "--default", `{"label": -1}`, "--policy", "exp4", "--param", "eta=0.3", "--param", "output=label")
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
	if !s.said("changed by an operator", `\"slo\":\"5s\"`) || !s.said("changed by an operator", `{\"objective\":\"100ms\"}`, `{\"objective\":\"20ms\"}`) {
		t.Error("the log does not say what was changed")
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.exited <- <-s.exited

	again := start(t, settings)
	again.waitReplicas("digits", 1)
	if after := state(again); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	if shown := again.ctl("models", "digits"); !strings.Contains(shown, "objective          20ms") {
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

// The program that the README shows is the one in the tree, and it works as it stands there.
func TestE2EReadmeManagement(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("python/manage.py")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(readme, append([]byte("```python\n"), source...)) {
		t.Error("the README does not show server/e2e/python/manage.py as it is")
	}
	s := start(t, config(t, digits))
	s.waitReplicas("digits", 1)
	cmd := exec.CommandContext(t.Context(), python(t), "-c", strings.Replace(string(source), "127.0.0.1:8002", s.admin, 1))
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "anna digits/1 share 1 mean loss 1\n" {
		t.Errorf("%v\n%s", err, out)
	}
	var apps struct{ Apps []struct{ Name string } }
	if err := json.Unmarshal([]byte(s.ctl("apps", "--json")), &apps); err != nil || len(apps.Apps) != 1 || apps.Apps[0].Name != "digits-blank" {
		t.Errorf("%v %+v", err, apps)
	}
}
