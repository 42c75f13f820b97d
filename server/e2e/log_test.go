//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
)

// talkative is a configuration with a process whose output soon fills the log's pipe and queue.
const talkative = `[[container]]
name = "talkative"
command = ["sh", "-c", "text=$(head -c 4000 /dev/zero | tr '\\0' x); while sleep 0.01; do echo $text; done"]
`

// startInto runs shivad with its log in a file, on ports that are free now.
func startInto(t *testing.T, log *os.File) *shivad {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shivad.toml")
	if err := os.WriteFile(file, []byte(talkative), 0o600); err != nil {
		t.Fatal(err)
	}
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	s := &shivad{t: t, tcp: free(), rest: free(), grpc: "", admin: free(), exited: make(chan error, 1)}
	s.cmd = exec.Command(binary(t, "shivad"), "--config", file, "--tcp", s.tcp, "--rest", s.rest, "--grpc", "",
		"--admin", s.admin, "--containers", free())
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.cmd.Stderr = log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log.Close()
	go func() { s.exited <- s.cmd.Wait() }() // ends with the process
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	budgettest.Until(t, "the server to serve", func() bool {
		resp, err := http.Get("http://" + s.admin + "/livez")
		if err == nil {
			resp.Body.Close()
		}
		c, dial := net.Dial("tcp", s.tcp)
		if dial == nil {
			c.Close()
		}
		return err == nil && dial == nil
	})
	return s
}

// lostLines returns the number of log lines that the metrics count as lost.
func (s *shivad) lostLines() (n int) {
	s.t.Helper()
	resp, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "shivad_log_lines_lost_total %d", &n)
	}
	return n
}

// Whatever becomes of the log's reader, or its disk, requests are answered, the lost lines are
// counted, and SIGTERM ends the server with success.
func TestE2ELogIsAGuest(t *testing.T) {
	pipe := func(t *testing.T) (r, w *os.File) {
		t.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r, w
	}
	for _, c := range []struct {
		name string
		log  func(t *testing.T) (reader, log *os.File)
		then func(t *testing.T, r *os.File) // once it serves
	}{
		{"it stops", pipe, func(*testing.T, *os.File) {}},
		{"it is slow", pipe, func(_ *testing.T, r *os.File) {
			go func() { // ends when the test closes the pipe
				for some := make([]byte, 100); ; time.Sleep(10 * time.Millisecond) {
					if _, err := r.Read(some); err != nil {
						return
					}
				}
			}()
		}},
		{"it goes", pipe, func(_ *testing.T, r *os.File) { r.Close() }},
		{"the disk is full", func(t *testing.T) (*os.File, *os.File) {
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			return nil, full
		}, func(*testing.T, *os.File) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reader, log := c.log(t)
			s := startInto(t, log)
			c.then(t, reader)
			budgettest.Until(t, "lines to be lost", func() bool { return s.lostLines() > 0 })
			for range 400 { // each of them is a line, as far as lines of a kind are not limited
				conn, err := net.Dial("tcp", s.tcp)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = conn.Write([]byte("no!"))
				conn.Close()
			}
			if _, err := s.client().Do(t.Context(), &shiva.Message{Namespace: "!live"}); err != nil {
				t.Errorf("the Shiva door: %v", err)
			}
			resp, err := http.Get("http://" + s.rest + "/v2/health/live")
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("the HTTP door: %v", err)
			}
			if c.name == "it stops" { // and goes on
				lost := s.lostLines()
				text := bufio.NewReader(reader)
				for {
					line, err := text.ReadString('\n')
					if err != nil {
						t.Fatalf("not reported: %v", err)
					}
					var told int
					if _, rest, ok := strings.Cut(line, "log lines were lost"); ok {
						_, _ = fmt.Sscanf(rest[strings.Index(rest, "lines="):], "lines=%d", &told)
						if told < lost {
							t.Errorf("%d lines were lost, and %d reported", lost, told)
						}
						break
					}
				}
				go func() { _, _ = io.Copy(io.Discard, reader) }() // ends when the test closes the pipe
			}
			if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-s.exited:
				if err != nil {
					t.Errorf("after SIGTERM: %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Error("it runs 30 s after SIGTERM")
			}
		})
	}
}

// A flood of one peer's faults leaves other entries in the journal, and at most ten lines a second
// of a kind in the log.
func TestE2EFloodOfFaults(t *testing.T) {
	s := start(t, "[tcp]\nmessage_timeout = \"1s\"\n")
	began := time.Now()
	for range 1500 {
		conn, err := net.Dial("tcp", s.tcp)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte{6}); err != nil { // of a message that never comes
			t.Fatal(err)
		}
	}
	budgettest.Until(t, "the dropped lines to be counted", func() bool { return s.logs("log lines were dropped") })
	time.Sleep(time.Second) // the last of them expire
	s.mu.Lock()
	kinds := map[string]int{}
	for _, line := range s.log {
		_, text, _ := strings.Cut(line, `"msg":"`)
		text, _, _ = strings.Cut(text, `"`)
		kinds[text]++
	}
	s.mu.Unlock()
	most := 10 * (2 + int(time.Since(began).Seconds()))
	for kind, n := range kinds {
		if n > most {
			t.Errorf("%d lines of %q in %v, expected at most %d", n, kind, time.Since(began), most)
		}
	}
	var journal struct{ Entries []struct{ Message string } }
	s.get("/v1/logs", &journal)
	for _, e := range journal.Entries {
		if e.Message == "serving" {
			return
		}
	}
	t.Errorf("the first line is not among the %d of the journal", len(journal.Entries))
}
