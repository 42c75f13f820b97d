package modelfiles

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"

	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/shiva/backoff"
)

// errChanged ends what was begun for files that have changed meanwhile.
var errChanged = errors.New("its file has changed again")

// mostNumbers bounds how many names are remembered whose versions are counted.
const mostNumbers = 10000

// take begins to make a model what its files are. The caller holds mu.
func (m *Manager) take(name string, one *slot) {
	ctx, cancel := context.WithCancelCause(m.ctx)
	one.cancel = cancel
	f, served := one.found, *one
	go func() { // ends soon after ctx, unless the file system does not answer
		defer cancel(nil)
		release, err := m.startAlone(ctx)
		now := served
		if err == nil {
			now, err = m.serve(ctx, name, f, served)
			release()
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		defer wake.Up(m.wake)
		one.cancel = nil
		one.put = one.put || m.cfg.Fleet.Served(name) || err == nil
		switch {
		case err == nil:
			if one.err, one.pause = nil, 0; now.key != served.key && served.key != "" {
				m.counts.Taken++
				m.cfg.Log.Info("a changed model file serves", "model", f.model, "version", now.version, "file", f.path)
			}
			m.count(name, f, now)
			one.key, one.content, one.version, one.process = now.key, now.content, now.version, now.process
		case errors.Is(err, errChanged) || m.ctx.Err() != nil: // the next look sees it
		default:
			m.failed(name, one, err)
		}
	}()
}

// startAlone waits until nothing else is being started, or has been for long; release lets the next
// one start.
func (m *Manager) startAlone(ctx context.Context) (release func(), err error) {
	select {
	case m.starting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	over := make(chan struct{})
	go func() { // ends with release
		backoff.Wait(slowStart, over)
		<-m.starting
	}()
	return func() { close(over) }, nil
}

// serve makes the fleet serve a model's files, and returns what serves then; served is what does
// now.
func (m *Manager) serve(ctx context.Context, name string, f found, served slot) (slot, error) {
	content, err := contentOf(f.files)
	if err == nil && f.stamp() != served.stamp {
		err = errChanged
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return served, err
	}
	next := served
	next.key, next.content, next.process = f.key(content), content, f.process
	if next.key == served.key && served.err == nil && reflect.DeepEqual(next.process, served.process) {
		return next, nil // only times are others
	}
	python, err := m.find(f)
	if err != nil {
		return served, err
	}
	if next.version = f.version; f.version == "" {
		next.version = m.number(name, next.key != served.key)
	}
	err = m.cfg.Fleet.Put(ctx, f.command(python, content, next.version), f.as)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errChanged) {
		err = cause
	}
	if err == nil && next.version == served.version && content != served.content && served.content != "" &&
		m.cfg.Changed != nil {
		m.cfg.Changed(f.model)
	}
	return next, err
}

// number returns the counted version of what is to be served; changed: it is not what serves.
func (m *Manager) number(name string, changed bool) string {
	served := m.cfg.Fleet.Served(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	n := max(1, m.numbers[name])
	if changed && served {
		n++
	}
	return strconv.Itoa(n)
}

// count remembers the counted version that serves. The caller holds mu.
func (m *Manager) count(name string, f found, now slot) {
	if f.version != "" {
		return
	}
	if len(m.numbers) >= mostNumbers {
		clear(m.numbers)
	}
	m.numbers[name], _ = strconv.Atoi(now.version)
}

// retire ends a model whose files are gone. The caller holds mu.
func (m *Manager) retire(name string, one *slot) {
	one.cancel = func(error) {}
	go func() { // ends when its processes have
		err := m.cfg.Fleet.Drop(name)
		m.mu.Lock()
		defer m.mu.Unlock()
		defer wake.Up(m.wake)
		delete(m.slots, name)
		if one.put {
			m.counts.Retired++
			m.cfg.Log.Info("a model is retired: its file is gone", "model", one.found.model, "file", one.found.path,
				"ended", fmt.Sprint(err == nil))
		}
	}()
}
