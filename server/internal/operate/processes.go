package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
)

// Processes manages the processes of every [[container]] that has a command.
type Processes struct {
	gate      *gate.Gate
	sessions  *Sessions
	supervise Supervise
	log       *slog.Logger
	stopping  <-chan struct{}

	// Grace is how long after its first registration a process may still register the model that it
	// is loaded for; 20 seconds unless set before the first process starts.
	Grace time.Duration

	// Idle is how long after its first registration a process is needed without requests, as long
	// as a model is after its last one; a minute unless set before the first process starts.
	Idle time.Duration

	machine resources

	changing sync.Mutex // held by Supervise and Close from begin to end
	ended    bool       // set by Close; guarded by changing and mu

	// hurry ends the waiting of the latest Supervise.
	hurry atomic.Pointer[context.CancelCauseFunc]

	mu   sync.RWMutex
	list []*process // replaced, never changed
}

// Close stops all processes for good, in parallel.
func (ps *Processes) Close() error {
	ps.changing.Lock()
	defer ps.changing.Unlock()
	ps.mu.Lock()
	ps.ended = true
	ps.mu.Unlock()
	return each(ps.all(), (*process).stop)
}

// each calls do for all elements of a list in parallel, and waits.
func each[T any](list []T, do func(T) error) error {
	faults := make([]error, len(list))
	var all sync.WaitGroup
	for i, one := range list {
		all.Go(func() { faults[i] = do(one) })
	}
	all.Wait()
	return errors.Join(faults...)
}

func (ps *Processes) all() []*process {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	return ps.list
}

// List returns the state of every process.
func (ps *Processes) List() (list []containers.ProcessInfo) {
	for _, p := range ps.all() {
		list = append(list, p.status()...)
	}
	return list
}

// Restarts returns how often the processes of each container were restarted.
func (ps *Processes) Restarts() map[string]int {
	all := make(map[string]int)
	for _, i := range ps.List() {
		all[i.Name] += i.Restarts
	}
	return all
}

// Starts names the [[container]] whose processes have registered a version, and would register it
// again; "" if there is none.
func (ps *Processes) Starts(id scheduler.ModelID) (container string) {
	for _, p := range ps.all() {
		if slices.Contains(p.current().versions, id) {
			return p.table().Name
		}
	}
	return ""
}

// Awaited returns the models that the processes should serve, and the models whose processes an
// operator or a client has stopped.
func (ps *Processes) Awaited() (loaded []string, unloaded map[string]bool) {
	loaded, unloaded = []string{}, map[string]bool{}
	for _, p := range ps.all() {
		if p.current().loaded() {
			if !p.hopeless() {
				loaded = append(loaded, p.model())
			}
		} else {
			unloaded[p.model()] = true
		}
	}
	return loaded, unloaded
}

// WhyMissing says to operators what is known about models that should be served and are not, for
// the end of a sentence; "" if nothing is known.
func (ps *Processes) WhyMissing(models []string) string {
	return ps.missing(models, func(p *process) string {
		why := p.state().Detail()
		if p.table().Model == "" && len(p.current().versions) == 0 {
			why += ", and its [[container]] does not say which model it serves: set model there if its name differs"
		}
		return why
	})
}

// WhyAbsent is WhyMissing for clients.
func (ps *Processes) WhyAbsent(models []string) string {
	return ps.missing(models, func(p *process) string { return p.state().Reason })
}

// missing joins what is known about the processes of models.
func (ps *Processes) missing(models []string, known func(*process) string) string {
	var why []string
	for _, p := range ps.all() {
		if model := p.model(); p.current().loaded() && slices.Contains(models, model) {
			why = append(why, model+": "+known(p))
		}
	}
	if why == nil {
		return ""
	}
	return " (" + strings.Join(why, "; ") + ")"
}

// Starting says, for clients, what a [[container]] does whose processes may serve a model, "name"
// or "name/version", and have not registered it yet; "": there is none. What a pattern may mean is
// known once they have registered anything.
func (ps *Processes) Starting(id string) string {
	name, _, _ := strings.Cut(id, "/")
	for _, p := range ps.all() {
		c, at := p.table(), p.current()
		if !at.loaded() || slices.ContainsFunc(at.versions, func(v scheduler.ModelID) bool { return v.Name == name }) {
			continue
		}
		may := func(pattern string) bool {
			return access.ServesSome(pattern, id) && (len(at.versions) == 0 || !strings.ContainsAny(pattern, `*?[\`))
		}
		if name == cmp.Or(c.Model, c.Name) && len(at.versions) == 0 || slices.ContainsFunc(c.Serve, may) {
			return c.Name + ": " + p.state().Reason
		}
	}
	return ""
}

// Of returns the model of a [[container]] and the state of its processes; ok is false if it has no
// processes here.
func (ps *Processes) Of(container string) (model string, state predict.State, reason string, ok bool) {
	p, err := ps.lookup(container)
	if err != nil {
		return "", "", "", false
	}
	at := p.state()
	return p.model(), at.State, at.Detail(), true
}

// registered is called for every container that has connected and registered.
func (ps *Processes) registered(conn net.Conn, id scheduler.ModelID) {
	conn = containers.Identified(conn)
	for _, p := range ps.all() {
		p.registered(conn, id)
	}
}

// served is called for every container that has answered its first batch.
func (ps *Processes) served(conn net.Conn) {
	conn = containers.Identified(conn)
	for _, p := range ps.all() {
		if s := p.current().supervisor; s != nil {
			s.Served(conn)
		}
	}
}

// returns is how long after its end a container will have been replaced; 0 if it is none of the
// processes.
func (ps *Processes) returns(conn net.Conn) time.Duration {
	conn = containers.Identified(conn)
	for _, p := range ps.all() {
		if s := p.current().supervisor; s != nil && s.Owns(conn) {
			return s.Returns(conn)
		}
	}
	return 0
}

// origin returns the name of the [[container]] whose process has a connection; "": none. An error
// means that it may be a process of a container, and nobody can tell of which.
func (ps *Processes) origin(conn net.Conn) (container string, err error) {
	all, conn := ps.all(), containers.Identified(conn)
	for _, p := range all {
		if s := p.current().supervisor; s != nil && s.Owns(conn) {
			return p.table().Name, nil
		}
	}
	if len(all) == 0 {
		return "", nil
	}
	return "", containers.Stray(conn)
}

// mayServe returns an error unless a [[container]] says that its processes serve a model: the one
// that it names, or one that its serve lists.
func (ps *Processes) mayServe(container string, id scheduler.ModelID) error {
	p, err := ps.lookup(container)
	if err != nil {
		return err
	}
	c := p.table()
	own := cmp.Or(c.Model, c.Name)
	if id.Name == own || slices.ContainsFunc(c.Serve, func(pattern string) bool {
		return access.Serves(pattern, id.String())
	}) {
		return nil
	}
	if p.isGuest() {
		err = fmt.Errorf("%w: the model file %s may not serve %s: expected a model of its name, or one of %q",
			fault.ErrPermissionDenied, container, id, c.Serve)
	} else {
		err = fmt.Errorf("%w: a process of container %q may not serve %s: its [[container]] has model = %q and serve = %q; if it should, set model to %q, or add it to serve",
			fault.ErrPermissionDenied, container, id, own, c.Serve, id.Name)
	}
	p.refuse(id, err)
	return err
}

// Refused says, in sentences, which containers have processes of which a registration was refused,
// unless Troubled says so.
func (ps *Processes) Refused() (list []string) {
	for _, p := range ps.all() {
		at, name := p.current(), p.table().Name
		if at.refusal.err == nil || at.supervisor == nil || ps.Troubled(name) != "" {
			continue
		}
		if slices.ContainsFunc(at.supervisor.Status(), func(i containers.ProcessInfo) bool {
			return i.State == "running" && i.Since.Before(at.refusal.at)
		}) {
			list = append(list,
				fmt.Sprintf("a registration of container %s was refused: %s", name, fault.Text(at.refusal.err)))
		}
	}
	return list
}

// dismissed is called for every container before it is told not to reconnect.
func (ps *Processes) dismissed(conn net.Conn) {
	conn = containers.Identified(conn)
	for _, p := range ps.all() {
		if s := p.current().supervisor; s != nil {
			s.Dismiss(conn)
		}
	}
}

// kill ends the process of a container that does not answer. Its session is ended anyway.
func (ps *Processes) kill(conn net.Conn, reason error) {
	conn = containers.Identified(conn)
	for _, p := range ps.all() {
		if s := p.current().supervisor; s != nil && s.Kill(conn, reason) {
			return
		}
	}
}

// wanted reports whether an operator has started that version again since it was retired.
func (ps *Processes) wanted(id scheduler.ModelID) bool {
	return slices.ContainsFunc(ps.all(), func(p *process) bool {
		at := p.current()
		return at.pinned && slices.Contains(at.versions, id)
	})
}
