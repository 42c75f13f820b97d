package containers

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A session is one container's connection: the shell around a machine and a codec. It is a
// [scheduler.Worker] once it has registered.
//
// Its goroutine reads; the goroutine that sends a batch writes (see zmtp.Conn.Send); a timer
// ticks. Lock order: life, mu. No lock is held while the scheduler or the connection is called,
// except life in Send.
type session struct {
	// Set once, before the session is shared.
	listener  *Listener
	number    uint64
	raw       net.Conn // the socket, even if TLS runs on it
	encrypted bool     // by TLS
	remote    string
	dialect   Dialect
	settings  *Settings // those of the listener when it connected

	// Owned by the goroutine of run until registration, and read by Send after it.
	conn  *zmtp.Conn
	codec codec

	// Owned by the goroutine of run.
	served bool      // an answer of the container was good
	strays bool      // an answer to no batch was logged
	token  string    // of its registration, set before replica is
	tls    *tls.Conn // on raw, set before token is; nil: it is plain

	beat3 bool // guarded by mu: a heartbeat of v3 asked it to register

	// life is read-locked while a batch is passed to the connection, and locked by the end of the
	// session: after that no batch is touched.
	life sync.RWMutex
	dead bool

	mu               sync.Mutex
	machine          machine
	timer            *time.Timer
	end              error // the first reason for the end
	unwanted         error // why it was displaced during its handshake
	replica          *scheduler.Replica
	hold             bool               // registering: batches wait for welcome
	held             []*scheduler.Batch // batches that wait for welcome
	calls            []*call            // batches in flight
	spare            []*call
	last             goodbye
	wants            scheduler.Spec // while it waits: what it declares
	info             SessionInfo
	lessons          int      // feedback messages that wait to be written
	unread           int      // bytes of those
	sharing          *sharing // set once, by registration; nil: no shared memory
	reportedSessions int      // number of sessions of its model that the container was last told
}

// A call is a batch in flight.
type call struct {
	id    uint64
	batch *scheduler.Batch
	out   zmtp.Outgoing
}

// A goodbye is the content of a goodbye message.
type goodbye struct {
	reason    string
	reconnect bool
}

// host returns the container's host, as far as its address shows it.
func (s *session) host() string {
	host, _, err := net.SplitHostPort(s.remote)
	if err != nil {
		return s.remote // ipc
	}
	return host
}

// run runs the session. It returns when the connection has ended and all its resources are
// released.
func (s *session) run() { s.close(s.live()) }

// live runs the session up to its end.
func (s *session) live() (err error) {
	defer s.survive(&err)
	if err := s.open(); err != nil {
		return err
	}
	return s.read()
}

// survive is deferred. A panic ends this session only.
func (s *session) survive(err *error) {
	if r := recover(); r != nil {
		s.log(slog.LevelError, "panic in a container's session", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		*err = fmt.Errorf("panic: %v", r)
	}
}

func (s *session) open() error {
	set := s.settings
	var secure func(net.Conn) (net.Conn, error)
	if s.encrypted {
		secure = func(c net.Conn) (_ net.Conn, err error) {
			s.tls, err = s.listener.cfg.Secure(c)
			return s.tls, err
		}
	}
	conn, err := zmtp.Server(s.raw, zmtp.Config{
		Secure: secure,
		Limits: zmtp.Limits{MessageBytes: min(helloLimit, set.Limits.MessageBytes),
			Frames: min(helloFrames, set.Limits.Frames), QueuedMessages: queueLimit},
		Pool:             s.listener.cfg.Pool,
		HandshakeTimeout: set.HandshakeTimeout,
		WriteTimeout:     set.WriteTimeout,
		Unwanted:         s.whyUnwanted,
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
	if s.end != nil { // killed meanwhile
		return s.end
	}
	if id := conn.Peer().Identity; id != "" {
		s.info.Label = fmt.Sprintf("%.64q", id)
	}
	s.timer = time.AfterFunc(time.Until(s.machine.started.Add(set.HandshakeTimeout)), s.tick)
	return nil
}

// read receives messages until the connection ends.
func (s *session) read() error {
	var m zmtp.Message
	for {
		if err := s.conn.Receive(&m); err != nil {
			return err
		}
		if err := s.handle(&m); err != nil {
			return err
		}
	}
}

// handle handles a message and releases its memory.
func (s *session) handle(m *zmtp.Message) error {
	defer m.Release()
	if s.codec == nil {
		c, err := recognise(m, s.dialect, s.settings.Limits, s.listener.cfg.Pool)
		if err != nil {
			return err
		}
		s.adopt(c)
	}
	in, err := s.codec.parse(m)
	refused, _ := errors.AsType[*refusal](err)
	if err != nil && refused == nil {
		return err
	}
	do, err := s.step(in.event)
	if err != nil {
		return err
	}
	switch do {
	case actBeat:
		s.beat()
	case actRegister:
		if refused != nil {
			return s.reject(refused)
		}
		return s.register(in.hello)
	case actDeliver:
		return s.deliver(in.id, m)
	case actDrain:
		s.drain(goodbye{reason: "drained"})
	case actArena:
		s.handleArena(in.arena)
	case actGrant:
		s.handleGrant(in.grant)
	case actRepeat:
		s.say(func(o *zmtp.Outgoing) bool {
			return s.codec.goodbye(o, fmt.Sprintf("register first: expected hello, got %.16q", m.Frames[0].Data), true)
		})
		s.conn.CloseWrite()
		s.setReason(errors.New("sent another message before hello; told to reconnect"))
		s.mu.Lock()
		s.retimeLocked(0)
		s.mu.Unlock()
	}
	return nil
}

// adopt sets the generation of the connection.
func (s *session) adopt(c codec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.codec = c
	k := c.clocks(s.settings.Heartbeat)
	k.register = s.settings.HandshakeTimeout
	k.pings = s.conn.Peer().Minor >= 1
	s.machine.clocks = k
	s.info.RPC = c.generation()
}

// step feeds an event to the machine.
func (s *session) step(e event) (action, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.info.LastSeen = now
	return s.machine.step(e, now)
}

// register makes the session a replica of its model.
func (s *session) register(r registration) error {
	s.mu.Lock()
	s.hold = true
	if r.label != "" {
		s.info.Label = r.label
	}
	s.info.Model, s.info.Subset, s.info.Again = r.model, r.subset, r.again
	s.mu.Unlock()

	label := s.info.Label
	if label == "" {
		label = s.remote
	}
	s.token = r.token
	if err := s.allow(r.model); err != nil {
		return s.refuse(err)
	}
	if admit := s.listener.cfg.Admit; admit != nil {
		if err := admit(r.model); err != nil {
			return s.reject(err)
		}
	}
	options := scheduler.ReplicaOptions{Label: label, Concurrency: r.concurrency, Slots: r.slots, Serial: r.serial,
		Silent: s.endSilent, Replaced: s.replaced}
	if f := s.listener.cfg.Returns; f != nil {
		options.Returns = f(s.raw)
	}
	if r.feedback {
		options.Feedback = s.sendFeedback
	}
	if r.grants {
		options.Offer = s.offer
	}
	replica, err := s.listener.cfg.Scheduler.AddReplica(r.model, r.spec, s, options)
	if err != nil {
		return s.unplaced(r, err)
	}
	r.spec = replica.Model().Spec() // the configuration may have changed it
	s.bind(r)
	notes := raggedHints(r.spec)
	s.conn.SetMessageLimits(s.settings.Limits.MessageBytes, s.settings.Limits.Frames)
	s.say(func(o *zmtp.Outgoing) bool {
		w := welcomeMessage(s.listener.cfg.Name, s.settings)
		w.Batched, w.Notes, w.Images, w.Grants = new(r.spec.Batched()), notes, hasImages(r.spec), r.grants
		w.Regions = hasRegions(r.spec)
		if s.sharing != nil {
			w.Arena = s.sharing.first()
		}
		if r.subset.Size > 0 {
			w.Replicas = s.listener.replicasOf(r.model) + 1
		}
		return s.codec.welcome(o, w)
	})

	s.mu.Lock()
	s.replica = replica
	s.machine.clocks.pauses = r.pauses
	s.info.Registered = time.Now()
	held := s.held
	s.hold, s.held = false, nil
	s.retimeLocked(0)
	s.mu.Unlock()
	if r.pauses {
		noticeLoss(s.raw, s.settings.WriteTimeout)
	}
	s.listener.markRegistered(s)
	s.listener.clearUnserved(s.snapshot())
	s.log(slog.LevelInfo, "container registered")
	if f := s.listener.cfg.Registered; f != nil {
		f(s.raw, s.snapshot())
	}
	if err := s.allow(r.model); err != nil { // a concurrent Review did not see it
		s.retire(goodbye{reason: err.Error(), reconnect: true})
	}
	for _, note := range notes {
		s.log(slog.LevelInfo, "note on the model's declaration", "note", note)
	}
	for _, b := range held {
		if err := s.Send(b); err != nil {
			return err // unreachable: only this goroutine ends the session
		}
	}
	return nil
}

// allow returns an error if the container may not serve the model, or no longer.
func (s *session) allow(id scheduler.ModelID) error {
	if f := s.listener.cfg.Allow; f != nil {
		s.mu.Lock()
		registered, party := !s.info.Registered.IsZero(), s.info.Party
		s.mu.Unlock()
		party, err := f(Applicant{Conn: s.raw, TLS: s.tls, Model: id, Token: s.token, Registered: registered,
			Party: party})
		if err == nil {
			s.mu.Lock()
			s.info.Party = party
			s.mu.Unlock()
		}
		return err
	}
	return nil
}

// Send sends a batch to the container. It implements scheduler.Worker.
func (s *session) Send(b *scheduler.Batch) error {
	if fault := s.transmit(b); fault != nil {
		// Not under life: the scheduler may send the next batch from this call.
		s.recordFailure(fault)
		b.Fail(fault)
	}
	return nil
}

// transmit sends a batch. It returns a fault if the generation cannot carry the batch. Batches of a
// session that has ended are returned by close, once the socket's writer has stopped: an error of
// Send would at once release memory that the writer may still be reading.
func (s *session) transmit(b *scheduler.Batch) (fault error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.dead {
		return nil
	}
	now := time.Now()
	c := s.call(b, now)
	if c == nil {
		return nil // it waits for welcome
	}
	if err := s.codec.batch(&c.out, b, now); err != nil {
		if s.take(c.id) != nil { // nil: the container guessed the id and has answered it
			s.recycle(c)
		}
		return err
	}
	// Another error of Send means that the connection has ended: close returns the batch.
	if err := s.conn.Send(&c.out); errors.Is(err, zmtp.ErrQueueFull) {
		s.kill(fmt.Errorf("it does not read what the server sends: %w", err))
	}
	return nil
}

// call records that b is being sent. It returns nil if b has to wait for welcome.
func (s *session) call(b *scheduler.Batch, now time.Time) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold {
		s.held = append(s.held, b)
		return nil
	}
	var c *call
	if n := len(s.spare); n > 0 {
		c, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		c = new(call)
	}
	c.id, c.batch = s.codec.id(b), b
	s.calls = append(s.calls, c)
	s.info.Batches++
	s.info.Rows += uint64(b.Rows)
	_, _ = s.machine.step(evSend, now) // evSend never ends the session
	return c
}

// take removes and returns the call with this id; nil if there is none.
func (s *session) take(id uint64) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range s.calls {
		if c.id == id {
			s.calls = append(s.calls[:i], s.calls[i+1:]...)
			_, _ = s.machine.step(evAnswered, time.Time{})
			return c
		}
	}
	return nil
}

// recycle stores a call for the next batch, without its references to this one.
func (s *session) recycle(c *call) {
	c.batch = nil
	c.out.Reset()
	s.mu.Lock()
	s.spare = append(s.spare, c)
	s.mu.Unlock()
}

// deliver completes the batch of a result.
func (s *session) deliver(id uint64, m *zmtp.Message) error {
	c := s.take(id)
	if c == nil {
		// A late, duplicate or invented answer: no batch waits for it, since ids are unique.
		s.mu.Lock()
		s.info.Strays++
		s.mu.Unlock()
		if !s.strays {
			s.strays = true
			s.log(slog.LevelWarn,
				"container answered a batch that is not in flight; further such answers are only counted", "id", id)
		}
		s.codec.drop(m)
		return nil
	}
	b := c.batch
	if !s.conn.Written(&c.out) {
		// The writer still reads the batch's memory, which must not be released before the
		// connection is closed.
		return fmt.Errorf("answered batch %d before all of it had been sent", id)
	}
	s.recycle(c)
	var a *answer
	err := m.Refused
	if err == nil {
		a, err = s.codec.result(m, b)
	} else {
		s.codec.drop(m) // its tensors in shared memory have arrived
	}
	if errors.Is(err, tensor.ErrBudget) {
		err = noMemory(err)
	}
	if err != nil {
		s.recordFailure(err)
		b.Fail(err)
		return nil
	}
	if !s.served {
		s.served = true
		if f := s.listener.cfg.Served; f != nil {
			f(s.raw)
		}
	}
	if err := b.Complete(a.outputs, a.errors); err != nil {
		s.recordFailure(err)
	}
	return nil
}

// noMemory is the error of an answer for which the pool had no memory: not the container's fault.
func noMemory(err error) error {
	return fmt.Errorf("%w: no memory for the answer: %w", scheduler.ErrOverloaded, err)
}

// blameless reports whether a batch failed for a reason outside its container.
func blameless(err error) bool {
	return errors.Is(err, scheduler.ErrOverloaded) || errors.Is(err, scheduler.ErrInvalidInput)
}

// failed records why a batch failed, for the status and, the first time, for the log.
func (s *session) recordFailure(err error) {
	if blameless(err) {
		return
	}
	reason := errorText(err)
	s.mu.Lock()
	s.info.Failures++
	s.info.LastFailure = reason
	first := s.info.Failures == 1
	s.mu.Unlock()
	if first {
		s.log(slog.LevelWarn, "container failed a batch; further failures are only counted", "reason", reason)
	}
}

// say sends the message built by f, if f builds one. It ends the session if the connection's
// queue is full.
func (s *session) say(f func(*zmtp.Outgoing) bool) bool {
	var o zmtp.Outgoing
	if !f(&o) {
		return false
	}
	if err := s.conn.Send(&o); errors.Is(err, zmtp.ErrQueueFull) {
		s.kill(fmt.Errorf("it does not read what the server sends: %w", err))
	}
	s.mu.Lock()
	_, _ = s.machine.step(evMessage, time.Now())
	s.mu.Unlock()
	return true
}

func (s *session) beat() {
	s.mu.Lock()
	registered := s.machine.phase != fresh
	s.beat3 = s.beat3 || !registered
	s.mu.Unlock()
	s.say(func(o *zmtp.Outgoing) bool { return s.codec.heartbeat(o, registered) })
}

// drain lets the replica, if there is one yet, finish its batches and then says goodbye.
func (s *session) drain(f goodbye) {
	s.mu.Lock()
	s.last = f
	replica := s.replica
	s.mu.Unlock()
	if replica != nil {
		replica.Drain(s.drained)
	} else {
		s.drained()
	}
}

// drained is called by the scheduler after the last answer.
func (s *session) drained() {
	s.mu.Lock()
	do, _ := s.machine.step(evDrained, time.Now())
	f := s.last
	s.retimeLocked(0)
	s.mu.Unlock()
	if do != actGoodbye {
		return
	}
	s.setReason(errors.New(f.reason))
	if s.say(func(o *zmtp.Outgoing) bool { return s.codec.goodbye(o, f.reason, f.reconnect) }) {
		s.conn.CloseWrite()
	} else {
		s.kill(errors.New(f.reason))
	}
}

// retire dismisses the container: its replica gets no more batches, and goodbye follows the last
// answer. It returns false if the container is leaving already.
func (s *session) retire(f goodbye) bool {
	s.mu.Lock()
	if s.replica == nil && s.machine.phase != waiting {
		s.mu.Unlock()
		s.kill(errors.New(f.reason))
		return true
	}
	do, _ := s.machine.step(evRetire, time.Now())
	s.mu.Unlock()
	if do != actDrain {
		return false
	}
	if g := s.listener.cfg.Dismissed; g != nil && !f.reconnect {
		g(s.raw)
	}
	s.drain(f)
	return true
}

// tick is the timer's function.
func (s *session) tick() {
	s.mu.Lock()
	if s.end != nil || s.timer == nil {
		s.mu.Unlock()
		return
	}
	now := time.Now()
	do, next, err := s.machine.tick(now, s.conn.LastByte())
	if err == nil {
		since, bytes := s.conn.Receiving()
		err = s.machine.checkRate(now, since, bytes)
	}
	if err == nil && !next.IsZero() {
		s.timer.Reset(next.Sub(now))
	}
	waits := s.machine.phase == waiting
	s.mu.Unlock()
	if err != nil {
		s.kill(err)
		return
	}
	if do&actPing != 0 {
		s.conn.Ping()
	}
	// Behind waiting messages a heartbeat would tell nothing new, and heartbeats would fill the
	// queue.
	if do&actBeat != 0 && !s.conn.Waiting() {
		s.beat()
	}
	if waits {
		s.look()
	}
	s.recount()
}

// retimeLocked makes the timer tick within d.
func (s *session) retimeLocked(d time.Duration) {
	if s.timer != nil && s.end == nil {
		s.timer.Reset(d)
	}
}

// setReason records the first reason for the end, for the log.
func (s *session) setReason(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.info.Reason == "" {
		s.info.Reason = errorText(reason)
	}
}

// endSilent ends a session whose container does not answer, although it may send heartbeats. The
// scheduler calls it and must not wait for the search for the process.
func (s *session) endSilent(reason error) {
	go func() { // ends by itself
		if f := s.listener.cfg.Silent; f != nil {
			f(s.raw, reason)
		}
		s.kill(reason)
	}()
}

// kill ends the session from any goroutine, without waiting. The goroutine of run does the rest.
func (s *session) kill(reason error) {
	s.mu.Lock()
	if s.end == nil {
		s.end = reason
	}
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		conn.Abort(reason)
	} else {
		s.raw.Close() // still in the handshake
	}
}

// close is the only end of a session. It stops the use of batches, then removes the replica,
// which returns its batches to the scheduler, and logs one line.
func (s *session) close(reason error) {
	s.mu.Lock()
	if s.end == nil {
		s.end = reason
	}
	reason = s.end
	replica, timer := s.replica, s.timer
	s.machine.phase = ended
	s.mu.Unlock()
	if timer != nil {
		timer.Stop()
	}
	s.life.Lock()
	s.dead = true
	s.life.Unlock()
	if s.conn != nil {
		s.conn.Close()
	} else {
		s.raw.Close()
	}
	if reason == io.EOF {
		reason = errHungUp
	}
	if replica == nil {
		if u := s.mismatch(reason); u != nil {
			s.listener.recordUnserved(s.snapshot(), u)
			if !errors.Is(reason, u) {
				reason = fmt.Errorf("%w: %w", reason, u)
			}
		}
	}
	s.setReason(reason)
	if replica != nil {
		s.remove(replica, reason)
	}
	if s.sharing != nil {
		s.sharing.close()
	}
	s.listener.forget(s)
}

func (s *session) remove(replica *scheduler.Replica, reason error) {
	var err error // already logged
	defer s.survive(&err)
	replica.Remove(reason)
}

var errHungUp = errors.New("it closed the connection")
