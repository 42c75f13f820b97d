package main

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// told returns the next state with a name that the manager is told.
func told(t *testing.T, c *net.UnixConn, name string) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 4096); ; {
		n, err := c.Read(buf)
		if err != nil {
			t.Fatalf("never told %s: %v", name, err)
		}
		if state := string(buf[:n]); strings.HasPrefix(state, name+"=1\n") {
			return state
		}
	}
}

// A service manager hears when the server serves, lives, reloads and stops, and its variables are
// not for containers.
func TestServiceManager(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shivad.toml")
	if err := os.WriteFile(file, []byte("[server]\ndrain = \"70s\"\nrequired_models = [\"digits\"]\n[[container]]\nname = \"none\"\ncommand = [\"false\"]\nstop_timeout = \"15s\"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "2000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	j, signals, ended := start(t, "--config", file)
	if got := told(t, c, "READY"); got != "READY=1\nSTATUS=serving" {
		t.Errorf("told %q", got)
	}
	j.wait(t, "serving")
	if got := told(t, c, "WATCHDOG"); !strings.Contains(got, `STATUS=not ready: `) || !strings.Contains(got, "digits") {
		t.Errorf("told %q", got)
	}
	if got := os.Getenv("NOTIFY_SOCKET") + os.Getenv("WATCHDOG_USEC") + os.Getenv("WATCHDOG_PID"); got != "" {
		t.Errorf("containers would inherit %q", got)
	}
	signals <- syscall.SIGHUP
	told(t, c, "RELOADING")
	told(t, c, "READY")
	signals <- syscall.SIGTERM
	if got, want := told(t, c, "STOPPING"), "STOPPING=1\nEXTEND_TIMEOUT_USEC=100000000\nSTATUS=draining"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	if code := end(t, ended); code != exitOK {
		t.Errorf("exit %d", code)
	}
}

// A manager that has ended changes nothing for clients.
func TestServiceManagerGone(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	j, signals, ended := start(t)
	j.wait(t, "the service manager was not told")
	j.wait(t, "serving")
	signals <- syscall.SIGTERM
	if code := end(t, ended); code != exitOK {
		t.Errorf("exit %d", code)
	}
}

// The watchdog hears nothing of a server that is stuck, and nothing is sent for another process.
func TestWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := make(chan string, 10)
		stuck, stop, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		asked := 0
		ready := func() (bool, string) {
			if asked++; asked == 3 {
				<-stuck
			}
			return true, ""
		}
		go func() {
			defer close(done)
			manager{func(state string) { heard <- state }, time.Minute}.watch(ready, stop)
		}()
		time.Sleep(10 * time.Minute)
		if len(heard) != 2 || <-heard != "WATCHDOG=1\nSTATUS=serving" {
			t.Errorf("heard of a stuck server %d times", len(heard))
		}
		close(stuck)
		close(stop)
		<-done
	})
	t.Setenv("NOTIFY_SOCKET", "@abstract")
	t.Setenv("WATCHDOG_USEC", "1000000")
	t.Setenv("WATCHDOG_PID", "1")
	if m := fromEnvironment(slog.New(slog.DiscardHandler)); m.tell == nil || m.watchdog != 0 {
		t.Errorf("the watchdog of process 1 is %v", m.watchdog)
	}
}
