package containers_test

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// TestKill: of several processes the one that holds the other end of a connection is killed and
// restarted, even if it is a child of the command.
func TestKill(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, c := range []struct{ network, addr string }{{"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"}, {"unix", t.TempDir() + "/s"}} {
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
