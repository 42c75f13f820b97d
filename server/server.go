package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/build"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/modelfiles"
	"github.com/shivad/shivad/server/internal/operate"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/server/internal/tcp"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/server/internal/unfinished"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// Version of the server, as reported to clients and containers.
const Version = build.Version

// A Server is a whole shivad server. Make one with New.
type Server struct {
	// Set by New.
	surroundings surroundings
	cfg          config.Config // of the start, for settings that cannot change
	log          *slog.Logger  // its last lines are in the journal
	journal      *operate.Journal
	arena        *containers.Arena // memory for large buffers of pool; nil: none
	pool         *tensor.Pool
	unpacked     *tensor.Pool // a part of pool
	unfinished   *unfinished.Room
	metrics      *metrics.Metrics
	tracer       *trace.Tracer // nil: no request is traced
	gate         *gate.Gate
	identities   access.Identities
	addresses    access.Addresses // of clients without an identity
	certificates certificates
	regions      *regions.Registry
	predict      *predict.Service
	// library is the entry point for a program that embeds the server, which counts as a door of
	// that name.
	library func() *predict.Door
	clock   stoppable // the scheduler's
	sched   *scheduler.Scheduler

	containers *operate.Sessions
	processes  *operate.Processes
	models     *modelfiles.Manager
	store      *operate.Store // opened by Start, before any client door
	settings   *operate.Settings
	history    *operate.History
	trail      *access.Trail
	report     *operate.Report
	past       *operate.Past
	demand     *operate.Demand

	// Set by Start, before it closes opened; nil if left out. Only the admin door is open before
	// that, and lets requests that need the other parts wait.
	opened chan struct{}
	admin  *operate.Server
	health *operate.Server
	doors  []door                   // the open ones
	tcp    atomic.Pointer[tcp.Door] // one of doors, for the scheduler's hook

	share    atomic.Pointer[config.Share] // of the process's descriptors
	phase    atomic.Pointer[string]       // admin.Starting, Serving, Draining
	expected atomic.Pointer[expectation]  // nil: before Start
	failed   chan error

	logLost atomic.Pointer[func() uint64] // set by CountLogLosses

	// Set by ReloadFrom; reloading is held by Reload, and while the processes are stopped for good.
	load      func() (config.Config, error)
	onReload  func(config.Config)
	reloading sync.Mutex

	stopping chan struct{} // closed when a shutdown begins
	watching sync.WaitGroup

	shutdown sync.Once
	err      error // of the shutdown
}

// Addrs are the addresses in use, with the actual ports where the configuration has port 0. nil:
// the door is left out.
type Addrs struct {
	TCP, REST, GRPC, Frigate                   []net.Addr
	Containers                                 []net.Addr
	ContainersV1b, ContainersV2, ContainersV2a []net.Addr
	Admin, Health                              net.Addr
}

// Doors are the addresses of the doors for clients, by name.
func (a *Addrs) Doors() iter.Seq2[string, *[]net.Addr] {
	return func(yield func(string, *[]net.Addr) bool) {
		_ = yield("tcp", &a.TCP) && yield("rest", &a.REST) && yield("grpc", &a.GRPC) && yield("frigate", &a.Frigate)
	}
}

// New makes a server. Nothing listens until Start. A nil log is silent. Event loops and shutdowns
// log, and wait for the log's handler: give it a [logqueue.Queue] to write to, unless its writer
// never waits.
func New(cfg config.Config, log *slog.Logger) (*Server, error) { return newServer(cfg, log, system) }

// newServer makes the parts in an order in which each is given only parts that exist. What refers
// back to an earlier part is attached to it at the end; until Start nothing calls any of them.
func newServer(cfg config.Config, log *slog.Logger, around surroundings) (*Server, error) {
	cfg = cfg.Clone()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		surroundings: around, cfg: cfg,
		metrics:  metrics.New(Version),
		journal:  operate.NewJournal(),
		failed:   make(chan error, 1),
		opened:   make(chan struct{}),
		stopping: make(chan struct{}),
	}
	s.log = slog.New(s.journal.Handler(cmp.Or(log, slog.New(slog.DiscardHandler)).Handler()))
	s.trail = access.NewTrail(s.log)
	s.identities.Log = s.log
	s.identities.Replace(cfg.Declarations())
	s.certificates.wallClock, s.certificates.log = around.wallClock, s.log
	s.pool, s.arena = newPool(cfg, s.log)
	s.unpacked = s.pool.Part(int64(cfg.Limits.Unpacked()))
	s.unfinished = unfinished.NewRoom(s.pool)
	s.unfinished.Log = s.log
	s.setPhase(admin.Starting)
	if t := cfg.Traces; t.Endpoint != "" {
		s.tracer = trace.New(trace.Config{Endpoint: t.Endpoint, OneIn: t.OneIn, Version: Version, Log: s.log})
	}
	s.store = operate.NewStore(cfg.State, around.store, s.limited("application"))
	s.settings = operate.NewSettings(cfg, s.store, s.log)
	s.gate = gate.New(gate.Config{Pool: s.pool, Latest: cfg.Limits.Latest(), Metrics: s.metrics, Tracer: s.tracer,
		Options: s.optionsOf, Redirects: s.redirects})
	if err := s.newScheduler(); err != nil {
		return nil, err
	}
	s.regions = regions.New(regionSettings(cfg), s.pool)
	s.regions.Trail = s.trail
	s.manage()
	s.predict = predict.New(predict.Config{
		Gate:       s.gate,
		Regions:    s.regions,
		Repository: operate.Loadable{Processes: s.processes, Files: s.models},
		Settings:   func(model string) config.Model { return s.settings.Now().Model(model) },
		Changed:    s.history.Changed,
		Reach:      func() string { return s.settings.Now().Server.Repository },
		Trail:      s.trail,
		Version:    Version,
	})
	s.library = sync.OnceValue(func() *predict.Door { return s.predict.Door(s.metrics.Door("library")) })

	s.settings.Attach(operate.Governed{Gate: s.gate, Scheduler: s.sched, Sessions: s.containers,
		Processes: s.processes})
	s.gate.Attach(s.sched, gate.Server{Ready: s.Ready, Awaited: s.awaited}, s.containers.Changed, s.history.Look)
	s.attachMetrics()
	return s, nil
}

// redirects are the routes of the configuration.
func (s *Server) redirects() map[string]*gate.Redirect {
	c := s.settings.File()
	all := make(map[string]*gate.Redirect, len(c.Routes))
	for name, r := range c.Routes {
		d := c.Destination(name)
		all[name] = &gate.Redirect{To: r.To, Model: d.Model, Version: d.Version, Latest: d.Latest, Values: d.Values,
			Own: d.Own}
	}
	return all
}

// optionsOf returns the settings of a model that its route needs.
func (s *Server) optionsOf(model string) gate.ModelOptions {
	now := s.settings.Now()
	m := now.Model(model)
	return gate.ModelOptions{
		Deadline: m.Deadline, Keep: m.Keep, Cast: m.Cast, Pixels: int64(now.Limits.ImagePixels),
		DefaultVersion: m.DefaultVersion, CacheBytes: int64(m.Cache), CacheTTL: m.CacheTTL,
		Latest: gate.Latest{Always: m.Latest != setting.LatestAsked, Shared: m.Latest == setting.LatestShared},
	}
}

// newScheduler makes the scheduler and its clock.
func (s *Server) newScheduler() (err error) {
	hooks := s.metrics.Hooks()
	hooks.ModelChanged = s.gate.ModelChanged
	hooks.Delivering = s.gather
	if s.clock, err = s.surroundings.clock(); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	s.sched, err = scheduler.New(scheduler.Config{
		Default: s.cfg.Defaults.Scheduler(),
		Models:  s.cfg.SchedulerModels(),
		Hooks:   hooks,
		Pool:    s.pool,
		Log:     s.limited("model"),
		Clock:   s.clock,
	})
	if err != nil {
		s.clock.Close()
	}
	return err
}

// gather has the TCP door, if it is open, collect the answers of a batch.
func (s *Server) gather() (over func()) {
	if d := s.tcp.Load(); d != nil {
		return d.Gather()
	}
	return nil
}

// attachMetrics gives the metrics what they read from the other parts.
func (s *Server) attachMetrics() {
	var spans func() (exported, dropped uint64)
	if s.tracer != nil {
		spans = s.tracer.Counts
	}
	s.metrics.Attach(metrics.Sources{
		Server:     s.report.Gauges,
		Models:     s.report.Stats,
		Learned:    s.store.Gauges,
		Identities: s.report.IdentityGauges, Addresses: s.report.AddressGauges,
		MaxModels: func() int { return s.settings.Now().Admin.MetricsModels },
		Spans:     spans,
		Triton:    func() bool { return s.settings.Now().Admin.MetricsTriton },
		LogLost:   s.lostLogLines,
	})
}

// Scheduler returns the server's scheduler, to which a program that embeds the server may add its
// own replicas.
func (s *Server) Scheduler() *scheduler.Scheduler { return s.sched }

// Ready reports whether all models that should serve do, and if not, the reason, as the doors and
// /readyz report it.
func (s *Server) Ready() (ready bool, reason string) {
	r := s.report.Ready()
	return r.Ready, r.Reason
}

// Log returns the log that New was given, for the program that embeds the server: the admin door
// shows lines written to it.
func (s *Server) Log() *slog.Logger { return s.log }

// limited returns the log for a part that writes lines which a peer can cause.
func (s *Server) limited(by ...string) *slog.Logger {
	return slog.New(operate.LimitLog(s.log.Handler(), by...))
}

// CountLogLosses makes the metrics show how many lines the log has lost, as told by a function such
// as [logqueue.Queue.Lost]. Call it before Start.
func (s *Server) CountLogLosses(lost func() uint64) { s.logLost.Store(&lost) }

func (s *Server) lostLogLines() uint64 {
	if lost := s.logLost.Load(); lost != nil {
		return (*lost)()
	}
	return 0
}

// Start opens the doors. When it returns nil, the server serves; when it fails, everything that it
// had started has been stopped. With a TCP door, raising GOMAXPROCS by the number of event loops
// shortens answer times: their threads count as busy while they wait.
func (s *Server) Start() (err error) {
	defer func() {
		close(s.opened)
		if err != nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = s.Shutdown(ctx)
		}
	}()
	connections, err := split(s.cfg, s.log)
	if err != nil {
		return err
	}
	s.share.Store(&connections)
	if err := s.certificates.load(s.cfg); err != nil {
		return err
	}
	if err := s.openAdmin(); err != nil {
		return err
	}
	// After a change Retire checks again: a version may no longer be linked.
	if err := s.store.Open(s.gate, s.cfg.PipelineDefinitions(), s.containers.Changed); err != nil {
		return err
	}
	s.settings.Read()
	s.watching.Go(func() { s.settings.Follow(s.stopping) })
	s.expect(hasStarted)
	if err := s.openDoors(connections.Apply(s.cfg)); err != nil {
		return err
	}
	if err := s.containers.Call(s.cfg.Supervised, s.cfg.Containers.WriteTimeout); err != nil {
		return err
	}
	if err := s.processes.Supervise(s.cfg.Supervised); err != nil {
		return err
	}
	s.models.Begin(&s.watching, s.stopping)
	s.warnOfStrangers()
	for _, d := range s.doors {
		s.watching.Go(func() { s.watch(d.failed) })
	}
	for _, a := range s.admins() {
		s.watching.Go(func() { s.watch(a.Failed()) })
	}
	if s.admin != nil {
		s.watching.Go(func() { s.past.Run(s.stopping) })
	}
	s.watching.Go(s.watchPatterns)
	s.watching.Go(func() { s.certificates.watch(24*time.Hour, s.stopping) })
	s.watching.Go(s.containers.Retire)
	s.watching.Go(s.processes.Scale)
	name := nameOf(s.cfg.State, s.Addrs())
	s.watching.Go(func() { s.history.Run(name) })
	s.watching.Go(func() { s.demand.Run(name, s.stopping) })
	s.watching.Go(func() { giveBack(s.pool, giveBackEvery, s.stopping) })
	s.setPhase(admin.Serving)
	return nil
}

// openAdmin opens the admin door and its address for health, as far as they are configured.
func (s *Server) openAdmin() (err error) {
	a := s.cfg.Admin
	config := func() *listen.TLS { return s.certificates.config("admin") }
	if a.Listen != "" {
		if s.admin, err = operate.Listen(a.Listen, a.Access(), s.surroundings.open, config,
			operate.Handler(s.sources()), s.limited()); err != nil {
			return err
		}
	}
	if a.Health != "" {
		s.health, err = operate.Listen(a.Health, unixsocket.Access{}, s.surroundings.open, config,
			operate.HealthHandler(s.sources()), s.limited())
	}
	return err
}

// admins returns the listeners that openAdmin has opened.
func (s *Server) admins() (list []*operate.Server) {
	for _, a := range []*operate.Server{s.admin, s.health} {
		if a != nil {
			list = append(list, a)
		}
	}
	return list
}

// watch reports a door that fails; stop ends the wait.
func (s *Server) watch(door <-chan error) {
	select {
	case err := <-door:
		select {
		case s.failed <- err:
		default: // another one has failed already
		}
	case <-s.stopping:
	}
}

// Addrs returns the addresses in use, after Start.
func (s *Server) Addrs() (a Addrs) {
	for name, at := range a.Doors() {
		*at = addrs(s.doors, name)
	}
	if l := s.containers.Listener(); l != nil {
		a.Containers = l.AddrsOf(containers.DialectV3)
		a.ContainersV1b, a.ContainersV2 = l.AddrsOf(containers.DialectV1b), l.AddrsOf(containers.DialectV2)
		a.ContainersV2a = l.AddrsOf(containers.DialectV2a)
	}
	if s.admin != nil {
		a.Admin = s.admin.Addr()
	}
	if s.health != nil {
		a.Health = s.health.Addr()
	}
	return a
}

// Failed receives an error when a door cannot continue. The server should then be shut down, and
// its process should exit with a failure.
func (s *Server) Failed() <-chan error { return s.failed }

// Shutdown drains the server and stops it: see the package comment for the order. If ctx ends
// first, the remaining requests are answered Draining. Further calls return the same error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.shutdown.Do(func() { s.err = s.stop(ctx) })
	return s.err
}

func (s *Server) stop(ctx context.Context) error {
	s.setPhase(admin.Draining)
	close(s.stopping)
	s.watching.Wait()
	s.gate.Drain()
	s.store.Drain(ctx)
	var faults []error
	if err := s.sched.Drain(ctx); err != nil {
		faults = append(faults, fmt.Errorf("server: the drain ended before all requests were answered: %w", err))
	}
	s.sched.Close()
	s.clock.Close()

	// The rest is quick, and must happen even if the drain took all of ctx's time.
	faults = append(faults, shut(context.WithoutCancel(ctx), s.doors, s.log))
	s.gate.Close()
	s.tracer.Close()
	s.regions.Close()
	faults = append(faults, s.store.Close(), s.processes.Close())
	// Clients may have used all of their time, and a process all of its stop_timeout. The remaining
	// steps have a timeout of their own.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	faults = append(faults, s.containers.Shutdown(ctx))
	for _, a := range s.admins() {
		faults = append(faults, a.Shutdown(ctx))
	}
	s.arena.Renew() // freed with the last answer that a client has not read
	return errors.Join(faults...)
}

func (s *Server) setPhase(phase string) { s.phase.Store(&phase) }
