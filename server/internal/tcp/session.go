package tcp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/plural"
)

// A session is one client connection: bytes in, answers out, in the order of the requests. It runs
// in turns of its loop, and does not depend on the kind of transport.
type session struct {
	loop      *loop
	transport transport
	conn      *listen.Conn    // the transport's, for quotas; nil in tests without an intake
	account   *access.Account // the account for which conn was last counted; nil: none
	id        uint64          // of the connection, never 0
	client    string          // gate.ClientOf; "" until a request needs it
	index     int32           // in loop.sessions
	waiting   int32           // length of the line of answers

	receiver    *receiver // the loop's, while a message is half-received
	head, tail  *call     // requests whose answers have not left, oldest first
	inFlight    int32     // of these, the number that the scheduler has
	held        int32     // and the number that waits for room before submission
	firstHeld   *call     // the oldest that waits for room
	outbox      gate.Outbox
	credentials *access.Credentials // credentials of the handshake and the first message; nil: none
	stream      *gate.OwnStream     // nil: it has had no frame of its own stream
	refusals    int                 // bytes of the refusals in the line

	lastInput time.Time    // for the idle timeout
	clock     listen.Clock // of the half-received message; zero: not running

	outbound       outbound  // encoded answers that the transport has not taken
	progress       time.Time // when transport or peer last took bytes, or nothing waited
	unacknowledged int       // bytes, when last checked

	// One-byte fields together: thousands of sessions are idle, and their size counts.
	phase      sessionPhase
	reason     metrics.Closed // why the session ends; zero: the client ends it
	identified bool           // it has had a message
	faulty     bool           // it has had one that could not be decoded
	regions    bool           // it has registered regions that end with it
	queued     bool           // in loop.ready
	timed      bool           // in loop.timed
	*closing
}

// closing is the state that only a session that is leaving needs.
type closing struct {
	discarded int64     // bytes of input
	rest      int64     // bytes of the refused message still to come
	shutAt    time.Time // when it began to linger
	hungUpAt  time.Time // when the peer ended its direction with answers due; zero: it has not
	hurried   bool      // it lingers only briefly
	probed    bool      // the first byte of the next answer has been sent
}

// notClosing is shared by all sessions that are not leaving. It does not change.
var notClosing closing

// traffic takes bytes that have arrived. p is valid only during the call.
func (s *session) traffic(p []byte) {
	defer s.rescue()
	l := s.loop
	s.lastInput = l.now
	if s.phase >= ending {
		return
	}
	l.admitted, l.earlier = 0, s.clock.Bytes
	s.pace(len(p) + s.decode(p))
}

// decode takes bytes that have arrived, and returns how many more it has read.
func (s *session) decode(p []byte) (more int) {
	if s.phase != reading {
		s.discarded += int64(len(p))
		return 0
	}
	l, d := s.loop, s.receiver
	if d == nil {
		d = l.takeReceiver(s)
		s.receiver = d
	}
	for len(p) > 0 && s.phase == reading {
		if !d.InMessage() {
			d.SetLimits(l.settings.Limits, l.settings.Resync, l.settings.ResyncBytes)
		}
		n, m, err := d.Push(p)
		p = p[n:]
		s.clock.Bytes += int64(n)
		if m != nil || err != nil {
			s.handleMessage(m, err)
		}
	}
	if s.phase == reading {
		more = s.readInto(d)
	}
	switch {
	case s.phase != reading:
		s.discarded += int64(len(p))
		s.dropHalf()
	case d.InMessage():
		d.account()
		if s.clock.Began.IsZero() {
			s.clock.Began = l.now
			l.watchClocks(s)
		}
		// A client that writes a message in pieces may hold back the next piece until this one is
		// acknowledged (Nagle's algorithm), and the kernel would wait 40 ms for an answer that
		// could carry the acknowledgement.
		s.transport.Acknowledge()
	case d.Buffered(): // it looks for a header, and the client may send none
		d.half.Finish()
		s.clock = listen.Clock{}
	default:
		s.giveReceiver()
	}
	return more
}

func (s *session) giveReceiver() {
	s.loop.giveReceiver(s.receiver)
	s.receiver = nil
}

// dropHalf drops a half-received message.
func (s *session) dropHalf() {
	s.clock = listen.Clock{}
	if s.receiver != nil {
		s.receiver.Reset()
		s.giveReceiver()
	}
}

// readInto reads the rest of a large body: in fewer turns than through gnet's buffer, and straight
// into the tensor unless its bytes are swapped. It returns how many bytes it has read.
func (s *session) readInto(d *receiver) (total int) {
	const (
		worth = 32 << 10 // the next event brings smaller rests
		turn  = 4 << 20  // after which other sessions of the loop are served
	)
	for total < turn {
		left := d.BodyLeft()
		if left < worth {
			break
		}
		if d.Growing() {
			d.Arrived(s.transport.Unread())
		}
		dst := d.Direct()
		direct := dst != nil
		if !direct {
			block := s.loop.swapBlock()
			dst = block[:min(left, len(block))]
		}
		n := s.transport.Read(dst)
		if n == 0 {
			break
		}
		total += n
		s.clock.Bytes += int64(n)
		s.loop.tally.Received(n)
		if direct {
			d.Advance(n)
			dst = nil
		} else {
			dst = dst[:n]
		}
		if _, m, err := d.Push(dst); m != nil || err != nil {
			s.handleMessage(m, err)
			break
		}
	}
	return total
}

// handleMessage puts one message, or the error in its place, into the line of answers.
func (s *session) handleMessage(m *shiva.Message, err error) {
	s.receiver.half.Finish()
	c := s.appendCall(m)
	c.bytes = s.clock.Bytes
	s.clock = listen.Clock{}
	c.err = s.tryOpen(c, err)
	s.loop.earlier = 0
	if c.err != nil || c.control != nil {
		s.finish(c)
		return
	}
	if s.held == 0 {
		submitted, err := s.submit(c)
		if c.err = err; err != nil {
			s.finish(c)
		}
		if submitted || err != nil {
			return
		}
	}
	if c.phase == opening {
		c.enter(held)
	}
	if s.held == 0 {
		s.firstHeld = c
	}
	s.held++
}

// submit schedules a call for submission at the end of this turn if there is room for its answer.
// An error is the call's answer.
func (s *session) submit(c *call) (ok bool, err error) {
	if c.phase == fetching {
		return false, nil
	}
	s.outbox.SetLimit(s.loop.settings.OutboundBytes)
	if c.outboxBytes, ok, err = s.outbox.Admit(&c.gate); ok {
		c.enter(inFlight)
		s.inFlight++
		s.loop.pending = append(s.loop.pending, c)
	}
	return ok, err
}

// submitHeld submits, in order, the held calls whose answers have room now.
func (s *session) submitHeld() {
	for s.held > 0 && s.phase < ending {
		c := s.firstHeld
		ok, err := s.submit(c)
		if !ok && err == nil {
			return
		}
		s.unhold(c)
		if err != nil {
			c.enter(answered)
			c.err = err
			c.use.Answered()
			s.ready(c)
		}
	}
}

// unhold removes a call from those that wait for room.
func (s *session) unhold(c *call) {
	s.held--
	if c == s.firstHeld {
		for c = c.next; c != nil && !c.waits(); {
			c = c.next
		}
		s.firstHeld = c // nil: none is left
	}
}

// appendCall appends a new call to the line of answers.
func (s *session) appendCall(m *shiva.Message) *call {
	c := s.loop.newCall(s, m)
	if s.tail == nil {
		s.head = c
	} else {
		s.tail.next = c
	}
	s.tail = c
	s.waiting++
	return c
}

// tryOpen is open, with panics turned into errors.
func (s *session) tryOpen(c *call, fault error) error {
	return s.attempt(c, func(c *call) error { return s.open(c, fault) })
}

// open turns the message of c into a call, feedback, a control answer or an error.
func (s *session) open(c *call, fault error) error {
	cfg := s.loop.settings
	if int(s.waiting) > floodFactor*cfg.InFlight {
		s.leaveFor(metrics.ClosedStalled)
		return fmt.Errorf("%w: this connection has %d unanswered requests, more than %d times the limit tcp.in_flight_per_connection = %d; closing the connection",
			scheduler.ErrOverloaded, s.waiting, floodFactor, cfg.InFlight)
	}
	if s.refusals > cfg.OutboundBytes {
		s.leaveFor(metrics.ClosedStalled)
		return fmt.Errorf("%w: %d bytes of error answers wait for this client, the limit (tcp.outbound_bytes) is %d; closing the connection",
			scheduler.ErrOverloaded, s.refusals, cfg.OutboundBytes)
	}
	if fault != nil {
		return s.fault(c, fault)
	}
	m := c.message
	unreadable := c.question.parse(m.Metadata, s.loop.keys(m.Namespace))
	first, stranger := !s.identified, s.credentials
	who, err := s.identify(c.question.token)
	if err != nil {
		return err
	}
	if first {
		s.repay(stranger)
	}
	if unreadable != nil {
		return unreadable
	}
	c.question.Who = who
	if err := s.charge(c, who); err != nil {
		return err
	}
	var ok bool
	if c.control, ok, err = s.region(who, m); ok {
		return err
	}
	if c.control, ok, err = s.loop.describe(who, m); ok {
		return err
	}
	if c.control, ok, err = s.loop.door.gate.As(who).Control(m.Namespace); ok {
		return err
	}
	if int(s.inFlight+s.held) >= cfg.InFlight {
		return fmt.Errorf("%w: this connection has %s in flight, the limit (tcp.in_flight_per_connection) is %d: wait for answers before sending more requests",
			scheduler.ErrOverloaded, plural.Of(s.inFlight+s.held, "request"), cfg.InFlight)
	}
	if s.held > 0 && s.stalled(s.loop.now, unreadGrace) {
		return fmt.Errorf("%w: %d bytes of answers wait for this client, the limit (tcp.outbound_bytes) is %d: read answers before sending more requests",
			scheduler.ErrOverloaded, s.outbox.Waiting(), cfg.OutboundBytes)
	}
	if c.question.shared != nil {
		if waits, err := s.fetchInputs(c); waits || err != nil {
			return err
		}
	}
	return s.route(c)
}

// identify returns the identity of a message with that token, or without one. A connection belongs
// to one identity, which its first message shows, so that its frames and its outbox are one
// client's. The token may be repeated, since some clients send it with each message.
func (s *session) identify(token []byte) (*access.Identity, error) {
	identities := s.loop.door.identities
	if token != nil && string(token) != "null" {
		text, _ := jsonscan.Unquote(token) // "" if the JSON is not a string, and so not a token
		shown := access.Token(text)
		if !s.identified {
			s.recordToken(shown)
		} else if identities.Declared() && !s.credentials.Same(&shown) {
			return nil, fmt.Errorf("%w: metadata key %q: the first message of this connection had another token or none: send this token over a new connection",
				fault.ErrUnauthenticated, shiva.TokenKey)
		}
	}
	s.identified = true
	return identities.Who(s.credentials), nil
}

// recordToken records the token of the first message.
func (s *session) recordToken(token access.Credentials) {
	if s.credentials != nil {
		token.Certificate = s.credentials.Certificate
	}
	s.credentials = &token
}

// freeBytes is the size up to which a question about health costs nothing: it has room for a token.
const freeBytes = 4 << 10

// asksForHealth reports whether a message is a question about the server's health, and nothing else
// that would be read for free.
func asksForHealth(c *call) bool {
	switch c.namespace {
	case "v2/health/live", "v2/health/ready", shiva.LiveNamespace, shiva.ReadyNamespace:
		return len(c.message.Tensors) == 0 && c.bytes <= freeBytes
	}
	return false
}

// charge takes the price of a message from its client's quotas. Questions about health cost
// nothing.
func (s *session) charge(c *call, who *access.Identity) error {
	if s.conn == nil || asksForHealth(c) {
		return nil
	}
	if a := who.Account(); a != s.account {
		if err := s.conn.Claim(a); err != nil {
			s.leaveFor(metrics.ClosedQuota)
			return err
		}
		s.account = a
	}
	err := s.conn.Charge(&c.use, who.Payers(s.conn.Account()), c.bytes, s.loop.now)
	if err == nil {
		s.loop.admitted += c.bytes
	}
	return err
}

// route turns the message of c, whose inputs are complete, into a call, feedback or an error.
func (s *session) route(c *call) (err error) {
	cfg, m, q := s.loop.settings, c.message, &c.question
	view := s.loop.door.gate.As(q.Who)
	q.Model, q.Source, q.Arrived, q.Use = m.Namespace, s.id, c.arrived, &c.use
	redirected, err := view.Resolve(&q.Request)
	if err != nil {
		return err
	}
	if name, ok := view.Latest(q.Model); ok {
		q.Model = name
		q.AskNewest()
	}
	// A client that knows only the name of a redirect may send any constant bytes.
	if !redirected || q.Newest == nil {
		if q.names != nil && !q.Bridge {
			if err := nameTensors(m.Tensors, q.names); err != nil {
				return err
			}
		}
		q.Inputs = m.Tensors
		if c.shared != nil {
			q.Inputs = slices.Concat(m.Tensors, c.shared.fetched)
		}
	}
	if q.Stream != "" || q.Newest != nil {
		q.Client = s.address()
	}
	if application, ok := view.Updates(q.Model); ok {
		q.Model = application
		c.feedback, err = s.loop.door.gate.OpenFeedback(&q.Request, nil)
		return err
	}
	if cfg.Streams && q.Stream == "" && q.Newest == nil {
		if s.stream == nil {
			s.stream = &gate.OwnStream{Name: s.transport.Peer(), Connection: s.id}
		}
		q.Own, q.Keep = s.stream, cmp.Or(q.Keep, cfg.Keep)
	}
	c.trace = s.loop.door.gate.StartTrace(&q.Values, "tcp", c.arrived, &s.loop.gap)
	q.Trace = c.trace
	if err := s.loop.door.gate.Open(&c.gate, &q.Request); err != nil {
		return err
	}
	c.gate.Owner = c
	if c.shared != nil {
		return c.checkOutputs()
	}
	return nil
}

// fault answers a message that could not be decoded.
func (s *session) fault(c *call, err error) error {
	s.faulty = true
	d, ok := errors.AsType[*shiva.DecodeError](err)
	if !ok {
		return fmt.Errorf("%w: %w", fault.ErrInternal, err)
	}
	if d.ID != "" {
		c.question.ID = []byte(d.ID)
	}
	if !d.Keep() {
		s.leaveFor(metrics.ClosedProtocol)
		s.rest = d.Rest
	}
	if d.Token != "" && !s.identified {
		// The message was too large for a client that had not shown its token yet. From now on the
		// client is known, and can send the message again.
		who, err := s.identify([]byte(d.Token))
		if err = cmp.Or(err, who.Enter()); err != nil {
			return err
		}
	}
	if errors.Is(d.Err, scheduler.ErrOverloaded) {
		return d.Err
	}
	condition := fault.ErrProtocol
	switch d.Kind {
	case shiva.KindTooLarge:
		condition = scheduler.ErrTooLarge
	case shiva.KindOverBudget:
		condition = scheduler.ErrOverloaded
	}
	return fmt.Errorf("%w: %w", condition, err)
}

// finish records that c's answer is complete.
func (s *session) finish(c *call) {
	c.enter(answered)
	c.use.Answered()
	if s.phase == gone {
		s.loop.freeCall(c)
		return
	}
	if c.feedback == nil && c.err == nil && c.control == nil {
		c.outboxBytes, c.err = s.outbox.Put(&c.gate, c.outboxBytes)
	}
	s.submitHeld()
	s.ready(c)
}

// ready makes an answer ready to leave, and releases memory that it no longer needs: the line
// before it may be long.
func (s *session) ready(c *call) {
	if err := c.failure(); err != nil {
		r := &refusal{fault.Text(err), fault.Bare(err), regions.IsUnusable(err)}
		c.err, c.gate.Err = r, nil
		s.loop.dropQuestion(c)
		s.refusals += len(r.text) + len(c.question.ID)
	} else if c.control != nil {
		s.loop.dropQuestion(c)
	}
	if c == s.head {
		s.queue()
	}
}

// hear takes a report. A session whose input has ended learns only here that its peer has closed
// the connection, and ends.
func (s *session) hear(r report) {
	switch {
	case r == mustEnd:
		s.endMessage()
	case r == lostPeer && s.phase == hungUp:
		s.close()
	default:
		s.queue() // to write unsent answers
	}
}

// queue schedules a flush of the session at the end of this turn.
func (s *session) queue() {
	if !s.queued && s.phase != gone {
		s.queued = true
		s.loop.ready = append(s.loop.ready, s)
	}
}

// flush writes the answers at the head of the line, as many as are there and have room.
func (s *session) flush() {
	defer s.rescue()
	for s.drain() && s.head != nil && s.head.phase == answered {
		s.encode()
	}
	s.leave()
}

// encode takes answers from the line and encodes them.
func (s *session) encode() {
	const (
		burst   = 1 << 20 // bytes encoded before they are written
		maxVecs = 512     // a message has at most 511, and one writev takes 1,024
	)
	l, u := s.loop, &s.outbound
	u.first = s.head
	for c := s.head; c != nil && c.phase == answered && len(l.out) < burst && len(l.vecs) < maxVecs; c = c.next {
		if c.err != nil {
			s.refusals -= len(c.err.Error()) + len(c.question.ID)
		}
		l.encode(c)
		u.last = c
	}
	if s.head = u.last.next; s.head == nil {
		s.tail = nil
	}
	u.last.next = nil
	u.vecs = l.vecs
	if s.probed {
		s.probed = false
		u.vecs[0].Data = u.vecs[0].Data[1:]
	}
	s.progress = l.now
	for _, v := range u.vecs {
		u.bytes += len(v.Data)
	}
}

// drain writes unsent answers. It reports whether all are written and more may be encoded.
func (s *session) drain() bool {
	l, u := s.loop, &s.outbound
	if u.first == nil || s.phase >= ending {
		return s.phase < ending
	}
	for u.bytes > 0 {
		vecs := u.next(l)
		tried := size(vecs)
		n, err := s.transport.Write(vecs)
		clear(vecs)
		if err != nil {
			if peerEnded(err) && s.phase != hungUp { // its end has not been read yet
				s.hangUp()
			}
			s.reason = metrics.ClosedError
			s.close()
			u.release(s) // other sessions need the loop's buffers
			return false
		}
		if n > 0 {
			l.tally.Sent(n)
			s.progress = l.now
		}
		if u.wrote(n); n < tried {
			u.keep(l)
			l.watchClocks(s)
			return false
		}
	}
	u.release(s)
	return true
}

// unreadGrace is how long a client may leave its answers unread before it is refused further room
// and requests that need some. Busy clients, too, stop reading for a while.
const unreadGrace = time.Second

// stalled reports whether answers wait for a peer that has read nothing for d.
func (s *session) stalled(now time.Time, d time.Duration) bool {
	return s.outbound.bytes > 0 && now.Sub(s.progress) >= d
}

// floodFactor times the in-flight limit is the number of requests of any kind, including refused
// ones, that may wait for their answers to leave.
const floodFactor = 16

// runs reports whether a clock of the session runs, other than that of idle_timeout.
func (s *session) runs() bool {
	return s.phase != gone && (s.phase != reading || s.outbound.first != nil || !s.clock.Began.IsZero())
}

// tick checks the session's clocks.
func (s *session) tick() {
	defer s.rescue()
	cfg, now := s.loop.settings, s.loop.now
	if s.outbound.first != nil && s.phase < ending {
		// A socket reports room only when a third of its buffer is free, which is megabytes: a slow
		// peer has been reading for a long time by then.
		n := s.transport.Unacknowledged()
		if n < s.unacknowledged {
			s.progress = now
		}
		s.unacknowledged = n
	}
	if s.stalled(now, unreadGrace) {
		s.outbox.Stand()
		s.unpin()
	}
	switch {
	case s.phase >= ending:
	case s.phase == lingering:
		if !s.lingers() {
			s.close()
		}
	case s.stalled(now, cfg.StallTimeout):
		s.end(metrics.ClosedStalled, "it does not read its answers", "unread", s.outbox.Waiting(), "for",
			now.Sub(s.progress))
	case s.phase != reading:
		s.probe()
		s.leave()
	case s.clock.Late(now, cfg.MessageTimeout):
		s.expire()
	case cfg.IdleTimeout > 0 && s.waiting == 0 && s.clock.Began.IsZero() && now.Sub(s.lastInput) >= cfg.IdleTimeout:
		s.end(metrics.ClosedIdle, "it is idle", "for", now.Sub(s.lastInput), "limit", cfg.IdleTimeout)
	}
}
