package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/config"
)

// program writes an executable script.
func program(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// loaded returns the configuration for a command line.
func loaded(t *testing.T, args ...string) (config.Config, error) {
	t.Helper()
	o, err := parseFlags(args, io.Discard)
	if err != nil {
		return config.Config{}, err
	}
	c, _, err := o.load()
	return c, err
}

func TestServeFiles(t *testing.T) {
	dir := t.TempDir()
	python := program(t, filepath.Join(dir, "with"), "exit 0")
	net, code := filepath.Join(dir, "net.onnx"), filepath.Join(dir, "code.py")
	for _, path := range []string{net, code} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	c, err := loaded(t, "serve", "--device", "cpu", "net.onnx", "--tcp", "127.0.0.1:5", "--trust", code, "--python", python, "--replicas", "2")
	if err != nil {
		t.Fatal(err)
	}
	if c.TCP.Listen[0] != "127.0.0.1:5" || len(c.Supervised) != 2 {
		t.Fatalf("got %+v", c)
	}
	first, second := c.Supervised[0], c.Supervised[1]
	if want := []string{python, "-m", "shiva_container", "serve", net, "--name", "net", "--device", "cpu", "--trust"}; !slices.Equal(first.Command, want) {
		t.Errorf("the command is %q, want %q", first.Command, want)
	}
	if first.Name != "net" || !slices.Equal(first.Serve, []string{"net-raw"}) || first.Replicas != config.Fixed(2) || first.StopTimeout == 0 {
		t.Errorf("the container is %+v", first)
	}
	if second.Command[4] != code || !slices.Equal(second.Serve, []string{"*"}) {
		t.Errorf("that of a program is %+v", second)
	}
}

// A folder has a name however it is written, and is a program if it has a model.py.
func TestServeFolders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	python := program(t, filepath.Join(dir, "python"), "exit 0")
	for _, serves := range []string{"folder-raw", "*"} {
		for at, path := range map[string]string{dir: ".", filepath.Dir(dir): "folder/", filepath.Join(dir, "below"): ".."} {
			if err := os.MkdirAll(at, 0o700); err != nil {
				t.Fatal(err)
			}
			t.Chdir(at)
			c, err := loaded(t, "serve", path, "--python", python)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if got := c.Supervised[0]; got.Name != "folder" || got.Command[4] != dir || !slices.Equal(got.Serve, []string{serves}) {
				t.Errorf("%s: the container is %+v, expected that it serves %s", path, got, serves)
			}
		}
		program(t, filepath.Join(dir, "model.py"), "")
	}
}

// The first Python that has the package is taken.
func TestPythonForFiles(t *testing.T) {
	dir := t.TempDir()
	net := filepath.Join(dir, "net.onnx")
	if err := os.WriteFile(net, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	with := program(t, filepath.Join(dir, "venv", "bin", "python"), "exit 0")
	without := program(t, filepath.Join(dir, "bin", "python3"), "echo Traceback >&2; echo ModuleNotFoundError: no shiva >&2; exit 1")
	t.Setenv("PATH", filepath.Dir(without)+":/bin:/usr/bin")
	t.Setenv("VIRTUAL_ENV", "")
	t.Setenv("SHIVAD_PYTHON", "")
	chosen := func() (string, error) {
		c, err := loaded(t, "serve", net)
		if err != nil {
			return "", err
		}
		return c.Supervised[0].Command[0], nil
	}
	if _, err := chosen(); err == nil || !strings.Contains(err.Error(), without+": ModuleNotFoundError: no shiva): "+without+" -m pip install 'shiva-container[onnx]'") {
		t.Errorf("without the package: %v", err)
	}
	t.Setenv("VIRTUAL_ENV", filepath.Join(dir, "venv"))
	if got, err := chosen(); got != with {
		t.Errorf("in a virtual environment: %s, %v", got, err)
	}
	beside := program(t, filepath.Join(dir, ".venv", "bin", "python"), "exit 0")
	if got, err := chosen(); got != beside {
		t.Errorf("with one beside the file: %s, %v", got, err)
	}
	t.Setenv("SHIVAD_PYTHON", with)
	if got, err := chosen(); got != with {
		t.Errorf("with $SHIVAD_PYTHON: %s, %v", got, err)
	}
	t.Setenv("SHIVAD_PYTHON", without) // what somebody names is what is meant
	if got, err := chosen(); err == nil {
		t.Errorf("with a $SHIVAD_PYTHON that lacks the package: %s", got)
	}
}

func TestServeRefusals(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"serve"}, "serve: expected files with models"},
		{[]string{"serve", filepath.Join(dir, "none.onnx")}, "no such file or directory"},
		{[]string{"serve", dir, "--python", filepath.Join(dir, "python")}, "--python (or SHIVAD_PYTHON): "},
		{[]string{"serve", dir, "--nope"}, "flag provided but not defined: -nope"},
		{[]string{"--device", "cpu"}, "flag provided but not defined: -device"},
	} {
		var stderr bytes.Buffer
		if code := run(c.args, io.Discard, &stderr, nil); code != exitBadUsage || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%q: exit %d: %s", c.args, code, stderr.String())
		}
	}
}
