package tcp

import (
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// A loop is the state that the sessions of one event loop share. Requests go to the scheduler and
// answers to the sockets in bursts: all requests from one read of a socket are submitted at once,
// and all calls that have completed since are encoded and written at once, per session. When
// sockets become readable one after another, the turn is deferred until all of them have been read
// (see input).
//
// Completions reach the loop through its mailbox. The first one wakes the loop; those that come
// before it runs need no wake-up. One wake-up costs about as much as a small request, and much more
// on an idle machine, where a core has to be woken as well. A batch of 64 rows pays it once. A
// request that was alone in its batch does not pay it, nor does one whose deadline has passed: the
// goroutine that completed it takes the turn. So does the goroutine that completes a batch whose
// requests are all of one loop, after the last of them (Door.Gather).
type loop struct {
	// Set once.
	door *Door
	wake func() // schedules a turn of the event loop
	arm  func() // schedules a tick, one tick from now

	readers chan struct{} // a semaphore for goroutines with a read buffer: see socket.read

	// turns is held during a turn, nearly always by the event loop. It guards all of the sessions
	// and the following fields.
	turns      sync.Mutex
	tally      *metrics.Tally
	now        time.Time // of this turn
	settings   *Settings // of this turn
	ended      time.Time // when the last turn ended
	deferred   bool      // a turn has been requested for input already read
	armed      bool      // a tick has been requested
	sessions   []*session
	timed      []*session // sessions with a running clock; see tick
	calls      stock[call]
	works      stock[work]
	pending    []*call      // to submit at the end of this turn
	submission []*gate.Call // buffer of submit
	ready      []*session   // with answers to write at the end of this turn
	told       []*call      // parked calls that have their answers: see tell
	receiver   *receiver    // for the next session that reads; nil while lent
	spares     shiva.Spares // messages that receivers reuse
	out        []byte       // encoded answers of one session
	vecs       []shiva.Vec
	block      []byte   // to swap bytes between wire and memory; nil until needed
	iovecs     [][]byte // of one write
	metadata   []byte
	tensors    []tensor.Tensor
	texts      []tensor.Tensor
	lists      []tensor.Shape // in bridge form: the lengths of the lists of tensors, by output
	spare      []mail         // the mailbox's other half
	admitted   int64          // bytes of the messages that quotas admitted during session.traffic
	earlier    int64          // bytes of the current message that came before session.traffic
	gap        trace.Gap

	descriptions map[descriptionKey]description

	// Guarded by mu.
	mu    sync.Mutex
	mails []mail
	awake bool // the loop is in a turn, or a wake-up is on its way
}

// A mail is a completed call, a call whose inputs have been read, or, without a call, a report
// about a session.
type mail struct {
	call    *call
	session *session
	report  report
}

// A report says what has happened to a session.
type report uint8

const (
	hasRoom  report = iota // its transport has room again
	lostPeer               // its peer has closed the connection: there will never be room
	mustEnd                // its half-received message has been ended
)

func newLoop(d *Door, wake, arm func()) *loop {
	l := &loop{door: d, tally: d.metrics.Tally(), wake: wake, arm: arm, readers: make(chan struct{}, readers)}
	d.enlist(l)
	return l
}

// post delivers a completed call. Any goroutine may call it.
func (l *loop) post(c *call) {
	alone := c.parked == nil && c.gate.Alone
	switch {
	case !l.deliver(mail{call: c}):
	case alone:
		l.takeTurn()
	default:
		l.wake()
	}
}

// takeTurn takes a turn on this goroutine, or wakes the loop if another goroutine is in a turn.
func (l *loop) takeTurn() {
	if !l.turns.TryLock() {
		l.wake()
		return
	}
	l.start()
	for rounds := 0; l.round(); rounds++ {
		if rounds == borrowed || len(l.told) > 0 {
			l.postpone()
			break
		}
	}
	l.finish()
}

// borrowed is how many more rounds a turn has on a goroutine that has other things to do.
const borrowed = 1

// postpone requests another turn for the rest of this one. Whatever comes waits for that turn.
func (l *loop) postpone() {
	if !l.deferred {
		l.deferred = true
		l.wake() // awake stays true
	}
}

// postReport posts a report about a session. Any goroutine may call it.
func (l *loop) postReport(s *session, r report) {
	if l.deliver(mail{session: s, report: r}) {
		l.wake()
	}
}

// deliver puts something into the mailbox, and reports whether the loop must be woken.
func (l *loop) deliver(m mail) (idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mails = append(l.mails, m)
	if l.awake || l.door.gathering.Load() > 0 { // Door.endGather will find it
		return false
	}
	l.awake = true
	return true
}

// needsTurn reports whether the mailbox has mail and no turn is due. If so, the caller must take a
// turn or wake the loop.
func (l *loop) needsTurn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.awake || len(l.mails) == 0 {
		return false
	}
	l.awake = true
	return true
}

// input takes a turn with bytes that have arrived on one session's transport.
//
// If the loop's last turn has just ended, other sockets are probably readable too. Then the
// requests wait for a later turn, so that requests of several sockets share a submission, and their
// answers a batch. That costs a loop with one busy connection a wake-up, and saves a loop with many
// connections a third of its time for small requests. An idle loop answers at once.
func (l *loop) input(s *session, p []byte) {
	const straight = 5 * time.Microsecond
	l.begin()
	l.tally.Received(len(p))
	s.traffic(p)
	if !l.deferred && l.now.Sub(l.ended) >= straight {
		l.end()
		return
	}
	first := !l.deferred
	l.deferred = true
	l.turns.Unlock()
	if first {
		l.wake()
	}
}

// begin starts a turn: completions from now on wait for its end and do not wake the loop.
func (l *loop) begin() {
	l.turns.Lock()
	l.start()
}

// start is begin for a caller that holds turns.
func (l *loop) start() {
	l.refresh()
	if l.deferred {
		return
	}
	l.mu.Lock()
	l.awake = true
	l.mu.Unlock()
}

// refresh reads the clock and the door's settings for a turn.
func (l *loop) refresh() { l.now, l.settings = time.Now(), l.door.settings.Load() }

// end finishes a turn: it submits the requests that were read, collects and writes answers until no
// completion is left, and submits the calls for which these made room. While there are clients to
// tell of a newer answer, the sockets are read before each of the turns that tell some of them.
func (l *loop) end() {
	for l.round() {
		if len(l.told) > 0 {
			l.postpone()
			break
		}
	}
	l.finish()
}

// round submits what was read and writes what is complete, and reports whether there was any of
// the latter. After it has reported false, the next completion wakes the loop.
func (l *loop) round() bool {
	if len(l.pending) > 0 {
		l.submit()
	}
	if !l.collect() {
		return false
	}
	l.flush()
	return true
}

// finish ends a turn.
func (l *loop) finish() {
	l.tally.Flush()
	l.scheduleTick()
	l.ended = time.Now()
	l.turns.Unlock()
}

// flush writes the answers of sessions that have some.
func (l *loop) flush() {
	for _, s := range l.ready {
		s.flush()
		s.queued = false // only now: what becomes ready during the flush is part of it
	}
	clear(l.ready)
	l.ready = l.ready[:0]
}

// submit submits the pending calls, except those of clients that have disconnected since.
func (l *loop) submit() {
	for _, c := range l.pending {
		switch {
		case c.session.phase == gone && !c.session.abandoned():
			l.freeCall(c)
		case c.feedback != nil:
			c.feedback.Learn(c.completeFeedback)
		default:
			if c.shared == nil {
				if q := c.gate.Detach(); q != nil {
					l.park(c, q)
					if c.session.phase == gone {
						q.Cancel()
					}
					continue
				}
			}
			l.submission = append(l.submission, &c.gate)
		}
	}
	l.door.gate.Submit(l.submission...)
	clear(l.submission)
	clear(l.pending)
	l.submission, l.pending = l.submission[:0], l.pending[:0]
}

// collect empties the mailbox and reports whether there is something to write. After it has
// reported false, the next completion wakes the loop.
func (l *loop) collect() bool {
	l.mu.Lock()
	mails := l.mails
	if len(mails)+len(l.told) == 0 {
		l.awake = len(l.ready) > 0
		l.mu.Unlock()
		return len(l.ready) > 0
	}
	l.mails = l.spare
	l.mu.Unlock()
	for _, m := range mails {
		switch c := m.call; {
		case c == nil:
			m.session.hear(m.report)
		case c.phase == fetching:
			c.session.resumeFetched(c)
		case c.parked != nil:
			l.told = append(l.told, c)
		default:
			l.complete(c)
		}
	}
	clear(mails)
	l.spare = mails[:0]
	l.tell()
	return true
}

// complete continues with a call that is complete.
func (l *loop) complete(c *call) {
	c.session.inFlight--
	c.session.finish(c)
}

// tell resumes some of the parked calls that have their answers. All other answers go first: a
// frame that many wait for must not be answered after them, nor the next one be read after them.
// And those who wait for the same stream do not all need a work at once.
func (l *loop) tell() {
	now := min(32, len(l.told))
	for _, c := range l.told[:now] {
		l.resume(c)
		l.complete(c)
	}
	l.told = slices.Delete(l.told, 0, now)
}

// turn takes a turn without input, or for deferred input.
func (l *loop) turn() {
	l.begin()
	l.deferred = false
	l.end()
}

// leave ends every session whose client is quiet, or all sessions, once their answers have left.
// Requests that a client sent before it could know of the shutdown are still answered.
func (l *loop) leave(all bool) {
	const quiet = 200 * time.Millisecond
	l.begin()
	for i := len(l.sessions) - 1; i >= 0; i-- {
		if s := l.sessions[i]; all || l.now.Sub(s.lastInput) >= quiet && l.now.Sub(s.progress) >= quiet {
			s.endForShutdown()
		}
	}
	l.end()
}

// tick is how soon a loop checks its clocks, and how often while one runs.
const tick = 200 * time.Millisecond

// scheduleTick requests a tick if it would have work. An idle server has no ticks: waking up five
// times a second would be most of the cost of waiting for requests.
func (l *loop) scheduleTick() {
	if !l.armed &&
		(len(l.timed) > 0 || max(len(l.calls.free), len(l.works.free)) > few ||
			l.settings.IdleTimeout > 0 && len(l.sessions) > 0) {
		l.armed = true
		l.arm()
	}
}

// tick takes a turn that checks running clocks. Most sessions of a server with many are idle, and
// checking each of them five times a second would be most of their cost.
func (l *loop) tick() {
	l.begin()
	l.armed = false
	if l.settings.IdleTimeout > 0 {
		for _, s := range l.sessions {
			l.watchClocks(s)
		}
	}
	for _, s := range l.timed {
		if s.phase != gone {
			s.tick()
		}
	}
	l.timed = slices.DeleteFunc(l.timed, func(s *session) bool {
		s.timed = s.runs()
		return !s.timed
	})
	l.calls.trim()
	l.works.trim()
	l.end()
}

// watchClocks schedules checks of a session's clocks for as long as one of them runs.
func (l *loop) watchClocks(s *session) {
	if !s.timed {
		s.timed = true
		l.timed = append(l.timed, s)
	}
}

// newSession makes the session of a transport.
func (l *loop) newSession(id uint64, t transport) *session {
	s := &session{
		loop: l, transport: t, id: id, index: int32(len(l.sessions)), lastInput: l.now, progress: l.now,
		outbox: gate.Outbox{Setting: "tcp.outbound_bytes", Limit: l.settings.OutboundBytes}, closing: &notClosing,
	}
	l.sessions = append(l.sessions, s)
	l.scheduleTick()
	return s
}

func (l *loop) remove(s *session) {
	last := len(l.sessions) - 1
	l.sessions[s.index] = l.sessions[last]
	l.sessions[s.index].index = s.index
	l.sessions[last] = nil
	l.sessions = l.sessions[:last]
}

// swapBlock returns the block through which swapped tensors pass, both in and out. It takes much of
// the second-level cache and stays there, so that each byte of a tensor goes to or from memory
// once.
func (l *loop) swapBlock() []byte {
	const size = 256 << 10
	if l.block == nil {
		l.block = make([]byte, size)
	}
	return l.block
}
