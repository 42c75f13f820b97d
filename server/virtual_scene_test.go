package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/manage"
	"github.com/shivad/shivad/server/internal/secure"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// A scene is a whole server on virtual time, with clients at its doors and containers behind it, as
// one seed has it: who comes when and asks what, what fails, and what the operator does meanwhile.
// At the end everything calms down, and the server has to serve as if nothing had been.
type scene struct {
	t        *testing.T
	plan     plan
	troubles troubles
	net      shivatest.Net
	store    *faultyStore
	history  *history
	server   *Server

	mu   sync.Mutex
	file config.Config // as it would be loaded now

	calm, over     context.Context // ended when trouble ends, and when containers may go
	calmed, finish context.CancelFunc
	stopping       atomic.Bool
}

// defaultDeadline is that of models, and execTimeout what a container may take for a batch.
const (
	defaultDeadline = 2 * time.Second
	execTimeout     = 700 * time.Millisecond
)

// Troubles are what may go wrong in a scene.
type troubles struct {
	containers bool // die, hang, fail, answer twice
	clients    bool // hang up, are cut off, stand still
	reloads    bool // of other settings
	stop       bool // the server stops while clients ask
	identities bool // clients show tokens, some wrong ones
	quotas     bool // of one identity
	store      bool // cannot be written for a while, again and again
}

// A plan is what a seed says at once; the rest its actors draw as they go, each by itself.
type plan struct {
	seed    uint64
	clients int
	hosts   map[string]int // by model
	slowest time.Duration  // that a container is with a batch
	harm    int            // how often containers fail
	stop    time.Duration  // when the server stops, if it does early
}

// draw is the random numbers of one actor.
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
	maybe := func() bool { return r.IntN(2) == 0 }
	s.troubles = troubles{containers: maybe(), clients: maybe(), reloads: r.IntN(3) == 0, stop: r.IntN(5) == 0, identities: r.IntN(3) == 0, store: r.IntN(3) == 0}
	s.troubles.quotas = s.troubles.identities && maybe()
	s.plan = plan{seed: seed, clients: 2 + r.IntN(4), hosts: map[string]int{"a": 1 + r.IntN(3), "b": 1 + r.IntN(2)},
		harm: []int{1, 1, 5}[r.IntN(3)], slowest: time.Duration(1+r.IntN(40)) * time.Millisecond, stop: time.Duration(r.IntN(1000)) * time.Millisecond}
	s.net.Resets = true
	s.net.Buffer = []int{0, 300, 4 << 10}[r.IntN(3)]
	s.net.Piece = []int{0, 0, 7, 100}[r.IntN(4)]
	s.calm, s.calmed = context.WithCancel(context.Background())
	s.over, s.finish = context.WithCancel(context.Background())
	s.file = s.configuration(r)
	return s
}

// configuration is what the server starts with.
func (s *scene) configuration(r *rand.Rand) config.Config {
	c := config.Default()
	c.TCP.Listen, c.REST.Listen, c.GRPC.Listen = config.Addrs{doorAddrs["tcp"]}, config.Addrs{doorAddrs["rest"]}, config.Addrs{doorAddrs["grpc"]}
	c.Admin.Listen, c.Containers.Listen, c.Containers.Arena = "", nil, false
	c.TCP.Loops = 1 + r.IntN(2)
	c.Server.Drain = time.Second
	c.Defaults.Deadline, c.Defaults.ExecutionTimeout = defaultDeadline, execTimeout
	c.Defaults.Strategy = scheduler.Strategies()[r.IntN(4)]
	c.Defaults.Delay = time.Duration(r.IntN(2)*r.IntN(5)) * time.Millisecond
	if s.troubles.identities {
		c.Identities = []config.Identity{declared("all", "infer"), declared("onlya", "infer:a"), declared("small", "infer"), declared("worker", "serve")}
		if s.troubles.quotas {
			c.Identities[2].Quota.RequestsInFlight = smallQuota
		}
	}
	return c
}

// smallQuota is how many requests of the identity "small" may be in flight.
const smallQuota = 2

// start starts the server in its surroundings.
func (s *scene) start() {
	var err error
	s.server, err = newServer(s.file, slog.New(slog.DiscardHandler), surroundings{
		open: s.listen,
		store: func(at string, opts state.Options) (state.Store, error) {
			var err error
			s.store.Store, err = manage.OpenState(at, opts)
			return s.store, err
		},
		clock: func() (stoppable, error) { return bubbleClock{}, nil },
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.server.ReloadFrom(func() (config.Config, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.file.Clone(), nil
	}, nil)
	if err := s.server.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// listen opens an address in memory.
func (s *scene) listen(addr string, _ unixsocket.Access) (net.Listener, error) {
	hostport, encrypted := secure.Cut(addr)
	l, err := s.net.Listen(hostport)
	if err != nil || !encrypted {
		return l, err
	}
	return tlsInMemory{l, secure.Addr{TCPAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(hostport))}}, nil
}

type tlsInMemory struct {
	net.Listener
	addr net.Addr
}

func (l tlsInMemory) Addr() net.Addr { return l.addr }

// A bubbleClock is the clock of a synctest bubble.
type bubbleClock struct{}

func (bubbleClock) Now() time.Time                                      { return time.Now() }
func (bubbleClock) AfterFunc(d time.Duration, f func()) scheduler.Timer { return time.AfterFunc(d, f) }
func (bubbleClock) Close()                                              {}

// A faultyStore fails to write while it is broken.
type faultyStore struct {
	state.Store
	broken atomic.Bool
}

func (f *faultyStore) fault() error {
	if f.broken.Load() {
		return fmt.Errorf("%w: the seed says so", state.ErrUnavailable)
	}
	return nil
}

func (f *faultyStore) Update(ctx context.Context, key, id string, change func([]byte) ([]byte, error)) (state.Entry, error) {
	if err := f.fault(); err != nil {
		return state.Entry{}, err
	}
	return f.Store.Update(ctx, key, id, change)
}

func (f *faultyStore) Write(ctx context.Context, entries []state.Entry) error {
	if err := f.fault(); err != nil {
		return err
	}
	return f.Store.Write(ctx, entries)
}

func (f *faultyStore) Health() state.Health {
	return state.Health{Err: f.fault(), Since: time.Now()}
}

func (s *scene) stopped() bool { return s.stopping.Load() }

// play has everything happen, from start to end.
func (s *scene) play() {
	const longest = 10 * time.Minute
	dog := time.AfterFunc(longest, func() {
		panic(fmt.Sprintf("seed %d; to repeat it:\n%s\nit is not over after %v", s.plan.seed, repeat(s.plan.seed), longest))
	})
	defer dog.Stop()
	s.start()
	var hosts, actors sync.WaitGroup
	for _, model := range []string{"a", "b"} {
		for i := range s.plan.hosts[model] {
			name := fmt.Sprintf("%s%d", model, i)
			h := &host{scene: s, name: name, model: model, rand: draw(s.plan.seed, name), script: draw(s.plan.seed, name+" answers")}
			hosts.Go(h.run)
		}
	}
	time.Sleep(10 * time.Millisecond)
	if err := s.server.SetApplication(context.Background(), Application{Name: "app", Models: []string{"a"}}); err != nil {
		s.history.fault("the application: %v", err)
	}
	for i := range s.plan.clients {
		c, questions := s.newClient(i)
		actors.Go(func() {
			time.Sleep(time.Duration(c.rand.Int64N(int64(200 * time.Millisecond))))
			c.run(questions)
		})
	}
	quiet := make(chan struct{}) // the operator has nothing more to do
	var operator sync.WaitGroup
	operator.Go(func() { s.operate(quiet) })
	operator.Go(func() { s.faultStore(quiet) })
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

// newClient makes the client of that number.
func (s *scene) newClient(i int) (c *client, questions int) {
	name := fmt.Sprintf("client%d", i)
	r := draw(s.plan.seed, name)
	c = &client{scene: s, name: name, door: []string{"tcp", "rest", "grpc"}[r.IntN(3)], from: fmt.Sprintf("10.2.0.%d:5000", i+1), rand: r, deals: draw(s.plan.seed, name+" questions"), faults: draw(s.plan.seed, name+" connections")}
	c.shaky = s.troubles.clients && r.IntN(2) == 0
	if s.troubles.identities {
		c.identity = []string{"all", "all", "onlya", "small", "nobody", ""}[r.IntN(6)]
		if c.identity != "" {
			c.token = tokenOf(c.identity)
		}
	}
	return c, 3 + r.IntN(25)
}

// operate is what the operator does until quiet is closed.
func (s *scene) operate(quiet <-chan struct{}) {
	r := draw(s.plan.seed, "operator")
	for s.troubles.reloads {
		timer := time.NewTimer(time.Duration(r.IntN(300)) * time.Millisecond)
		select {
		case <-quiet:
			timer.Stop()
			s.reload(func(c *config.Config) { *c = s.configuration(draw(s.plan.seed, "calm")) })
			return
		case <-timer.C:
		}
		s.reload(func(c *config.Config) {
			c.TCP.InFlightPerConnection = 1 + r.IntN(300)
			c.TCP.OutboundBytes = config.Bytes(64<<10 + r.IntN(1<<20))
			c.TCP.StallTimeout = time.Duration(3+r.IntN(10)) * time.Second
			c.GRPC.OutboundBytes = c.TCP.OutboundBytes
			c.Defaults.MaxBatch = 1 + r.IntN(8)
			c.Defaults.Objective = time.Duration(10+r.IntN(100)) * time.Millisecond
			c.Defaults.Strategy = scheduler.Strategies()[r.IntN(4)]
			c.Defaults.Delay = time.Duration(r.IntN(5)) * time.Millisecond
			c.Containers.Heartbeat = time.Duration(200+r.IntN(2000)) * time.Millisecond
		})
	}
}

// faultStore has the store fail and recover until quiet is closed.
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

func (s *scene) reload(change func(*config.Config)) {
	s.mu.Lock()
	loops := s.file.TCP.Loops
	change(&s.file)
	s.file.TCP.Loops = loops
	s.mu.Unlock()
	if _, err := s.server.Reload(); err != nil && !s.stopped() {
		s.history.fault("reload: %v", err)
	}
}

// settle waits until containers have come back, and the server has noticed who is gone.
func (s *scene) settle() {
	time.Sleep(5 * time.Second)
}

// ask asks through every door, when all is well.
func (s *scene) ask() {
	for _, door := range []string{"tcp", "rest", "grpc"} {
		c := &client{scene: s, name: "last " + door, door: door, from: "10.3.0.1:5000", rand: draw(s.plan.seed, door), deals: draw(s.plan.seed, door+" questions"), last: true}
		if s.troubles.identities {
			c.identity, c.token = "small", tokenOf("small")
		}
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
	// A second for requests, five for clients that do not take their answers, five for the rest.
	if took := time.Since(began); took > 12*time.Second {
		s.history.fault("the shutdown took %v", took)
	}
}

// check is the oracle: what must hold of every history.
func (s *scene) check() {
	h := s.history
	if n := s.server.pool.InUse(); n != 0 {
		h.fault("%d bytes of the pool are in use after the end", n)
	}
	if left := takenOf(s.server); left != "" {
		h.fault("quotas are not given back: %s", left)
	}
	for _, q := range h.inOrder() {
		s.judge(q)
	}
}

// judge judges one question.
func (s *scene) judge(q *question) {
	h := s.history
	wrong := func(format string, args ...any) {
		h.fault("question %d of %s (%s, %d rows for %s, %v, at %v, bad %t): %s", q.number, q.client.name, q.client.door, q.rows, q.model, q.timeout, q.begun.Sub(h.began), q.bad, fmt.Sprintf(format, args...))
	}
	c := q.client
	lossy := c.cut || q.given || s.troubles.stop
	switch {
	case len(q.answers) > 1:
		wrong("it was answered %d times: %v", len(q.answers), q.answers)
		return
	case len(q.answers) == 0:
		if !lossy {
			wrong("it was never answered")
		}
		return
	}
	a := q.answers[0]
	s.judgeRuns(q, a, wrong)
	if a.kind == unanswered {
		if !lossy {
			wrong("its connection has ended: %s", a.text)
		}
		return
	}
	if why := s.unexpected(q, a); why != "" {
		wrong("it was answered %s %s: %s", a.kind, a.text, why)
	}
	due := q.asked.Add(q.timeout)
	if b := q.before; b != nil && len(b.answers) > 0 && b.answers[0].at.After(due) {
		due = b.answers[0].at
	}
	if late := a.at.Sub(due); late > lateness && !c.shaky && !s.troubles.stop {
		wrong("it was answered %v late, with %s", late, a.kind)
	}
	if a.kind != okay {
		return
	}
	for i := range q.rows {
		if 2*i+1 >= len(a.values) || len(a.values) != 2*q.rows || a.values[2*i] != q.number+sign(q.by()) || a.values[2*i+1] != int32(i) {
			wrong("the answer's values are %v", a.values)
			break
		}
	}
}

// lateness is how much later than its deadline an answer may come: time does not pass while the
// server works, so that is what the tests' clients take.
const lateness = time.Millisecond

// judgeRuns judges what containers have seen of a question.
func (s *scene) judgeRuns(q *question, a answer, wrong func(string, ...any)) {
	times, losses := make([]int, q.rows), make([]int, q.rows)
	for _, r := range q.runs {
		if r.at.After(a.at) && !r.late && a.kind != unanswered {
			wrong("%s was sent its rows %v after the answer, %s", r.container, r.at.Sub(a.at), a.kind)
		}
		for _, row := range r.rows {
			if times[row]++; r.fate == fateLost {
				losses[row]++
			}
		}
	}
	for row, n := range times {
		if losses[row] > 2 {
			wrong("row %d was sent to %d containers that were lost with it, not to one more after the first", row, losses[row])
		}
		if n > 1 && !s.troubles.containers {
			wrong("row %d was executed %d times, and no container has failed", row, n)
		}
		if n == 0 && a.kind == okay {
			wrong("row %d was answered, and no container has seen it", row)
		}
	}
}

// unexpected says why an answer of that kind cannot be; "": it can.
func (s *scene) unexpected(q *question, a answer) string {
	c := q.client
	if c.last {
		if a.kind != okay && !q.expectsError() {
			return "all was well again"
		}
	}
	switch a.kind {
	case okay:
		if q.bad || q.model == "none" || c.lacks(q) {
			return "it should have been refused"
		}
	case "InvalidInput":
		if !q.bad {
			return "it fits the model"
		}
	case "NotFound":
		if since := s.history.models[q.by()]; !since.IsZero() && since.Before(q.begun) {
			return "there is such a model"
		}
	case "Unauthenticated":
		if c.identity != "nobody" && c.identity != "" || !s.troubles.identities {
			return "it showed a token that is known"
		}
	case "PermissionDenied":
		if !c.lacks(q) {
			return "it has the right"
		}
	case "DeadlineExceeded":
		// Of what cannot be answered in time it is said early.
		if early := q.asked.Add(q.timeout).Sub(a.at); early > 0 && !q.given && !strings.Contains(a.text, "no replica could have answered") {
			return fmt.Sprintf("its deadline was %v later", early)
		}
	case "Overloaded":
		switch {
		case s.troubles.quotas && c.identity == "small" && strings.Contains(a.text, "is over its quota"):
		case s.troubles.reloads && strings.Contains(a.text, "tcp.in_flight_per_connection"):
		default:
			return "nothing is scarce"
		}
	case "Unavailable":
		if !s.troubles.containers && !s.troubles.stop {
			return "its containers are there"
		}
	case "ContainerFailed":
		if !hasFate(q, fateFailed, fateStray) {
			return "no container has failed with it"
		}
	case "ContainerLost":
		if !s.troubles.containers && !s.troubles.stop {
			return "no container was lost"
		}
	case "Draining":
		if !s.troubles.stop {
			return "the server does not stop"
		}
	case "Canceled":
		if !q.given && !c.cut {
			return "nobody has given it up"
		}
	default:
		return "there is no such answer"
	}
	return ""
}

func hasFate(q *question, fates ...fate) bool {
	for _, r := range q.runs {
		for _, f := range fates {
			if r.fate == f {
				return true
			}
		}
	}
	return false
}
