//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
)

var oldFlag = flag.String("old", "", "the `tree` of an earlier release, as .ci/upgrade builds it; empty: nothing is upgraded")

// A release is a built tree: an earlier one, or this one.
type release struct{ name, tree string }

// releases returns the earlier release and this one.
func releases(t *testing.T) (before, now release) {
	return release{"old", *oldFlag}, release{"new", root(t)}
}

func (r release) program(name string) string { return filepath.Join(r.tree, "bin", name) }

// python runs a script of this tree with the Python packages of the release.
func (r release) python(t *testing.T, script string, args ...string) []string {
	packages := filepath.Join(r.tree, "containers/python/src") + ":" + filepath.Join(r.tree, "shiva/python/src")
	return append([]string{"env", "PYTHONPATH=" + packages, python(t), filepath.Join(root(t), "server/e2e/python", script)},
		args...)
}

// A member is a server that can be replaced by one of another release, at the same addresses and
// with the same state.
type member struct {
	*shivad
	args []string
}

func newMember(t *testing.T, state string) *member {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shivad.toml")
	if err := os.WriteFile(file, []byte("[server]\nrequired_models = [\"affine\", \"sharp\", \"nought\"]\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	m := &member{args: []string{"--config", file, "--log-format", "json", "--state", state}}
	for _, door := range []string{"containers", "tcp", "rest", "grpc", "admin"} {
		m.args = append(m.args, "--"+door, hosttest.Addr(t))
	}
	return m
}

// become stops the server, if there is one, as an operator does, and starts that of a release.
func (m *member) become(t *testing.T, r release) {
	t.Helper()
	if m.shivad != nil {
		_ = m.cmd.Process.Signal(syscall.SIGTERM)
		err := <-m.exited
		m.exited <- err
		if err != nil {
			t.Errorf("the server before ended with %v", err)
		}
	}
	m.shivad = startWith(t, append([]string{r.program("shivad")}, m.args...))
	// Operators may use the other release's shivactl.
	before, now := releases(t)
	for _, from := range []release{before, now} {
		if out, err := exec.Command(from.program("shivactl"), "status", "--addr", m.tcp, "--admin", m.admin).
			CombinedOutput(); err != nil {
			t.Errorf("shivactl of the %s release at a server of the %s one: %v\n%s", from.name, r.name, err, out)
		}
	}
}

// A cluster has servers, containers that are connected to all of them, and clients.
type cluster struct {
	t          *testing.T
	servers    []*member
	containers []*exec.Cmd
	clients    []*retrier
	rounds     int // of feedback
}

// serve replaces the containers by those of a release, under load: new ones serve before the old
// ones are stopped.
func (c *cluster) serve(r release) {
	c.t.Helper()
	addresses := make([]string, len(c.servers))
	for i, s := range c.servers {
		addresses[i] = s.containers
	}
	processes := map[string][][]string{
		"affine": {append([]string{r.program("peer"), "serve"}, addresses...), r.python(c.t, "affine.py")},
		"sharp":  {{r.program("selection-container"), "sharp", "1"}},
		"nought": {r.python(c.t, "nought.py")},
	}
	before := c.containers
	c.containers = nil
	around := &shivad{t: c.t, containers: strings.Join(addresses, ",")}
	for _, ones := range processes {
		for _, args := range ones {
			c.containers = append(c.containers, around.run(args[0], args[1:]...))
		}
	}
	wait := func(times int) {
		for model, ones := range processes {
			for _, s := range c.servers {
				s.waitReplicas(model, times*len(ones))
			}
		}
	}
	if len(before) > 0 {
		wait(2)
	}
	for _, p := range before {
		_ = p.Process.Signal(syscall.SIGTERM)
	}
	wait(1)
}

// learn gives feedback to each server, and checks that all have learned it, each exactly once.
func (c *cluster) learn() {
	c.t.Helper()
	const each = 10
	for i, s := range c.servers {
		at, other := s.client(), c.servers[(i+1)%len(c.servers)].client()
		for range each {
			id := fmt.Sprint("round ", c.rounds)
			if err := askPair(at, id, c.rounds); err != nil {
				c.t.Fatal(err)
			}
			c.rounds++
			if l, err := teachPair(at, id, c.rounds-1, false); err != nil || !l.Learned || l.Rounds != c.rounds {
				c.t.Fatalf("feedback on %s: %+v %v, expected it to be learned", id, l, err)
			}
			if l, err := teachPair(other, id, c.rounds-1, true); err != nil || l.Learned {
				c.t.Fatalf("the same feedback on %s again: %+v %v", id, l, err)
			}
		}
	}
	c.knows()
}

// knows waits until all servers have learned from all feedback, and checks that their states are
// equal.
func (c *cluster) knows() {
	c.t.Helper()
	first := fmt.Sprint(c.servers[0].learned(c.rounds).Users)
	for _, s := range c.servers[1:] {
		if other := fmt.Sprint(s.learned(c.rounds).Users); other != first {
			c.t.Errorf("one server has learned %s, another %s", first, other)
		}
	}
}

// restart replaces the servers, one after the other. Learned state survives, and learning
// continues.
func (c *cluster) restart(r release) {
	c.t.Helper()
	for _, s := range c.servers {
		s.become(c.t, r)
		for _, one := range c.servers {
			one.waitReplicas("affine", 2)
			one.waitReplicas("sharp", 1)
			one.waitReplicas("nought", 1)
		}
		c.knows()
		c.learn()
		c.goesOn()
	}
}

// A retrier is a client process that retries, at servers that report ready.
type retrier struct {
	name string
	cmd  *exec.Cmd
	in   io.Closer
	out  bytes.Buffer
}

func (c *cluster) ask(name string, args ...string) {
	c.t.Helper()
	p := &retrier{name: name, cmd: exec.Command(args[0], args[1:]...)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	in, err := p.cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	p.in = in
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	c.clients = append(c.clients, p)
}

// begin starts the clients of both releases.
func (c *cluster) begin(releases ...release) {
	c.t.Helper()
	var tcp, rest, grpc, both []string
	for _, s := range c.servers {
		tcp, rest, grpc, both = append(tcp, s.tcp), append(rest, s.rest), append(grpc, s.grpc), append(both, s.tcp+"="+s.rest)
	}
	for _, r := range releases {
		c.ask(r.name+" tcp", append([]string{r.program("peer"), "tcp"}, tcp...)...)
		c.ask(r.name+" rest", append([]string{r.program("peer"), "rest"}, rest...)...)
		c.ask(r.name+" grpc", append([]string{r.program("peer"), "grpc"}, grpc...)...)
		c.ask(r.name+" python", r.python(c.t, "retry.py", both...)...)
	}
	c.goesOn()
}

// goesOn waits until each server has answered some more requests of the clients.
func (c *cluster) goesOn() {
	c.t.Helper()
	for _, s := range c.servers {
		answered := func() float64 { return s.shows(`shivad_batch_rows_sum{model="affine",version="1"} `) }
		before := answered()
		budgettest.Until(c.t, "more answers", func() bool { return answered() >= before+100 })
	}
}

// end stops the clients, and expects no request to be lost or answered wrongly.
func (c *cluster) end() {
	c.t.Helper()
	for _, p := range c.clients {
		p.in.Close()
	}
	for _, p := range c.clients {
		err := p.cmd.Wait()
		var n struct {
			Right, Wrong, Lost, Retries int
			Longest                     float64
			Why                         map[string]int
		}
		if err == nil {
			err = json.Unmarshal(p.out.Bytes(), &n)
		}
		if err != nil {
			c.t.Errorf("%s: %v\n%s", p.name, err, &p.out)
			continue
		}
		c.t.Logf("%s: %d right, %d retries, longest %v; %v", p.name, n.Right, n.Retries,
			time.Duration(n.Longest*1e9).Round(time.Millisecond), n.Why)
		if n.Right == 0 || n.Wrong > 0 || n.Lost > 0 {
			c.t.Errorf("%s: %d right, %d wrong, %d lost: %v", p.name, n.Right, n.Wrong, n.Lost, n.Why)
		}
	}
}

// upgrade starts the servers and containers of a cluster as the earlier release, upgrades them to
// this one, and goes back, under the load of clients of both.
func upgrade(t *testing.T, states ...string) {
	before, now := releases(t)
	c := &cluster{t: t}
	for _, state := range states {
		s := newMember(t, state)
		s.become(t, before)
		c.servers = append(c.servers, s)
	}
	c.serve(before)
	c.servers[0].ctl("apps", "create", "pair", "--model", "sharp", "--model", "nought", "--policy", "exp4", "--param",
		"share=0", "--slo", "20s")
	for _, s := range c.servers {
		client := s.client()
		budgettest.Until(t, "the application", func() bool { return askPair(client, "first", 0) == nil })
	}
	c.learn()
	c.begin(before, now)
	for _, to := range []release{now, before} {
		c.restart(to)
		c.serve(to)
		c.learn()
		c.goesOn()
	}
	c.end()
}

// Two servers with one Redis are upgraded one after the other, and downgraded the same way.
func TestUpgradeRedis(t *testing.T) {
	if *oldFlag == "" {
		return
	}
	address := hosttest.Addr(t)
	statetest.NewRedis(t, "--bind", "127.0.0.1", "--port", strings.TrimPrefix(address, "127.0.0.1:"))
	target := "redis://" + address + "/3"
	upgrade(t, target, target)
}

// One server with a file is upgraded and downgraded. Clients wait meanwhile.
func TestUpgradeFile(t *testing.T) {
	if *oldFlag == "" {
		return
	}
	at := filepath.Join(t.TempDir(), "state.db")
	upgrade(t, at)
	if _, err := os.Stat(at); err != nil {
		t.Error(err)
	}
}
