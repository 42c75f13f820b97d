//go:build e2e

// Package e2e runs the built binaries as a user does: real processes, real sockets, clients and
// containers in Go and in Python. `make e2e` builds what it needs.
package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
)

// root returns the top of the source tree.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// binary returns a program of the tree: the one in SHIVA_E2E_BIN if it is set and has one, else the
// one of "make build".
func binary(t *testing.T, name string) string {
	t.Helper()
	if path := filepath.Join(os.Getenv("SHIVA_E2E_BIN"), name); filepath.IsAbs(path) {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path := filepath.Join(root(t), "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is not built: run the end-to-end tests with `make e2e`", name)
	}
	return path
}

// python returns the interpreter that has the SDK and the clients installed.
func python(t *testing.T) string {
	t.Helper()
	path := cmp.Or(os.Getenv("PYTHON"), filepath.Join(root(t), ".venv", "bin", "python"))
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run the end-to-end tests with `make e2e`", err)
	}
	return path
}

// shivad is a running server.
type shivad struct {
	t               *testing.T
	cmd             *exec.Cmd
	tcp, rest, grpc string
	// The doors' addresses on Unix sockets; empty: none.
	sockets           map[string]string
	containers, admin string
	old               [3]string // where containers of v1b, v2 and v2a connect
	exited            chan error

	mu  sync.Mutex
	log []string
}

// start runs bin/shivad with config (TOML, may be empty) on free ports and on Unix sockets. prefix,
// if any, is a command that runs it (a shell that sets limits, for example).
func start(t *testing.T, config string, prefix ...string) *shivad {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "shivad.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(prefix, binary(t, "shivad"), "--config", file, "--log-format", "json",
		"--containers", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	for _, door := range []string{"tcp", "rest", "grpc"} {
		args = append(args, "--"+door, "127.0.0.1:0,unix:"+filepath.Join(dir, door))
	}
	return startWith(t, args)
}

func startWith(t *testing.T, args []string) *shivad {
	t.Helper()
	s := &shivad{t: t, cmd: exec.Command(args[0], args[1:]...), exited: make(chan error, 1)}
	s.cmd.Dir = root(t)
	// The process ends with the test, even if the test is killed.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			s.line(lines.Text(), ready)
		}
		s.exited <- s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		select {
		case <-s.exited:
		case <-time.After(5 * time.Second):
		}
		if t.Failed() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Logf("log of shivad:\n%s", strings.Join(s.log, "\n"))
		}
	})
	select {
	case <-ready:
	case err := <-s.exited:
		s.exited <- err
		t.Fatalf("shivad ended before it served: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("shivad did not say where it listens within 10 s")
	}
	return s
}

// line stores a line of the log, and takes the addresses from the line that has them.
func (s *shivad) line(text string, ready chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, text)
	var entry struct {
		Msg        string
		TCP, REST  string
		GRPC       string
		Admin      string
		Containers any
		V1b        string `json:"containers_v1b"`
		V2         string `json:"containers_v2"`
		V2a        string `json:"containers_v2a"`
	}
	if s.tcp == "" && json.Unmarshal([]byte(text), &entry) == nil && entry.Msg == "serving" {
		s.admin, s.sockets = entry.Admin, make(map[string]string)
		s.tcp, s.sockets["tcp"], _ = strings.Cut(entry.TCP, ",")
		s.rest, s.sockets["rest"], _ = strings.Cut(entry.REST, ",")
		s.grpc, s.sockets["grpc"], _ = strings.Cut(entry.GRPC, ",")
		s.old = [3]string{entry.V1b, entry.V2, entry.V2a}
		s.containers = strings.Trim(fmt.Sprint(entry.Containers), "[]")
		close(ready)
	}
}

// logs reports whether a line of the log has all of words.
func (s *shivad) logs(words ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
next:
	for _, line := range s.log {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		return true
	}
	return false
}

// env returns the environment of a container or client process that uses the server.
func (s *shivad) env() []string {
	return append(os.Environ(), "SHIVA_TCP="+s.tcp, "SHIVA_UNIX="+s.sockets["tcp"], "SHIVA_REST="+s.rest,
		"SHIVA_GRPC="+s.grpc, "SHIVA_CONTAINERS="+s.containers, "SHIVA_SERVERS="+s.containers, "SHIVA_ADMIN="+s.admin,
		"SHIVA_CONTAINERS_V1B="+s.old[0], "SHIVA_CONTAINERS_V2="+s.old[1], "SHIVA_CONTAINERS_V2A="+s.old[2])
}

// run starts a process that ends with the test.
func (s *shivad) run(name string, args ...string) *exec.Cmd {
	s.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Dir = s.env(), root(s.t)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if s.t.Failed() {
			s.t.Logf("%s:\n%s", name, out)
		}
	})
	return cmd
}

// client connects to the TCP door.
func (s *shivad) client() *shiva.Client {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := shiva.Dial(ctx, s.tcp)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// get reads a path of the admin door into v.
func (s *shivad) get(path string, v any) int {
	s.t.Helper()
	resp, err := http.Get("http://" + s.admin + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if v != nil {
		if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
			s.t.Fatal(err)
		}
	}
	return resp.StatusCode
}

// waitReplicas waits until a model has n live replicas.
func (s *shivad) waitReplicas(model string, n int) {
	s.t.Helper()
	budgettest.Until(s.t, fmt.Sprintf("%d replicas of %s", n, model), func() bool {
		var m struct {
			Versions []struct{ Replicas int }
		}
		if s.get("/v1/models/"+model, &m) != http.StatusOK {
			return n == 0
		}
		live := 0
		for _, v := range m.Versions {
			live += v.Replicas
		}
		return live == n
	})
}
