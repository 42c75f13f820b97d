package server

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
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/predict"
)

// A process is a [[container]] with a command: the replicas that the server keeps alive, or none while its model is unloaded.
type process struct {
	server   *Server          // set once, as settings
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

// model is what clients load and unload the process by: what the settings say, or else what it has registered.
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

// is tells whether clients may mean the process by a name.
func (p *process) is(name string) bool {
	return p.model() == name || p.settings.Model == "" && p.settings.Name == name
}

// registered notes the model of a session, if it is one of the processes'. Settings that do not say which model a command serves are common, and the
// name of the container need not be the model's.
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

// keeps tells whether the process serves a version that an operator has started again, and so wants.
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

// awaited is the model that is to be served as long as the process is not unloaded: ok is false then.
func (p *process) awaited() (model string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modelLocked(), p.supervisor != nil && !p.stopping
}

// named tells whether it is known which model the process serves.
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
		Servers:     p.server.containers.Dialable(),
		StopTimeout: c.StopTimeout,
		Log:         p.server.log,
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

// repository is what clients may load and unload: the models of the processes.
type repository struct{ *Server }

// Models are their names, sorted.
func (r repository) Models() []string {
	var names []string
	for _, p := range r.all() {
		names = append(names, p.model())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (r repository) all() []*process {
	r.opening.RLock()
	defer r.opening.RUnlock()
	return r.processes
}

// of are the processes that serve a model.
func (r repository) of(model string) []*process {
	return slices.DeleteFunc(slices.Clone(r.all()), func(p *process) bool { return !p.is(model) })
}

// State is that of the process which is furthest.
func (r repository) State(model string) (predict.State, string) {
	state, reason := predict.Unavailable, "no process"
	for _, p := range r.of(model) {
		if s, why := p.state(); state == predict.Unavailable {
			state, reason = s, why
		}
	}
	return state, reason
}

// Load starts what does not run and waits until the model is ready.
func (r repository) Load(ctx context.Context, model string) error {
	for _, p := range r.of(model) {
		if err := p.start(); err != nil {
			return err
		}
	}
	return r.ready(ctx, model)
}

// ready waits until a model that is being loaded is ready.
func (r repository) ready(ctx context.Context, model string) error {
	const look = 20 * time.Millisecond
	timer := time.NewTicker(look)
	defer timer.Stop()
	for {
		if t, err := r.gate.Target(model, ""); err == nil && t.Live > 0 {
			r.log.Info("model loaded", "model", model)
			return nil
		}
		if other := r.registersOthers(model); other != "" {
			return fmt.Errorf("%w: model %q could not be loaded: %s", scheduler.ErrUnavailable, model, other)
		}
		state, reason := r.State(model)
		if state == predict.Unavailable {
			return fmt.Errorf("%w: model %q could not be loaded: %s", scheduler.ErrUnavailable, model, reason)
		}
		select {
		case <-timer.C:
		case <-r.stopping:
			return errStopping
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return fmt.Errorf("%w: the client went while model %q was loading", scheduler.ErrCanceled, model)
			}
			return fmt.Errorf("%w: model %q is still loading: %s", scheduler.ErrDeadlineExceeded, model, reason)
		}
	}
}

// othersGrace is how long after other models a process may register the one that it is loaded for.
var othersGrace = 20 * time.Second

// registersOthers says why a model that is being loaded will not be there: all of its processes have registered others, and have had the time
// for this one. "" if it may come.
func (r repository) registersOthers(model string) string {
	text := ""
	for _, p := range r.of(model) {
		ids := p.registers()
		if len(ids) == 0 || slices.ContainsFunc(ids, func(id scheduler.ModelID) bool { return id.Name == model }) {
			return ""
		}
		// Settings that name no model leave it to the process.
		if p.settings.Model != "" && p.registeredFor() < othersGrace {
			return ""
		}
		text = fmt.Sprintf("the processes of container %q have registered %v, and not %q: set model in its [[container]] to what it serves", p.settings.Name, ids, model)
	}
	return text
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

// Unload stops what runs and waits for it, which takes the longest stop_timeout at most.
func (r repository) Unload(model string) error {
	list := r.of(model)
	faults := make([]error, len(list))
	var all sync.WaitGroup
	for i, p := range list {
		all.Go(func() { faults[i] = p.unload() })
	}
	all.Wait()
	r.log.Info("model unloaded", "model", model)
	return errors.Join(faults...)
}

// shown are all [[container]] as the admin door shows them.
func (r repository) shown() admin.Containers {
	list := admin.Containers{Containers: []admin.Container{}, Sessions: r.sessions()}
	processes := map[string][]admin.Process{}
	for _, p := range r.supervised() {
		processes[p.Name] = append(processes[p.Name], p)
	}
	for _, c := range r.base.Load().Supervised {
		one := admin.Container{Name: c.Name, Model: cmp.Or(c.Model, c.Name), Address: c.Address, Processes: []admin.Process{}}
		var state predict.State
		if p, err := r.named(c.Name); err == nil {
			one.Model = p.model()
			one.Processes = append(one.Processes, processes[c.Name]...)
			state, one.Reason = p.state()
		} else {
			state, one.Reason = predict.Unavailable, "not connected"
		}
		if t, err := r.gate.Target(one.Model, ""); err == nil && t.Live > 0 && state != predict.Unavailable || connected(list.Sessions, c.Address) {
			state, one.Reason = predict.Ready, ""
		}
		one.State = string(state)
		if i := slices.IndexFunc(list.Sessions, func(k admin.Session) bool { return k.Model == one.Model && k.State == "failing" }); i >= 0 && r.failing(one.Model) {
			one.State, one.Reason = "FAILING", "every batch fails: "+list.Sessions[i].LastFailure
		}
		list.Containers = append(list.Containers, one)
	}
	return list
}

// failing tells whether all live replicas of a model fail on every batch.
func (r repository) failing(model string) bool {
	t, err := r.gate.Target(model, "")
	if err != nil || t.Model == nil {
		return false
	}
	stats := t.Model.Stats()
	return stats.Live > 0 && stats.Failing == stats.Live
}

// connected tells whether there is a session with a container that is called there, and not one that is being called or has been told to go.
func connected(sessions []admin.Session, address string) bool {
	return address != "" && slices.ContainsFunc(sessions, func(s admin.Session) bool { return s.Remote == address && s.State == "serving" })
}
