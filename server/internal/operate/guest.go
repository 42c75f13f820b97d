package operate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/modelfiles"
)

// A guest is a container that is not a [[container]] of the file: guests come and go by Put and
// Drop, and Supervise leaves them alone.
func (p *process) isGuest() bool { return p.guest != modelfiles.NoFile }

// guests returns the guests in a list.
func guests(list []*process) []*process {
	return slices.DeleteFunc(slices.Clone(list), func(p *process) bool { return !p.isGuest() })
}

// hopeless reports whether a model is not waited for.
func (p *process) hopeless() bool { return p.guest == modelfiles.Optional && p.futile() }

// futile reports whether processes have ended or were refused without having served.
func (p *process) futile() bool {
	at := p.current()
	if at.supervisor == nil || len(at.versions) > 0 {
		return false
	}
	for _, i := range at.supervisor.Status() {
		if i.LastExit != "" {
			return true
		}
	}
	return at.refusal.err != nil
}

// Put makes a guest one of the processes and starts it, or gives it other settings. It waits until
// changed processes have replaced the old ones, which continue after an error, and not for new
// ones. A guest whose Version changes has a newer version of its model, to which requests go as
// soon as it is there. Calls for one name must follow each other.
func (ps *Processes) Put(ctx context.Context, c config.Container, as modelfiles.Standing) error {
	ps.mu.Lock()
	at := slices.IndexFunc(ps.list, func(p *process) bool { return p.table().Name == c.Name })
	switch {
	case ps.ended:
		ps.mu.Unlock()
		return errStopping
	case at >= 0 && !ps.list[at].isGuest():
		ps.mu.Unlock()
		return fmt.Errorf("%w: %q is the name of a [[container]]", scheduler.ErrInvalidInput, c.Name)
	case at >= 0:
		p := ps.list[at]
		ps.mu.Unlock()
		return p.change(ctx, c)
	}
	p := &process{fleet: ps, settings: c, guest: as}
	ps.list = append(slices.Clip(ps.list), p)
	ps.mu.Unlock()
	return p.start()
}

// Drop stops a guest for good, and waits until its processes have ended.
func (ps *Processes) Drop(name string) error {
	ps.mu.Lock()
	at := slices.IndexFunc(ps.list, func(p *process) bool { return p.isGuest() && p.table().Name == name })
	if at < 0 {
		ps.mu.Unlock()
		return nil
	}
	p := ps.list[at]
	ps.list = slices.Delete(slices.Clone(ps.list), at, at+1)
	ps.mu.Unlock()
	return p.stop()
}

// Guests returns the containers that are guests.
func (ps *Processes) Guests() (list []config.Container) {
	for _, p := range guests(ps.all()) {
		list = append(list, p.table())
	}
	return list
}

// Served reports whether processes of a guest have registered a model.
func (ps *Processes) Served(name string) bool {
	p, err := ps.lookup(name)
	return err == nil && p.isGuest() && len(p.current().versions) > 0
}

// Troubled says why a guest does not serve, although its processes should; "": it serves, or they
// are starting.
func (ps *Processes) Troubled(name string) string {
	p, err := ps.lookup(name)
	if err != nil || !p.isGuest() {
		return ""
	}
	at := p.current()
	if !at.loaded() || p.registers() > 0 || !p.hopeless() && len(at.versions) == 0 {
		return ""
	}
	return p.state().Detail()
}

// Futile says why a guest has not served since it was started, if its processes have ended or were
// refused; "": it has, or they are starting.
func (ps *Processes) Futile(name string) string {
	p, err := ps.lookup(name)
	if err != nil || !p.isGuest() || !p.futile() {
		return ""
	}
	return p.state().Detail()
}

// leaveTimeout bounds how long superseded processes stay for requests that still name them.
const leaveTimeout = 10 * time.Second

// leave waits until nothing needs superseded processes, which have served old: the new ones have
// registered all of these models, and no rows wait for an old version.
func (p *process) leave(ctx context.Context, old []scheduler.ModelID) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	_ = p.fleet.poll(func() (bool, error) {
		if ctx.Err() != nil {
			return true, nil
		}
		now := p.current().versions
		for _, id := range old {
			newer := func(other scheduler.ModelID) bool { return other.Name == id.Name && !slices.Contains(old, other) }
			m, known := p.fleet.sessions.cfg.Scheduler.Model(id)
			if !slices.ContainsFunc(now, newer) || known && m.Stats().QueueRows > 0 {
				return false, nil
			}
		}
		return true, nil
	}, ctx.Done())
}
