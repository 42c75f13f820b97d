package pipelines

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/state"
)

// Config of a Registry.
type Config struct {
	Store state.Store
	// Changed is called when pipelines were added, deleted or changed, by one goroutine at a time.
	Changed func()
	Log     *slog.Logger // nil is silent
}

// A Registry holds the pipelines of a server, as its store has them. Any goroutine may call any
// method.
type Registry struct {
	*composite.Definitions[Definition, *Pipeline]
	cfg     Config
	linking atomic.Pointer[linking]

	order composite.Order
	lines lines

	mu     sync.Mutex // guards all below
	shares map[string]*shared
	under  int           // requests that are not answered
	none   chan struct{} // closed when there are none; nil: nobody waits for that
}

// A linking is the state of the models when the pipelines were linked to them.
type linking struct {
	gate  *gate.Gate
	table *gate.Table
	other map[string]*gate.Target // composites of other kinds
	all   map[string]*pipeline
}

// Open reads the pipelines and follows their changes until Close. A store that cannot be reached
// yet is followed as well.
func Open(cfg Config) *Registry {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Registry{cfg: cfg, shares: make(map[string]*shared)}
	r.linking.Store(&linking{table: new(gate.Table)})
	r.Definitions = composite.New(composite.Config[Definition, *Pipeline]{
		Store: cfg.Store, Key: "pipelines", Kind: gate.Pipeline, New: New, Check: r.check, Log: cfg.Log,
		Name: func(d Definition) string { return d.Name }, Of: func(p *Pipeline) Definition { return p.Definition },
		Changed: func(gone []string) {
			r.mu.Lock()
			for _, name := range gone {
				delete(r.shares, name)
			}
			r.mu.Unlock()
			cfg.Changed()
		},
	})
	r.Follow()
	return r
}

// sharedOf returns what the pipelines of a name have in common.
func (r *Registry) sharedOf(name string) *shared {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.shares[name]
	if s == nil {
		s = new(shared)
		r.shares[name] = s
	}
	return s
}

// begun counts a request, until ended.
func (r *Registry) begun() {
	r.mu.Lock()
	r.under++
	r.mu.Unlock()
}

func (r *Registry) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.under--; r.under == 0 && r.none != nil {
		close(r.none)
		r.none = nil
	}
}

// Drain waits until no request is under way, or ctx ends. The gate must refuse further requests. It
// must come before the scheduler's Drain, which would refuse what is left of a request.
func (r *Registry) Drain(ctx context.Context) {
	r.mu.Lock()
	if r.under == 0 {
		r.mu.Unlock()
		return
	}
	if r.none == nil {
		r.none = make(chan struct{})
	}
	none := r.none
	r.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
	}
}

// Link implements gate.Composites: it fits every pipeline to the models of t, to applications, and
// to the other pipelines.
func (r *Registry) Link(g *gate.Gate, t *gate.Table) (targets []*gate.Target) {
	now := &linking{gate: g, table: t, other: t.Composites(), all: make(map[string]*pipeline)}
	before := r.linking.Load()
	for _, defined := range r.All() {
		p := r.linked(now, defined, nil)
		if p.fault != nil && p.news(before.all[p.Name]) {
			r.cfg.Log.Warn("a pipeline cannot serve requests", "pipeline", p.Name, "error", p.fault)
		}
		targets = append(targets, p.target)
	}
	r.linking.Store(now)
	return targets
}

// news reports whether the log has not told yet why p cannot serve; before is what p was, or nil.
// Models that are not there yet are no news: their containers register one after the other.
func (p *pipeline) news(before *pipeline) bool {
	if before != nil && before.fault == nil {
		return true
	}
	missing := fault.Of(p.fault).Err == scheduler.ErrUnavailable
	return !missing && (before == nil || before.fault.Error() != p.fault.Error())
}

// linked links a pipeline, after those that its stages name. within are the names of pipelines that
// are being linked.
func (r *Registry) linked(now *linking, defined *Pipeline, within []string) *pipeline {
	if p := now.all[defined.Name]; p != nil {
		return p
	}
	within = append(within, defined.Name)
	p := r.link(now.gate, defined, func(model string) (*gate.Target, error) { return r.find(now, model, within) })
	now.all[p.Name] = p
	return p
}

// find returns what a stage of a pipeline asks: a pipeline, an application or a model.
func (r *Registry) find(now *linking, model string, within []string) (*gate.Target, error) {
	if i := slices.Index(within, model); i >= 0 {
		return nil, fault.Invalid("%s", Circle(within[i:]))
	}
	if inner := r.Find(model); inner != nil {
		p := r.linked(now, inner, within)
		return p.target, p.fault
	}
	target := now.other[model]
	if name, version, versioned := strings.Cut(model, "/"); versioned {
		target = now.table.Target(name, version)
	} else if target == nil {
		target = now.table.Default(name)
	}
	switch {
	case target == nil:
		return nil, &absent{model: model}
	case target.Composite != nil:
		return target, target.Composite.Unlinked(now.gate.View)
	}
	return target, nil
}

// Circle says of pipelines that each contains the next, and the last one the first.
func Circle(names []string) string {
	return fmt.Sprintf("pipelines %s contain one another in a circle",
		gate.Join(append(slices.Clone(names), names[0]), strconv.Quote, " → "))
}

// Plan returns a pipeline as it serves now, or the error that its requests get.
func (r *Registry) Plan(name string) (*Plan, error) {
	p := r.linking.Load().all[name]
	if p == nil {
		return nil, r.Unknown(name)
	}
	return p.plan, p.fault
}

// check checks a definition, by itself and against the current models. A model that is not there
// yet is no fault: then only the rest was checked.
func (r *Registry) check(d Definition) (*Pipeline, error) {
	p, err := New(d)
	if err != nil {
		return nil, err
	}
	if err := r.taken(d.Name); err != nil {
		return nil, err
	}
	if err := r.fit(p); err != nil && fault.Of(err).Err != scheduler.ErrUnavailable {
		return nil, err
	}
	return p, nil
}

// taken reports whether a model or an application has the name of a pipeline.
func (r *Registry) taken(name string) error {
	now := r.linking.Load()
	if now.table.Versions(name) != nil {
		return fault.Invalid("pipeline %q: there is a model of that name", name)
	}
	if c := now.other[name]; c != nil {
		return fault.Invalid("pipeline %q: there is an %s of that name", name, c.Composite.Kind())
	}
	return nil
}

// fit fits a pipeline, which need not be defined, to what serves now.
func (r *Registry) fit(p *Pipeline) error {
	now := r.linking.Load()
	trial := &linking{gate: now.gate, table: now.table, other: now.other, all: make(map[string]*pipeline)}
	_, err := p.Fit(func(model string) (*gate.Target, error) { return r.find(trial, model, []string{p.Name}) })
	return err
}
