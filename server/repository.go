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
	serves     string // the model that one of the processes has registered; "" if none has yet, or the settings say it
	ended      bool   // the server stops: nothing starts any more
}

var errStopping = fmt.Errorf("%w: this server is shutting down", scheduler.ErrDraining)

// model is what clients load and unload the process by.
func (p *process) model() string {
	if p.settings.Model != "" {
		return p.settings.Model
	}
	return p.settings.Name
}

// registered notes the model of a session, if it is one of the processes'. Settings that do not say which model a command serves are common, and the
// name of the container need not be the model's.
func (p *process) registered(conn net.Conn, model string) {
	p.mu.Lock()
	s, known := p.supervisor, p.settings.Model != "" || p.serves != ""
	p.mu.Unlock()
	if known || s == nil || !s.Holds(conn) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serves = model
}

// awaited is the model that is to be served as long as the process is not unloaded: ok is false then.
func (p *process) awaited() (model string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.settings.Model, p.serves, p.settings.Name), p.supervisor != nil && !p.stopping
}

// named tells whether it is known which model the process serves.
func (p *process) named() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings.Model != "" || p.serves != ""
}

// start runs the processes unless they run. Those that have all ended with status 0 run again.
func (p *process) start() error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return errStopping
	}
	if p.supervisor != nil {
		running := slices.ContainsFunc(p.supervisor.Status(), func(i containers.ProcessInfo) bool { return i.State != "finished" })
		if running {
			return nil
		}
		if err := p.supervisor.Close(); err != nil {
			return err
		}
	}
	c := p.settings
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
	p.supervisor, p.stopping = nil, false
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
	p.mu.Lock()
	s := p.supervisor
	p.mu.Unlock()
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
	case p.supervisor == nil:
		return predict.Unavailable, "unloaded"
	case p.stopping:
		return predict.Unloading, "its processes are being stopped"
	}
	list := p.supervisor.Status()
	for _, i := range list {
		if i.State == "running" || i.State == "restarting" && i.Restarts == 0 {
			return predict.Loading, "its process has started and not registered yet"
		}
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
	return slices.DeleteFunc(slices.Clone(r.all()), func(p *process) bool { return p.model() != model })
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

// named is the process of a [[container]].
func (r repository) named(container string) (*process, error) {
	for _, p := range r.all() {
		if p.settings.Name == container {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w: container %q runs elsewhere and is called: it is started and stopped there", scheduler.ErrInvalidInput, container)
}

// Start runs the processes of one [[container]] and waits until its model is ready.
func (r repository) Start(ctx context.Context, container string) error {
	p, err := r.named(container)
	if err == nil {
		err = p.start()
	}
	if err == nil {
		err = r.ready(ctx, p.model())
	}
	return refusal(err)
}

// Stop ends the processes of one [[container]] and waits for it, which takes its stop_timeout at most.
func (r repository) Stop(_ context.Context, container string) error {
	p, err := r.named(container)
	if err == nil {
		err = p.unload()
	}
	return refusal(err)
}

// shown are all [[container]] as the admin door shows them.
func (r repository) shown() admin.Containers {
	list := admin.Containers{Containers: []admin.Container{}, Sessions: r.sessions()}
	processes := map[string][]admin.Process{}
	for _, p := range r.supervised() {
		processes[p.Name] = append(processes[p.Name], p)
	}
	for _, c := range r.cfg.Supervised {
		one := admin.Container{Name: c.Name, Model: cmp.Or(c.Model, c.Name), Address: c.Address, Processes: []admin.Process{}}
		var state predict.State
		if p, err := r.named(c.Name); err == nil {
			one.Processes = append(one.Processes, processes[c.Name]...)
			state, one.Reason = p.state()
		} else {
			state, one.Reason = predict.Unavailable, "not connected"
		}
		if t, err := r.gate.Target(one.Model, ""); err == nil && t.Live > 0 && state != predict.Unavailable || connected(list.Sessions, c.Address) {
			state, one.Reason = predict.Ready, ""
		}
		one.State = string(state)
		list.Containers = append(list.Containers, one)
	}
	return list
}

// connected tells whether there is a session with a container that is called there, and not one that is being called or has been told to go.
func connected(sessions []admin.Session, address string) bool {
	return address != "" && slices.ContainsFunc(sessions, func(s admin.Session) bool { return s.Remote == address && s.State == "serving" })
}
