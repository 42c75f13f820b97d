package composite

import (
	"cmp"
	"context"
	"encoding/json"
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

// Config of Definitions. A D is a definition as operators write it, and as the store has it in
// JSON; a T is one that is checked, and immutable.
type Config[D, T any] struct {
	Store state.Store
	Key   string // the first segment of their keys in the store
	Kind  gate.Kind
	Name  func(D) string
	Of    func(T) D
	// New checks a definition by itself. Check does, and compares it with the models that serve
	// now. Their errors wrap scheduler.ErrInvalidInput and list all faults.
	New, Check func(D) (T, error)
	// Forget, if set, deletes what belongs to a name: after its definition was deleted, and again
	// before the next one is made, as more may have come meanwhile.
	Forget func(ctx context.Context, name string) error
	// Changed is called after the definitions were read again, one call at a time, with the names
	// of those that are gone.
	Changed func(gone []string)
	Log     *slog.Logger // nil is silent
}

// Definitions are those of all composites of a kind: as the store has them, and those that are
// fixed by the configuration. Any goroutine may call any method.
type Definitions[D, T any] struct {
	cfg     Config[D, T]
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
func New[D, T any](cfg Config[D, T]) *Definitions[D, T] {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	d := &Definitions[D, T]{cfg: cfg, end: make(chan struct{}), stop: func() {}}
	d.all.Store(&map[string]T{})
	d.fixed.Store(&map[string]T{})
	return d
}

// Fix sets the definitions of the configuration. A definition of the same name in the store is not
// in force while there is a fixed one, and cannot be changed.
func (d *Definitions[D, T]) Fix(fixed map[string]T) {
	d.reading.Lock()
	defer d.reading.Unlock()
	d.fixed.Store(&fixed)
	d.merge()
}

// Fixed reports whether the configuration has a definition of that name.
func (d *Definitions[D, T]) Fixed(name string) bool {
	_, is := (*d.fixed.Load())[name]
	return is
}

// Follow reads the definitions now, so that the first requests find them, and again whenever they
// have changed, until Close. A store that cannot be reached yet is followed as well.
func (d *Definitions[D, T]) Follow() {
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
func (d *Definitions[D, T]) Close() {
	d.stop()
	close(d.end)
	d.watching.Wait()
}

// Refresh applies what is in the store now, without waiting for the watch.
func (d *Definitions[D, T]) Refresh() {
	d.reading.Lock()
	defer d.reading.Unlock()
	entries, err := d.cfg.Store.List(d.cfg.Key + "/")
	if err != nil {
		d.cfg.Log.Warn(string(d.cfg.Kind)+"s cannot be read", "error", err)
		return
	}
	now := make(map[string]T, len(entries))
	for _, e := range entries {
		def, err := parse[D](e.Value)
		var parsed T
		if err == nil {
			parsed, err = d.cfg.New(def)
		}
		if err != nil {
			d.cfg.Log.Error("the definition of a composite in the store is not usable", "kind", string(d.cfg.Kind),
				"key", e.Key, "error", err)
			continue
		}
		now[d.cfg.Name(def)] = parsed
	}
	d.stored = now
	d.known.Store(true)
	d.merge()
}

// merge puts what is stored and what is fixed into force. reading is held.
func (d *Definitions[D, T]) merge() {
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
func (d *Definitions[D, T]) Still() (over func()) {
	d.reading.Lock()
	return d.reading.Unlock
}

// Names lists all names, sorted. known is false while the store has not been read yet.
func (d *Definitions[D, T]) Names() (names []string, known bool) {
	return slices.Sorted(maps.Keys(*d.all.Load())), d.known.Load()
}

// List returns all definitions, by name. A store that has not been read is an error, not an empty
// list.
func (d *Definitions[D, T]) List() (list []D, err error) {
	if _, err := d.cfg.Store.List(d.cfg.Key + "/"); err != nil {
		return nil, err
	}
	for _, checked := range d.All() {
		list = append(list, d.cfg.Of(checked))
	}
	return list, nil
}

// All returns all definitions, by name.
func (d *Definitions[D, T]) All() []T {
	all := *d.all.Load()
	list := make([]T, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[name])
	}
	return list
}

// Find returns the definition of that name, or the zero value.
func (d *Definitions[D, T]) Find(name string) T { return (*d.all.Load())[name] }

// ErrExists reports that the name of a definition is taken.
var ErrExists = errors.New("composite: exists already")

// Check reports what is wrong with a definition, by itself and against the current models. The
// error wraps scheduler.ErrInvalidInput and lists all faults.
func (d *Definitions[D, T]) Check(def D) (T, error) { return d.cfg.Check(def) }

// Definition returns the definition of what is in force.
func (d *Definitions[D, T]) Definition(checked T) D { return d.cfg.Of(checked) }

// Create makes a definition. If the name is taken, the error wraps ErrExists.
func (d *Definitions[D, T]) Create(ctx context.Context, def D) (T, error) {
	return d.put(ctx, def, false)
}

// Put makes a definition, or replaces one.
func (d *Definitions[D, T]) Put(ctx context.Context, def D) (T, error) { return d.put(ctx, def, true) }

func (d *Definitions[D, T]) put(ctx context.Context, def D, replace bool) (T, error) {
	var none T
	name := d.cfg.Name(def)
	checked, e, err := d.Entry(def)
	if err != nil {
		return none, err
	}
	if old, err := d.cfg.Store.Get(e.Key); err == nil && old.Value == nil {
		if err := d.forget(ctx, name); err != nil {
			return none, err
		}
	}
	return checked, d.update(ctx, name, func(old []byte) ([]byte, error) {
		if old != nil && !replace {
			return nil, fmt.Errorf("%w: %s %q", ErrExists, d.cfg.Kind, name)
		}
		return e.Value, nil
	})
}

// Change modifies a definition in one atomic step: change gets the current one, and may be called
// several times.
func (d *Definitions[D, T]) Change(ctx context.Context, name string, change func(*D) error) (checked T, err error) {
	err = d.update(ctx, name, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, d.Unknown(name)
		}
		def, err := parse[D](old)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", d.cfg.Kind, name, err)
		}
		if err := change(&def); err != nil {
			return nil, err
		}
		if to := d.cfg.Name(def); to != name {
			return nil, fmt.Errorf("%w: %s %q cannot be renamed to %q: make a new one", scheduler.ErrInvalidInput,
				d.cfg.Kind, name, to)
		}
		var e state.Entry
		checked, e, err = d.Entry(def)
		return e.Value, err
	})
	return checked, err
}

func parse[D any](value []byte) (def D, err error) {
	err = json.Unmarshal(value, &def)
	return def, err
}

// Delete deletes a definition, and what belongs to its name. Requests that it has begun go on.
func (d *Definitions[D, T]) Delete(ctx context.Context, name string) error {
	err := d.update(ctx, name, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, d.Unknown(name)
		}
		return nil, nil
	})
	if err != nil {
		return err
	}
	return d.forget(ctx, name)
}

func (d *Definitions[D, T]) forget(ctx context.Context, name string) error {
	if d.cfg.Forget == nil {
		return nil
	}
	return d.cfg.Forget(ctx, name)
}

// ErrFixed reports that a definition can be changed in the configuration only.
var ErrFixed = errors.New("composite: fixed by the configuration")

// update changes a definition in the store. When it returns nil, the change is in effect in this
// server.
func (d *Definitions[D, T]) update(ctx context.Context, name string, change func(old []byte) ([]byte, error)) error {
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

// Entry checks a definition and returns its entry for the store, for callers that write several at
// once. They call Refresh afterwards.
func (d *Definitions[D, T]) Entry(def D) (checked T, e state.Entry, err error) {
	if checked, err = d.cfg.Check(def); err != nil {
		return checked, e, err
	}
	name := d.cfg.Name(def)
	value, err := json.Marshal(d.cfg.Of(checked))
	if err != nil {
		return checked, e, fmt.Errorf("%w: %s %q: %w", scheduler.ErrInvalidInput, d.cfg.Kind, name, err)
	}
	return checked, state.Entry{Key: state.Key(d.cfg.Key, name), Value: value}, nil
}

// Unknown is the error for a name that no definition has.
func (d *Definitions[D, T]) Unknown(name string) error {
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
