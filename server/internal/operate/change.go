package operate

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
)

// changeTimeout is how long the processes of a changed or renamed [[container]] may take to
// register, before the old ones stay for good.
const changeTimeout = 10 * time.Minute

// Supervise makes the processes those of the file: it starts those of new containers, replaces
// those of changed ones, each after its successor has registered, and stops those of removed ones.
// A container whose new processes do not start keeps the old ones, and its fault is in the error
// and in its state. One that an operator has stopped stays stopped. The listeners for containers
// must be open.
func (ps *Processes) Supervise(now []config.Container) error {
	ps.changing.Lock()
	defer ps.changing.Unlock()
	if ps.ended {
		return errStopping
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	ps.hurry.Store(&cancel)
	go func() { // ends with this call
		select {
		case <-ps.stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()

	gone := slices.DeleteFunc(slices.Clone(ps.all()), (*process).isGuest)
	var list, fresh []*process
	changes := map[*process]config.Container{}
	for _, c := range now {
		if c.Address != "" {
			continue
		}
		p := take(&gone, func(old config.Container) bool { return old.Name == c.Name })
		if p == nil {
			p = &process{fleet: ps, settings: c}
			fresh = append(fresh, p)
		} else {
			changes[p] = c
		}
		list = append(list, p)
	}
	// A container that only has another name is the same one.
	for i, p := range fresh {
		c := p.settings
		old := take(&gone, func(old config.Container) bool { old.Name = c.Name; return reflect.DeepEqual(old, c) })
		if old != nil {
			changes[old], fresh[i] = c, nil
			list[slices.Index(list, p)] = old
		}
	}
	fresh = slices.DeleteFunc(fresh, func(p *process) bool { return p == nil })
	ps.mu.Lock()
	ps.list = append(slices.Clip(list), guests(ps.list)...)
	ps.mu.Unlock()
	var faults []error
	for _, p := range fresh {
		faults = append(faults, p.start())
	}
	faults = append(faults, each(gone, (*process).stop))
	// One after the other: each takes the memory of one more process meanwhile.
	for _, p := range list {
		if c, ok := changes[p]; ok {
			faults = append(faults, p.change(ctx, c))
		}
	}
	if crowded := ps.Crowded(); crowded != "" {
		ps.log.Warn("supervised processes want more processors than there are", "reason", crowded, "remedy", "fewer replicas, or cpus = 1 for each, if their libraries start threads")
	}
	return errors.Join(faults...)
}

// Interrupt ends the waiting of a Supervise that another one follows, for processes that may never
// register: those that have not yet keep their old settings until the next one.
func (ps *Processes) Interrupt() {
	if cancel := ps.hurry.Load(); cancel != nil {
		(*cancel)(errors.New("the configuration was reloaded again"))
	}
}

// Fault says why the processes of a [[container]] do not have the settings of the file; "": they
// have.
func (ps *Processes) Fault(container string) string {
	if p, err := ps.lookup(container); err == nil && p.current().fault != nil {
		return p.current().fault.Error()
	}
	return ""
}

// take removes from a list the process whose settings satisfy is, and returns it; nil: there is
// none.
func take(list *[]*process, is func(config.Container) bool) *process {
	i := slices.IndexFunc(*list, func(p *process) bool { return is(p.table()) })
	if i < 0 {
		return nil
	}
	p := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return p
}

// change gives the processes other settings. They are replaced only if the new ones differ in what
// a process has from its start.
func (p *process) change(ctx context.Context, to config.Container) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.mu.Lock()
	from, s := p.settings, p.lifecycle.supervisor
	if s == nil || p.ended {
		p.settings = to
		p.mu.Unlock()
		return nil
	}
	p.mu.Unlock()
	cmd := p.fleet.command(to)
	if sameProcess(p.fleet.command(from), cmd) {
		err := s.Adjust(cmd)
		p.changed(to, err)
		return err
	}
	// The new processes are checked by the new settings, and the old ones have registered.
	p.changed(to, nil)
	if p.registers() == 0 && p.fleet.registeredSince(p, p.current().began) == 0 {
		return errors.Join(p.end(), p.run()) // nothing is served that could be interrupted
	}
	ctx, cancel := context.WithTimeoutCause(ctx, changeTimeout, fmt.Errorf("it had %v", changeTimeout))
	defer cancel()
	ctx, refused := context.WithCancelCause(ctx)
	defer refused(nil)
	p.mu.Lock()
	p.lifecycle.refusal, p.lifecycle.refused = refusedRegistration{}, refused
	p.mu.Unlock()
	err := p.replace(ctx, s, cmd, from.Version != to.Version)
	p.mu.Lock()
	p.lifecycle.refused = nil
	p.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("%w: container %q keeps its processes: %w", scheduler.ErrUnavailable, to.Name, err)
		p.changed(from, err)
		p.mu.Lock()
		p.lifecycle.attempt = to.Name
		p.mu.Unlock()
		return err
	}
	p.fleet.log.Info("container changed", "container", to.Name, "registered", fmt.Sprint(p.current().versions))
	return nil
}

// replace makes the processes those of another command: one after the other, or, if it serves
// another version, all at once.
func (p *process) replace(ctx context.Context, s Supervisor, cmd containers.Command, version bool) error {
	if !version {
		return s.Become(ctx, cmd, func(since time.Time) bool { return p.fleet.registeredSince(p, since) > 0 })
	}
	old := p.current().versions
	err := s.Supersede(ctx, cmd, func(since time.Time) bool {
		return p.fleet.registeredSince(p, since) >= max(1, p.count())
	}, func() { p.leave(ctx, old) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.lifecycle.versions = old
	} else {
		p.lifecycle.versions = slices.DeleteFunc(slices.Clone(p.lifecycle.versions), func(id scheduler.ModelID) bool {
			return slices.Contains(old, id)
		})
	}
	return err
}

// changed sets the settings, and why they are not those of the file.
func (p *process) changed(to config.Container, fault error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings, p.lifecycle.fault = to, fault
}

// refuse records that a registration of a process was refused, for which a change need not wait any
// longer.
func (p *process) refuse(id scheduler.ModelID, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lifecycle.refusal = refusedRegistration{id, err, time.Now()}
	if p.lifecycle.refused != nil {
		p.lifecycle.refused(err)
	}
}

// sameProcess reports whether a process of one command may stay when the command changes to
// another. A share of processors that follows from the number of processes counts from the next
// start.
func sameProcess(a, b containers.Command) bool {
	for _, c := range []*containers.Command{&a, &b} {
		c.Replicas, c.StopTimeout, c.Fallback, c.Log = 0, 0, nil, nil
	}
	return reflect.DeepEqual(a, b)
}
