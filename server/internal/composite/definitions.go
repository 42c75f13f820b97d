package composite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/nearest"
)

// Config of Definitions.
type Config[T any] struct {
	Store state.Store
	Key   string // the first segment of their keys in the store
	Kind  gate.Kind
	Parse func(value []byte) (name string, parsed T, err error)
	// Changed is called after the definitions were read again, one call at a time, with the names
	// of those that are gone.
	Changed func(gone []string)
	Log     *slog.Logger // nil is silent
}

// Definitions are those of all composites of a kind: as the store has them, and those that are
// fixed by the configuration. What Parse returns must be immutable. Any goroutine may call any
// method.
type Definitions[T any] struct {
	cfg     Config[T]
	all     atomic.Pointer[map[string]T]
	known   atomic.Bool
	reading sync.Mutex   // held by Refresh, so that a later read is not overwritten
	stored  map[string]T // guarded by reading
	fixed   atomic.Pointer[map[string]T]

	end      chan struct{}
	stop     func() // ends the watch
	watching sync.WaitGroup
}

// New returns the definitions of a kind, of which none is known before Follow.
func New[T any](cfg Config[T]) *Definitions[T] {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	d := &Definitions[T]{cfg: cfg, end: make(chan struct{}), stop: func() {}}
	d.all.Store(&map[string]T{})
	d.fixed.Store(&map[string]T{})
	return d
}

// Fix sets the definitions of the configuration. A definition of the same name in the store is not
// in force while there is a fixed one, and cannot be changed.
func (d *Definitions[T]) Fix(fixed map[string]T) {
	d.reading.Lock()
	defer d.reading.Unlock()
	d.fixed.Store(&fixed)
	d.merge()
}

// Fixed reports whether the configuration has a definition of that name.
func (d *Definitions[T]) Fixed(name string) bool {
	_, is := (*d.fixed.Load())[name]
	return is
}

// Follow reads the definitions now, so that the first requests find them, and again whenever they
// have changed, until Close. A store that cannot be reached yet is followed as well.
func (d *Definitions[T]) Follow() {
	d.Refresh()
	changed := make(chan struct{}, 1)
	d.stop = d.cfg.Store.Watch(d.cfg.Key+"/", changed)
	d.watching.Go(func() { // ends with Close, which waits for it
		for range wake.Each(changed, d.end) {
			d.Refresh()
		}
	})
}

// Close stops following changes. It does not close the store.
func (d *Definitions[T]) Close() {
	d.stop()
	close(d.end)
	d.watching.Wait()
}

// Refresh applies what is in the store now, without waiting for the watch.
func (d *Definitions[T]) Refresh() {
	d.reading.Lock()
	defer d.reading.Unlock()
	entries, err := d.cfg.Store.List(d.cfg.Key + "/")
	if err != nil {
		d.cfg.Log.Warn(string(d.cfg.Kind)+"s cannot be read", "error", err)
		return
	}
	now := make(map[string]T, len(entries))
	for _, e := range entries {
		name, parsed, err := d.cfg.Parse(e.Value)
		if err != nil {
			d.cfg.Log.Error("the definition of a composite in the store is not usable", "kind", string(d.cfg.Kind),
				"key", e.Key, "error", err)
			continue
		}
		now[name] = parsed
	}
	d.stored = now
	d.known.Store(true)
	d.merge()
}

// merge puts what is stored and what is fixed into force. reading is held.
func (d *Definitions[T]) merge() {
	now := make(map[string]T, len(d.stored))
	maps.Copy(now, d.stored)
	maps.Copy(now, *d.fixed.Load())
	var gone []string
	for name := range *d.all.Swap(&now) {
		if _, is := now[name]; !is {
			gone = append(gone, name)
		}
	}
	d.cfg.Changed(gone)
}

// Still keeps the definitions as they are until over is called; Refresh waits.
func (d *Definitions[T]) Still() (over func()) {
	d.reading.Lock()
	return d.reading.Unlock
}

// Names lists all names, sorted. known is false while the store has not been read yet.
func (d *Definitions[T]) Names() (names []string, known bool) {
	return slices.Sorted(maps.Keys(*d.all.Load())), d.known.Load()
}

// All returns all definitions, by name.
func (d *Definitions[T]) All() []T {
	all := *d.all.Load()
	list := make([]T, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[name])
	}
	return list
}

// Find returns the definition of that name, or the zero value.
func (d *Definitions[T]) Find(name string) T { return (*d.all.Load())[name] }

// ErrExists reports that the name of a definition is taken.
var ErrExists = errors.New("composite: exists already")

// Put makes a definition, or replaces one. Without replace, a taken name is an ErrExists.
func (d *Definitions[T]) Put(ctx context.Context, name string, value []byte, replace bool) error {
	return d.Update(ctx, name, func(old []byte) ([]byte, error) {
		if old != nil && !replace {
			return nil, fmt.Errorf("%w: %s %q", ErrExists, d.cfg.Kind, name)
		}
		return value, nil
	})
}

// Change modifies a definition in one atomic step: change gets the current one.
func (d *Definitions[T]) Change(ctx context.Context, name string, change func(old []byte) ([]byte, error)) error {
	return d.Update(ctx, name, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, d.Unknown(name)
		}
		return change(old)
	})
}

// Delete deletes a definition.
func (d *Definitions[T]) Delete(ctx context.Context, name string) error {
	return d.Change(ctx, name, func([]byte) ([]byte, error) { return nil, nil })
}

// ErrFixed reports that a definition can be changed in the configuration only.
var ErrFixed = errors.New("composite: fixed by the configuration")

// Update changes a definition in the store. When it returns nil, the change is in effect in this
// server.
func (d *Definitions[T]) Update(ctx context.Context, name string, change func(old []byte) ([]byte, error)) error {
	if d.Fixed(name) {
		return fmt.Errorf("%w: %s %q is in the configuration file of this server, and changes there only", ErrFixed,
			d.cfg.Kind, name)
	}
	if _, err := d.cfg.Store.Update(ctx, state.Key(d.cfg.Key, name), "", change); err != nil {
		return Stored(err)
	}
	d.Refresh()
	return nil
}

// Entry is a definition for the store, for callers that write several at once. They call Refresh
// afterwards.
func (d *Definitions[T]) Entry(name string, value []byte) state.Entry {
	return state.Entry{Key: state.Key(d.cfg.Key, name), Value: value}
}

// Unknown is the error for a name that no definition has.
func (d *Definitions[T]) Unknown(name string) error {
	names, _ := d.Names()
	near := nearest.Names(name, names)
	if len(near) == 0 {
		return fmt.Errorf("%w: no %s %q", scheduler.ErrNotFound, d.cfg.Kind, name)
	}
	return fmt.Errorf("%w: no %s %q; nearest: %s", scheduler.ErrNotFound, d.cfg.Kind, name,
		gate.Join(near, strconv.Quote, ", "))
}

// Stored wraps a store error in a condition that clients know.
func Stored(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, state.ErrUnavailable), errors.Is(err, state.ErrFull), errors.Is(err, state.ErrClosed),
		errors.Is(err, state.ErrConflict):
		return storedError{err, scheduler.ErrUnavailable}
	case errors.Is(err, state.ErrTooLarge):
		return storedError{err, scheduler.ErrTooLarge}
	}
	return err
}

// A storedError has only the text of the store's error: the condition's own text is about replicas
// and messages.
type storedError struct {
	error
	condition error
}

func (e storedError) Unwrap() []error { return []error{e.error, e.condition} }
