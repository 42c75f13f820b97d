package metrics

import (
	"maps"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/shivad/shivad/scheduler"
)

// MaxModels is how many models and applications have series of their own, unless Sources say
// otherwise.
const MaxModels = 256

// maxDoors is how many ways in a server can have: tcp, rest, grpc and the library.
const maxDoors = 4

// Metrics is all that one server counts.
type Metrics struct {
	// Set once.
	registry *prometheus.Registry
	version  string

	sources atomic.Pointer[Sources]
	models  atomic.Pointer[map[id]*Model] // replaced, never changed
	doors   atomic.Pointer[[]*Door]       // likewise

	mu      sync.Mutex  // held by writers of models and doors
	present map[id]bool // by Keep; guarded by mu

	former [maxDoors][outcomes]atomic.Uint64 // requests to models that were let go
	drops  atomic.Uint64                     // rises when models are let go
	now    func() time.Time                  // time.Now, but for tests
}

// id names a model version.
type id struct{ name, version string }

// idOf is the id of a name and a version as labels, which must be UTF-8: they come from whoever
// registered.
func idOf(name, version string) id {
	return id{strings.ToValidUTF8(name, "\uFFFD"), strings.ToValidUTF8(version, "\uFFFD")}
}

// other is what the models past the bound share.
var other = id{name: "_other"}

// Sources are values that other rooms have, read when Prometheus asks. What is nil is not shown.
type Sources struct {
	Server  func() ServerGauges
	Models  func() []scheduler.Stats
	Learned func() []LearnedGauges
	// Identities are those that are configured, and Addresses the quotas of all addresses together.
	Identities func() []IdentityGauges
	Addresses  func() []QuotaGauges
	MaxModels  func() int  // how many have series of their own; nil: MaxModels
	Triton     func() bool // whether the names of Triton are shown as well; nil: they are not
	// Spans are those of traces that the collector has taken, and those that were dropped.
	Spans func() (exported, dropped uint64)
}

// ServerGauges is the state of the server as a whole.
type ServerGauges struct {
	PayloadBytes int64             // out of the pool now
	PayloadLimit int64             // the pool's budget
	PayloadIdle  int64             // free in the pool, for the next
	ArenaBytes   int64             // of both, what lies in shared memory
	ArenaUsed    int64             // of it, in use
	Readable     int64             // inputs there that containers may be reading
	Replaced     int64             // of the arena, in segments that were replaced
	Outputs      int64             // segments that containers write
	Unpacked     int64             // of what is out, what the part for compressed requests has
	UnpackLimit  int64             // that part's budget
	Refusals     uint64            // of memory for payloads
	Regions      int               // of shared memory, that clients have registered
	RegionBytes  int64             // of these
	NoRegions    map[string]uint64 // registrations that were refused, by reason
	Sessions     int               // of containers
	Restarts     map[string]int    // of the processes of each supervised container
	StateUp      bool              // what is managed can be changed
}

// LearnedGauges is for how many users the policy of an application has learned something.
type LearnedGauges struct {
	Application string
	Users       int
	Forgotten   uint64 // to make room for others
}

// IdentityGauges is what an identity has asked for, and has of its quotas.
type IdentityGauges struct {
	Identity        string
	Requests, Bytes uint64
	Quotas          []QuotaGauges
}

// QuotaGauges is one quota.
type QuotaGauges struct {
	Name    string // its key in the file
	Limit   int64  // 0: none
	Used    int64  // of a rate 0
	Refused uint64
}

// New returns the metrics of one server. version is the server's own.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), version: version, now: time.Now}
	m.models.Store(&map[id]*Model{{}: newModel(id{})})
	m.doors.Store(&[]*Door{})
	m.sources.Store(&Sources{})
	m.registry.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Attach tells where to read the values that others keep. It is called once the server is put
// together.
func (m *Metrics) Attach(s Sources) { m.sources.Store(&s) }

// Handler serves the metrics over HTTP.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Door returns what the door of that name counts with, making it at the first call.
func (m *Metrics) Door(name string) *Door {
	m.mu.Lock()
	defer m.mu.Unlock()
	doors := *m.doors.Load()
	for _, d := range doors {
		if d.name == name {
			return d
		}
	}
	if len(doors) == maxDoors {
		panic("metrics: a fifth door: " + name)
	}
	d := &Door{name: name, index: len(doors), metrics: m}
	doors = append(doors[:len(doors):len(doors)], d)
	m.doors.Store(&doors)
	return d
}

// Model returns what a model version counts with, making it at the first call. Callers keep it:
// it is found by its name in about 25 ns, which is right for a batch and wrong for a request.
func (m *Metrics) Model(name, version string) *Model {
	key := idOf(name, version)
	if model, ok := (*m.models.Load())[key]; ok {
		return model
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.models.Load()
	if model, ok := old[key]; ok {
		return model
	}
	shared := old[other]
	named := len(old) - 1 // without that of requests that found none
	if shared != nil {
		named--
	}
	if named >= m.mostModels() {
		m.sweepLocked()
		if gone, ok := m.oldestLocked(); ok {
			m.dropLocked(gone)
			old = *m.models.Load()
		} else if shared != nil {
			return shared
		} else {
			key = other
		}
	}
	model := newModel(key)
	models := maps.Clone(old)
	models[key] = model
	m.models.Store(&models)
	return model
}

// mostModels is how many may have series of their own.
func (m *Metrics) mostModels() int {
	if most := m.sources.Load().MaxModels; most != nil {
		return most()
	}
	return MaxModels
}

// Unrouted is the model of requests that found none.
func (m *Metrics) Unrouted() *Model { return m.Model("", "") }

// A Door counts what passes one way in.
type Door struct {
	name    string // set once, as index and metrics
	index   int
	metrics *Metrics

	opened, received, sent atomic.Uint64
	inFlight               atomic.Int64
	closed                 [closedReasons]atomic.Uint64
}

// Opened counts a connection that was accepted.
func (d *Door) Opened() { d.opened.Add(1) }

// Closed counts its end. Every connection that was Opened is Closed exactly once.
func (d *Door) Closed(why Closed) { d.closed[why].Add(1) }

// Connections is how many are open.
func (d *Door) Connections() int {
	var closed uint64
	for i := range d.closed {
		closed += d.closed[i].Load()
	}
	return int(max(0, int64(d.opened.Load())-int64(closed)))
}

// Name is the label.
func (d *Door) Name() string { return d.name }

// Index is the door's place among all doors, from 0.
func (d *Door) Index() int { return d.index }

// Began counts a request that was taken in; exactly one Answered follows. It and Answered are
// for doors with a goroutine for each request; an event loop has a Tally.
func (d *Door) Began() { d.inFlight.Add(1) }

// Answered counts the end of a request: how it ended, the time since it was taken in, and of
// that its wait and its execution, which are 0 if it was never executed.
func (d *Door) Answered(m *Model, o Outcome, took, queue, exec time.Duration) {
	at := &m.doors[d.index]
	at.requests[o].Add(1)
	at.duration.observeDuration(took)
	var t times
	t.answered(o, took, m.slo.Load())
	if exec > 0 {
		m.queueWait.observeDuration(queue)
		t.executed.add(exec)
	}
	m.totals.add(&t)
	d.inFlight.Add(-1)
}

// Received counts bytes from clients.
func (d *Door) Received(n int) { d.received.Add(uint64(n)) }

// Sent counts bytes to clients.
func (d *Door) Sent(n int) { d.sent.Add(uint64(n)) }

// InFlight is how many requests have begun and are not answered.
func (d *Door) InFlight() int { return int(d.inFlight.Load()) }

// A Model counts what happens to the requests and batches of one model version.
type Model struct {
	id // set once

	gone    atomic.Int64 // since when, in ns since 1970; 0: it is there
	dropped atomic.Bool  // nobody reads it any more

	doors [maxDoors]struct {
		requests [outcomes]atomic.Uint64
		duration histogram
	}
	queueWait histogram
	age       histogram // of frames when they are answered
	frames    atomic.Uint64
	reordered atomic.Uint64 // frames

	// Counted by Hooks.
	batchRows histogram
	execution histogram
	predicted histogram       // what was planned with
	closed    []atomic.Uint64 // batches, by scheduler.CloseReason
	sent      sentBatches
	drops     []atomic.Uint64 // requests without a result, by scheduler.Outcome
	failures  atomic.Uint64   // batches
	surprises atomic.Uint64   // batches that took longer than predicted
	totals    totals
	wasted    atomic.Uint64 // rows

	slo      atomic.Int64  // ns; 0: none
	unheard  atomic.Uint64 // see Unheard
	feedback [feedbacks]atomic.Uint64

	cache Cache
}

// SetSLO says how long an answer may take to be in time; 0: any time. Models that share their
// series have none.
func (m *Model) SetSLO(d time.Duration) {
	if m.id != other {
		m.slo.Store(int64(d))
	}
}

// Framed counts a frame of a stream that is answered, with outputs or an error; reordered: its
// number was not above that of the one before.
func (m *Model) Framed(reordered bool) {
	m.frames.Add(1)
	if reordered {
		m.reordered.Add(1)
	}
}

// Shown notes how old a frame of a stream was when it was answered with outputs.
func (m *Model) Shown(age time.Duration) { m.age.observeDuration(age) }

// Unheard counts an answer of an application that was to have a part of this model's and has
// none. The application itself counts each such answer once.
func (m *Model) Unheard() { m.unheard.Add(1) }

// Taught counts feedback for an application.
func (m *Model) Taught(f Feedback) { m.feedback[f].Add(1) }

// taught reports whether there was any.
func (m *Model) taught() bool {
	for f := range m.feedback {
		if m.feedback[f].Load() > 0 {
			return true
		}
	}
	return false
}

// Health is what shows whether a model, or an application, does what it is there for.
type Health struct {
	SLO     time.Duration // 0: none
	Ended   [outcomes]uint64
	InTime  uint64 // requests with a result, defaults apart, within the SLO
	Unheard uint64 // see Unheard
	Memory  uint64 // requests whose answers there was no payload memory for
	Took    []DurationClass
}

// A DurationClass is the requests that took longer than Above, and at most UpTo.
type DurationClass struct {
	Above    time.Duration
	UpTo     time.Duration // 0: there is no bound
	Requests uint64
}

// Failed is how many requests were answered with an error; superseded frames are apart.
func (h *Health) Failed() uint64 {
	return h.Answered() - h.Ended[OK] - h.Ended[Default] - h.Ended[Superseded]
}

// Answered is how many requests were answered, whatever with.
func (h *Health) Answered() (all uint64) {
	for _, n := range h.Ended {
		all += n
	}
	return all
}

// Health reads the counts, though not at one instant. Those of models that share their series
// are 0.
func (m *Model) Health() Health {
	if m.id == other {
		return Health{}
	}
	h := Health{
		SLO: time.Duration(m.slo.Load()), InTime: m.totals.inTime.Load(), Unheard: m.unheard.Load(),
		Memory: m.drops[scheduler.OutcomeMemory].Load(),
	}
	for i := range m.doors {
		for o := range h.Ended {
			h.Ended[o] += m.doors[i].requests[o].Load()
		}
	}
	for b := range histogramBuckets {
		class := DurationClass{Above: lowestNanos << b >> 1, UpTo: lowestNanos << b}
		switch b {
		case 0:
			class.Above = 0
		case histogramBuckets - 1:
			class.UpTo = 0
		}
		for i := range m.doors {
			class.Requests += m.doors[i].duration.buckets[b].Load()
		}
		if class.Requests > 0 {
			h.Took = append(h.Took, class)
		}
	}
	return h
}

func newModel(key id) *Model {
	return &Model{
		id:     key,
		closed: make([]atomic.Uint64, len(scheduler.CloseReasons())),
		drops:  make([]atomic.Uint64, len(scheduler.Outcomes())),
	}
}

// goVersion is the version of the Go runtime.
func goVersion() string { return runtime.Version() }
