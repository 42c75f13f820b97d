package containers_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/shiva/budgettest"
)

const childEnv = "SHIVA_TEST_CHILD"

// TestMain makes this binary the supervised process of its tests.
func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "":
		os.Exit(budgettest.RunClean(m))
	case "obedient":
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		fmt.Println("serving", os.Getenv("SHIVA_SERVERS"), os.Getenv("EXTRA"))
		fmt.Fprintln(os.Stderr, strings.Repeat("x", 10_000))
		<-term
		fmt.Println("stopping")
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("serving")
		time.Sleep(time.Hour)
	case "crashing":
		fmt.Println("cannot find the weights")
		os.Exit(3)
	case "echo":
		serveEcho(false)
	case "echo first":
		serveEcho(true)
	case "noop":
		serveNoop()
	case "sharing":
		serveSharing()
	case "sharing server":
		serveShared()
	case "leaving": // when its connection is closed
		network, addr, _ := strings.Cut(os.Getenv("ADDR"), " ")
		if c, err := net.Dial(network, addr); err == nil {
			c.Read(make([]byte, 1))
		}
	case "connecting":
		network, addr, _ := strings.Cut(os.Getenv("ADDR"), " ")
		if _, err := net.Dial(network, addr); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		time.Sleep(time.Hour)
	case "confined":
		tryPrivileges()
	case "finishing":
		fmt.Print("done")
	case "parent":
		s, err := containers.Supervise(child("stubborn"))
		if err != nil {
			os.Exit(1)
		}
		for s.Status()[0].PID == 0 || len(s.Status()[0].LastLines) == 0 {
			time.Sleep(time.Millisecond)
		}
		fmt.Println(s.Status()[0].PID)
		time.Sleep(time.Hour)
	}
}

func child(mode string) containers.Command {
	return containers.Command{
		Name: "m", Args: []string{os.Args[0]}, Env: map[string]string{childEnv: mode, "EXTRA": "a=b"},
		Servers: []string{"tcp://127.0.0.1:1", "ipc:///x"}, StopTimeout: 200 * time.Millisecond,
	}
}

func supervise(t *testing.T, cmd containers.Command) (*containers.Supervisor, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	cmd.Log = slog.New(slog.NewTextHandler(log, nil))
	s, err := containers.Supervise(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, log
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// TestSupervise: replicas run, their output is logged, a killed one is restarted, and all are
// stopped by Close.
func TestSupervise(t *testing.T) {
	t.Parallel() // it mostly waits
	cmd := child("obedient")
	cmd.Replicas, cmd.StopTimeout = 2, time.Minute // on a busy machine they end slowly
	s, log := supervise(t, cmd)
	running := func() bool {
		for _, p := range s.Status() {
			if p.State != "running" || len(p.LastLines) < 2 {
				return false
			}
		}
		return true
	}
	budgettest.Until(t, "both to run", running)
	st := s.Status()
	if len(st) != 2 || st[1].Replica != 1 || st[0].PID == st[1].PID || st[0].Name != "m" {
		t.Errorf("status %+v", st)
	}
	lines := strings.Join(st[0].LastLines, "\n")
	if !strings.Contains(lines, "serving tcp://127.0.0.1:1,ipc:///x a=b") ||
		!strings.Contains(lines, strings.Repeat("x", 4096)+"...") || len(lines) > 4300 {
		t.Errorf("lines of %d bytes: %.300s", len(lines), lines)
	}
	syscall.Kill(st[0].PID, syscall.SIGKILL)
	budgettest.Until(t, "the killed one to come back", func() bool {
		p := s.Status()[0]
		return p.Restarts == 1 && len(p.LastLines) == 4 && p.PID != st[0].PID
	})
	if p := s.Status()[0]; p.LastExit != "signal: killed" {
		t.Errorf("last exit %q", p.LastExit)
	}
	if s.Status()[1].PID != st[1].PID {
		t.Error("the other replica was restarted too")
	}
	s.Close()
	for _, p := range s.Status() {
		if p.State != "stopped" || !slices.Contains(p.LastLines, "stopping") {
			t.Errorf("after Close: replica %d is %s, %d lines", p.Replica, p.State, len(p.LastLines))
		}
	}
	for _, want := range []string{"container=m", "replica=1", "stream=stdout", "container process ended", "signal: killed"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in the log", want)
		}
	}
}

// TestStubborn: a process that ignores SIGTERM is killed.
func TestStubborn(t *testing.T) {
	s, _ := supervise(t, child("stubborn"))
	budgettest.Until(t, "it to run", func() bool { return len(s.Status()[0].LastLines) == 1 })
	pid := s.Status()[0].PID
	s.Close()
	if alive(pid) {
		t.Error("still alive after Close")
	}
}

// TestCrashLoop: early ends in a row are a crash loop, with pauses between them, and with the last
// lines of output.
func TestCrashLoop(t *testing.T) {
	t.Parallel() // it mostly waits
	s, _ := supervise(t, child("crashing"))
	budgettest.Until(t, "a crash loop", func() bool { return s.Status()[0].State == "crash loop" })
	p := s.Status()[0]
	if p.LastExit != "exit status 3" || len(p.LastLines) == 0 || p.LastLines[0] != "cannot find the weights" {
		t.Errorf("status %+v", p)
	}
	err := s.Roll(t.Context(), func(time.Time) bool { return false })
	if err == nil || !strings.HasSuffix(err.Error(), "cannot find the weights; the old one has ended, too, with exit status 3") {
		t.Errorf("a roll: %v", err)
	}
}

// TestNoProgram: a missing program shows in the status.
func TestNoProgram(t *testing.T) {
	cmd := child("")
	cmd.Args = []string{"/no/such/program"}
	s, _ := supervise(t, cmd)
	budgettest.Until(t, "the reason", func() bool { return strings.Contains(s.Status()[0].LastExit, "no such file") })
}

// TestEndsByItself: a process that ends by itself is restarted, although its exit status is 0.
func TestEndsByItself(t *testing.T) {
	s, _ := supervise(t, child("finishing"))
	budgettest.Until(t, "it to run again", func() bool {
		p := s.Status()[0]
		return p.Restarts > 0 && len(p.LastLines) > 1
	})
	if p := s.Status()[0]; p.LastLines[0] != "done" || p.LastExit != "status 0" {
		t.Errorf("status %+v", p)
	}
}

// connecting supervises processes that connect to a socket, and returns a channel of their
// connections.
func connecting(t *testing.T, replicas int, mode string) (*containers.Supervisor, chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan net.Conn)
	t.Cleanup(func() {
		l.Close()
		for range conns {
		}
	})
	go func() {
		defer close(conns)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			conns <- c
		}
	}()
	cmd := child(mode)
	cmd.Replicas = replicas
	cmd.Env["ADDR"] = "tcp " + l.Addr().String()
	s, _ := supervise(t, cmd)
	return s, conns
}

// TestDismiss: a process that ends after its dismissal is not restarted, whatever its exit
// status, until it is resumed; then it is like any other.
func TestDismiss(t *testing.T) {
	t.Parallel() // it mostly waits
	s, conns := connecting(t, 1, "leaving")
	c := <-conns
	s.Dismiss(c)
	c.Close()
	budgettest.Until(t, "it to be retired", func() bool { return s.Status()[0].State == "retired" })
	if !s.Resume() {
		t.Error("there was nothing to resume")
	}
	c = <-conns
	if p := s.Status()[0]; p.State != "running" || s.Resume() {
		t.Errorf("resumed: %+v", p)
	}
	c.Close()
	(<-conns).Close() // it was restarted
}

// TestEndsAfterAnswers: the pauses before restarts do not grow while a process answers before it
// ends, since a request may be what ends it. One that keeps ending before is not expected back.
func TestEndsAfterAnswers(t *testing.T) {
	t.Parallel() // it mostly waits
	s, conns := connecting(t, 1, "leaving")
	for range 4 {
		c := <-conns
		if s.Returns(c) <= 0 {
			t.Error("a process that answers before it ends is not expected back")
		}
		s.Served(c)
		c.Close()
	}
	for range 3 {
		(<-conns).Close()
	}
	c := <-conns
	if d := s.Returns(c); d != 0 {
		t.Errorf("in a crash loop, and expected back in %v", d)
	}
	c.Close()
}

// TestRoll: each process is replaced by a new one when that has registered, and not before.
func TestRoll(t *testing.T) {
	s, conns := connecting(t, 2, "connecting")
	never := func(time.Time) bool { return false }
	for range 2 {
		if c := <-conns; !s.Registered(c) {
			t.Error("a connection of a process is not known as one")
		}
	}
	before := s.Status()
	done := make(chan error, 1)
	go func() { done <- s.Roll(t.Context(), never) }()
	for i := range 2 {
		c := <-conns
		if !alive(before[i].PID) || i == 0 && !alive(before[1].PID) {
			t.Errorf("process %d ended before its successor had registered", i)
		}
		s.Registered(c)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i, p := range s.Status() {
		if p.State != "running" || p.PID == before[i].PID || !p.Registers || alive(before[i].PID) {
			t.Errorf("replica %d: %+v, was %+v", i, p, before[i])
		}
	}
	before = s.Status()

	// A new process that does not register changes nothing.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	go func() { <-conns }()
	if err := s.Roll(ctx, never); err == nil || !strings.HasPrefix(err.Error(), "replica 0 of 2: the new process has not registered") ||
		!strings.HasSuffix(err.Error(), "; the old one continues") {
		t.Errorf("got %v", err)
	}
	for i, p := range s.Status() {
		if p.PID != before[i].PID || p.State != "running" {
			t.Errorf("replica %d: %+v, was %+v", i, p, before[i])
		}
	}
	go s.Close()
	go func() {
		for range conns {
		}
	}()
	if err := s.Roll(t.Context(), never); err == nil || !strings.Contains(err.Error(), "stopped during the roll") {
		t.Errorf("while it is closed: %v", err)
	}
}

// TestSupersede: all successors are started at once, and the old processes end only after all of
// them have registered and leave has returned.
func TestSupersede(t *testing.T) {
	s, conns := connecting(t, 2, "connecting")
	never := func(time.Time) bool { return false }
	for range 2 {
		s.Registered(<-conns)
	}
	before := s.Status()
	both := func(when string) {
		t.Helper()
		if !alive(before[0].PID) || !alive(before[1].PID) {
			t.Errorf("an old process ended %s", when)
		}
	}
	next, _ := s.Next()
	next.StopTimeout = 5 * time.Second
	left := false
	done := make(chan error, 1)
	go func() {
		done <- s.Supersede(t.Context(), next, never, func() { both("before leave returned"); left = true })
	}()
	first, second := <-conns, <-conns
	s.Registered(first)
	both("before all successors had registered")
	s.Registered(second)
	if err := <-done; err != nil || !left {
		t.Fatalf("left: %v, %v", left, err)
	}
	for i, p := range s.Status() {
		if p.State != "running" || !p.Registers || p.PID == before[i].PID || alive(before[i].PID) {
			t.Errorf("replica %d: %+v, was %+v", i, p, before[i])
		}
	}

	// Successors of which one does not register change nothing, and all of them end.
	before = s.Status()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	go func() { s.Registered(<-conns); <-conns }()
	other := next
	other.StopTimeout = 6 * time.Second
	err := s.Supersede(ctx, other, never, func() { t.Error("the old ones were to leave") })
	if err == nil || !strings.Contains(err.Error(), "the new process has not registered") {
		t.Errorf("got %v", err)
	}
	both("although a successor failed")
	if cmd, n := s.Next(); n != 2 || cmd.StopTimeout != next.StopTimeout {
		t.Errorf("%d processes are left, and the next ones have %v to stop", n, cmd.StopTimeout)
	}
}

// TestNoOrphans: kill -9 of the server ends its containers, too, even those that ignore SIGTERM.
func TestNoOrphans(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), childEnv+"=parent")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !alive(pid) {
		t.Fatalf("child %q, %v", line, err)
	}
	parent.Process.Kill()
	parent.Wait()
	budgettest.Until(t, "the child to die", func() bool { return !alive(pid) || zombie(pid) })
}

// zombie reports whether a process has ended and has not been waited for.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(b), ") Z ")
}

// TestCommand: all faults are reported at once.
func TestCommand(t *testing.T) {
	_, err := containers.Supervise(containers.Command{Replicas: -1, Env: map[string]string{"A=B": ""}})
	for _, want := range []string{"no name", "no command", "-1 replicas", `"A=B"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

// TestLeftBehind: the children of a process are killed when it ends, and do not delay the
// detection of its end, although they hold the pipes of its output.
func TestLeftBehind(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, c := range []struct{ exit, state string }{{"0", "crash loop"}, {"3", "crash loop"}} {
		t.Run("status "+c.exit, func(t *testing.T) {
			cmd := child("")
			cmd.Args = []string{"/bin/sh", "-c", "sleep 1000 & echo $!; exit " + c.exit}
			cmd.StopTimeout = time.Hour
			s, _ := supervise(t, cmd)
			budgettest.Until(t, "it to end", func() bool { return s.Status()[0].State == c.state })
			for _, line := range s.Status()[0].LastLines {
				pid, err := strconv.Atoi(line)
				if err != nil {
					t.Fatalf("line %q", line)
				}
				budgettest.Until(t, "what it started to die", func() bool { return !alive(pid) || zombie(pid) })
			}
		})
	}
}

// TestStopsWhatItStarted: SIGTERM ends a shell at once; its command has the same time to stop as
// without a shell.
func TestStopsWhatItStarted(t *testing.T) {
	cmd := child("")
	cmd.Args = []string{"/bin/sh", "-c", `(trap "sleep 0.3; echo drained; exit" TERM; echo ready; while :; do sleep 0.01; done) & wait`}
	cmd.StopTimeout = 10 * time.Second
	s, _ := supervise(t, cmd)
	budgettest.Until(t, "it to run", func() bool { return len(s.Status()[0].LastLines) == 1 })
	s.Close()
	if lines := s.Status()[0].LastLines; !slices.Contains(lines, "drained") {
		t.Errorf("lines %q", lines)
	}
}

// TestOutputFlood: a process that writes without end has a bounded number of lines in the log, the
// others are counted, and the status has exactly the latest ones.
func TestOutputFlood(t *testing.T) {
	t.Parallel() // it mostly waits
	const written = 20_000
	cmd := child("")
	cmd.Args = []string{"/bin/sh", "-c", fmt.Sprintf("seq %d; sleep 1000", written)}
	began := time.Now()
	s, log := supervise(t, cmd)
	budgettest.Until(t, "all of it to be read", func() bool {
		lines := s.Status()[0].LastLines
		return len(lines) > 0 && lines[len(lines)-1] == strconv.Itoa(written)
	})
	s.Close()
	lines := s.Status()[0].LastLines
	for i, line := range lines {
		if len(lines) != 20 || line != strconv.Itoa(written-19+i) {
			t.Fatalf("the latest lines are %q", lines)
		}
	}
	logged, dropped := strings.Count(log.String(), `msg="container output"`), 0
	for line := range strings.Lines(log.String()) {
		if _, rest, ok := strings.Cut(line, "were dropped"); ok {
			n := 0
			fmt.Sscanf(rest, "\" container=m replica=0 lines=%d", &n)
			dropped += n
		}
	}
	if most := 50 * (2 + int(time.Since(began).Seconds())); logged > most || logged+dropped != written {
		t.Errorf("%d lines are logged and %d counted, expected at most %d, and %d together", logged, dropped, most,
			written)
	}
}

// TestOutputLevels: tracebacks, crashes and what loggers say have the level that they deserve.
func TestOutputLevels(t *testing.T) {
	cmd := child("")
	cmd.Args = []string{"/bin/sh", "-c", `exec >&2; cat <<END
INFO shiva_container: model loaded
2026-01-01 12:00:00,123 WARNING torch: slow
[ERROR] no such file
a word at the end of a sentence is no level, however loud that word may be: ERROR
Traceback (most recent call last):
  File "model.py", line 3, in <module>
    import torch

ModuleNotFoundError: No module named 'torch'
goes on
END
echo 'panic: runtime error'
echo 'goroutine 1 [running]:'
sleep 1000`}
	s, log := supervise(t, cmd)
	budgettest.Until(t, "all lines", func() bool {
		return len(s.Status()[0].LastLines) == 11 && strings.Contains(log.String(), "goroutine 1")
	})
	s.Close()
	var got strings.Builder
	for line := range strings.Lines(log.String()) {
		if level, rest, ok := strings.Cut(line, ` msg="container output"`); ok {
			_, text, _ := strings.Cut(rest, " line=")
			fmt.Fprintf(&got, "%s %s", level[strings.LastIndex(level, "=")+1:], text)
		}
	}
	want := `INFO "INFO shiva_container: model loaded"
WARN "2026-01-01 12:00:00,123 WARNING torch: slow"
ERROR "[ERROR] no such file"
INFO "a word at the end of a sentence is no level, however loud that word may be: ERROR"
ERROR "Traceback (most recent call last):"
ERROR "  File \"model.py\", line 3, in <module>"
ERROR "    import torch"
ERROR "ModuleNotFoundError: No module named 'torch'"
INFO "goes on"
ERROR "panic: runtime error"
ERROR "goroutine 1 [running]:"
`
	if got.String() != want {
		t.Errorf("got\n%s\nexpected\n%s", &got, want)
	}
}
