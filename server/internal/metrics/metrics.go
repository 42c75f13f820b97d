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

// MaxModels is how many models and applications have their own series, unless Sources say
// otherwise.
const MaxModels = 256

// maxDoors is how many doors a server can have: tcp, rest, grpc, frigate and the library.
const maxDoors = 5

// Metrics has all counts of one server.
type Metrics struct {
	// Set once.
	registry *prometheus.Registry
	version  string

	sources atomic.Pointer[Sources]
	models  atomic.Pointer[map[id]*Model] // replaced, never changed
	doors   atomic.Pointer[[]*Door]       // replaced, never changed

	mu      sync.Mutex  // held while models or doors are replaced
	present map[id]bool // from Keep; guarded by mu

	released [maxDoors][outcomes]atomic.Uint64 // requests to models that were released
	drops    atomic.Uint64                     // increases when models are released
	now      func() time.Time                  // time.Now, except in tests
}

// id names a model version.
type id struct{ name, version string }

// idOf returns the id of a name and a version, valid as labels: containers choose both, and labels
// must be UTF-8.
func idOf(name, version string) id {
	return id{strings.ToValidUTF8(name, "\uFFFD"), strings.ToValidUTF8(version, "\uFFFD")}
}

// overflowID is the id of the series that models past the bound share.
var overflowID = id{name: "_other"}

// Sources are values of other rooms, read when Prometheus scrapes. Nil sources are not shown.
type Sources struct {
	Server  func() ServerGauges
	Models  func() []scheduler.Stats
	Learned func() []LearnedGauges
	// Identities are the configured ones. Addresses is the sum over all addresses.
	Identities func() []IdentityGauges
	Addresses  func() []QuotaGauges
	MaxModels  func() int  // how many have their own series; nil: MaxModels
	Triton     func() bool // whether Triton's names are shown as well; nil: no
	// Spans returns how many spans of traces the collector has accepted, and how many were dropped.
	Spans func() (exported, dropped uint64)
	// LogLost returns how many lines the log has lost.
	LogLost func() uint64
}

// ServerGauges is the state of the server as a whole.
type ServerGauges struct {
	PayloadBytes int64             // taken from the pool
	PayloadLimit int64             // the pool's budget
	PayloadIdle  int64             // free in the pool, for later payloads
	ArenaBytes   int64             // of PayloadBytes and PayloadIdle, in shared memory
	ArenaUsed    int64             // of ArenaBytes, in use
	Readable     int64             // inputs in shared memory that containers may still read
	Replaced     int64             // of ArenaBytes, in replaced segments
	Outputs      int64             // segments for containers' outputs
	Unpacked     int64             // of PayloadBytes, in the part for compressed requests
	UnpackLimit  int64             // that part's budget
	Unfinished   int64             // of PayloadBytes, in messages that are arriving
	Strangers    int64             // of Unfinished, of clients that have not shown who they are
	Ended        map[string]uint64 // messages that ended while they arrived, by reason
	Refusals     uint64            // times that memory for payloads was refused
	Regions      int               // of shared memory, that clients have registered
	RegionBytes  int64             // in these regions
	RegionsMade  int64             // bytes that outputs have taken in files without memory there
	NoRegions    map[string]uint64 // refused registrations, by reason
	Newest       NewestGauges      // answers of streams
	Sessions     int               // of containers
	Restarts     map[string]int    // of the processes of each supervised container
	StateUp      bool              // whether changes can be stored
	ModelFiles   int               // models of files and folders
	FaultyFiles  int               // of these, not served as their files are
	FileChanges  map[string]uint64 // what has become of changed files
}

// NewestGauges is what is kept of the newest answers of streams, and who asked for them.
type NewestGauges struct {
	Bytes, Limit              int64
	Streams, Waiting          int
	Answered, Failed, Evicted uint64
}

// LearnedGauges says for how many users an application's policy has a learned state.
type LearnedGauges struct {
	Application string
	Users       int
	Forgotten   uint64 // users forgotten to make room for others
}

// IdentityGauges says what an identity has requested, and how much of its quotas it uses.
type IdentityGauges struct {
	Identity        string
	Requests, Bytes uint64
	Quotas          []QuotaGauges
}

// QuotaGauges is one quota.
type QuotaGauges struct {
	Name    string // its key in the file
	Limit   int64  // 0: none
	Used    int64  // 0 for a rate
	Refused uint64
}

// New returns the metrics of one server; version is shown in build_info.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), version: version, now: time.Now}
	m.models.Store(&map[id]*Model{{}: newModel(id{})})
	m.doors.Store(&[]*Door{})
	m.sources.Store(&Sources{})
	m.registry.MustRegister(m, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Attach sets the sources of values that other rooms hold. Call it once all rooms exist.
func (m *Metrics) Attach(s Sources) { m.sources.Store(&s) }

// Handler serves the metrics over HTTP.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Door returns the counts of the door of that name. The first call creates them.
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
		panic("metrics: a sixth door: " + name)
	}
	d := &Door{name: name, index: len(doors), metrics: m}
	doors = append(doors[:len(doors):len(doors)], d)
	m.doors.Store(&doors)
	return d
}

// Model returns the counts of a model version. The first call creates them. Keep the result: a
// lookup takes about 25 ns, which is fine for a batch and too much for a request.
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
	shared := old[overflowID]
	named := len(old) - 1 // not counting requests to no model
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
			key = overflowID
		}
	}
	model := newModel(key)
	models := maps.Clone(old)
	models[key] = model
	m.models.Store(&models)
	return model
}

// mostModels returns how many models and applications may have their own series.
func (m *Metrics) mostModels() int {
	if most := m.sources.Load().MaxModels; most != nil {
		return most()
	}
	return MaxModels
}

// Unrouted returns the counts of requests to no model.
func (m *Metrics) Unrouted() *Model { return m.Model("", "") }

// A Door has the counts of one door.
type Door struct {
	name    string // set once, like index and metrics
	index   int
	metrics *Metrics

	opened, received, sent atomic.Uint64
	inFlight               atomic.Int64
	closed                 [closedReasons]atomic.Uint64
}

// Opened counts a connection that was accepted.
func (d *Door) Opened() { d.opened.Add(1) }

// Closed counts the end of a connection. Every connection that was Opened is Closed exactly once.
func (d *Door) Closed(why Closed) { d.closed[why].Add(1) }

// Connections returns the number of open connections.
func (d *Door) Connections() int {
	var closed uint64
	for i := range d.closed {
		closed += d.closed[i].Load()
	}
	return int(max(0, int64(d.opened.Load())-int64(closed)))
}

// Name returns the door's label.
func (d *Door) Name() string { return d.name }

// Index returns the door's place among all doors, from 0.
func (d *Door) Index() int { return d.index }

// Began counts a request that has arrived; exactly one Answered must follow. Both are for doors
// with a goroutine per request; an event loop uses a Tally.
func (d *Door) Began() { d.inFlight.Add(1) }

// Answered counts the end of a request: its outcome, the time since it arrived, and the parts of
// that time in the queue and in execution, which are 0 if it was never executed.
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

// InFlight returns the number of requests that have begun and are not answered.
func (d *Door) InFlight() int { return int(d.inFlight.Load()) }

// A Model has the counts of one model version.
type Model struct {
	id // set once

	removedAt atomic.Int64 // when the model was removed, in ns since 1970; 0: it exists
	dropped   atomic.Bool  // it is no longer collected

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
	predicted histogram       // the planned times
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

	stagesMu sync.Mutex
	stages   []*Stage // of a pipeline; guarded by stagesMu
}

// SetSLO sets the time within which an answer counts as in time; 0: any time. Models that share
// their series have no SLO.
func (m *Model) SetSLO(d time.Duration) {
	if m.id != overflowID {
		m.slo.Store(int64(d))
	}
}

// Framed counts a frame of a stream that was answered, with outputs or an error. reordered means
// that its number was not above the last frame's.
func (m *Model) Framed(reordered bool) {
	m.frames.Add(1)
	if reordered {
		m.reordered.Add(1)
	}
}

// ObserveAge records the age of a frame that was answered with outputs.
func (m *Model) ObserveAge(age time.Duration) { m.age.observeDuration(age) }

// Unheard counts an application's answer that lacks this model's part. On the Model of the
// application itself, each answer that lacks any part counts once.
func (m *Model) Unheard() { m.unheard.Add(1) }

// Taught counts feedback for an application.
func (m *Model) Taught(f Feedback) { m.feedback[f].Add(1) }

// hasFeedback reports whether there was any feedback.
func (m *Model) hasFeedback() bool { return counted(m.feedback[:]) }

// Health shows whether a model, or an application, does its work.
type Health struct {
	Ended
	SLO     time.Duration // 0: none
	InTime  uint64        // requests with a result other than a default, within the SLO
	Unheard uint64        // see Unheard
	Memory  uint64        // requests without payload memory for their answers
	Took    []DurationClass
}

// A DurationClass counts the requests that took longer than Above, and at most UpTo.
type DurationClass struct {
	Above    time.Duration
	UpTo     time.Duration // 0: no bound
	Requests uint64
}

// Ended counts requests by their outcome.
type Ended [outcomes]uint64

// Failed returns how many requests were answered with an error, without those whose client did
// without the answer.
func (e *Ended) Failed() uint64 {
	return e.count(func(o Outcome) bool { return o != OK && o != Default && !o.withdrawn() })
}

// Lost returns how many have no result, by outcome.
func (e *Ended) Lost() map[Outcome]uint64 {
	lost := map[Outcome]uint64{}
	for o, n := range e {
		if n > 0 && Outcome(o) != OK {
			lost[Outcome(o)] = n
		}
	}
	return lost
}

// Judged returns how many requests were in time or late. All others were withdrawn by their client,
// or its mistake.
func (e *Ended) Judged() uint64 { return e.count(Outcome.judged) }

// Answered returns how many requests were answered, with any outcome.
func (e *Ended) Answered() uint64 { return e.count(func(Outcome) bool { return true }) }

func (e *Ended) count(of func(Outcome) bool) (all uint64) {
	for o, n := range e {
		if of(Outcome(o)) {
			all += n
		}
	}
	return all
}

// Health reads the counts, though not at one instant. For models that share their series it returns
// zeros.
func (m *Model) Health() Health {
	if m.id == overflowID {
		return Health{}
	}
	h := Health{
		Ended: m.ended(), SLO: time.Duration(m.slo.Load()), InTime: m.totals.inTime.Load(), Unheard: m.unheard.Load(),
		Memory: m.drops[scheduler.OutcomeMemory].Load(),
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

// ended counts the requests at all doors.
func (m *Model) ended() (all Ended) {
	for i := range m.doors {
		for o := range all {
			all[o] += m.doors[i].requests[o].Load()
		}
	}
	return all
}

func newModel(key id) *Model {
	return &Model{
		id:     key,
		closed: make([]atomic.Uint64, len(scheduler.CloseReasons())),
		drops:  make([]atomic.Uint64, len(scheduler.Outcomes())),
	}
}

// goVersion returns the version of the Go runtime.
func goVersion() string { return runtime.Version() }
