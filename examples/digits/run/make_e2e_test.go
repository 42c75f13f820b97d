//go:build e2e

package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/hosttest"
)

// A SIGTERM to make ends everything that `make run` has started: the server, and the container that
// the server has started. A `go run` between them would die of the signal and leave them behind.
func TestE2EMakeRunIsStopped(t *testing.T) {
	t.Chdir("../../..")
	addrs := map[string]string{"tcp": hosttest.Addr(t), "rest": hosttest.Addr(t), "grpc": hosttest.Addr(t),
		"containers": hosttest.Addr(t), "admin": hosttest.Addr(t)}
	var flags []string
	for door, addr := range addrs {
		flags = append(flags, "-"+door+"="+addr)
	}
	serving := make(chan struct{})
	out := &watched{stop: sync.OnceFunc(func() { close(serving) }), at: "Serving until"}
	cmd := exec.Command("make", "--no-print-directory", "run", "RUNFLAGS="+strings.Join(flags, " "))
	cmd.Stdout = struct{ io.Writer }{out} // otherwise os/exec would call the buffer's ReadFrom
	var errors bytes.Buffer
	cmd.Stderr = &errors
	// As from a shell: a make around the tests may hold back the output of programs below it.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKEFLAGS=") || strings.HasPrefix(v, "MFLAGS=")
	})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	select {
	case <-serving:
	case <-time.After(3 * time.Minute):
		t.Fatalf("it does not serve: %s", &errors)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("make does not say that it was stopped")
	}
	for door, addr := range addrs {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			t.Errorf("something still listens for %s", door)
		}
	}
}

// A server that already has the addresses is not mistaken for the new one: that takes other
// addresses, or fails with an error if the user has named them.
func TestE2EAnotherServer(t *testing.T) {
	t.Chdir("../../..")
	o := options{tcp: hosttest.Addr(t), rest: hosttest.Addr(t), grpc: hosttest.Addr(t), containers: hosttest.Addr(t),
		admin: hosttest.Addr(t)}
	other, err := serve(t.Context(), &o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := other.Stop(); err != nil {
			t.Error(err)
		}
	}()
	second := o
	second.fixed, second.tcp, second.rest, second.grpc, second.containers = true, hosttest.Addr(t), hosttest.Addr(t),
		hosttest.Addr(t), hosttest.Addr(t)
	if err := run(t.Context(), second, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("the second server: %v, want that it has ended by itself", err)
	}
	second.fixed, second.once = false, true
	var out bytes.Buffer
	if err := run(t.Context(), second, &out); err != nil ||
		!strings.Contains(out.String(), "another program listens on "+o.admin) || !strings.Contains(out.String(), "19 of 20 right") {
		t.Errorf("the second server on other ports: %v\n%s", err, &out)
	}
}
