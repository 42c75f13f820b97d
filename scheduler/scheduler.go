package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

// A Scheduler batches the requests of any number of models. It is safe for concurrent use.
type Scheduler struct {
	// Set once.

	hooks Hooks
	pool  *tensor.Pool
	log   *slog.Logger
	clock Clock
	epoch time.Time // internal times are nanoseconds since then

	batchID  atomic.Uint64
	draining atomic.Bool
	successors

	// Locked before a model's mutex, never after it.
	mu sync.Mutex

	// Guarded by mu.

	defaults ModelConfig
	configs  map[string]ModelConfig
	models   map[ModelID]*Model
	retired  []*Model // replaced or forgotten, but may still have replicas
}

// New returns a scheduler without models: AddReplica creates them. An invalid configuration is an
// error that names all faults.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Scheduler{
		hooks: cfg.Hooks, pool: cfg.Pool, log: cfg.Log, clock: cfg.Clock,
		defaults: cfg.Default,
		configs:  make(map[string]ModelConfig),
		models:   make(map[ModelID]*Model),
	}
	for name, c := range cfg.Models {
		s.configs[name] = c
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.clock == nil {
		s.clock = realClock{}
	}
	s.epoch = s.clock.Now()
	// Random, so that an answer meant for an earlier process of this server matches no batch.
	s.batchID.Store(rand.Uint64() >> 1)
	return s, nil
}

func (s *Scheduler) now() int64 { return int64(s.clock.Now().Sub(s.epoch)) }

// MaxAbsent is the number of models without a replica that stay known. Replicas choose their
// models' names, so the number must be bounded: for one more, the model that has been absent for
// longest is forgotten.
const MaxAbsent = 256

// AddReplica registers a worker as a replica of a model, which it creates if it is new. It fails
// with ErrInvalidInput if the spec is invalid, with a *[TakenError] if its contract (inputs,
// outputs, batching) differs from that of the live replicas, and with ErrDraining after Drain or
// Close. If no replica is live, another contract starts a new Model.
func (s *Scheduler) AddReplica(id ModelID, spec Spec, w Worker, opts ReplicaOptions) (*Replica, error) {
	if id.Name == "" || id.Version == "" {
		return nil, fmt.Errorf("%w: expected a model's name and version, got %q and %q",
			ErrInvalidInput, id.Name, id.Version)
	}
	cfg := s.ModelConfig(id.Name)
	err := spec.resolve(cfg.Batched)
	if err == nil {
		err = spec.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: model %s: %w", ErrInvalidInput, id, err)
	}
	s.mu.Lock()
	if s.draining.Load() {
		s.mu.Unlock()
		return nil, errDraining
	}
	s.retired = slices.DeleteFunc(s.retired, (*Model).abandoned)
	cfg = s.configLocked(id.Name)
	var replaced *Model
	m := s.models[id]
	if m != nil && !m.spec.sameContract(spec) {
		if m.Replicas() > 0 {
			s.mu.Unlock()
			return nil, m.taken(spec)
		}
		s.retired = append(s.retired, m)
		m, replaced = nil, m
	}
	var forgotten *Model
	if m == nil {
		forgotten = s.makeRoomLocked()
		m = newModel(s, id, spec, cfg)
		s.models[id] = m
	}
	rep := &Replica{m: m, label: opts.Label, worker: w, declared: spec.MaxBatch, options: opts,
		strategy: newStrategy(cfg.Strategy)}
	fx, now := m.begin()
	m.core.add(rep, now, fx)
	s.mu.Unlock()
	m.end(fx, now)
	if replaced != nil {
		replaced.Await("") // nothing will serve its requests
		replaced.dismiss(fmt.Errorf("another container has registered %s with other shapes", id))
	}
	if f := s.hooks.ModelChanged; f != nil && forgotten != nil {
		f(forgotten)
	}
	s.log.Debug("replica added", "model", id, "replica", opts.Label)
	m.warn(rep)
	return rep, nil
}

// makeRoomLocked forgets the model that has been absent for longest, if MaxAbsent models are.
func (s *Scheduler) makeRoomLocked() (oldest *Model) {
	absent, since := 0, int64(never)
	for _, m := range s.models {
		if at, ok := m.absent(); ok {
			if absent++; at < since {
				oldest, since = m, at
			}
		}
	}
	if absent < MaxAbsent {
		return nil
	}
	delete(s.models, oldest.id)
	return oldest
}

// absent reports whether a model has no replica and awaits none, and since when.
func (m *Model) absent() (since int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.lastRemoved, len(m.core.replicas) == 0 && m.core.awaited == ""
}

func (m *Model) abandoned() bool {
	_, ok := m.absent()
	return ok
}

// Forget removes a model that has no live replica, and reports whether it did. Without it the
// model stays known until there are more than [MaxAbsent] such models, and its requests are
// answered ErrUnavailable rather than ErrNotFound.
func (s *Scheduler) Forget(id ModelID) bool {
	s.mu.Lock()
	m := s.models[id]
	if m == nil || m.Replicas() > 0 {
		s.mu.Unlock()
		return false
	}
	delete(s.models, id)
	s.retired = append(s.retired, m)
	s.mu.Unlock()
	if f := s.hooks.ModelChanged; f != nil {
		f(m)
	}
	m.dismiss(fmt.Errorf("model %s was forgotten, as no container of it was live", id))
	return true
}

// dismiss parts from the replicas of a model that was replaced or forgotten. They are suspect or
// draining; a suspect one would be live again with its next answer, in a model that nobody asks.
func (m *Model) dismiss(reason error) {
	m.mu.Lock()
	left := slices.Clone(m.core.replicas)
	m.mu.Unlock()
	for _, r := range left {
		if f := r.options.Replaced; f != nil {
			f(reason)
		} else {
			r.Drain(func() {})
		}
	}
}

// Model returns a known model: one that has, or had, replicas.
func (s *Scheduler) Model(id ModelID) (*Model, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.models[id]
	return m, ok
}

// Models returns all known models, sorted by name and version.
func (s *Scheduler) Models() []*Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Model, 0, len(s.models))
	for _, m := range s.models {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *Model) int {
		return cmp.Or(cmp.Compare(a.id.Name, b.id.Name), cmp.Compare(a.id.Version, b.id.Version))
	})
	return all
}

// ModelConfig returns the effective configuration for all versions of the named model. MaxBatch is
// 0 if the containers decide.
func (s *Scheduler) ModelConfig(name string) ModelConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.configLocked(name)
}

func (s *Scheduler) configLocked(name string) ModelConfig {
	if cfg, ok := s.configs[name]; ok {
		return cfg.withDefaults()
	}
	return s.defaults.withDefaults()
}

// Configure changes the configuration of all present and future versions of a model. It takes
// effect at once for waiting rows; executing batches are not touched. Zero fields mean the
// defaults of ModelConfig. An invalid configuration is an error and changes nothing.
func (s *Scheduler) Configure(name string, cfg ModelConfig) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("model %s: %w", name, err)
	}
	s.reconfigure(func() { s.configs[name] = cfg })
	return nil
}

// Reconfigure changes the configuration of all models, as Configure does for one: models has the
// configurations of the named models, other is that of all other models. The scheduler takes
// ownership of the map. After an error nothing has changed.
func (s *Scheduler) Reconfigure(other ModelConfig, models map[string]ModelConfig) error {
	if err := other.Validate(); err != nil {
		return fmt.Errorf("the default: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		if err := models[name].Validate(); err != nil {
			return fmt.Errorf("model %s: %w", name, err)
		}
	}
	s.reconfigure(func() { s.defaults, s.configs = other, models })
	return nil
}

// reconfigure calls set, which changes configurations under mu, and applies the changes to the
// models.
func (s *Scheduler) reconfigure(set func()) {
	s.mu.Lock()
	before := make(map[ModelID]ModelConfig, len(s.models))
	for id := range s.models {
		before[id] = s.configLocked(id.Name)
	}
	set()
	// Under mu, so that the later of two calls wins in all models.
	var changed []*Model
	var after []func()
	for id, m := range s.models {
		cfg := s.configLocked(id.Name)
		if reflect.DeepEqual(cfg, before[id]) {
			continue
		}
		changed = append(changed, m)
		fx, now := m.begin()
		m.core.configure(cfg)
		m.core.dispatch(now, fx)
		m.unlock(now)
		after = append(after, func() { m.run(fx); m.conclude(fx) })
	}
	s.mu.Unlock()
	for _, f := range after {
		f()
	}
	for _, m := range changed {
		m.warn(nil)
	}
}

// warn logs the serial replicas that the configuration gives several batches at once: all such
// replicas, or only the given one.
func (m *Model) warn(only *Replica) {
	m.mu.Lock()
	var labels []string
	for _, r := range m.core.replicas {
		if r.options.Serial && r.slots > 1 && (only == nil || r == only) {
			labels = append(labels, r.label)
		}
	}
	slots := m.core.cfg.Slots
	m.mu.Unlock()
	for _, label := range labels {
		m.sched.log.Warn("slots allows several batches in flight for a replica that takes one at a time, so its answers may be wrong; set slots to 0 or 1",
			"model", m.id, "replica", label, "slots", slots)
	}
}

// Submit submits requests. It never blocks and returns no error: each request gets exactly one call
// of its owner's Complete, possibly before Submit returns. Requests of one model in one call are
// dispatched together, after the last one: the requests that an event loop has read in one turn
// make one batch.
func (s *Scheduler) Submit(rs ...*Request) {
	if len(rs) == 0 {
		return
	}
	m := rs[0].Model
	for _, r := range rs[1:] {
		if r.Model != m {
			s.submitMixed(rs)
			return
		}
	}
	if m != nil {
		m.submit(rs)
		return
	}
	for _, r := range rs {
		r.Err, r.outcome = errNoModel, OutcomeNotFound
		if f := s.hooks.Answered; f != nil {
			f(r, OutcomeNotFound)
		}
		r.Owner.Complete(r)
	}
}

// submitMixed submits requests of several models, model by model. A submitted request must not be
// read again, so they are sorted beforehand, in a copy.
func (s *Scheduler) submitMixed(rs []*Request) {
	same := make([]*Request, 0, len(rs))
	for rest := slices.Clone(rs); len(rest) > 0; {
		m, from, others := rest[0].Model, len(same), rest[:0]
		for _, r := range rest {
			if r.Model == m {
				same = append(same, r)
			} else {
				others = append(others, r)
			}
		}
		rest = others
		s.Submit(same[from:]...)
	}
}

// Cancel cancels a request: it is answered ErrCanceled at once. Waiting rows leave the queue; the
// results of executing rows are dropped. Cancel does nothing for a request that is answered
// already, or was never submitted.
//
// It may race with the answer, but not with the request's next use: after Complete, r may be
// passed to Cancel only until its fields are set for another Submit.
func (s *Scheduler) Cancel(r *Request) {
	if r.Model != nil {
		r.Model.cancel(r)
	}
}

// Infer submits a request, waits for its answer and returns r.Err; it sets Owner. When ctx ends
// first the request is canceled. The context's deadline applies if the request has none.
func (s *Scheduler) Infer(ctx context.Context, r *Request) error {
	if r.Deadline.IsZero() {
		r.Deadline, _ = ctx.Deadline()
	}
	done := make(waiter)
	r.Owner = done
	s.Submit(r)
	select {
	case <-done:
	case <-ctx.Done():
		s.Cancel(r)
		<-done
	}
	return r.Err
}

type waiter chan struct{}

func (w waiter) Complete(*Request) { close(w) }

// Drain refuses new requests and replicas, and returns when all requests are answered and no
// callback is running, or with the error of ctx if that ends first. It must not be called from a
// callback.
func (s *Scheduler) Drain(ctx context.Context) error {
	for _, m := range s.stop() {
		m.mu.Lock()
		m.core.draining = true
		if m.idle == nil {
			m.idle = make(chan struct{})
		}
		idle := m.idle
		m.checkIdleLocked()
		m.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("scheduler: draining: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Close refuses new requests and replicas, answers all requests ErrDraining, and stops the
// timers. Executing batches stay with their workers until these answer.
func (s *Scheduler) Close() {
	for _, m := range s.stop() {
		fx, now := m.begin()
		m.core.close(fx)
		if m.timer != nil {
			m.timer.Stop()
		}
		m.armed = never
		m.end(fx, now)
	}
}

// stop refuses new replicas and returns all models.
func (s *Scheduler) stop() []*Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining.Store(true)
	all := slices.Clone(s.retired)
	for _, m := range s.models {
		all = append(all, m)
	}
	for _, m := range all {
		m.mu.Lock()
		m.core.draining = true
		m.mu.Unlock()
	}
	return all
}
