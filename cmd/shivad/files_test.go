package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/shivad/shivad/server"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/hosttest"
)

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
	python := hosttest.Script(t, filepath.Join(dir, "with"), "exit 0")
	net, code := filepath.Join(dir, "net.onnx"), filepath.Join(dir, "code.py")
	for _, path := range []string{net, code} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	c, err := loaded(t, "serve", "--device", "cpu,cuda:0", "net.onnx", "--tcp", "127.0.0.1:5", "--trust", code,
		"--python", python, "--replicas", "2",
		"--batch", "8", "--as", "raw", "--models", ".")
	if err != nil {
		t.Fatal(err)
	}
	if c.TCP.Listen[0] != "127.0.0.1:5" || len(c.ModelFiles) != 2 || len(c.ModelFolders) != 1 {
		t.Fatalf("got %+v", c)
	}
	reading := config.Reading{Python: python, As: "raw", Batch: "8", Device: config.Devices{"cpu", "cuda:0"},
		Trust: true}
	process := config.NewModelFile("").Process
	process.Replicas = config.Fixed(2)
	for i, want := range []config.ModelFile{{Path: net, Reading: reading, Process: process},
		{Path: code, Reading: reading, Process: process}} {
		if got := c.ModelFiles[i]; !reflect.DeepEqual(got, want) {
			t.Errorf("file %d is %+v, want %+v", i, got, want)
		}
	}
	if want := (config.ModelFolder{Path: dir, Reading: reading, Process: process}); !reflect.DeepEqual(
		c.ModelFolders[0], want) {
		t.Errorf("the folder is %+v, want %+v", c.ModelFolders[0], want)
	}
}

// A folder has a name however it is written.
func TestServeFolders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	python := hosttest.Script(t, filepath.Join(dir, "python"), "exit 0")
	for at, path := range map[string]string{dir: ".", filepath.Dir(dir): "folder/", filepath.Join(dir, "below"): ".."} {
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "model.py"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Chdir(at)
		c, err := loaded(t, "serve", path, "--python", python)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if got := c.ModelFiles[0]; got.ModelName() != "folder" || got.Path != dir {
			t.Errorf("%s: the file is %+v", path, got)
		}
	}
}

func TestServeRefusals(t *testing.T) {
	dir := t.TempDir()
	without := hosttest.Script(t, filepath.Join(dir, "without"), "echo Traceback >&2; echo ModuleNotFoundError: no shiva >&2; exit 1")
	net := filepath.Join(dir, "net.onnx")
	if err := os.WriteFile(net, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	other, pickle := filepath.Join(dir, "x.log"), filepath.Join(dir, "several", "x.pkl")
	for _, path := range []string{other, filepath.Join(dir, "empty", "labels.txt"), pickle,
		filepath.Join(dir, "several", "y.onnx")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"serve", other}, other + ": expected a Python program (*.py) or a model file (*.joblib, *.json, *.onnx, "},
		{[]string{"serve", filepath.Dir(pickle)}, "expected one model in this folder, and there are x.pkl, y.onnx; --models "},
		{[]string{"serve", filepath.Join(dir, "empty")}, "empty: expected model.py or a model file (*.joblib, "},
		{[]string{"serve", pickle}, "x.pkl: reading it executes code: "},
		{[]string{"serve", pickle, "--trust", "--python", without}, "ModuleNotFoundError"},
		{[]string{"serve"}, "serve: expected files with models, or a folder of them by --models"},
		{[]string{"serve", filepath.Join(dir, "none.onnx")}, "no such file or directory"},
		{[]string{"serve", "--models", ""}, "-models: expected a directory"},
		{[]string{"serve", "--models", net, "--python", without}, "net.onnx is not a directory"},
		{[]string{"serve", dir, "--python", filepath.Join(dir, "python")}, "python, --python or $SHIVAD_PYTHON: "},
		{[]string{"serve", net, "--python", without}, "ModuleNotFoundError: no shiva): " + without + " -m pip install 'shiva-container[onnx]'"},
		{[]string{"serve", net, "--as", "sort"}, `as: expected one of auto, raw, detect, segment, pose, obb, classify, got "sort"`},
		{[]string{"serve", dir, "--nope"}, "there is no flag --nope"},
		{[]string{"--device", "cpu"}, "there is no flag --device"},
	} {
		for _, args := range [][]string{c.args, append([]string{c.args[0], "--check"}, c.args[1:]...)} {
			var stderr bytes.Buffer
			if code := run(args, io.Discard, &stderr, nil); code != exitBadUsage ||
				!strings.Contains(stderr.String(), c.want) {
				t.Errorf("%q: exit %d: %s", args, code, stderr.String())
			}
		}
	}
}

// What is written can be pasted into a shell.
func TestServeTellsHowToAsk(t *testing.T) {
	at := server.Addrs{TCP: []net.Addr{&net.TCPAddr{Port: 1}}, REST: []net.Addr{&net.TCPAddr{Port: 2}}}
	for _, c := range []struct {
		model server.ModelFile
		want  string
	}{
		{server.ModelFile{Name: "net", Proof: "rows: all"}, `net is served; rows: all.
  shivactl --addr 127.0.0.1:1 infer net FILE
  curl http://127.0.0.1:2/v2/models/net
  python3 -c 'import shiva_client; print(shiva_client.Client("127.0.0.1:1").infer("net", ...))'
`},
		{server.ModelFile{Name: "-it's näıve", Pictures: true}, `-it's näıve is served.
  shivactl --addr 127.0.0.1:1 infer -- '-it'\''s näıve' FILE
  curl http://127.0.0.1:2/v2/models/-it%27s%20n%C3%A4%C4%B1ve
  python3 -c 'import shiva_client; print(shiva_client.Client("127.0.0.1:1").infer("-it'\''s näıve", open("FILE", "rb").read()))'
`},
	} {
		var out strings.Builder
		if tellServed(c.model, at, &out); out.String() != c.want {
			t.Errorf("written:\n%swant:\n%s", out.String(), c.want)
		}
	}
}

// What is not served is written with the reason, once, and where to see more.
func TestServeTellsFaults(t *testing.T) {
	dir := t.TempDir()
	python := hosttest.Script(t, filepath.Join(dir, "python"), `[ "$1" = -c ] || { echo no weights; exit 3; }`)
	net := filepath.Join(dir, "net.onnx")
	if err := os.WriteFile(net, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	read, write := io.Pipe()
	signals, ended := make(chan os.Signal, 1), make(chan int, 1)
	go func() {
		ended <- run([]string{"serve", net, "--python", python, "--tcp", "127.0.0.1:0", "--rest", "", "--grpc", "",
			"--containers", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, write, io.Discard, signals)
		write.Close()
	}()
	var lines []string
	for text := bufio.NewScanner(read); text.Scan(); {
		if lines = append(lines, text.Text()); len(lines) == 2 {
			signals <- syscall.SIGTERM
		}
	}
	if code := end(t, ended); code != exitOK {
		t.Errorf("exit %d", code)
	}
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "net is not served: ") || !strings.HasSuffix(lines[0], ": no weights") ||
		!strings.HasPrefix(lines[1], "How it is doing: http://127.0.0.1:") {
		t.Errorf("written: %q", lines)
	}
}
