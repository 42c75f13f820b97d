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
						checkSecrets(t, dir, out)
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
	host := map[string]string{"local": "127.0.0.1", "network": ""}[args[1]]
	if args[3] == "tls" {
		host = "tls://" + host
	}
	for at, port := range map[string]string{c.TCP.Listen[0]: "6174", c.REST.Listen[0]: "8000", c.GRPC.Listen[0]: "8001"} {
		wants[at] = at == host+":"+port
	}
	switch args[7] {
	case "file":
		wants["the file of the state"] = c.State.At == filepath.Join(dir, "state.db")
	case "memory":
	default:
		wants["the Redis"] = c.State.At == args[7]
	}
	for _, one := range c.Identities {
		text, _ := os.ReadFile(filepath.Join(dir, one.Name+".token"))
		secret := strings.TrimSpace(string(text))
		wants["the token of "+one.Name] = slices.Contains(one.TokenSHA256, token.Hash(secret))
		may := map[string]string{"client": "[infer feedback]", "operator": "[infer feedback load admin:write]"}
		wants["the rights of "+one.Name] = fmt.Sprint(one.May) == may[one.Name]
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
	me, group := names()
	if !strings.Contains(unit, "\nUser="+me+"\n") || !strings.Contains(unit, "\nGroup="+group+"\n") {
		t.Errorf("%v: the unit is not of %s:\n%s", args, me, quoted)
	}
	for name, mode := range map[string]fs.FileMode{"shivad.toml": 0o600, "client.token": 0o600, "operator.token": 0o600,
		"server.key": 0o600, "server.pem": 0o644, unitFile: 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
}

// checkSecrets checks that tokens cannot be guessed, and that none is printed; and that root is
// told what it is about to run.
func checkSecrets(t *testing.T, dir, out string) {
	t.Helper()
	seen := map[string]bool{}
	paths, _ := filepath.Glob(filepath.Join(dir, "*.token"))
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		secret := strings.TrimSpace(string(text))
		if len(secret) < 32 || seen[secret] || strings.Contains(out, secret) {
			t.Errorf("%s has %q, printed:\n%s", path, secret, out)
		}
		seen[secret] = true
	}
	if strings.Contains(out, "will run as root") != (os.Geteuid() == 0) {
		t.Errorf("root is told or not:\n%s", out)
	}
}

// What no flag answers has its default: nothing that others can reach, and no file of theirs.
func TestInitDefaults(t *testing.T) {
	dir, out, code := initIn(t, "--yes")
	if code != exitOK {
		t.Fatal(out)
	}
	checkCell(t, dir, []string{"", "local", "", "none", "", "none", "", "file", "", "all"})
	if !strings.HasSuffix(out, "\n  shivactl infer MODEL -\n") {
		t.Errorf("it ends with\n%s", out)
	}
}

// Models in the folder of the server move with it, and the command to ask them names the first.
func TestInitModels(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a cell")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "models"), 0o755),
		os.WriteFile(filepath.Join(dir, "models/digits.onnx"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	args := []string{"init", dir, "--yes", "--models", filepath.Join(dir, "models"), "--secure"}
	if code := run(t.Context(), append(args, "tls"), nil, &out, &out); code != exitOK {
		t.Fatal(out.String())
	}
	want := "\n  SHIVA_TOKEN_FILE='" + dir + "/client.token' shivactl infer digits - --tls-ca '" + dir + "/server.pem'\n"
	text, err := os.ReadFile(filepath.Join(dir, "shivad.toml"))
	if err != nil || !strings.Contains(string(text), `path = "models"`) || !strings.HasSuffix(out.String(), want) {
		t.Errorf("%v: %s\n%s", err, text, &out)
	}
}

// One file that is there, were it only a link to nowhere or a key without its certificate, is
// enough to write nothing; and what cannot be written whole is taken back.
func TestInitWritesAllOrNothing(t *testing.T) {
	for name, there := range map[string]func(path string) error{
		"shivad.toml":  func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"client.token": func(path string) error { return os.Symlink("/nowhere", path) },
		"server.key":   func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"server.pem":   func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
	} {
		dir := t.TempDir()
		if err := there(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		code := run(t.Context(), []string{"init", dir, "--yes", "--secure", "tls"}, nil, &out, &out)
		entries, _ := os.ReadDir(dir)
		if code != exitUsage || !strings.Contains(out.String(), "there is already: "+dir+"/"+name) ||
			len(entries) != 1 {
			t.Errorf("%s: exit %d, %v: %s", name, code, entries, &out)
		}
	}
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "no folder", "second")
	err := writeAll([]newFile{{path: first, mode: 0o600}, {path: second, mode: 0o600}}, false)
	if _, there := os.Stat(first); err == nil || there == nil {
		t.Errorf("%v, and the first file is there: %t", err, there == nil)
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
		"there is no such folder: make it first":                   {"--models", "/proc/version", "--yes"},
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
	if err := json.Unmarshal(said.Bytes(), &done); err != nil || len(done.Next) != 3 || len(done.Files) != 4 ||
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
