package containers_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
)

// TestKill: of several processes the one that holds the other end of a connection is killed and
// restarted, even if it is a child of the command.
func TestKill(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, c := range []struct{ network, addr string }{{"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"},
		{"unix", t.TempDir() + "/s"}} {
		t.Run(c.network+" "+c.addr, func(t *testing.T) {
			ear, err := net.Listen(c.network, c.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer ear.Close()
			cmd := child("connecting")
			cmd.Env["ADDR"] = c.network + " " + ear.Addr().String()
			cmd.Args = []string{"sh", "-c", os.Args[0] + " & wait"}
			cmd.Replicas = 3
			s, log := supervise(t, cmd)
			var conns []net.Conn
			for range cmd.Replicas {
				conn, err := ear.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				conns = append(conns, conn)
			}
			if mine, err := net.Dial(c.network, ear.Addr().String()); err != nil {
				t.Fatal(err)
			} else if theirs, err := ear.Accept(); err != nil || s.Kill(theirs, errors.New("no reason")) {
				t.Errorf("a stranger's connection killed a process (%v)", err)
			} else {
				mine.Close()
				theirs.Close()
			}
			before := s.Status()
			if !s.Kill(conns[1], errors.New("no answer for an hour")) {
				t.Fatal("nobody has that connection")
			}
			if conns[1].SetReadDeadline(time.Now().Add(20 * time.Second)); true {
				if _, err := conns[1].Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("the process that has the connection lives")
				}
			}
			budgettest.Until(t, "it to run again", func() bool {
				n := 0
				for i, p := range s.Status() {
					if p.PID != before[i].PID && p.PID != 0 && p.Restarts == 1 && p.LastExit == "killed: no answer for an hour" {
						n++
					} else if p.PID != before[i].PID {
						return false
					}
				}
				return n == 1
			})
			if !strings.Contains(log.String(), "no answer for an hour") {
				t.Errorf("the log does not say why: %s", log)
			}
		})
	}
}

// TestOrigin: a connection belongs to the supervised process that its holder descends from,
// whatever group, session or socket that one has chosen. A descendant that has lost its parents is
// nobody's, and no stranger either.
func TestOrigin(t *testing.T) {
	t.Parallel() // it mostly waits
	self := os.Args[0]
	for name, c := range map[string]struct {
		script string // of a shell, in which $0 connects
		stray  bool
	}{
		"itself":                        {`exec $0`, false},
		"a child":                       {`$0 & wait`, false},
		"a session of its own":          {`setsid -w $0`, false},
		"no parents":                    {`(setsid $0 &); sleep 1000`, true},
		"no parents, in its session":    {`($0 &); sleep 1000`, true},
		"no parents and no environment": {`(setsid env -i ` + childEnv + `=leaving ADDR="$ADDR" $0 &); sleep 1000`, true},
	} {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(name+" "+network, func(t *testing.T) {
				if strings.Contains(c.script, "setsid") {
					hosttest.Need(t, "setsid")
				}
				addr := "127.0.0.1:0"
				if network == "unix" {
					addr = t.TempDir() + "/s"
				}
				ear, err := net.Listen(network, addr)
				if err != nil {
					t.Fatal(err)
				}
				defer ear.Close()
				cmd := child("connecting")
				cmd.Env["ADDR"] = network + " " + ear.Addr().String()
				cmd.Args = []string{"sh", "-c", c.script, self}
				s, _ := supervise(t, cmd)
				conn, err := ear.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if c.stray {
					// Its parents may still be ending.
					budgettest.Until(t, "it to lose its parents", func() bool { return !s.Owns(conn) })
				}
				if s.Owns(conn) == c.stray || (containers.Stray(conn) != nil) != c.stray && c.stray {
					t.Errorf("owned: %v, stray: %v", s.Owns(conn), containers.Stray(conn))
				}
			})
		}
	}
}

// TestOriginWhileAnotherStarts: a program's own connection stays its own while it starts processes,
// which hold copies of its descriptors until they execute their commands.
func TestOriginWhileAnotherStarts(t *testing.T) {
	ear, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ear.Close()
	mine, err := net.Dial("tcp", ear.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	conn, err := ear.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	over := make(chan struct{})
	var starts sync.WaitGroup
	starts.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			c := exec.Command(os.Args[0], "-test.run=^$")
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // as a Supervisor starts them
			if err := c.Run(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 100 {
		if err := containers.Stray(conn); err != nil {
			t.Error("a connection of this process:", err)
			break
		}
	}
	close(over)
	starts.Wait()
}

// TestOriginOfTheDead: nobody can tell whose connection it is once the process that made it has
// ended and another one has the socket, so it is no stranger's.
func TestOriginOfTheDead(t *testing.T) {
	t.Parallel()
	hosttest.Need(t, "python3")
	ear, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer ear.Close()
	cmd := child("")
	cmd.Args = []string{"python3", "-c", `
import os, socket, sys, time
if os.fork() == 0:
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(1000)`, ear.Addr().String()}
	supervise(t, cmd)
	conn, err := ear.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	budgettest.Until(t, "the one that connected to end", func() bool { return containers.Stray(conn) != nil })
}

// TestSessionsOfTheirOwn: what a supervised process has started ends with it, also in sessions of
// its own, and its orphans are reaped.
func TestSessionsOfTheirOwn(t *testing.T) {
	t.Parallel() // it mostly waits
	hosttest.Need(t, "setsid")
	for _, script := range []string{
		`setsid sleep 1000 & echo $!; exit 3`,
		`setsid sh -c 'echo $$; sleep 1000 & wait' & sleep 1000`,
		`(setsid sh -c 'echo $$; exec sleep 1000' &); sleep 1000`,
	} {
		cmd := child("")
		cmd.Args = []string{"/bin/sh", "-c", script}
		s, _ := supervise(t, cmd)
		budgettest.Until(t, "a line", func() bool { return len(s.Status()[0].LastLines) > 0 })
		pid, err := strconv.Atoi(s.Status()[0].LastLines[0])
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if alive(pid) {
			t.Errorf("%s: what it started outlives it", script)
		}
	}
	cmd := child("")
	cmd.Args = []string{"/bin/sh", "-c", `(setsid sh -c 'echo $$' &); exec sleep 1000`}
	s, _ := supervise(t, cmd)
	budgettest.Until(t, "a line", func() bool { return len(s.Status()[0].LastLines) > 0 })
	pid, err := strconv.Atoi(s.Status()[0].LastLines[0])
	if err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the orphan to be reaped", func() bool { return !alive(pid) })
}

// TestLeftBehindDuringAStart: what a process leaves behind is killed, even while another one takes
// long to start.
func TestLeftBehindDuringAStart(t *testing.T) {
	t.Parallel() // it mostly waits
	hosttest.Need(t, "setsid")
	cmd := child("")
	cmd.Args = []string{"/bin/sh", "-c", `setsid sh -c 'echo $$; exec sleep 1000' & sleep 1000`}
	s, _ := supervise(t, cmd)
	budgettest.Until(t, "a line", func() bool { return len(s.Status()[0].LastLines) > 0 })
	pid, err := strconv.Atoi(s.Status()[0].LastLines[0])
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, containers.Starting())
	if s.Close(); alive(pid) {
		t.Error("what it started outlives it")
	}
}
