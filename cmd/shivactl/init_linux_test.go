package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/token"
)

// initIn writes the files of a server into a new directory, and returns it.
func initIn(t *testing.T, args ...string) (dir, out string, code int) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "a cell")
	var text bytes.Buffer
	code = run(t.Context(), append([]string{"init", dir}, args...), nil, &text, &text)
	return dir, text.String(), code
}

// Whatever the answers, the file is valid and has a comment for each setting, the unit names it,
// and others can read no secret.
func TestInit(t *testing.T) {
	models := t.TempDir()
	t.Setenv("SHIVAD_PYTHON", "")
	t.Setenv("VIRTUAL_ENV", "/opt/venv")
	for _, listen := range []string{"local", "network"} {
		for _, secure := range []string{"none", "tokens", "tls"} {
			for _, folder := range []string{"none", models} {
				for _, state := range []string{"memory", "file", "redis://:se%20cret@10.0.0.9:6379/0"} {
					for _, memory := range []string{"all", "1GiB"} {
						args := []string{"--listen", listen, "--secure", secure, "--models", folder, "--state", state,
							"--memory", memory}
						dir, out, code := initIn(t, args...)
						if code != exitOK {
							t.Fatalf("%v: exit %d: %s", args, code, out)
						}
						checkCell(t, dir, args)
					}
				}
			}
		}
	}
}

// The Python of this shell is written as it is found from elsewhere.
func TestInitPython(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("VIRTUAL_ENV", "/opt/venv")
	for chosen, want := range map[string]string{"": "/opt/venv/bin/python", "python3.12": "python3.12",
		"venv/bin/python": here + "/venv/bin/python"} {
		t.Setenv("SHIVAD_PYTHON", chosen)
		dir, out, code := initIn(t, "--yes", "--models", here)
		c, err := config.Load(filepath.Join(dir, "shivad.toml"))
		if code != exitOK || err != nil || c.ModelFolders[0].Python != want {
			t.Errorf("%s: exit %d, %v: %s", chosen, code, err, out)
		}
	}
}

// checkCell checks what init wrote for answers: listen, secure, models, state and memory, each
// after its flag.
func checkCell(t *testing.T, dir string, args []string) {
	t.Helper()
	c, err := config.Load(filepath.Join(dir, "shivad.toml"))
	if err == nil {
		err = c.Validate() // which reads the certificate
	}
	if err == nil {
		_, _, err = c.Fit()
	}
	text, _ := os.ReadFile(filepath.Join(dir, "shivad.toml"))
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, text)
	}
	wants := map[string]bool{
		"the tokens":    (len(c.Identities) == 2) == (args[3] != "none"),
		"the admin API": c.Admin.Listen == "127.0.0.1:8002",
		"the folder":    (len(c.ModelFolders) == 1) == (args[5] != "none"),
		"the state":     (c.State.At == "") == (args[7] == "memory"),
		"the memory":    (c.Limits.PayloadBytes == 512<<20) == (args[9] == "1GiB"),
		"the comments":  strings.Count(string(text), "\n# ") > strings.Count(string(text), "listen = "),
	}
	for _, at := range []string{c.TCP.Listen[0], c.REST.Listen[0], c.GRPC.Listen[0]} {
		wants[at+" with TLS or not"] = strings.HasPrefix(at, "tls://") == (args[3] == "tls")
		wants[at+" for all or not"] = strings.Contains(at, "127.0.0.1") == (args[1] == "local")
	}
	for _, one := range c.Identities {
		text, _ := os.ReadFile(filepath.Join(dir, one.Name+".token"))
		secret := strings.TrimSpace(string(text))
		wants["the token of "+one.Name] = slices.Contains(one.TokenSHA256, token.Hash(secret))
		wants["the rights of "+one.Name] = strings.Contains(fmt.Sprint(one.May), "admin") == (one.Name == "operator")
	}
	for what, right := range wants {
		if !right {
			t.Errorf("%v: not %s:\n%s", args, what, text)
		}
	}
	if len(c.ModelFolders) > 0 && (c.ModelFolders[0].Path != args[5] || c.ModelFolders[0].Python != "/opt/venv/bin/python") {
		t.Errorf("%v: %+v", args, c.ModelFolders[0])
	}
	quoted, _ := os.ReadFile(filepath.Join(dir, unitFile))
	unit := strings.ReplaceAll(string(quoted), `"`, "")
	if !strings.Contains(unit, " --config "+dir+"/shivad.toml\n") || !strings.Contains(unit, "\nReadWritePaths="+dir+"\n") ||
		strings.Contains(unit, "\nMemoryMax=1G\n") != (args[9] == "1GiB") {
		t.Errorf("%v:\n%s", args, quoted)
	}
	for _, name := range []string{"shivad.toml", "client.token", "operator.token", "server.key"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
}

// What the unit hides from a server is not what its file names, links included, and names of
// directories keep their characters.
func TestInitUnit(t *testing.T) {
	home, models, python := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "python")
	t.Setenv("HOME", home)
	t.Setenv("VIRTUAL_ENV", "")
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Symlink(home, link), os.Symlink(filepath.Join(home, "python3"), python),
		os.WriteFile(filepath.Join(home, "python3"), nil, 0o700)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "/nowhere") // so that the program is that of the packages
	for _, c := range []struct {
		o          initOptions
		dir        string
		has, lacks string
	}{
		{initOptions{}, "/srv/a cell", "\nReadWritePaths=\"/srv/a cell\"\n", "\nProtectHome=read-only"},
		{initOptions{}, "/srv/100% $x", "\nReadWritePaths=\"/srv/100%% $x\"\n", "\nPrivateTmp=no"},
		{initOptions{}, "/srv/100% $x", " --config \"/srv/100%% $$x/shivad.toml\"\n", "/srv/100% "},
		{initOptions{}, `/srv/"\`, `ReadWritePaths="/srv/\"\\"` + "\n", "\nMemoryMax="},
		{initOptions{memory: "3GiB"}, "/srv/c", "\nMemoryMax=3G\n", "\nPrivateTmp=no"},
		{initOptions{}, "/home/me", "\nProtectHome=read-only\n", "ProtectHome=yes\n"},
		{initOptions{}, "/homes", "\nProtectHome=yes\n", "\nProtectHome=read-only"},
		{initOptions{}, link, "\nProtectHome=read-only\n", "ProtectHome=yes\n"},
		{initOptions{models: link}, "/srv/c", "\nProtectHome=read-only\n", "ProtectHome=yes\n"},
		{initOptions{python: python}, "/srv/c", "\nProtectHome=read-only\n", "ProtectHome=yes\n"},
		{initOptions{}, "/tmp/c", "\nPrivateTmp=no\n", "PrivateTmp=yes\n"},
		{initOptions{models: models}, "/var/tmp/c", "\nPrivateTmp=no\n", "PrivateTmp=yes\n"},
	} {
		c.o.memory = cmp.Or(c.o.memory, "all")
		text, err := c.o.unit(c.dir)
		if err != nil || !strings.Contains(text, c.has) || strings.Contains(text, c.lacks) {
			t.Errorf("%+v in %s: expected %q, and no %q:\n%s", c.o, c.dir, c.has, c.lacks, text)
		}
	}
}

// Without a terminal init asks nothing: it names the flags that are missing. Answers are checked
// as those to questions are, and nothing is overwritten without --force.
func TestInitRefusals(t *testing.T) {
	for want, args := range map[string][]string{
		"expected --secure, --models, --state, --memory, as there": {"--listen", "local"},
		"expected one of none, tokens, tls":                        {"--secure", "ssl", "--yes"},
		"there is no such folder":                                  {"--models", "/nowhere", "--yes"},
		"the URL of a Redis":                                       {"--state", "state.db", "--yes"},
		"at least 1GiB":                                            {"--memory", "1023MiB", "--yes"},
		"expected printable characters":                            {"--state", "redis://h\n[tls]", "--yes"},
	} {
		dir, out, code := initIn(t, args...)
		if _, err := os.Stat(dir); code != exitUsage || !strings.Contains(out, want) || err == nil {
			t.Errorf("%v: exit %d, made: %t, %s", args, code, err == nil, out)
		}
	}
	for name, value := range map[string]string{"SHIVAD_PYTHON": "python\x1b", "VIRTUAL_ENV": "/opt/\nvenv"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SHIVAD_PYTHON", "")
			t.Setenv(name, value)
			dir, out, code := initIn(t, "--yes")
			if entries, _ := os.ReadDir(dir); code != exitUsage || !strings.Contains(out, "$"+name+": expected printable") ||
				len(entries) > 0 {
				t.Errorf("exit %d, made: %v, %s", code, entries, out)
			}
		})
	}
	dir, out, code := initIn(t, "--yes", "--secure", "tls")
	if code != exitOK {
		t.Fatal(out)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	token, key := read("client.token"), read("server.key")
	if err := errors.Join(os.Remove(filepath.Join(dir, "operator.token")),
		os.Chmod(filepath.Join(dir, "client.token"), 0o644)); err != nil {
		t.Fatal(err)
	}
	again := []string{"init", dir, "--yes", "--secure", "tls"}
	var said bytes.Buffer
	if code := run(t.Context(), again, nil, &said, &said); code != exitUsage ||
		!strings.Contains(said.String(), "there is already: "+dir+"/client.token") {
		t.Errorf("exit %d: %s", code, &said)
	}
	if _, err := os.Stat(filepath.Join(dir, "operator.token")); err == nil || read("client.token") != token {
		t.Error("something was written")
	}
	said.Reset()
	if code := run(t.Context(), append(again, "--force", "--json"), nil, &said, &said); code != exitOK {
		t.Errorf("exit %d: %s", code, &said)
	}
	var done struct{ Files, Next []string }
	if err := json.Unmarshal(said.Bytes(), &done); err != nil || len(done.Next) != 2 || len(done.Files) != 4 ||
		read("client.token") == token || read("server.key") != key {
		t.Errorf("%v: %s", err, &said)
	}
	checkCell(t, dir, []string{"", "local", "", "tls", "", "none", "", "file", "", "all"})
}

// At a terminal, a question is asked until its answer fits; Enter takes the default, and Ctrl-D
// ends it before anything is written.
func TestInitAsks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cell")
	start := func(ctx context.Context) (*terminal, chan int) {
		w, done := openTerminal(t, 100, 24), make(chan int)
		go func() { done <- run(ctx, []string{"init", dir, "--memory", "all"}, w.device, w.device, w.device) }()
		w.waitFor("? [local] ")
		return w, done
	}
	w, done := start(t.Context())
	w.press("everywhere\n")
	w.waitFor("expected one of local, network")
	w.press("\x04")
	if code := <-done; code != exitRefused {
		t.Errorf("exit %d", code)
	}
	w.waitFor("nothing was written")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Error("the folder is there")
	}

	w, done = start(t.Context())
	for _, step := range []string{"network", "[tls] ", "", "[none] ", "", "[file] ", "memory"} {
		if strings.HasPrefix(step, "[") {
			w.waitFor(step)
		} else {
			w.press(step + "\n")
		}
	}
	if code := <-done; code != exitOK {
		t.Errorf("exit %d", code)
	}
	checkCell(t, dir, []string{"", "network", "", "tls", "", "none", "", "memory", "", "all"})
	if entries, err := fs.Glob(os.DirFS(dir), "*"); err != nil || len(entries) != 6 {
		t.Errorf("%v %v", entries, err)
	}
}
