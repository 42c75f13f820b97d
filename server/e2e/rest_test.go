//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A session is commands with what they print.
type session []struct{ command, output string }

// readSession gives the session of a document's first console block after a heading.
func readSession(t *testing.T, document, heading string) (s session) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), document))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	_, block, fenced := strings.Cut(section, "\n```console\n")
	block, _, closed := strings.Cut(block, "```\n")
	if !found || !fenced || !closed {
		t.Fatalf("%s has no console block under %q", document, heading)
	}
	command := false // the next line goes on with it
	for line := range strings.Lines(block) {
		if first, ok := strings.CutPrefix(line, "$ "); ok {
			s = append(s, struct{ command, output string }{command: first})
			command = open(first)
			continue
		}
		last := &s[len(s)-1]
		if command {
			last.command += line
			command = open(last.command)
		} else {
			last.output += line
		}
	}
	return s
}

// open tells whether a command goes on in the next line.
func open(command string) bool {
	return strings.HasSuffix(command, "\\\n") || strings.Count(command, "'")%2 == 1
}

// The session with curl that the README shows prints what it says there.
func TestE2ECurl(t *testing.T) {
	s := start(t, config(t, digits))
	s.waitReplicas("digits", 1)
	steps := readSession(t, "README.md", "### Over HTTP")
	if len(steps) < 5 {
		t.Fatalf("%d commands in the README", len(steps))
	}
	for _, step := range steps {
		if !strings.Contains(step.command, "curl ") || !strings.Contains(step.command, "localhost:8000") {
			t.Errorf("not a question to the server: %s", step.command)
		}
		cmd := exec.Command("bash", "-c", strings.ReplaceAll(step.command, "localhost:8000", s.rest))
		cmd.Dir = root(t)
		out, err := cmd.Output()
		if err != nil || string(out) != step.output {
			t.Errorf("$ %s%s(%v), the README says\n%s", step.command, out, err, step.output)
		}
	}
}
