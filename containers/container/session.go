package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/tensor"
)

var (
	// errServed marks the end of a session that had registered.
	errServed = errors.New("container: session")
	// errDismissed: the server said goodbye without reconnect.
	errDismissed = errors.New("container: goodbye")
	// errWaited marks the end of a session that has waited to register.
	errWaited = errors.New("container: wait")
)

// A refusedError is the server's refusal of a registration.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "container: refused: " + e.reason }

// closeTime bounds how long the last answers may take to be sent after a goodbye.
const closeTime = 2 * time.Second

// fastPredict is the longest duration of the last Predict for which the reader computes the next
// batch itself. Handing a batch of 256 KiB to another goroutine costs about half as much: two
// threads are woken, and the bytes may be in another core's cache.
const fastPredict = 100 * time.Microsecond

// A session is one connection to one server. Its reader receives batches, Concurrency goroutines
// compute and answer them, and a timer sends heartbeats. The reader itself computes a fast model.
// If that takes long after all, the timer starts another goroutine as reader: there is always one
// reader, but not always the same goroutine.
type session struct {
	server *server
	state  *linkState // state of its link, which it updates
	log    *slog.Logger
	number uint64 // unlike that of any other session of this process
	conn   *zmtp.Conn
	jobs   chan *Batch
	ctx    context.Context // of Predict; ends with the session

	sharing sharing
	echoes  atomic.Bool // the last result had an input as an output

	ended  chan error     // gets one error: why there is no reader any more
	wg     sync.WaitGroup // goroutines that compute and read
	fast   atomic.Bool    // the last Predict took less than fastPredict
	sent   atomic.Bool    // a message was sent since the last tick
	silent time.Duration
	beat   time.Duration

	// Used by the arbiter, guarded by its mu.
	grants bool // the server waits for grants when it is told to
	each   bool // the server was told to

	mu    sync.Mutex
	timer *time.Timer
	over  bool
	since time.Time // when the reader entered Predict; zero while it reads or after it was replaced
	spare []*Batch
}

// session connects, shows a token, and serves until the connection ends. It returns the reason,
// never nil.
func (s *server) session(ctx context.Context, log *slog.Logger, a address, token string, st *linkState) error {
	hello, err := s.model.hello(token, st.subset(), st.again())
	if err != nil {
		return err
	}
	secure, err := s.secure(ctx, a)
	if err != nil {
		return err
	}
	dialCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	raw, err := s.model.Dial(dialCtx, a.network, a.text)
	cancel()
	if err != nil {
		return err
	}
	// Handshake and registration have deadlines, but a drain must not wait for them.
	unhook := context.AfterFunc(ctx, func() { raw.Close() })
	defer unhook()
	conn, err := zmtp.Client(raw,
		zmtp.Config{Secure: secure, Pool: s.pool, Limits: zmtp.Limits{MessageBytes: s.model.MessageBytes}})
	if err != nil {
		return err
	}
	n := &session{server: s, state: st, log: log, number: lastSession.Add(1), conn: conn,
		jobs:  make(chan *Batch, maxSlots),
		ended: make(chan error, 1), sharing: sharing{segments: make(map[int64]*mapping)}}
	defer n.sharing.end()
	var stop context.CancelFunc
	n.ctx, stop = context.WithCancel(s.hard)
	defer stop()
	// When the drain's time is over, it waits for nothing more.
	defer context.AfterFunc(s.hard, func() { conn.Abort(context.Cause(s.hard)) })()

	for range cap(s.slots) {
		n.wg.Go(n.work) // ends when jobs is closed; joined below
	}
	welcome, err := n.greet(hello)
	if err == nil && unhook() {
		log.Info("container: registered", "at", welcome.Server)
		st.recordRegistration(welcome.Replicas)
		drain := context.AfterFunc(ctx, func() { n.say(wire.Draining) })
		s.arbiter.join(n, welcome.Grants)
		n.wg.Go(n.read) // ends with the connection, or when it is replaced; joined below
		err = <-n.ended
		drain()
		if !errors.Is(err, errDismissed) {
			err = fmt.Errorf("%w: %w", errServed, err)
		}
	}
	var bye *goodbye
	if errors.As(err, &bye) {
		s.arbiter.leave(n, false)
		close(n.jobs) // received batches are answered
		n.wg.Wait()
		n.waitForClose()
	} else {
		stop()
		n.mu.Lock()
		n.over = true // received batches are dropped
		n.mu.Unlock()
		s.arbiter.leave(n, true)
		close(n.jobs)
		n.wg.Wait()
	}
	n.mu.Lock()
	n.over = true
	if n.timer != nil {
		n.timer.Stop()
	}
	n.mu.Unlock()
	conn.Close()
	return err
}

// greet registers the model.
func (n *session) greet(hello []byte) (wire.WelcomeMessage, error) {
	var o zmtp.Outgoing
	o.FrameString(wire.Hello)
	o.Frame(hello)
	if err := n.conn.Send(&o); err != nil {
		return wire.WelcomeMessage{}, err
	}
	timer := time.AfterFunc(connectTimeout,
		func() { n.conn.Abort(fmt.Errorf("container: no welcome within %v", connectTimeout)) })
	defer timer.Stop()
	var m zmtp.Message
	defer m.Release()
	waited := false
	for {
		if err := n.conn.Receive(&m); err != nil {
			if waited {
				err = fmt.Errorf("%w: %w", errWaited, err)
			}
			return wire.WelcomeMessage{}, err
		}
		var w wire.WelcomeMessage
		var r wire.RefusedMessage
		switch f := m.Frames; string(f[0].Data) {
		case wire.Wait:
			if err := n.wait(f); err != nil {
				return w, err
			}
			waited = true
			timer.Stop()
		case wire.Welcome:
			if len(f) < 2 || json.Unmarshal(f[1].Data, &w) != nil || w.Protocol != wire.Version || w.HeartbeatMS <= 0 ||
				w.DeadAfterMS <= 0 {
				return w, fmt.Errorf("container: welcome is not one of protocol %d", wire.Version)
			}
			if !n.server.model.understood(w) {
				return w, &refusedError{fmt.Sprintf("%s does not know the keys batched and ragged, and would split this model's requests into rows; it needs a newer version",
					w.Server)}
			}
			for _, note := range w.Notes {
				n.log.Info("container: note from the server", "note", note)
			}
			if w.Arena != nil {
				n.share(*w.Arena)
			}
			n.keepAlive(w.HeartbeatMS, w.DeadAfterMS)
			return w, nil
		case wire.Refused:
			if len(f) < 2 || json.Unmarshal(f[1].Data, &r) != nil {
				r.Error = "the server gave no reason"
			}
			return w, &refusedError{r.Error}
		case wire.Goodbye:
			if waited {
				return w, fmt.Errorf("%w: %w", errWaited, readGoodbye(f))
			}
			return w, readGoodbye(f)
		}
		m.Release()
	}
}

// wait keeps the session alive until the server has a place for the model, which it tells by a
// goodbye.
func (n *session) wait(f []zmtp.Frame) error {
	var w wire.WaitMessage
	if len(f) < 2 || json.Unmarshal(f[1].Data, &w) != nil || w.HeartbeatMS <= 0 || w.DeadAfterMS <= 0 {
		return fmt.Errorf("container: wait is not one of protocol %d", wire.Version)
	}
	n.log.Error("container: the server has no place for this model; waiting until it has", "reason", w.Error)
	n.keepAlive(w.HeartbeatMS, w.DeadAfterMS)
	return nil
}

// keepAlive starts to send heartbeats, and to expect them.
func (n *session) keepAlive(heartbeatMS, deadAfterMS int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.beat, n.silent = time.Duration(heartbeatMS)*time.Millisecond, time.Duration(deadAfterMS)*time.Millisecond
	if n.timer == nil {
		n.timer = time.AfterFunc(n.beat/2, n.tick)
	}
}

// A goodbye is the server's goodbye message.
type goodbye struct {
	reason string
	again  bool
}

func (g *goodbye) Error() string { return g.reason }

func (g *goodbye) Is(target error) bool { return target == errDismissed && !g.again }

func readGoodbye(f []zmtp.Frame) error {
	var g wire.GoodbyeMessage
	if len(f) < 2 || json.Unmarshal(f[1].Data, &g) != nil {
		g = wire.GoodbyeMessage{Reason: "the server gave no reason", Reconnect: true}
	}
	return &goodbye{g.Reason, g.Reconnect}
}

// read receives messages until the connection ends, the server says goodbye, or another goroutine
// has become the reader.
func (n *session) read() {
	if err := n.receive(); err != nil {
		n.ended <- err
	}
}

// receive is the loop of read; it returns nil if there is another reader.
func (n *session) receive() error {
	b := n.batch()
	defer func() { n.recycle(b) }()
	unknown, dropped := false, false
	for {
		if err := n.conn.Receive(&b.message); err != nil {
			if err == io.EOF {
				return errors.New("the server closed the connection")
			}
			return err
		}
		switch f := b.message.Frames; string(f[0].Data) {
		case wire.Batch:
			b.arrive()
			if n.server.arbiter.take(n, b) {
				b = n.batch()
				continue
			}
			if n.takeSlot() {
				n.compute(b)
				b = n.batch()
				if !n.releaseSlot() {
					return nil
				}
				continue
			}
			select {
			case n.jobs <- b:
				b = n.batch()
			default:
				return fmt.Errorf("the server sent more than %d batches at once", cap(n.jobs))
			}
			continue
		case wire.Goodbye:
			return readGoodbye(f)
		case wire.Feedback:
			if n.queueFeedback(b) {
				b = n.batch()
				continue
			}
			if !dropped && n.server.lessons != nil {
				dropped = true
				n.log.Warn("container: feedback arrives faster than Feedback handles it; some is dropped")
			}
		case wire.Heartbeat:
			var m wire.CountMessage
			if len(f) > 1 && json.Unmarshal(f[1].Data, &m) == nil && m.Replicas > 0 {
				n.state.setReplicas(m.Replicas)
			}
		case wire.Offer:
			var m wire.OfferMessage
			if len(f) < 2 || json.Unmarshal(f[1].Data, &m) != nil {
				return errors.New("the server sent an offer without JSON")
			}
			n.server.arbiter.handleOffer(n, m)
		case wire.Arena:
			var m wire.ArenaMessage
			if len(f) < 2 || json.Unmarshal(f[1].Data, &m) != nil {
				return errors.New("the server sent an arena message without JSON")
			}
			n.share(m)
		default: // a later version of the protocol
			if !unknown {
				unknown = true
				n.log.Warn("container: unknown message; further ones are ignored silently",
					"kind", fmt.Sprintf("%.32q", f[0].Data))
			}
		}
		b.message.Release()
	}
}

// takeSlot reports whether the reader should compute the batch that it has read. If so it holds a
// slot.
func (n *session) takeSlot() bool {
	if !n.fast.Load() || cap(n.server.slots) > 1 {
		return false
	}
	select {
	case n.server.slots <- struct{}{}:
	default:
		return false // another batch is being computed: read on
	}
	n.mu.Lock()
	n.since = time.Now()
	n.mu.Unlock()
	return true
}

// releaseSlot gives back the slot that takeSlot took. It returns false if another goroutine has
// become the reader meanwhile.
func (n *session) releaseSlot() bool {
	n.mu.Lock()
	mine := !n.since.IsZero()
	n.since = time.Time{}
	n.mu.Unlock()
	<-n.server.slots // last: the next one to take it may be another reader
	return mine
}

// work computes the batches that the reader does not, until jobs is closed.
func (n *session) work() {
	for b := range n.jobs {
		n.mu.Lock()
		over := n.over
		n.mu.Unlock()
		if over {
			n.recycle(b)
			continue
		}
		n.server.slots <- struct{}{}
		n.compute(b)
		<-n.server.slots
	}
}

// compute answers a batch. The caller holds the turn.
func (n *session) compute(b *Batch) {
	n.predict(b)
	n.answer(b)
}

// predict computes a batch and writes its answer. The caller holds the turn.
func (n *session) predict(b *Batch) {
	var outputs []tensor.Tensor
	err := b.message.Refused
	began := time.Now()
	if err == nil {
		err = b.read(began)
	}
	if err == nil {
		outputs, err = n.server.model.serve(n.ctx, b, n.log)
	}
	n.fast.Store(time.Since(began) < fastPredict)
	b.write(outputs, err)
}

// batch returns a Batch to receive into.
func (n *session) batch() *Batch {
	n.mu.Lock()
	defer n.mu.Unlock()
	if k := len(n.spare); k > 0 {
		b := n.spare[k-1]
		n.spare = n.spare[:k-1]
		return b
	}
	b := &Batch{model: n.server.model, pool: n.server.pool, session: n}
	b.out.Done = func(error) { n.recycle(b) } // sent or given up: the memory is free
	return b
}

func (n *session) recycle(b *Batch) {
	b.reset()
	n.mu.Lock()
	n.spare = append(n.spare, b)
	n.mu.Unlock()
}

// tick sends a heartbeat if nothing else was sent, and ends the session when the server has been
// silent for too long.
func (n *session) tick() {
	n.mu.Lock()
	if n.over {
		n.mu.Unlock()
		return
	}
	n.timer.Reset(n.beat / 2)
	silent := n.silent
	deaf := !n.since.IsZero()
	if deaf && time.Since(n.since) > fastPredict {
		n.since = time.Time{}
		// It replaces the reader that computes. session joins it: session waits for the last reader
		// first.
		n.wg.Go(n.read)
	}
	n.mu.Unlock()
	// Without a reader silence proves nothing: there may be unread bytes.
	if quiet := time.Since(n.conn.LastByte()); quiet > silent && !deaf {
		n.conn.Abort(fmt.Errorf("the server has been silent for %v", quiet.Round(time.Millisecond)))
		return
	}
	if !n.sent.Swap(false) {
		n.say(wire.Heartbeat)
	}
}

// say sends a message that consists of its kind.
func (n *session) say(kind string) {
	var o zmtp.Outgoing
	o.FrameString(kind)
	n.send(&o)
}

// send sends a message that is not an answer.
func (n *session) send(o *zmtp.Outgoing) {
	if err := n.conn.Send(o); errors.Is(err, zmtp.ErrQueueFull) {
		n.conn.Abort(fmt.Errorf("the server does not read: %w", err))
	}
	n.sent.Store(true)
}

// waitForClose waits until the last answers are sent and the server has hung up.
func (n *session) waitForClose() {
	timer := time.AfterFunc(closeTime, func() { n.conn.Abort(errServed) })
	defer timer.Stop()
	n.conn.CloseWrite()
	var m zmtp.Message
	for n.conn.Receive(&m) == nil {
		m.Release()
	}
}
