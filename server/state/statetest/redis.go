package statetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
)

// A Redis is a redis-server for one test, on a Unix socket. It ends with the test, and saves
// nothing unless told to.
type Redis struct {
	dir     string
	args    []string
	process *exec.Cmd
	ended   chan struct{} // with the process
	output  *bytes.Buffer
}

// NewRedis starts a Redis, with additional arguments. A test is skipped where there is no
// redis-server (see [hosttest.Need]).
func NewRedis(t *testing.T, args ...string) *Redis {
	t.Helper()
	r := StoppedRedis(t, args...)
	r.Start(t)
	return r
}

// StoppedRedis prepares a Redis that is not running yet.
func StoppedRedis(t *testing.T, args ...string) *Redis {
	t.Helper()
	hosttest.Need(t, "redis-server")
	dir, err := os.MkdirTemp("", "redis") // a socket's path must be short, and t.TempDir's is long
	if err != nil {
		t.Fatal(err)
	}
	r := &Redis{dir: dir, args: args}
	t.Cleanup(func() {
		r.Kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *Redis) socket() string { return filepath.Join(r.dir, "socket") }

// Target returns the target for state.Open.
func (r *Redis) Target() string { return "unix://" + r.socket() }

// Start starts the server, with its saved data, and waits until it listens.
func (r *Redis) Start(t *testing.T) {
	t.Helper()
	if err := os.Remove(r.socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	r.output = &bytes.Buffer{}
	r.process = exec.Command("redis-server",
		append([]string{"--port", "0", "--unixsocket", r.socket(), "--dir", r.dir, "--save", ""}, r.args...)...)
	r.process.Stdout, r.process.Stderr = r.output, r.output
	// It is killed when the thread that forks it ends, so that it dies with this process. That
	// thread must not end before, as a supervisor's threads do.
	r.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	process, started, ended := r.process, make(chan error), make(chan struct{})
	go func() { // ends with the process; Kill waits for it
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := process.Start()
		started <- err
		if err == nil {
			_ = process.Wait()
		}
	}()
	if err := <-started; err != nil {
		r.process = nil
		t.Fatal(err)
	}
	r.ended = ended
	listens := false
	defer func() {
		if !listens {
			r.Kill()
			t.Logf("redis-server says:\n%s", r.output)
		}
	}()
	budgettest.Until(t, "redis-server listens", func() bool {
		c, err := net.Dial("unix", r.socket())
		if err == nil {
			listens = true
			_ = c.Close()
		}
		return listens
	})
}

// Kill ends the server as a crash would, and waits until it has ended.
func (r *Redis) Kill() {
	if r.process != nil {
		_ = r.process.Process.Kill()
		<-r.ended
		r.process = nil
	}
}

// Stop freezes the server, with its connections open, until Continue.
func (r *Redis) Stop(t *testing.T) {
	t.Helper()
	hosttest.Stop(t, r.process.Process)
}

// Continue undoes Stop.
func (r *Redis) Continue() { _ = r.process.Process.Signal(syscall.SIGCONT) }

// Do sends a command and returns its reply, the elements of a list in lines.
func (r *Redis) Do(t *testing.T, command ...any) string {
	t.Helper()
	return r.Session(t, command)
}

// Session sends commands on a connection of their own and returns the reply to the last one, as Do
// does. For tests that poll, running redis-cli each time took most of their processor time.
func (r *Redis) Session(t *testing.T, commands ...[]any) string {
	t.Helper()
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: r.socket(), Protocol: 2, MaxRetries: -1})
	defer client.Close()
	conn := client.Conn()
	defer conn.Close()
	var reply any
	for _, command := range commands {
		var err error
		if reply, err = conn.Do(context.Background(), command...).Result(); err != nil && err != redis.Nil {
			t.Fatalf("redis %q: %v", command, err)
		}
	}
	return inLines(reply)
}

func inLines(reply any) string {
	switch reply := reply.(type) {
	case nil:
		return ""
	case []any:
		lines := make([]string, len(reply))
		for i := range reply {
			lines[i] = inLines(reply[i])
		}
		return strings.Join(lines, "\n")
	}
	return fmt.Sprint(reply)
}
