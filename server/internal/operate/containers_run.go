package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/plural"
)

// lookup returns the process of a [[container]].
func (ps *Processes) lookup(container string) (*process, error) {
	for _, p := range ps.all() {
		if at := p.current(); p.table().Name == container || at.fault != nil && at.attempt == container {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w: this server dials container %q and does not run its processes: start and stop it where it runs",
		scheduler.ErrInvalidInput, container)
}

// Start runs the processes of one [[container]] and waits until all have registered.
func (ps *Processes) Start(ctx context.Context, container string) error {
	p, err := ps.lookup(container)
	if err != nil {
		return err
	}
	began := time.Now()
	if at := p.current(); at.supervisor != nil &&
		!slices.ContainsFunc(at.supervisor.Status(), func(i containers.ProcessInfo) bool { return i.State == "retired" }) {
		began = at.began // they run already
	}
	if err := p.start(); err != nil {
		return err
	}
	return ps.allRegister(ctx, p, began)
}

// allRegister waits until every process has registered. The error says which process has not, and
// why.
func (ps *Processes) allRegister(ctx context.Context, p *process, began time.Time) error {
	return ps.poll(func() (bool, error) {
		s := p.current().supervisor
		if s == nil {
			return false, fmt.Errorf("%w: container %q was stopped meanwhile", scheduler.ErrUnavailable, p.table().Name)
		}
		list := s.Status()
		here, wrong := 0, ""
		for _, i := range list {
			switch {
			case i.Registers:
				here++
			case i.LastExit != "" && i.State != "stopped":
				wrong = fmt.Sprintf("process %d ended with %s", i.Replica,
					access.Printable(
						strings.Join(append([]string{i.LastExit}, lastLines(i)...), " | "),
						mostOutput))
			}
		}
		switch {
		case here == len(list) || ps.registeredSince(p, began) >= len(list):
			ps.log.Info("container started", "container", p.table().Name, "registered",
				fmt.Sprint(p.current().versions))
			return true, nil
		case wrong != "":
			return false, fmt.Errorf("%w: %d of %s of container %q registered: %s",
				scheduler.ErrUnavailable, here, plural.Words(len(list), "process", "processes"), p.table().Name, wrong)
		case ctx.Err() != nil:
			return false, fmt.Errorf("%w: %d of %s of container %q registered in time; the rest is still starting",
				scheduler.ErrDeadlineExceeded, here, plural.Words(len(list), "process", "processes"), p.table().Name)
		}
		return false, nil
	}, ctx.Done())
}

// poll calls look again and again until it is done or fails, and at once when hurry is ready. If
// the server is stopping, poll reports that instead of look's error, which may be a consequence.
func (ps *Processes) poll(look func() (done bool, err error), hurry <-chan struct{}) error {
	timer := time.NewTicker(20 * time.Millisecond)
	defer timer.Stop()
	for {
		done, err := look()
		if done {
			return nil
		}
		select {
		case <-ps.stopping:
			return errStopping
		default:
		}
		if err != nil {
			return err
		}
		select {
		case <-timer.C:
		case <-hurry:
		case <-ps.stopping:
			return errStopping
		}
	}
}

// registeredSince counts the sessions of the process's model that have registered since then, among
// those of which the system cannot tell whose process they are, for example if a command starts a
// container in another network. Others would mislead: a late connection of the old process is no
// sign that the new one serves.
func (ps *Processes) registeredSince(p *process, since time.Time) (n int) {
	model := p.model()
	for _, i := range ps.sessions.inboundSessions() {
		if i.Party.Process == "" && i.Model.Name == model && i.Registered.After(since) {
			n++
		}
	}
	return n
}

// Restart replaces the processes of one [[container]] one by one, each after its successor has
// registered. Processes that are not running are started.
func (ps *Processes) Restart(ctx context.Context, container string) error {
	p, err := ps.lookup(container)
	if err != nil {
		return err
	}
	s := p.current().supervisor
	if s == nil {
		return ps.Start(ctx, container)
	}
	if err := s.Roll(ctx, func(since time.Time) bool { return ps.registeredSince(p, since) > 0 }); err != nil {
		return fmt.Errorf("%w: container %q: %w", scheduler.ErrUnavailable, container, err)
	}
	return nil
}

// Stop stops the processes of one [[container]] and waits until they have ended, for stop_timeout
// at most.
func (ps *Processes) Stop(container string) error {
	p, err := ps.lookup(container)
	if err != nil {
		return err
	}
	return p.unload()
}
