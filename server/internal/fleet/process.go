package fleet

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/predict"
)

// A process is a [[container]] with a command: the replicas that the server keeps alive, or none
// while its model is unloaded.
type process struct {
	fleet    *Processes       // set once, as settings
	settings config.Container // complete

	changing sync.Mutex // held by start and stop from begin to end

	mu         sync.Mutex
	supervisor *containers.Supervisor // nil: unloaded
	stopping   bool
	began      time.Time           // the supervisor
	serves     []scheduler.ModelID // what the processes have registered, the first first
	since      time.Time           // the first of them
	pinned     bool                // started again after its version was retired: it stays until it is stopped
	forced     int                 // processes that had to be killed when they were stopped last
	ended      bool                // the server stops: nothing starts any more
}

var errStopping = fmt.Errorf("%w: this server is shutting down", scheduler.ErrDraining)

// model is what clients load and unload the process by: what the settings say, or else what it has
// registered.
func (p *process) model() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modelLocked()
}

func (p *process) modelLocked() string {
	if p.settings.Model == "" && len(p.serves) > 0 {
		return p.serves[0].Name
	}
	return cmp.Or(p.settings.Model, p.settings.Name)
}

// is reports whether clients may mean the process by a name.
func (p *process) is(name string) bool {
	return p.model() == name || p.settings.Model == "" && p.settings.Name == name
}

// registered notes the model of a session, if it is one of the processes'. Settings that do not say
// which model a command serves are common, and the name of the container need not be the model's.
func (p *process) registered(conn net.Conn, id scheduler.ModelID) {
	s := p.runs()
	if s == nil || !s.Registered(conn) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		p.since = time.Now()
	}
	if !slices.Contains(p.serves, id) {
		p.serves = append(p.serves, id)
	}
}

// keeps reports whether the process serves a version that an operator has started again, and so
// wants.
func (p *process) keeps(id scheduler.ModelID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pinned && slices.Contains(p.serves, id)
}

// registers lists what the processes have registered.
func (p *process) registers() []scheduler.ModelID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.serves)
}

// dismissed notes that a connection is told goodbye for good.
func (p *process) dismissed(conn net.Conn) {
	if s := p.runs(); s != nil {
		s.Dismiss(conn)
	}
}

// runs is what supervises the processes; nil while they are unloaded.
func (p *process) runs() *containers.Supervisor {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.supervisor
}

// awaited is the model that is to be served as long as the process is not unloaded: ok is false
// then.
func (p *process) awaited() (model string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modelLocked(), p.supervisor != nil && !p.stopping
}

// named reports whether it is known which model the process serves.
func (p *process) named() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings.Model != "" || len(p.serves) > 0
}

// start runs the processes unless they run. Those that were retired run again.
func (p *process) start() error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return errStopping
	}
	if p.supervisor != nil {
		p.pinned = p.supervisor.Resume() || p.pinned
		return nil
	}
	c := p.settings
	p.began, p.serves, p.since = time.Now(), nil, time.Time{}
	var err error
	p.supervisor, err = containers.Supervise(containers.Command{
		Name:        c.Name,
		Args:        c.Command,
		Replicas:    c.Replicas,
		Env:         c.Env,
		Dir:         c.Dir,
		Servers:     p.fleet.sessions.Listener().Dialable(),
		StopTimeout: c.StopTimeout,
		Log:         p.fleet.log,
	})
	return err
}

// unload ends the processes and waits for it; start may follow.
func (p *process) unload() error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.mu.Lock()
	s := p.supervisor
	p.stopping = s != nil
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	err := s.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forced = 0
	for _, i := range s.Status() {
		if i.Forced {
			p.forced++
		}
	}
	p.supervisor, p.stopping, p.pinned = nil, false, false
	return err
}

// stop is unload for good.
func (p *process) stop() error {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	return p.unload()
}

// kill ends the one of the processes that holds the other end of conn.
func (p *process) kill(conn net.Conn, reason error) bool {
	s := p.runs()
	return s != nil && s.Kill(conn, reason)
}

func (p *process) status() []containers.ProcessInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.supervisor == nil {
		return []containers.ProcessInfo{{Name: p.settings.Name, State: "unloaded"}}
	}
	return p.supervisor.Status()
}

// state is how it stands with the processes, apart from whether they have registered.
func (p *process) state() (predict.State, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.supervisor == nil && p.forced > 0:
		return predict.Unavailable, fmt.Sprintf("unloaded; %d of its processes did not end within stop_timeout, %v, and were killed", p.forced, p.settings.StopTimeout)
	case p.supervisor == nil:
		return predict.Unavailable, "unloaded"
	case p.stopping:
		return predict.Unloading, "its processes are being stopped"
	}
	list := p.supervisor.Status()
	for _, i := range list {
		switch {
		case i.State == "running" && i.Registers:
			return predict.Loading, fmt.Sprintf("its process has registered %v", p.serves)
		case i.State == "running", i.State == "restarting" && i.LastExit == "":
			return predict.Loading, "its process has started and not registered yet"
		}
	}
	if list[0].State == "retired" {
		return predict.Unavailable, fmt.Sprintf("retired: a newer version has replaced it; \"shivactl containers start %s\" starts it again", p.settings.Name)
	}
	reason := fmt.Sprintf("%s: its process ended with %s", list[0].State, list[0].LastExit)
	if n := len(list[0].LastLines); n > 0 {
		reason += ": " + strings.Join(list[0].LastLines[max(0, n-3):], " | ")
	}
	return predict.Unavailable, reason
}

// registeredFor is how long ago the first of the processes registered.
func (p *process) registeredFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		return 0
	}
	return time.Since(p.since)
}
