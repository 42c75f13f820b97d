package containers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Roll replaces the processes one after the other. Each is told to end once a new one has
// registered, so the model is served all the time, meanwhile by one more process. For processes
// whose connections cannot be identified (see Registered), seen reports whether any has registered
// since the given time. If a new process ends before it has registered, or ctx ends, Roll stops it,
// leaves the old one running, and returns an error that says which and why.
func (s *Supervisor) Roll(ctx context.Context, seen func(since time.Time) bool) error {
	s.rolling.Lock()
	defer s.rolling.Unlock()
	return s.roll(ctx, seen)
}

// Become makes the processes those of another command, as Roll does. Its Replicas do not count: see
// Resize. After an error the processes that have not been replaced continue, and later ones have
// their command, too.
func (s *Supervisor) Become(ctx context.Context, cmd Command, seen func(since time.Time) bool) error {
	if err := cmd.validate(); err != nil {
		return err
	}
	s.rolling.Lock()
	defer s.rolling.Unlock()
	before := s.adopt(cmd)
	err := s.roll(ctx, seen)
	if err != nil {
		s.adopt(before)
	}
	return err
}

// Supersede makes the processes those of another command, which serves a newer version: requests
// for the model go to that version as soon as it is there. So all new processes are started beside
// the old ones, at least one, and the old ones are told to end once all of the new ones have
// registered and leave has returned. Replicas do not count: see Resize. After an error the old
// processes continue, and later ones have their command, too.
func (s *Supervisor) Supersede(ctx context.Context, cmd Command, seen func(since time.Time) bool, leave func()) error {
	if err := cmd.validate(); err != nil {
		return err
	}
	s.rolling.Lock()
	defer s.rolling.Unlock()
	before := s.adopt(cmd)
	err := s.supersede(ctx, seen, leave)
	if err != nil {
		s.adopt(before)
	}
	return err
}

// supersede is Supersede for a command that has been adopted.
func (s *Supervisor) supersede(ctx context.Context, seen func(since time.Time) bool, leave func()) (err error) {
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return errStopped
	}
	began, old := time.Now(), s.replicas
	for i := range max(1, len(old)) {
		s.next = append(s.next, s.launch(i))
	}
	next := s.next
	s.mu.Unlock()
	for i, p := range next {
		if err = p.awaitRegistration(ctx, func() bool { return seen(began) }); err != nil {
			if i < len(old) {
				err = old[i].stays(err)
			}
			err = fmt.Errorf("replica %d of %d: %w", i, len(next), err)
			break
		}
	}
	s.mu.Lock()
	s.next = nil
	if err == nil {
		s.replicas = next
	} else {
		old = next // the new ones are to end
	}
	s.leaving = append(s.leaving, old...)
	s.mu.Unlock()
	if err == nil {
		leave()
	}
	for _, p := range old {
		p.end()
	}
	for _, p := range old {
		<-p.done
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = slices.DeleteFunc(s.leaving, func(p *process) bool { return slices.Contains(old, p) })
	return err
}

// Adjust makes a command that of the next processes, and its StopTimeout that of all. Call it for
// commands that differ in ways for which no process needs to be replaced.
func (s *Supervisor) Adjust(cmd Command) error {
	if err := cmd.validate(); err != nil {
		return err
	}
	s.adopt(cmd)
	for _, p := range s.all() {
		p.stopTimeout.Store(int64(cmd.withDefaults().StopTimeout))
	}
	return nil
}

// adopt sets the command of the next processes, and returns the one before.
func (s *Supervisor) adopt(cmd Command) (before Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.cmd = s.cmd, cmd.withDefaults()
	return before
}

// roll replaces the processes. The caller holds rolling.
func (s *Supervisor) roll(ctx context.Context, seen func(since time.Time) bool) error {
	s.mu.Lock()
	n := len(s.replicas)
	s.mu.Unlock()
	for i := range n {
		if err := s.replace(ctx, i, seen); err != nil {
			return fmt.Errorf("replica %d of %d: %w", i, n, err)
		}
	}
	return nil
}

func (s *Supervisor) replace(ctx context.Context, i int, seen func(time.Time) bool) error {
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return errStopped
	}
	began, old, next := time.Now(), s.replicas[i], s.launch(i)
	s.next = []*process{next}
	s.mu.Unlock()
	err := next.awaitRegistration(ctx, func() bool { return seen(began) })
	if err != nil {
		err = old.stays(err)
	}
	s.mu.Lock()
	s.next = nil
	if err == nil {
		s.replicas[i] = next
	} else {
		old, next = next, old // the new one is to end
	}
	s.mu.Unlock()
	old.end()
	<-old.done
	return err
}

var errStopped = errors.New("the container was stopped during the roll")

// awaitRegistration waits until a connection of the process has registered. The error says why it
// has not.
func (p *process) awaitRegistration(ctx context.Context, seen func() bool) error {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-p.registered:
			return nil
		case <-look.C:
			if seen() {
				return nil
			}
		case <-p.crashed:
			i := p.snapshot()
			return fmt.Errorf("the new process ended with %s before it registered: %s",
				i.LastExit, strings.Join(i.LastLines, " | "))
		case <-p.done:
			return errStopped
		case <-ctx.Done():
			return fmt.Errorf("the new process has not registered: %w", context.Cause(ctx))
		}
	}
}

// stays adds to the error of a roll what becomes of the process that it has not replaced.
func (p *process) stays(err error) error {
	if err == errStopped {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ending := p.early >= crashLoop && !p.info.Registers && time.Since(p.info.Since) < earlyEnd
	if p.info.State != "running" || ending {
		return fmt.Errorf("%w; the old one has ended, too, with %s", err, p.info.LastExit)
	}
	return fmt.Errorf("%w; the old one continues", err)
}
