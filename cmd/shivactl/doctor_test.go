package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
)

// doctor shows what the server's program finds, with what mends it, for people and for programs,
// and its exit status tells whether anything is wrong.
func TestDoctor(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	server := func(script string) {
		if err := os.WriteFile(filepath.Join(dir, "shivad"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(args ...string) (out, errs string, code int) {
		var stdout, stderr bytes.Buffer
		code = run(t.Context(), append([]string{"doctor"}, args...), strings.NewReader(""), &stdout, &stderr)
		return stdout.String(), stderr.String(), code
	}
	server(`echo '{"config":"'$3'","wrong":0,"findings":[{"check":"state","verdict":"ok","text":"in memory"}]}'`)
	if out, _, code := ask("--config", "good.toml"); code != exitOK || out != "ok     state          in memory\nnothing is wrong\n" {
		t.Errorf("%d %s", code, out)
	}
	server(`cat <<END
{"config":"$3","wrong":1,"findings":[{"check":"state","verdict":"wrong","text":"no \u001bfolder\nof it","remedy":"install -d it"}]}
END
exit 1`)
	const want = "WRONG  state          no \\u001bfolder\n                      of it\n" +
		"                      -> install -d it\n1 wrong\n"
	if out, errs, code := ask("--config", "bad.toml"); code != exitRefused || out != want || errs != "" {
		t.Errorf("%d %s%s", code, out, errs)
	}
	out, _, code := ask("--config", "bad.toml", "--json")
	var r admin.Diagnosis
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitRefused || r.Wrong != 1 || r.Config != "bad.toml" {
		t.Errorf("%d %v %s", code, err, out)
	}
	server("echo no such flag >&2; exit 2")
	if out, errs, code := ask(); code != exitUsage || out != "" || !strings.Contains(errs, "exit status 2: no such flag") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	t.Setenv("PATH", t.TempDir())
	if _, errs, code := ask(); code != exitUsage || !strings.Contains(errs, "there is no shivad beside shivactl or in $PATH") {
		t.Errorf("%d %s", code, errs)
	}
}
