package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/shivad/shivad/server"
	"github.com/shivad/shivad/server/config"
)

// modelFiles are the files of "shivad serve FILE...". Each is a container that the server
// supervises, as a [[container]] in a file is: the Python package shiva-container reads and
// executes it.
type modelFiles struct {
	paths    []string // absolute
	python   string   // the program; "" = see interpreters
	replicas int      // of each file
	reading  []string // flags for the package
}

// readingFlags are the flags of "shivad serve" that the package gets. One without a value is a
// switch.
var readingFlags = []struct{ flag, value, help string }{
	{"device", "NAME", "cpu, cuda:0, openvino:GPU; several take turns (default auto: the best)"},
	{"batch", "auto|off|force|N", "whether rows share batches (default auto: what a proof shows)"},
	{"as", "raw|TASK", "raw, detect, segment, pose, obb, classify (default: what the file says)"},
	{"trust", "", "read files that execute code while they are read, as pickles do"},
}

// serveHelp is the part of the help for "shivad serve".
func serveHelp() string {
	text := ""
	line := func(flag, value, help string) {
		text += fmt.Sprintf("  %-28s %s\n", strings.TrimSuffix("--"+flag+" "+value, " "), help)
	}
	line("python", "PROGRAM", "the Python that has the package shiva-container (default: see below)")
	line("replicas", "N", "processes for each file (default 1)")
	for _, r := range readingFlags {
		line(r.flag, r.value, r.help)
	}
	return text
}

// define adds the flags of "shivad serve".
func (m *modelFiles) define(f *flag.FlagSet) {
	f.StringVar(&m.python, "python", os.Getenv("SHIVAD_PYTHON"), "")
	f.IntVar(&m.replicas, "replicas", 1, "")
	for _, r := range readingFlags {
		if r.value == "" {
			f.BoolFunc(r.flag, "", func(string) error {
				m.reading = append(m.reading, "--"+r.flag)
				return nil
			})
			continue
		}
		f.Func(r.flag, "", func(value string) error {
			m.reading = append(m.reading, "--"+r.flag, value)
			return nil
		})
	}
}

// name is the model's name: that of the file.
func name(path string) string {
	return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
}

// isProgram reports whether a file, or a folder by its model.py, is a Python program with models.
func isProgram(path string) bool {
	_, err := os.Stat(filepath.Join(path, "model.py"))
	return err == nil || filepath.Ext(path) == ".py"
}

// addTo adds a container for each file.
func (m *modelFiles) addTo(cfg *config.Config) error {
	for _, path := range m.paths {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("serve: %w", err)
		}
		python, err := m.interpreter(path)
		if err != nil {
			return err
		}
		c := config.NewContainer(name(path), append([]string{python, "-m", "shiva_container", "serve", path, "--name", name(path)}, m.reading...)...)
		c.Replicas = config.Fixed(m.replicas)
		c.Serve = []string{name(path) + "-raw"} // the network below one that takes pictures
		if isProgram(path) {
			c.Serve = []string{"*"} // it may declare several models
		}
		cfg.Supervised = append(cfg.Supervised, c)
	}
	return nil
}

// interpreters are the Pythons that may have the package, in the order in which they are tried.
func (m *modelFiles) interpreters(path string) []string {
	if m.python != "" {
		return []string{m.python}
	}
	found := []string{filepath.Join(filepath.Dir(path), ".venv", "bin", "python")}
	if own := os.Getenv("VIRTUAL_ENV"); own != "" {
		found = append(found, filepath.Join(own, "bin", "python"))
	}
	if own, err := os.Executable(); err == nil { // pip puts the program beside its interpreter
		found = append(found, filepath.Join(filepath.Dir(own), "python3"))
	}
	return append(found, "python3")
}

// pythonPatience bounds how long a Python may take to import the package.
const pythonPatience = time.Minute

// interpreter returns a Python that has the package, as an absolute path.
func (m *modelFiles) interpreter(path string) (string, error) {
	var tried []string
	pip := "python3 -m pip"
	for _, python := range m.interpreters(path) {
		found, err := exec.LookPath(python)
		if err == nil {
			found, err = filepath.Abs(found)
		}
		if err != nil {
			if m.python != "" {
				return "", fmt.Errorf("--python (or SHIVAD_PYTHON): %w", err)
			}
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), pythonPatience)
		said, err := exec.CommandContext(ctx, found, "-c", "import shiva_container.files").CombinedOutput()
		cancel()
		if err == nil {
			return found, nil
		}
		last := bytes.TrimSpace(said)
		last = last[bytes.LastIndexByte(last, '\n')+1:]
		tried = append(tried, fmt.Sprintf("%s: %s", found, last))
		pip = found + " -m pip"
	}
	why := errors.New("there is no Python")
	if tried != nil {
		why = errors.New(strings.Join(tried, "; "))
	}
	return "", fmt.Errorf("serve: no Python has the package that reads model files (%w): %s install 'shiva-container%s', or name another one by --python", why, pip, extra(path))
}

// extra names the extra of the package for a file, where its kind has one of its own.
func extra(path string) string {
	switch kind := strings.TrimPrefix(filepath.Ext(path), "."); kind {
	case "onnx", "tflite":
		return "[" + kind + "]"
	case "xml":
		return "[openvino]"
	case "skops", "joblib", "pkl", "pickle":
		return "[sklearn]"
	case "ubj", "json":
		return "[xgboost]"
	case "txt":
		return "[lightgbm]"
	}
	return ""
}

// tell writes how to ask, once the models are ready.
func (m *modelFiles) tell(s *server.Server, out io.Writer, over <-chan struct{}) {
	for ready, _ := s.Ready(); !ready; ready, _ = s.Ready() {
		select {
		case <-over:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	a := s.Addrs()
	for _, path := range m.paths {
		fmt.Fprintf(out, "%s is served.\n", name(path))
		if a.TCP != nil {
			fmt.Fprintf(out, "  shivactl --addr %s infer %s FILE\n", dialable(a.TCP[0]), name(path))
		}
		if a.REST != nil {
			fmt.Fprintf(out, "  curl http://%s/v2/models/%s\n", dialable(a.REST[0]), name(path))
		}
		if a.TCP != nil {
			fmt.Fprintf(out, "  python3 -c 'import shiva_client; print(shiva_client.Client(%q).infer(%q, ...))'\n", dialable(a.TCP[0]), name(path))
		}
	}
	if a.Admin != nil {
		fmt.Fprintf(out, "How it is doing: http://%s/\n", dialable(a.Admin))
	}
}

// dialable is an address that a client on this machine can use.
func dialable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
