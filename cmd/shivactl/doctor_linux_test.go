package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/doctor"
)

// doctor shows what is wrong with what mends it, for people and for programs, and its exit status
// tells whether anything is.
func TestDoctor(t *testing.T) {
	t.Chdir(t.TempDir())
	const closed = "tcp.listen = []\nrest.listen = []\ngrpc.listen = []\nadmin.listen = \"\"\ncontainers.listen = \"127.0.0.1:0\"\n"
	write(t, "good.toml", closed)
	write(t, "bad.toml", closed+"state.at = \"no/state.db\"\n")
	ask := func(args ...string) (out string, code int) {
		var stdout, stderr bytes.Buffer
		code = run(t.Context(), append([]string{"doctor"}, args...), strings.NewReader(""), &stdout, &stderr)
		if stderr.Len() > 0 {
			t.Errorf("%v: %s", args, stderr.String())
		}
		return stdout.String(), code
	}
	if out, code := ask("--config", "good.toml"); code != exitOK || !strings.HasSuffix(out, "nothing is wrong\n") {
		t.Errorf("%d %s", code, out)
	}
	out, code := ask("--config", "bad.toml")
	const want = "WRONG  state          state.at: no cannot be written to: no such file or directory\n" +
		"                      -> install -d -o shivad -g shivad no\n"
	if code != exitRefused || !strings.Contains(out, want) || !strings.HasSuffix(out, "1 wrong\n") {
		t.Errorf("%d %s", code, out)
	}
	out, code = ask("--config", "bad.toml", "--json")
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitRefused || r.Wrong != 1 || r.Config != "bad.toml" {
		t.Errorf("%d %v %s", code, err, out)
	}
}
