package modelfiles

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/shiva/backoff"
)

const (
	// lookEvery is how often the files are looked at without a hint, if there may be any.
	lookEvery = 2 * time.Second
	// settleTime is how long a file must stay the same before it is read: it may still be written.
	settleTime = time.Second
	// restless bounds the time between two starts for a file that changes again and again; from one
	// change to the next it doubles.
	restless = time.Minute
	// retryMin and retryMax bound the pause before what has failed is tried again: it may have been
	// for want of memory, or of a library.
	retryMin, retryMax = 10 * time.Second, 5 * time.Minute
	// slowStart is how long a start keeps others from beginning.
	slowStart = time.Minute
	// firstLook is how long a start of the server waits for the first look at the files.
	firstLook = 10 * time.Second
)

// A Standing says how a container counts for whether the server is ready.
type Standing int

const (
	// NoFile is the standing of a container that serves no model file.
	NoFile Standing = iota
	// Required makes the server ready only while the model is served, as that of a [[container]].
	Required
	// Optional does so only while the processes are starting for the first time, or have served:
	// what somebody has put into a folder must not make a server unready that serves other models.
	Optional
)

// A Fleet keeps the processes: see Processes of package operate.
type Fleet interface {
	Put(ctx context.Context, c config.Container, as Standing) error
	Drop(name string) error
	Served(name string) bool
	Troubled(name string) string
}

// Config configures a Manager.
type Config struct {
	Fleet Fleet
	Log   *slog.Logger
	// Changed is called when a version of a model has other contents than before; nil: nobody needs
	// to know.
	Changed func(model string)
}

// A Manager keeps a container for each model file. Its methods may be called from any goroutine.
type Manager struct {
	cfg  Config
	now  func() time.Time
	find func(found) (python string, err error)

	wake     chan struct{} // holds one: look
	starting chan struct{} // holds one: something is being started

	listings listings // owned by the goroutine that scans

	mu       sync.Mutex
	ctx      context.Context // of everything that is being taken; ends with Run
	files    []config.ModelFile
	folders  []config.ModelFolder
	reserved map[string]bool      // names of [[container]]
	slots    map[string]*slot     // by the container's name
	numbers  map[string]int       // the latest counted version of each container
	troubles []string             // of folders and names, in sentences
	ignored  []string             // which files need trust, in a sentence for each folder
	looks    uint64               // finished ones
	hurried  map[string]time.Time // models that do not settle, and since when
	counts   Counts
}

// Counts are what has become of changed files.
type Counts struct {
	Taken   uint64 // they serve
	Kept    uint64 // they do not, and what served before continues
	Retired uint64 // they are gone
}

// New returns a Manager without files.
func New(cfg Config) *Manager {
	m := &Manager{
		cfg: cfg, now: time.Now, wake: make(chan struct{}, 1), starting: make(chan struct{}, 1),
		ctx:   context.Background(),
		slots: map[string]*slot{}, numbers: map[string]int{}, hurried: map[string]time.Time{},
	}
	m.find = func(f found) (string, error) { return interpreter(f.reading, f.root, f.path, f.executes) }
	m.listings = listings{now: func() time.Time { return m.now() }, dirs: map[string]listing{},
		signs: map[string]string{}}
	return m
}

// Configure sets which files and folders there are. What is taken because of it is begun by Run.
func (m *Manager) Configure(c config.Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files, m.folders = c.ModelFiles, c.ModelFolders
	m.reserved = map[string]bool{}
	for _, p := range c.Supervised {
		m.reserved[p.Name] = true
	}
	wake.Up(m.wake)
}

// Run follows the files until stopping is closed; first is closed after the first look. A file
// system that does not answer does not hold it.
func (m *Manager) Run(stopping <-chan struct{}, first chan<- struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	poke := make(chan struct{}, 1)
	hints := newHints(poke)
	defer hints.close()
	defer func() {
		if first != nil {
			close(first)
		}
	}()
	for {
		began := m.now()
		seen := make(chan scan, 1)
		go func() { seen <- m.scan() }() // not joined: a file system may not answer
		select {
		case s := <-seen:
			next := m.merge(s)
			hints.follow(s.dirs)
			if first != nil {
				close(first)
				first = nil
			}
			// A look takes at most a twentieth of the time.
			if !backoff.Wait(max(50*time.Millisecond, 20*m.now().Sub(began)), stopping) {
				return
			}
			timer := time.NewTimer(next)
			select {
			case <-timer.C:
			case <-poke:
			case <-m.wake:
			case <-stopping:
			}
			timer.Stop()
		case <-stopping:
		}
		select {
		case <-stopping:
			return
		default:
		}
	}
}

// Begin runs m until stopping is closed, as a part of what all counts, and returns after the first
// look.
func (m *Manager) Begin(all *sync.WaitGroup, stopping <-chan struct{}) {
	first := make(chan struct{})
	all.Go(func() { m.Run(stopping, first) })
	select {
	case <-first:
	case <-time.After(firstLook):
		m.cfg.Log.Warn("the folders of models have not answered yet", "after", firstLook)
	}
}

// Refresh looks at the files of a model at once, without waiting for them to settle, and returns
// when what has changed serves; the error says why it does not.
func (m *Manager) Refresh(ctx context.Context, model string) error {
	m.mu.Lock()
	if !slices.ContainsFunc(slices.Collect(maps.Values(m.slots)), func(s *slot) bool {
		return s.found.model == model
	}) {
		m.mu.Unlock()
		return nil // no file of ours
	}
	m.hurried[model] = m.now()
	after := m.looks + 2 // one may be under way
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.hurried, model)
	}()
	var failed error
	err := m.await(ctx, func() bool {
		done := m.looks >= after
		failed = nil
		for _, s := range m.slots {
			if s.found.model == model {
				done = done && s.cancel == nil
				failed = cmp.Or(s.err, failed)
			}
		}
		return done
	})
	return cmp.Or(err, failed)
}

// Look returns once the files that are there are known. They need not serve yet.
func (m *Manager) Look(ctx context.Context) error {
	m.mu.Lock()
	after := m.looks + 2 // one may be under way
	none := len(m.files)+len(m.folders) == 0
	m.mu.Unlock()
	if none {
		return nil
	}
	return m.await(ctx, func() bool { return m.looks >= after })
}

// await has files looked at until done, which it calls with m locked, is true, or m is closed.
func (m *Manager) await(ctx context.Context, done func() bool) error {
	for over := false; !over; {
		wake.Up(m.wake)
		if !backoff.Wait(20*time.Millisecond, ctx.Done()) {
			return context.Cause(ctx)
		}
		m.mu.Lock()
		over = done() || m.ctx.Err() != nil
		m.mu.Unlock()
	}
	return nil
}

// Awaiting returns the models whose first processes are about to start.
func (m *Manager) Awaiting() (models []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.slots {
		if !s.put && (s.err == nil || s.found.as == Required) {
			models = append(models, s.found.model)
		}
	}
	return models
}

// Models returns the names of the models that files have, sorted.
func (m *Manager) Models() (models []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.slots {
		models = append(models, s.found.model)
	}
	slices.Sort(models)
	return slices.Compact(models)
}

// Count returns how many models files have, how many of these have a fault, and what has become of
// changes.
func (m *Manager) Count() (models, faulty int, c Counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, s := range m.slots {
		if models++; m.faultOf(name, s) != "" {
			faulty++
		}
	}
	return models, faulty, m.counts
}

// Faults says, in sentences, which models are not what their files say, and which files cannot be
// served.
func (m *Manager) Faults() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := slices.Clone(m.troubles)
	for _, name := range slices.Sorted(maps.Keys(m.slots)) {
		if text := m.faultOf(name, m.slots[name]); text != "" {
			list = append(list, text)
		}
	}
	return list
}

// Ignored says, in sentences, which files of folders would be models if their folders were trusted.
func (m *Manager) Ignored() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ignored
}

// Fault says what is wrong with the files of a model; "": nothing.
func (m *Manager) Fault(model string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.slots)) {
		if s := m.slots[name]; s.found.model == model {
			if text := m.faultOf(name, s); text != "" {
				return text
			}
		}
	}
	return ""
}

// faultOf returns the fault of a slot in a sentence; the caller holds mu.
func (m *Manager) faultOf(name string, s *slot) string {
	switch now := m.now(); {
	case s.err != nil && s.put && m.cfg.Fleet.Served(name):
		return fmt.Sprintf("%s serves what its file was: the change cannot be served: %s", name, fault.Text(s.err))
	case s.err != nil:
		return fmt.Sprintf("%s is not served: %s", name, fault.Text(s.err))
	case s.stamp != s.done && now.Sub(s.other) > restless && now.Sub(s.since) < settleTime:
		return fmt.Sprintf("%s waits for its file to stay the same: it keeps changing", name)
	}
	if why := m.cfg.Fleet.Troubled(name); why != "" {
		return fmt.Sprintf("%s is not served: %s", name, why)
	}
	return ""
}
