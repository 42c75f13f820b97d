package operate

import (
	"net"
	"slices"
	"testing"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/predict"
)

// A process registers at one address.
func TestNearest(t *testing.T) {
	const tcp, unix, secure = "tcp://127.0.0.1:7000", "ipc:///run/s", "tls://127.0.0.1:7443"
	for _, c := range []struct {
		addrs []string
		user  string
		want  []string
	}{
		{[]string{tcp, unix}, "", []string{unix}},
		{[]string{unix, tcp}, "nobody", []string{tcp}},
		{[]string{unix}, "nobody", []string{unix}},
		{[]string{tcp, "tcp://192.0.2.1:7000"}, "", []string{tcp}},
		{[]string{secure}, "", []string{secure}},
		{[]string{secure}, "nobody", []string{secure}},
		{nil, "", nil},
	} {
		if got := reachable(c.addrs, c.user); !slices.Equal(got, c.want) {
			t.Errorf("of %q as %q: %q, want %q", c.addrs, c.user, got, c.want)
		}
	}
}

// A starter is a supervisor whose process has started.
type starter struct{ Supervisor }

func (starter) Status() []containers.ProcessInfo {
	return []containers.ProcessInfo{{Name: "p", State: "running"}}
}

// A restarter is a supervisor whose process has started again.
type restarter struct{ Supervisor }

func (restarter) Status() []containers.ProcessInfo {
	return []containers.ProcessInfo{{Name: "p", State: "running", LastExit: "exit status 1", LastLines: []string{"no weights"}}}
}

// Why a process ended stays known while the next one starts.
func TestStartingAgain(t *testing.T) {
	p := &process{}
	p.lifecycle.supervisor = restarter{}
	want := "its process has started and not registered yet; before, it ended with exit status 1: no weights"
	if got := p.state().Detail(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A searcher is a supervisor that looks for the process at the other end of a connection, and finds
// another's.
type searcher struct{ Supervisor }

func (searcher) Owns(c net.Conn) bool { return containers.Stray(c) != nil }

// An asked is a connection that counts how often its process is looked for.
type asked struct {
	net.Conn
	times int
}

func (a *asked) RemoteAddr() net.Addr {
	a.times++
	return &net.TCPAddr{}
}
func (a *asked) LocalAddr() net.Addr { return &net.TCPAddr{} }

// Whose a connection is costs one search, however many containers there are.
func TestOriginIsSearchedOnce(t *testing.T) {
	ps := &Processes{}
	for range 3 {
		p := &process{}
		p.lifecycle.supervisor = searcher{}
		ps.list = append(ps.list, p)
	}
	conn := &asked{}
	if name, err := ps.origin(conn); name != "" || err != nil || conn.times != 1 {
		t.Errorf("origin %q, %v, after %d searches", name, err, conn.times)
	}
}

// What a process has replaced is not about to start.
func TestStateOfAVersion(t *testing.T) {
	p := &process{settings: config.Container{Name: "p", Model: "m"}}
	p.lifecycle.supervisor = starter{}
	ps := &Processes{list: []*process{p}}
	for _, c := range []struct {
		registered []scheduler.ModelID
		version    string
		want       predict.State
	}{
		{nil, "1", predict.Loading},
		{[]scheduler.ModelID{{Name: "m", Version: "2"}}, "1", predict.Unavailable},
		{[]scheduler.ModelID{{Name: "m", Version: "2"}}, "2", predict.Loading},
		{[]scheduler.ModelID{{Name: "m", Version: "2"}}, "", predict.Loading},
		{[]scheduler.ModelID{{Name: "m-raw", Version: "2"}}, "1", predict.Loading},
	} {
		p.lifecycle.versions = c.registered
		if at := ps.State("m", c.version); at.State != c.want {
			t.Errorf("%v, version %q: %+v, want %s", c.registered, c.version, at, c.want)
		}
	}
}

// TestStarting: models that a process may serve are expected until it has registered them, and
// those that only a pattern allows until it has registered anything.
func TestStarting(t *testing.T) {
	const doing = "p: its process has started and not registered yet"
	for _, c := range []struct {
		model      string
		serve      []string
		registered string // "": nothing
		stopping   bool
		id, want   string
	}{
		{"m", nil, "", false, "m", doing},
		{"m", nil, "", false, "m/2", doing},
		{"", nil, "", false, "p", doing},
		{"m", nil, "", false, "p", ""},
		{"m", nil, "", true, "m", ""},
		{"m", nil, "m", false, "m/2", ""},
		{"m", []string{"n"}, "m", false, "n", doing},
		{"m", []string{"n"}, "n", false, "n/2", ""},
		{"m", []string{"n/2"}, "", false, "n", doing},
		{"m", []string{"n/2"}, "", false, "n/2", doing},
		{"m", []string{"n/2"}, "", false, "n/3", ""},
		{"m", []string{"yard-*"}, "", false, "yard-day", doing},
		{"m", []string{"yard-*"}, "m", false, "yard-day", ""},
		{"m", []string{"*"}, "", false, "typo", doing},
		{"m", []string{"*"}, "m", false, "typo", ""},
	} {
		p := &process{settings: config.Container{Name: "p", Model: c.model, Serve: c.serve}}
		p.lifecycle.supervisor, p.lifecycle.stopping = starter{}, c.stopping
		if c.registered != "" {
			p.lifecycle.versions = []scheduler.ModelID{{Name: c.registered, Version: "1"}}
		}
		ps := &Processes{list: []*process{p}}
		if got := ps.Starting(c.id); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
