package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/shivatest"
)

// A scene is a whole server on virtual time, with clients at its doors and containers behind it.
// One seed decides which clients send what and when, what fails, and what the operator does
// meanwhile. At the end all faults stop, and the server must serve as if nothing had happened.
type scene struct {
	t        *testing.T
	plan     plan
	troubles troubles
	net      shivatest.Net
	clock    stallingClock
	store    *faultyStore
	wall     settableClock
	pki      *pki   // nil: no TLS
	memory   string // directory of shared memory; "": none
	history  *history
	server   *Server

	mu    sync.Mutex
	first config.Config // at the start of the server
	file  config.Config // as a reload would load it now
	// certificate is a lower bound of the serial number of the server's certificate.
	certificate atomic.Int64

	calm, over     context.Context // calm ends when faults end, over when containers may end
	calmed, finish context.CancelFunc
	stopping       atomic.Bool

	// The processes that the server starts: how many it has, and how many run.
	processes, running atomic.Int64
}

// defaultDeadline is the deadline of models, and execTimeout the time that a container may take for
// a batch.
const (
	defaultDeadline = 2 * time.Second
	execTimeout     = 700 * time.Millisecond
)

// Troubles are the faults that may occur in a scene, and the features beyond plain requests.
type troubles struct {
	containers bool // die, hang, fail, answer twice
	clients    bool // hang up, are cut off, stall
	reloads    bool // of other settings
	stop       bool // the server stops while clients ask
	identities bool // clients show tokens, some wrong ones
	quotas     bool // of some identities
	rights     bool // they and quotas change at a reload
	store      bool // repeatedly cannot be written for a while
	freezes    bool // the server stops for a while, and then its time jumps ahead
	tls        bool // some clients and containers speak TLS, and certificates are replaced
	frames     bool // some clients are cameras
	learning   bool // an application chooses between models, and gets feedback
	versions   bool // of a model; the operator switches the default
	admin      bool // a client sends orders to the admin door
	loads      bool // a model with processes of the server is loaded and unloaded
	regions    bool // some clients share memory with the server
	addresses  bool // have quotas, if clients show no identity
	clocks     bool // are set back and forth
	detectors  bool // of Frigate, with their own model
	shared     bool // other servers share the containers, which grant batches
}

// A plan holds what a seed decides at the start; its actors draw the rest as they go, each for
// itself.
type plan struct {
	seed    uint64
	clients int
	hosts   map[string]int // by model
	slowest time.Duration  // longest time of a container for a batch
	harm    int            // how often containers fail
	stop    time.Duration  // when the server stops, if early
	// detectors is their number, in addition to the clients.
	detectors int
	// adminTLS: the admin door has only a TLS address.
	adminTLS bool
	old      string // the generation of the containers of the model "old"; "": none
}

// draw returns the random source of one actor.
func draw(seed uint64, actor string) *rand.Rand {
	other := uint64(14695981039346656037)
	for _, b := range []byte(actor) {
		other = (other ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(seed, other))
}

func newScene(t *testing.T, seed uint64) *scene {
	r := draw(seed, "plan")
	s := &scene{t: t, store: new(faultyStore), history: &history{began: time.Now()}}
	one := func(in int) bool { return r.IntN(in) == 0 }
	s.troubles = troubles{containers: one(2), clients: one(2), reloads: one(3), stop: one(5), identities: one(3),
		store:   one(3),
		freezes: one(6), tls: one(4), frames: one(3), learning: one(4), versions: one(4),
		admin: one(3), loads: one(4), regions: one(4), addresses: one(4), clocks: one(4)}
	// Both remembered feedback and the validity of certificates depend on the clock.
	s.troubles.learning = s.troubles.learning || s.troubles.clocks && !s.troubles.tls
	s.troubles.quotas = s.troubles.identities && one(2)
	s.troubles.rights = s.troubles.identities && one(2)
	// Containers that may not serve for a while are disconnected, and so are some when the server
	// stops for a while.
	s.troubles.containers = s.troubles.containers || s.troubles.rights || s.troubles.freezes
	s.plan = plan{seed: seed, clients: 2 + r.IntN(4), hosts: map[string]int{"a": 1 + r.IntN(3), "b": 1 + r.IntN(2)},
		harm: []int{1, 1, 5}[r.IntN(3)], slowest: time.Duration(1+r.IntN(40)) * time.Millisecond,
		stop: time.Duration(r.IntN(1000)) * time.Millisecond}
	if one(4) {
		s.plan.old = oldGenerations[r.IntN(len(oldGenerations))]
		s.plan.hosts["old"] = 1 + r.IntN(2)
	}
	if s.troubles.loads {
		s.plan.hosts["s"] = 1 + r.IntN(2)
	}
	s.plan.adminTLS = s.troubles.tls && one(2)
	if d := draw(seed, "detectors"); d.IntN(4) == 0 {
		s.troubles.detectors, s.plan.detectors, s.plan.hosts["d"] = true, 1+d.IntN(3), 1+d.IntN(2)
	}
	s.troubles.shared = draw(seed, "shared").IntN(3) == 0
	if s.troubles.regions {
		s.memory = t.TempDir()
	}
	s.net.Resets = true
	s.net.Buffer = []int{0, 300, 4 << 10}[r.IntN(3)]
	s.net.Piece = []int{0, 0, 7, 100}[r.IntN(4)]
	s.calm, s.calmed = context.WithCancel(context.Background())
	s.over, s.finish = context.WithCancel(context.Background())
	if s.troubles.tls {
		s.pki = newPKI(t)
		s.certificate.Store(s.pki.authority.Serial())
	}
	s.first = s.configuration(r)
	s.file = s.first.Clone()
	return s
}

// configuration returns the configuration at the start.
func (s *scene) configuration(r *rand.Rand) config.Config {
	c := config.Default()
	c.TCP.Listen, c.REST.Listen, c.GRPC.Listen = config.Addrs{doorAddrs["tcp"]}, config.Addrs{doorAddrs["rest"]},
		config.Addrs{doorAddrs["grpc"]}
	c.Admin.Listen, c.Containers.Listen, c.Containers.Arena = "", config.Addrs{containersAddrs[""]}, false
	c.Containers.ExpectedWithin = 0
	if s.troubles.admin {
		c.Admin.Listen = doorAddrs["admin"]
		if s.plan.adminTLS {
			c.Admin.Listen = "tls://" + encryptedAddrs["admin"]
		}
	}
	if s.troubles.detectors {
		c.Frigate.Listen = config.Addrs{doorAddrs["frigate"]}
	}
	if s.troubles.loads {
		c.Server.Repository = config.RepositoryAll
		c.Supervised = append(c.Supervised,
			config.Container{Name: "s", Command: []string{"s"}, Model: "s",
				Process: config.Process{Replicas: config.Fixed(s.plan.hosts["s"]), StopTimeout: time.Second}})
	}
	if s.troubles.regions {
		c.SharedMemory.Directory, c.SharedMemory.Clients = s.memory, config.ClientsAll
	}
	if s.troubles.addresses {
		c.Limits.PerAddress = boundAddress(r)
	}
	c.TCP.Loops = 1 + r.IntN(2)
	c.Server.Drain = time.Second
	c.Defaults.Deadline, c.Defaults.ExecutionTimeout = defaultDeadline, execTimeout
	c.Defaults.Strategy = scheduler.Strategies()[r.IntN(4)]
	c.Defaults.Delay = time.Duration(r.IntN(2)*r.IntN(5)) * time.Millisecond
	if s.troubles.identities {
		c.Identities = s.identities(draw(s.plan.seed, "identities"))
	}
	if s.troubles.versions {
		s.makeDefault(&c, "1")
	}
	if s.pki != nil {
		c.TLS.Certificates = s.pki.settings(config.AuthOptional)
		for door, list := range map[string]*config.Addrs{"tcp": &c.TCP.Listen, "rest": &c.REST.Listen,
			"grpc": &c.GRPC.Listen} {
			*list = append(*list, "tls://"+encryptedAddrs[door])
		}
		c.Containers.Listen = append(c.Containers.Listen, "tls://"+containersAddrs["tls"])
	}
	switch s.plan.old {
	case "v0":
		c.Supervised = append(c.Supervised,
			config.Container{Name: "old", Address: containersAddrs["v0"], Model: "old", Version: "1", RPC: "v0",
				Input: "ints", Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 10 * time.Second}}) // as if they were not given
	case "v1b":
		c.Containers.ListenV1b = config.Addrs{containersAddrs["v1b"]}
	case "v2":
		c.Containers.ListenV2 = config.Addrs{containersAddrs["v2"]}
	case "v2a":
		c.Containers.ListenV2a = config.Addrs{containersAddrs["v2a"]}
	}
	return c
}

// makeDefault sets the default version of the model "a".
func (s *scene) makeDefault(c *config.Config, version string) {
	m := config.Model{Policy: c.Defaults}
	m.DefaultVersion = version
	c.Models = map[string]config.Model{"a": m}
}

// identities returns the identities of a scene. Containers of old generations cannot show a token.
func (s *scene) identities(r *rand.Rand) []config.Identity {
	list := []config.Identity{declared("all", "infer", "feedback"), declared("onlya", "infer:a", "infer:b"),
		declared("small", "infer"), declared("slow", "infer"), declared("worker", "serve"),
		declared("operator", "admin:read", "admin:write", "load"), declared("viewer", "admin:read")}
	if s.plan.old != "" {
		list = append(list, config.Identity{Name: "anonymous", May: []string{"serve:old"}})
	}
	if s.troubles.tls {
		list = append(list, config.Identity{Name: "camera", Certificate: config.Patterns{"cn:camera"}, May: []string{"infer"}})
	}
	if s.troubles.quotas {
		s.bound(list, r)
	}
	return list
}

// bound gives some identities quotas.
func (s *scene) bound(list []config.Identity, r *rand.Rand) {
	for i := range list {
		q := &list[i].Quota
		switch list[i].Name {
		case "small":
			q.Quota = boundFlight(r)
		case "slow":
			q.Quota = boundRates(r)
		}
	}
}

func boundFlight(r *rand.Rand) config.Quota { return config.Quota{RequestsInFlight: 2 + r.IntN(2)} }

func boundRates(r *rand.Rand) config.Quota {
	q := config.Quota{RequestsPerSecond: 5 + r.IntN(20), Burst: time.Duration(50+r.IntN(500)) * time.Millisecond}
	if r.IntN(2) == 0 {
		q.BytesPerSecond = config.Bytes(1<<10 + r.IntN(1<<11))
	}
	return q
}

// boundAddress draws a quota for addresses.
func boundAddress(r *rand.Rand) config.Quota {
	if r.IntN(2) == 0 {
		return boundFlight(r)
	}
	return boundRates(r)
}

// start starts the server in its surroundings.
func (s *scene) start() {
	var err error
	s.server, err = newServer(s.file, slog.New(slog.DiscardHandler), s.around())
	if err != nil {
		s.t.Fatal(err)
	}
	s.server.ReloadFrom(func() (config.Config, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.file.Clone(), nil
	}, nil)
	s.history.hold(s.file)
	if err := s.server.Start(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) stopped() bool { return s.stopping.Load() }

// play plays the scene from start to end.
func (s *scene) play() {
	const longest = 10 * time.Minute
	dog := time.AfterFunc(longest, func() {
		panic(fmt.Sprintf("seed %d; to repeat it:\n	%s\nit is not over after %v", s.plan.seed, repeat(s.plan.seed),
			longest))
	})
	defer dog.Stop()
	s.start()
	var hosts, actors sync.WaitGroup
	for i, h := range s.newHosts() {
		h.from = fmt.Sprintf("10.1.0.%d:4000", i+1)
		hosts.Go(h.run)
	}
	time.Sleep(10 * time.Millisecond)
	app := Application{Name: "app", Models: []string{"a"}}
	if s.troubles.learning {
		app = Application{Name: "app", Models: []string{"a", "b"}, Policy: "exp3"}
	}
	if err := s.server.SetApplication(context.Background(), app); err != nil {
		s.history.fault("the application: %v", err)
	}
	for i := range s.plan.detectors {
		c, questions := s.newDetector(i)
		actors.Go(func() { c.run(questions) })
	}
	for i := range s.plan.clients {
		c, questions := s.newClient(i)
		done := make(chan struct{})
		actors.Go(func() {
			defer close(done)
			time.Sleep(time.Duration(c.rand.Int64N(int64(200 * time.Millisecond))))
			c.run(questions)
		})
		if c.shares != nil {
			actors.Go(func() { c.shares.run(done) })
		}
	}
	if s.troubles.admin {
		m := s.newManager("admin")
		actors.Go(func() { m.manage(3 + m.rand.IntN(20)) })
	}
	if s.troubles.loads {
		m := s.newManager("rest")
		actors.Go(func() { m.manage(1 + m.rand.IntN(8)) })
	}
	quiet := make(chan struct{}) // closed when the operator should stop
	var operator sync.WaitGroup
	operator.Go(func() { s.operate(quiet) })
	operator.Go(func() { s.faultStore(quiet) })
	operator.Go(func() { s.freeze(quiet) })
	if s.troubles.stop {
		operator.Go(func() {
			time.Sleep(s.plan.stop)
			s.shutdown()
		})
	}
	actors.Wait()
	close(quiet)
	operator.Wait()
	s.calmed()
	if !s.troubles.stop {
		s.settle()
		s.ask()
		s.shutdown()
	}
	s.finish()
	hosts.Wait()
	s.check()
}

// newClient makes the i-th client.
func (s *scene) newClient(i int) (c *client, questions int) {
	name := fmt.Sprintf("client%d", i)
	r := draw(s.plan.seed, name)
	c = &client{scene: s, name: name, door: doors[r.IntN(len(doors))], from: fmt.Sprintf("10.2.0.%d:5000", i+1),
		rand: r, deals: draw(s.plan.seed, name+" questions"), faults: draw(s.plan.seed, name+" connections")}
	c.shaky = s.troubles.clients && r.IntN(2) == 0
	c.encrypted = s.troubles.tls && r.IntN(2) == 0
	if s.troubles.frames && r.IntN(3) > 0 {
		c.keeps = map[string]int{"front": r.IntN(4), "back": r.IntN(2)}
	}
	if s.troubles.identities {
		c.identity = []string{"all", "all", "onlya", "small", "small", "slow", "slow", "nobody", ""}[r.IntN(9)]
		if c.encrypted && r.IntN(3) == 0 {
			c.identity = "camera"     // by its certificate,
			c.cut = s.troubles.clocks // its certificate may not be valid when it connects
		} else if c.identity != "" {
			c.token = tokenOf(c.identity)
		}
	}
	if s.troubles.addresses && c.keeps == nil { // otherwise streams of the same name would be one
		c.from = fmt.Sprintf("10.2.1.%d:%d", i/2+1, 5000+i)
	}
	if s.troubles.regions && c.identity != "camera" && r.IntN(3) > 0 {
		c.shares = s.share(c, i)
	}
	return c, 3 + r.IntN(25)
}

// operate acts as the operator until quiet is closed.
func (s *scene) operate(quiet <-chan struct{}) {
	r := draw(s.plan.seed, "operator")
	var jobs []func(c *config.Config)
	for _, j := range []struct {
		is bool
		do func(c *config.Config)
	}{
		{s.troubles.reloads, func(c *config.Config) { s.tune(c, r) }},
		{s.troubles.rights, func(c *config.Config) { s.redeclare(c, r) }},
		{s.troubles.versions, func(c *config.Config) { s.makeDefault(c, strconv.Itoa(1+r.IntN(2))) }},
		{s.troubles.tls, func(*config.Config) { s.pki.renew(nil) }},
		{s.troubles.addresses, func(c *config.Config) { c.Limits.PerAddress = boundAddress(r) }},
		{s.troubles.clocks, func(*config.Config) {
			if s.troubles.tls && r.IntN(2) == 0 {
				s.pki.renew(nil) // may not be valid yet by the clock
			}
			s.wall.set(r, s.troubles.tls && !s.troubles.learning) // the store remembers a day
		}},
	} {
		if j.is {
			jobs = append(jobs, j.do)
		}
	}
	for len(jobs) > 0 {
		timer := time.NewTimer(time.Duration(r.IntN(300)) * time.Millisecond)
		select {
		case <-quiet:
			timer.Stop()
			s.reload(func(c *config.Config) {
				*c = s.configuration(draw(s.plan.seed, "calm"))
				c.Identities = slices.Clone(s.first.Identities)
				c.Limits.PerAddress = config.Quota{}
				s.wall.ahead.Store(0)
			})
			return
		case <-timer.C:
		}
		s.reload(jobs[r.IntN(len(jobs))])
	}
}

// tune changes settings that clients notice only as limits.
func (s *scene) tune(c *config.Config, r *rand.Rand) {
	c.TCP.InFlightPerConnection = 2 + r.IntN(300) // sixteen times as many close a connection
	c.TCP.OutboundBytes = config.Bytes(64<<10 + r.IntN(1<<20))
	c.TCP.StallTimeout = time.Duration(3+r.IntN(10)) * time.Second
	c.GRPC.OutboundBytes = c.TCP.OutboundBytes
	c.Defaults.MaxBatch = 1 + r.IntN(8)
	c.Defaults.Objective = time.Duration(10+r.IntN(100)) * time.Millisecond
	c.Defaults.Strategy = scheduler.Strategies()[r.IntN(4)]
	c.Defaults.Delay = time.Duration(r.IntN(5)) * time.Millisecond
	c.Containers.Heartbeat = time.Duration(200+r.IntN(2000)) * time.Millisecond
}

// redeclare adds and removes identities, and changes their rights and quotas.
func (s *scene) redeclare(c *config.Config, r *rand.Rand) {
	c.Identities = slices.Clone(s.first.Identities)
	if s.troubles.quotas {
		s.bound(c.Identities, r)
	}
	for i := range c.Identities {
		switch one := &c.Identities[i]; {
		case one.Name == "onlya":
			one.May = [][]string{{"infer:a"}, {"infer:b"}, {"infer:[ab]*"}, {"serve:c"}}[r.IntN(4)]
		case one.Name == "operator" && r.IntN(2) == 0:
			one.May = [][]string{{"admin:read"}, {"load:s"}, {"admin:write", "load:x"}}[r.IntN(3)]
		case one.Name == "worker" && r.IntN(3) == 0:
			one.May = [][]string{{"serve:a"}, {"serve:[a-b]/1"}, {"infer"}}[r.IntN(3)]
		}
	}
	if gone := []string{"all", "small", "camera", "operator", "", "", ""}[r.IntN(7)]; gone != "" {
		c.Identities = slices.DeleteFunc(c.Identities, func(i config.Identity) bool { return i.Name == gone })
	}
}

// faultStore makes the store fail and recover until quiet is closed.
func (s *scene) faultStore(quiet <-chan struct{}) {
	r := draw(s.plan.seed, "store")
	for s.troubles.store {
		timer := time.NewTimer(time.Duration(r.IntN(400)) * time.Millisecond)
		select {
		case <-quiet:
			timer.Stop()
			s.store.broken.Store(false)
			return
		case <-timer.C:
			s.store.broken.Store(!s.store.broken.Load())
		}
	}
}

// freeze stops the server now and then, until quiet is closed: nothing arrives and nothing leaves,
// and the scheduler's time stands still.
func (s *scene) freeze(quiet <-chan struct{}) {
	r := draw(s.plan.seed, "freezes")
	for s.troubles.freezes {
		timer := time.NewTimer(time.Duration(r.IntN(1000)) * time.Millisecond)
		select {
		case <-quiet:
			timer.Stop()
			return
		case <-timer.C:
		}
		long := time.Duration(1+r.IntN([]int{50, 3000}[r.IntN(2)])) * time.Millisecond
		s.history.freeze(long)
		s.clock.freeze(long)
		s.net.Stall(true)
		time.Sleep(long)
		s.net.Stall(false)
	}
}

func (s *scene) reload(change func(*config.Config)) {
	s.mu.Lock()
	before := s.file
	s.file = before.Clone()
	change(&s.file)
	s.file.TCP.Loops = before.TCP.Loops
	s.mu.Unlock()
	held := s.history.hold(s.file)
	// Certificates in use stay, whatever the clock shows.
	early := s.pki != nil && s.wall.early() && s.pki.authority.Serial() != s.certificate.Load()
	_, err := s.server.Reload()
	switch {
	case err != nil && early: // the previous configuration stays
		held(false)
		s.mu.Lock()
		s.file = before
		s.mu.Unlock()
		return
	case err != nil && s.stopped():
		return
	case err != nil:
		s.history.fault("reload: %v", err)
		return
	case early:
		s.history.fault("certificates were taken that are not valid yet")
	}
	held(true)
	if s.pki != nil {
		s.certificate.Store(s.pki.authority.Serial())
	}
}

// settle waits until containers have come back, and the server has noticed disconnected peers.
func (s *scene) settle() {
	if s.troubles.loads {
		time.Sleep(time.Second) // processes that have ended start again meanwhile
		began := time.Now()
		if err := s.server.processes.Load(context.Background(), "s"); err != nil {
			s.history.fault("loading the model again: %v", err)
		}
		s.history.note("s", true, began, time.Now())
	}
	time.Sleep(5 * time.Second)
}

// ask sends requests through every door, after all faults have ended.
func (s *scene) ask() {
	for i, door := range doors {
		c := &client{scene: s, name: "last " + door, door: door, from: "10.3.0.1:5000",
			encrypted: s.troubles.tls && i%2 == int(s.plan.seed%2),
			rand:      draw(s.plan.seed, door), deals: draw(s.plan.seed, door+" questions"), last: true}
		if s.troubles.identities {
			c.identity, c.token = "small", tokenOf("small")
		}
		c.run(2)
	}
	if s.troubles.detectors {
		c, _ := s.newDetector(s.plan.detectors)
		c.shaky, c.last = false, true
		c.run(2)
	}
}

// shutdown stops the server as a signal would.
func (s *scene) shutdown() {
	s.stopping.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	began := time.Now()
	err := s.server.Shutdown(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		s.history.fault("shutdown: %v", err)
	}
	// A second for requests, five for clients that do not read their answers, five for the rest,
	// plus the time for which the server was stopped.
	if took := time.Since(began); took > 12*time.Second+s.history.frozen() {
		s.history.fault("the shutdown took %v", took)
	}
}
