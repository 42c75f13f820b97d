package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/modelfiles"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/plural"
)

// A process is a [[container]] with a command: the processes that the server keeps alive, or none
// while the model is unloaded.
type process struct {
	fleet *Processes          // set once
	guest modelfiles.Standing // set once; see Put

	changing sync.Mutex // held by start, stop and change from begin to end

	mu        sync.Mutex
	settings  config.Container
	lifecycle lifecycle
	ended     bool // the server is stopping: no process starts any more
}

// A lifecycle is the state of a process.
type lifecycle struct {
	supervisor Supervisor // nil: unloaded
	stopping   bool
	began      time.Time // when the supervisor started
	// versions lists the versions that the processes have registered, in order; never changed, only
	// replaced.
	versions []scheduler.ModelID
	since    time.Time // when the first of versions registered
	// pinned means that the process was started again after its version was retired; it stays until
	// it is stopped.
	pinned bool
	forced int // processes that had to be killed at the last stop
	// fault says why the processes do not have the settings of the file, where their container is
	// called attempt; nil: they have.
	fault   error
	attempt string
	refusal refusedRegistration
	// refused ends the wait of a change for a registration; nil: none waits.
	refused context.CancelCauseFunc

	scaling       scaling             // how many processes there should be
	why           string              // scaling last changed; "": it has not
	scaled        time.Time           // when it last changed
	awaitedModels []scheduler.ModelID // whose requests wait for a process
}

// A refusedRegistration is the last registration of a process that was refused, unless the model
// has been registered since.
type refusedRegistration struct {
	model scheduler.ModelID
	err   error // nil: none was refused
	at    time.Time
}

var errStopping = fmt.Errorf("%w: this server is shutting down", scheduler.ErrDraining)

// current returns the current state.
func (p *process) current() lifecycle {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lifecycle
}

// table returns the [[container]] that the processes have, or those of the next start.
func (p *process) table() config.Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings
}

// bounds returns how many processes there may be.
func (p *process) bounds() config.Replicas { return p.table().Replicas }

// count returns how many processes there should be.
func (p *process) count() int {
	if at := p.current(); at.supervisor != nil {
		return at.scaling.wanted
	}
	return 0
}

// registers counts the processes that have registered.
func (p *process) registers() (n int) {
	if s := p.current().supervisor; s != nil {
		for _, i := range s.Status() {
			if i.Registers {
				n++
			}
		}
	}
	return n
}

// retired reports whether a newer version has replaced the processes.
func (p *process) retired() bool {
	return slices.ContainsFunc(p.current().supervisor.Status(), func(i containers.ProcessInfo) bool { return i.State == "retired" })
}

// model returns the name by which clients load and unload the process: the configured name, or else
// the name that it has registered.
func (p *process) model() string {
	c := p.table()
	if s := p.current(); c.Model == "" && len(s.versions) > 0 {
		return s.versions[0].Name
	}
	return cmp.Or(c.Model, c.Name)
}

// hasName reports whether clients address the process by a name.
func (p *process) hasName(name string) bool {
	return p.model() == name || p.table().Model == "" && p.table().Name == name
}

// registered records the model of a session if the session belongs to one of the processes.
// Configurations often do not say which model a command serves, and a container need not have its
// model's name.
func (p *process) registered(conn net.Conn, id scheduler.ModelID) {
	s := p.current().supervisor
	if s == nil || !s.Registered(conn) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lifecycle.since.IsZero() {
		p.lifecycle.since = time.Now()
	}
	if p.lifecycle.refusal.model == id {
		p.lifecycle.refusal = refusedRegistration{}
	}
	if !slices.Contains(p.lifecycle.versions, id) {
		p.lifecycle.versions = append(slices.Clip(p.lifecycle.versions), id)
	}
}

// loaded reports whether the process should serve: it is neither unloaded nor being unloaded.
func (s lifecycle) loaded() bool { return s.supervisor != nil && !s.stopping }

// start runs the processes unless they are running already. Retired ones run again.
func (p *process) start() error {
	p.changing.Lock()
	defer p.changing.Unlock()
	return p.run()
}

// run is start for callers that hold changing.
func (p *process) run() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return errStopping
	}
	at := &p.lifecycle
	if at.supervisor != nil {
		at.pinned = at.supervisor.Resume() || at.pinned
		return nil
	}
	c := p.settings
	at.began, at.versions, at.since = time.Now(), nil, time.Time{}
	at.scaling, at.why = scaling{wanted: max(1, c.Replicas.Min)}, ""
	at.fault, at.refusal = nil, refusedRegistration{}
	cmd := p.fleet.command(c)
	cmd.Replicas = at.scaling.wanted
	var err error
	at.supervisor, err = p.fleet.supervise(cmd)
	return err
}

// command returns the command of a [[container]].
func (ps *Processes) command(c config.Container) containers.Command {
	env, fallback := ps.share(c).environment(c)
	return containers.Command{
		Name:        c.Name,
		Args:        c.Command,
		Privileges:  c.Privileges(),
		Env:         env,
		Fallback:    fallback,
		Dir:         c.Dir,
		Servers:     reachable(ps.sessions.Listener().Dialable(), c.User),
		StopTimeout: c.StopTimeout,
		Log:         ps.log,
	}
}

// reachable returns the one address at which a process registers: at two addresses it would be two
// replicas. A Unix socket is preferred over TCP, except for a process of another user, which the
// socket's permissions may exclude.
func reachable(addrs []string, user string) []string {
	at := slices.IndexFunc(addrs, func(a string) bool { return strings.HasPrefix(a, "ipc://") == (user == "") })
	if at < 0 {
		return addrs[:min(1, len(addrs))]
	}
	return addrs[at : at+1]
}

// unload stops the processes and waits until they have ended; start may follow.
func (p *process) unload() error {
	p.mu.Lock()
	if p.lifecycle.refused != nil {
		p.lifecycle.refused(errors.New("it was stopped"))
	}
	p.mu.Unlock()
	p.changing.Lock()
	defer p.changing.Unlock()
	return p.end()
}

// end is unload for callers that hold changing.
func (p *process) end() error {
	p.mu.Lock()
	s := p.lifecycle.supervisor
	p.lifecycle.stopping = s != nil
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	p.await(nil, false)
	err := s.Close()
	forced := 0
	for _, i := range s.Status() {
		if i.Forced {
			forced++
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &p.lifecycle
	at.supervisor, at.stopping, at.pinned, at.forced = nil, false, false, forced
	return err
}

// stop is unload, and start never works again.
func (p *process) stop() error {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	return p.unload()
}

func (p *process) status() []containers.ProcessInfo {
	if s := p.current().supervisor; s != nil {
		if list := s.Status(); len(list) > 0 {
			return list
		}
		return []containers.ProcessInfo{{Name: p.table().Name, State: "asleep", Since: p.current().scaled}}
	}
	return []containers.ProcessInfo{{Name: p.table().Name, State: "unloaded"}}
}

// mostOutput bounds the part of a process's output that a reason has, in bytes.
const mostOutput = 4 << 10

// state returns the state of the processes, without regard to whether they have registered.
func (p *process) state() predict.Condition {
	at := p.current()
	switch {
	case at.supervisor == nil && at.forced > 0:
		return predict.Condition{State: predict.Unavailable, Reason: "unloaded",
			Cause: fmt.Sprintf("unloaded; %s did not end within stop_timeout, %v, and had to be killed",
				plural.Words(at.forced, "process", "processes"), p.table().StopTimeout)}
	case at.supervisor == nil:
		return predict.Condition{State: predict.Unavailable, Reason: "unloaded"}
	case at.stopping:
		return predict.Condition{State: predict.Unloading, Reason: "its processes are being stopped"}
	}
	list := at.supervisor.Status()
	if len(list) == 0 {
		return predict.Condition{State: predict.Ready, Reason: "asleep: no requests arrive; the next one starts a process"}
	}
	for _, i := range list {
		switch {
		case i.State == "running" && i.Registers:
			return predict.Condition{State: predict.Loading,
				Reason: "its process has registered other models or versions",
				Cause:  fmt.Sprintf("its process has registered %v", at.versions)}
		case i.State == "running" && at.refusal.err != nil:
			return predict.Condition{State: predict.Loading, Reason: "its process may not register what it serves",
				Cause: fmt.Sprintf("its process was refused: %v", at.refusal.err)}
		case i.State == "running", i.State == "restarting" && i.LastExit == "":
			c := predict.Condition{State: predict.Loading, Reason: "its process has started and not registered yet"}
			if i.LastExit != "" {
				c.Cause = c.Reason + "; before, it " + ended(i)
			}
			return c
		}
	}
	first := list[0]
	if first.State == "retired" {
		return predict.Condition{State: predict.Unavailable, Reason: "retired: a newer version has replaced it",
			Cause: fmt.Sprintf("retired: a newer version has replaced it; \"shivactl containers start %s\" starts it again",
				p.table().Name)}
	}
	return predict.Condition{State: predict.Unavailable,
		Reason: first.State + ": its process has ended; the operators of this server see why",
		Cause:  first.State + ": its process " + ended(first)}
}

// ended says how a process ended last.
func ended(i containers.ProcessInfo) string {
	text := "ended with " + i.LastExit
	if len(i.LastLines) > 0 {
		text += ": " + access.Printable(strings.Join(lastLines(i), " | "), mostOutput)
	}
	return text
}

// lastLines returns the last three lines that a process printed. A crash loop repeats itself, so of
// equal lines only the last one counts.
func lastLines(i containers.ProcessInfo) []string {
	var lines []string
	for _, line := range slices.Backward(i.LastLines) {
		if len(lines) < 3 && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	slices.Reverse(lines)
	return lines
}
