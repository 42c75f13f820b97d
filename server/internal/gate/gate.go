package gate

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/latest"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// ModelOptions are the settings of one model that the gate uses.
type ModelOptions struct {
	Deadline       time.Duration // for requests without one
	Keep           setting.Keep  // frames of a stream that may wait; a frame may override it
	Cast           setting.Cast  // the casts of inputs that are allowed
	Pixels         int64         // maximum for one picture in a file
	DefaultVersion string        // "" = the highest version that has a live replica
	CacheBytes     int64         // bound of the prediction cache of all versions together; 0 = none
	CacheTTL       time.Duration // how long answers are cached; 0 = forever
	Latest         Latest        // how the newest answers of streams are kept
}

// Config of a Gate.
type Config struct {
	Pool    *tensor.Pool              // memory for cast inputs; nil = the garbage collector's
	Latest  int64                     // most bytes of the newest answers of streams
	Options func(string) ModelOptions // by model name; called when routes change, not per request
	// Redirects returns what else has names, by name; called when routes change. nil: nothing.
	Redirects func() map[string]*Redirect
	Metrics   *metrics.Metrics // where requests are counted, by model
	Tracer    *trace.Tracer    // traces some requests; nil: none
}

// A Server says what clients may expect of it.
type Server struct {
	// Ready reports whether the server takes requests, and if not, why.
	Ready func() (bool, string)
	// Awaited says why an expected model, "name" or "name/version", is not there yet; "": the model
	// is not expected. guessed: nothing is known of the name, which may be misspelled as well. nil:
	// no model is expected.
	Awaited func(id string) (why string, guessed bool)
}

// A Gate resolves, checks and submits requests. See the package comment.
type Gate struct {
	View // of a caller with all rights

	cfg Config

	// Set once, before any request.

	sched    *scheduler.Scheduler
	server   Server
	watchers []func()

	draining atomic.Bool
	routes   atomic.Pointer[Table]
	latest   *latest.Store
	caching  atomic.Bool // some model has a cache
	fanning  atomic.Bool // there is or was a composite, whose calls may still be in flight

	mu         sync.Mutex             // one refresh at a time
	composites []Composites           // of each kind; guarded by mu
	caches     map[string]*modelCache // by model name; guarded by mu
	closed     bool                   // no more caches are made; guarded by mu

	rows map[scheduler.ModelID]*atomic.Int64 // Target.rowSeen, which outlives tables; guarded by mu
}

// New returns a gate without routes; Attach gives it the scheduler.
func New(cfg Config) *Gate {
	g := &Gate{cfg: cfg, latest: latest.New(cfg.Pool, cfg.Latest)}
	g.View = g.As(nil)
	g.routes.Store(&Table{})
	return g
}

// Attach sets the scheduler behind the gate and the server around it, once, before any request. The
// scheduler's hook ModelChanged must be the gate's. Each time that it has been called, the gate
// calls the watchers, from any goroutine; they must not block.
func (g *Gate) Attach(s *scheduler.Scheduler, around Server, watchers ...func()) {
	g.sched, g.server, g.watchers = s, around, watchers
	g.refresh()
}

// AttachComposites sets the composites of each kind, once, before any request. Those of a kind may
// be made of the kinds before it. They call Changed.
func (g *Gate) AttachComposites(kinds ...Composites) {
	g.mu.Lock()
	g.composites = kinds
	g.mu.Unlock()
	g.refresh()
}

// ModelChanged implements the scheduler's hook of that name.
func (g *Gate) ModelChanged(*scheduler.Model) {
	g.refresh()
	for _, changed := range g.watchers {
		changed()
	}
}

// Changed makes the gate read Config.Options and the composites again.
func (g *Gate) Changed() { g.refresh() }

// Unrouted returns the metrics that count requests that reach no model.
func (g *Gate) Unrouted() *metrics.Model { return g.cfg.Metrics.Unrouted() }

// Pool is the memory for casts and other copies of a request.
func (g *Gate) Pool() *tensor.Pool { return g.cfg.Pool }

// Draining reports whether Drain was called.
func (g *Gate) Draining() bool { return g.draining.Load() }

// Drain refuses every further request with ErrDraining, and those that wait for the newest answer
// of a stream. Other requests in flight go on.
func (g *Gate) Drain() {
	g.draining.Store(true)
	g.latest.Close(ErrDraining)
}

// Newest returns the newest answers of all streams.
func (g *Gate) Newest() *latest.Store { return g.latest }

// A Request is what a client asks of a model or a composite, through whatever door.
//
// Inputs, their memory and the slices belong to whoever made the request, and must not change until
// the call that it opens is closed.
type Request struct {
	parameter.Values

	// Model is the name of a model or a composite or, for Open, a route: "name", "name/version"
	// or a path of the Predict Protocol.
	Model   string
	Version string // narrows a route that names no version; "": the default
	// ID is the JSON by which later feedback names the request; nil: none.
	ID []byte

	// Inputs have names, or are in the order of the model's inputs. Their shapes have the batch
	// dimension, or are those of one row.
	Inputs []tensor.Tensor
	// Outputs are the wanted outputs, in the order of the answer; nil: all, as the model declares
	// them.
	Outputs []Output
	// Parameters is a JSON object for the container; nil: none.
	Parameters []byte
	// Metadata is the metadata of the message, a JSON object; nil: none, or the wire has none.
	Metadata []byte
	// Texts is a JSON object of texts by input (shiva.TextsKey), for wires without strings; nil:
	// none.
	Texts []byte
	// Legacy is the metadata "inputs" of a model with an adapter: texts as JSON, a string or a
	// list; nil: none.
	Legacy []byte
	Bridge bool // the members of Parameters name the tensors (InBridgeForm)
	Plain  bool // Inputs are all of its inputs: no parameter is one

	Arrived time.Time        // when the request was complete; its deadline counts from here
	Source  uint64           // the connection's number, for fairness between connections
	Client  string           // the client's machine (ClientOf); "": this program
	Who     *access.Identity // identity whose rights apply; nil: all rights
	Use     *access.Use      // what the request has charged to quotas; nil: none applies

	// Own is the connection's own stream. A request that names no stream is a frame of it; nil:
	// such a request is not a frame.
	Own *OwnStream

	Asker *Asker       // what makes the call in place of a client; nil: nothing does
	Trace *trace.Trace // from Follow; nil: the request is not traced
}

// An Asker makes calls in place of a client: a composite.
type Asker struct {
	Target *Target // as clients see it
	// Holes: rows that a container fails do not fail the request; [Call.Failed] names them.
	Holes bool
	// Picture is the number of the picture of a request whose rows are regions; 0: a new one. See
	// [scheduler.NewPicture].
	Picture uint64
	// Opened is what containers hand on of the picture that input OpenedAt of the model has; nil:
	// nobody else needs it. The asker holds it until its calls are complete.
	Opened   *scheduler.Opened
	OpenedAt int
	Stage    *trace.Ask // of a pipeline, that asks; nil: none, or it is not traced
}

// SetID names the request by a text, as a Shiva message does; "": it has no name.
func (r *Request) SetID(id string) {
	if id != "" {
		r.ID = jsonscan.AppendString(nil, id)
	}
}

// An Output is a wanted output.
type Output struct {
	Name string
	// Classes requests that many of the highest values of each row, as texts, instead of the tensor
	// (classification extension); 0: the tensor.
	Classes int
	// Place is where the data is written instead of into the answer; zero: into the answer.
	Place parameter.Place
}

// StartTrace begins the trace of a request that arrived at a door, if the request is to be traced;
// otherwise it returns nil. The door ends the trace. gap may be nil: see [trace.Tracer.Begin].
func (g *Gate) StartTrace(p *parameter.Values, door string, arrived time.Time, gap *trace.Gap) *trace.Trace {
	return g.cfg.Tracer.Begin(&p.Parent, p.TraceState, door, arrived, gap)
}

// Follows reports whether any request is traced.
func (g *Gate) Follows() bool { return g.cfg.Tracer != nil }

// Open prepares a request for the scheduler: it resolves the route to a model, and fits the tensors
// to the model's declared inputs. On an error the call is unchanged.
func (g *Gate) Open(c *Call, r *Request) error {
	if g.draining.Load() {
		return ErrDraining
	}
	target, err := g.table(r.Who).resolve(r.Model, r.Version)
	if err != nil {
		return err
	}
	return g.OpenTarget(c, target, r)
}

// Arrange fits the tensors of a request to the inputs that target declares, and counts the rows. On
// an error the call is unchanged.
func (g *Gate) Arrange(c *Call, target *Target, r *Request) (err error) {
	c.Target, c.Inputs = target, c.inputs[:0]
	if err = c.arrange(r, g.cfg.Pool); err == nil && c.Rows == 0 {
		err = checkNoRows(target)
	}
	if err != nil {
		c.Close()
	}
	return err
}

// ErrDraining refuses a request because the server shuts down.
var ErrDraining = fmt.Errorf("%w: this server is shutting down; send the request to another one or again later",
	scheduler.ErrDraining)

// OpenTarget is Open for a door that has found the target itself, with [View.Asked].
func (g *Gate) OpenTarget(c *Call, target *Target, r *Request) (err error) {
	if g.draining.Load() && r.Asker == nil { // what a composite has begun goes on
		return ErrDraining
	}
	if r.Newest != nil {
		return g.openLatest(c, target, r)
	}
	if a := target.Composite; a != nil {
		if err = a.Open(c, r); err == nil {
			c.metrics, c.trace, c.Use = target.Metrics, r.Trace, r.Use
			c.keepIn(target.newest, r)
		}
		return err
	}
	if r.Candidates != nil {
		return fault.Invalid("%s is for applications, and %q is a model", parameter.CandidateModels, target.ID.Name)
	}
	if err = g.Arrange(c, target, r); err != nil {
		return err
	}
	c.metrics, c.Use = target.Metrics, r.Use
	q := &c.request
	q.Model = target.Model
	if r.Trace != nil {
		c.trace, c.ask = r.Trace, r.Trace.Ask(target.ID)
		if r.Asker != nil {
			c.ask.Within(r.Asker.Stage)
		}
		q.Trace = &c.ask.Trace
	}
	c.Deadline = r.Arrived.Add(cmp.Or(r.Timeout, target.Deadline))
	q.Priority = r.Level()
	if q.Parameters = target.withoutRegions(r.Parameters); target.Spec.User && r.User != "" {
		q.Parameters = withUser(q.Parameters, r.User)
	}
	q.Rare = c.rare(r)
	q.Source = r.Source
	c.id, c.client = r.ID, cmp.Or(r.Who.Name(), r.Client)
	if err = c.Enter(r); err != nil {
		c.Close()
		return err
	}
	if r.Own != nil {
		r.Own.noteModel(g.sched, target.Model)
	}
	c.keepIn(target.newest, r)
	// A cached answer would overtake the answers to older frames.
	if !r.Fresh && c.Frame == nil {
		c.cacheCall.Version, c.cacheCall.Salt = target.cache, r.Salt
	}
	return nil
}

// rare returns what few requests have; nil: nothing of that.
func (c *Call) rare(r *Request) *scheduler.Rare {
	var metadata []byte
	if c.Target.Spec.Metadata && !c.Bridge { // in bridge form members are inputs, or in Parameters
		metadata = r.ownMetadata()
	}
	asker := Asker{}
	if r.Asker != nil {
		asker = *r.Asker
	}
	if metadata == nil && !asker.Holes && !c.cut && asker.Opened == nil {
		return nil
	}
	rare := &scheduler.Rare{Metadata: metadata, Holes: asker.Holes, Opened: asker.Opened, OpenedAt: asker.OpenedAt}
	if c.cut {
		if rare.Picture = asker.Picture; rare.Picture == 0 {
			rare.Picture = scheduler.NewPicture()
		}
	}
	return rare
}
