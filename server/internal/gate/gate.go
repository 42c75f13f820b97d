package gate

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/identity"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

// ModelOptions are the settings of one model that the gate looks at.
type ModelOptions struct {
	Deadline       time.Duration // for requests that bring none
	Keep           setting.Keep  // frames of a stream that may wait, if these do not say
	Cast           bool          // allow value-preserving casts of inputs
	DefaultVersion string        // "" = the highest version with a live replica
	CacheBytes     int64         // bound of the prediction cache of all versions together; 0 = none
	CacheTTL       time.Duration // how long answers are cached; 0 = for ever
}

// Config of a Gate.
type Config struct {
	Pool    *tensor.Pool              // memory for cast inputs; nil = the garbage collector's
	Options func(string) ModelOptions // by model name; called when routes change, not per request
	Metrics *metrics.Metrics          // where requests are counted, by model
	Tracer  *trace.Tracer             // what follows some of them; nil: none is followed

	// Ready says whether the server takes requests, and if not, why.
	Ready func() (bool, string)
}

// A Gate resolves, checks and submits requests. See the package comment.
type Gate struct {
	View // of whoever may do everything

	cfg   Config
	sched *scheduler.Scheduler

	draining atomic.Bool
	routes   atomic.Pointer[Table]
	caching  atomic.Bool // some model has a cache
	fanning  atomic.Bool // there is or was an application, whose calls may still be submitted

	mu           sync.Mutex             // one refresh at a time
	applications Applications           // nil: there are none; guarded by mu
	caches       map[string]*modelCache // by model name; guarded by mu
	closed       bool                   // likewise: no more caches

	rows map[scheduler.ModelID]*atomic.Int64 // Target.rowSeen, which outlive tables; guarded by mu
}

// New returns a gate without routes; Attach gives it the scheduler.
func New(cfg Config) *Gate {
	g := &Gate{cfg: cfg}
	g.View = g.As(nil)
	g.routes.Store(&Table{})
	return g
}

// Attach sets the scheduler behind the gate, once, before any request.
func (g *Gate) Attach(s *scheduler.Scheduler) {
	g.sched = s
	g.refresh()
}

// AttachApplications gives the gate the applications, once, before any request. They call
// Changed.
func (g *Gate) AttachApplications(a Applications) {
	g.mu.Lock()
	g.applications = a
	g.mu.Unlock()
	g.refresh()
}

// ModelChanged is the scheduler's hook of that name.
func (g *Gate) ModelChanged(*scheduler.Model) { g.refresh() }

// Changed makes what Config.Options returns, and the applications as they are, hold from now on.
func (g *Gate) Changed() { g.refresh() }

// Unrouted is what requests are counted with that reach no model.
func (g *Gate) Unrouted() *metrics.Model { return g.cfg.Metrics.Unrouted() }

// Pool is the memory for what is made of requests.
func (g *Gate) Pool() *tensor.Pool { return g.cfg.Pool }

// Draining reports whether Drain was called.
func (g *Gate) Draining() bool { return g.draining.Load() }

// Drain refuses every request from now on with ErrDraining. Those inside go on.
func (g *Gate) Drain() { g.draining.Store(true) }

// Params are what a request says beside its tensors.
type Params struct {
	parameter.Values

	Version string    // narrows a route that names no version; "" = the default
	Now     time.Time // when the request arrived; its deadline counts from here
	// Texts are JSON, an object by input (shiva.TextsKey), for wires without strings; nil = none.
	Texts []byte
	// Inputs are metadata "inputs", for models with an adapter: texts as JSON, a string or a list;
	// nil = none.
	Inputs  []byte
	Bridge  bool   // the members of Forward name the tensors (InBridgeForm)
	Forward []byte // JSON object for the container; nil = none
	// ID is what feedback for an application names the request by, as JSON; nil = there is none.
	ID     []byte
	Source uint64 // who asks (a connection's number), for fairness between them
	Client string // the machine that asks (ClientOf); "" = this program

	Who *identity.Identity // whose rights hold; nil: all do

	// Own is the stream of the connection, of which the request is a frame unless it names another;
	// nil: then it is none.
	Own *OwnStream

	Asker string // the application that asks; "" = none does

	Trace *trace.Trace // by Follow; nil: the request is not followed
}

// Follow has a request that arrived by a door followed, if it is to be, and returns its trace,
// which is the door's to end. nil: it is not.
func (g *Gate) Follow(p *parameter.Values, door string, arrived time.Time) *trace.Trace {
	return g.cfg.Tracer.Begin(p.Parent, door, arrived)
}

// Follows reports whether any request is.
func (g *Gate) Follows() bool { return g.cfg.Tracer != nil }

// Open turns a question into a request: the route into a model, the tensors into inputs that fit
// the model's declaration. The tensors' memory must live until Close. On an error the call is as
// before.
func (g *Gate) Open(c *Call, route string, tensors []tensor.Tensor, p *Params) error {
	if g.draining.Load() {
		return ErrDraining
	}
	target, err := g.table(p.Who).resolve(route, p.Version)
	if err != nil {
		return err
	}
	return g.OpenTarget(c, target, tensors, p)
}

// ErrDraining refuses a request because the server shuts down.
var ErrDraining = fmt.Errorf("%w: this server is shutting down; send the request to another one or again later", scheduler.ErrDraining)

// OpenTarget is Open for a door that has found the target itself, by [View.Asked].
func (g *Gate) OpenTarget(c *Call, target *Target, tensors []tensor.Tensor, p *Params) (err error) {
	if g.draining.Load() {
		return ErrDraining
	}
	if a := target.Application; a != nil {
		if err = a.Open(c, tensors, p); err == nil {
			c.counted, c.trace = target.Metrics, p.Trace
		}
		return err
	}
	if p.Candidates != nil {
		return fmt.Errorf("%w: %s is for applications, and %q is a model", scheduler.ErrInvalidInput, parameter.CandidateModels, target.ID.Name)
	}
	c.Target, c.counted = target, target.Metrics
	c.Inputs = c.inputs[:0]
	if err = c.arrange(tensors, p, g.cfg.Pool); err != nil {
		c.Close()
		return err
	}
	timeout := p.Timeout
	if timeout == 0 {
		timeout = target.Deadline
	}
	r := &c.request
	r.Model = target.Model
	if p.Trace != nil {
		c.trace, c.asked = p.Trace, p.Trace.Ask(target.ID)
		r.Trace = &c.asked.Trace
	}
	c.Deadline = p.Now.Add(timeout)
	r.Priority = p.Level()
	if r.Parameters = p.Forward; target.Spec.User && p.User != "" {
		r.Parameters = withUser(p.Forward, p.User)
	}
	r.Source = p.Source
	if err = c.Enter(p); err != nil {
		c.Close()
		return err
	}
	if p.Own != nil {
		p.Own.sent(g.sched, target.Model)
	}
	// An answer from the cache would leave before those of older frames.
	if !p.Fresh && c.Frame == nil {
		c.cached.Version, c.cached.Salt = target.cached, p.Salt
	}
	return nil
}
