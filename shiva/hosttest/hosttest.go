// Package hosttest provides what tests need of the machine where the obvious way is a race: a
// process that has stopped, a port for a server that cannot use port 0, an address that refuses
// connections, a script that can be executed at once; and programs and rights that not every
// machine has.
package hosttest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Need skips a test for which this machine lacks a program, as [Lacks] does.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			Lacks(t, err.Error())
		}
	}
}

// Lacks skips a test for which this machine lacks something. With SHIVA_REQUIRE=all in the
// environment, as in "make test", the test fails instead: a test that is always skipped is none.
func Lacks(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("SHIVA_REQUIRE") == "all" {
		t.Fatal(what + `: "make programs" installs what tests start, and root has the rights that they need`)
	}
	t.Skip(what)
}

// Stop sends SIGSTOP to a child of this process and waits until the child has stopped: right after
// the signal its threads on other cores may still run. SIGCONT resumes it, and SIGKILL ends it.
func Stop(t testing.TB, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.Pid, &status, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || !status.Stopped() {
			t.Fatalf("got status %#x and error %v, expected a process that has stopped", status, err)
		}
		return
	}
}

// Addr returns an address on which nothing listens, for a server that has to know its port before
// it runs, or to keep it after. The kernel assigns the port neither to an outgoing connection nor
// for port 0.
func Addr(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprint("127.0.0.1:", 10000+rand.N(20000)) // Linux assigns ports from 32768
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("no port is free")
	return ""
}

// Refusing returns an address that refuses connections until the end of the test. It is the
// client's end of a connection: nothing listens there, and no other process can.
func Refusing(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.LocalAddr().String()
}

// Script writes a program for sh, with the directories above it, and returns path. No process that
// is started meanwhile inherits the open file: the kernel would refuse to execute it.
func Script(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}
