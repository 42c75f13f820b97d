package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"syscall"
	"time"
)

const (
	readSize  = 256 << 10 // of one read: more gains nothing, less costs calls
	burstSize = 64 << 10  // of one write of small frames
)

// loop is one thread of the generator with its connections. Once run has started, everything in
// it belongs to run's goroutine.
type loop struct {
	cfg      Config // with defaults filled in
	poll     *poller
	conns    []*conn
	arrivals *arrivals // nil: closed loop
	rng      *rand.Rand
	thinking thinking // of a closed loop
	next     time.Duration
	turn     int     // the connection, or stream, that the next arrival goes to
	seqs     []int64 // of the next frame of each stream

	start       time.Time
	from, to    time.Duration // the measured time
	ended       time.Duration
	untilSample int // good answers until the next one for Check
	buf         []byte
	touched     []*conn
	result      Result
	news        *Moment // for Config.Live; nil without
	told        time.Duration
}

// conn is one connection of a loop.
type conn struct {
	fd, id, number int
	frame          []byte
	burst          []byte        // with Gather: frame, repeated up to burstSize
	deadline       time.Duration // 0: none
	sent           time.Time     // the request in flight, with a deadline

	due      due // unanswered requests, by due time; the first inFlight are sent
	inFlight int
	unsent   int  // requests in flight that the socket has not wholly accepted yet
	offset   int  // in frame, of the next byte to send
	begun    bool // the next request was prepared in frame
	blocked  bool
	next     int // of Config.Frames, after this one in frame

	stream  int         // the number of its stream, if it has one
	shown   *streamWire // the wire, with Streams.Each
	wire    wire
	secured *secured // nil: without TLS
	asked   []byte   // the request as in Config
	ahead   []byte   // to be written before the next request
	check   bool     // the next answer is for Check
}

func newLoop(c Config, i int) (*loop, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	l := &loop{cfg: c, poll: p, seqs: make([]int64, c.count()), buf: make([]byte, readSize),
		rng: rand.New(rand.NewPCG(c.Seed, uint64(i))), from: c.Warmup, to: c.Warmup + c.Duration,
		untilSample: c.CheckEvery}
	if c.Rate > 0 {
		l.arrivals = newArrivals(c.Rate/float64(c.Loops), c.Even, c.Seed, i)
		l.next = l.arrivals.next()
	}
	l.result.PerStream = make([]FramesOf, c.count())
	if c.Piece > 0 {
		l.result.Pieces = make([]Histogram, (c.Duration+c.Piece-1)/c.Piece)
	}
	if c.Live != nil {
		l.news = &Moment{}
	}
	return l, nil
}

func (l *loop) add(c *conn) error {
	c.id, c.check = len(l.conns), l.cfg.Check != nil
	if l.cfg.Gather {
		c.burst = bytes.Repeat(c.frame, max(1, burstSize/len(c.frame)))
	}
	if len(l.cfg.Deadlines) > 0 {
		c.deadline = l.cfg.Deadlines[c.number%len(l.cfg.Deadlines)]
		if err := stampSocket(c.fd); err != nil {
			return err
		}
	}
	l.conns = append(l.conns, c)
	return l.poll.add(c.fd, c.id)
}

func (l *loop) close() {
	for _, c := range l.conns {
		if c.secured != nil {
			c.secured.end()
		}
		closeSocket(c.fd)
	}
	l.poll.close()
}

// run offers the load from start on. It locks its thread, since the precision of timers is set
// per thread.
func (l *loop) run(ctx context.Context, start time.Time) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := l.poll.sharpen(); err != nil {
		return err
	}
	l.start = start
	err := l.offer(ctx)
	l.ended = time.Since(start)
	if ctx.Err() == nil { // requests in flight when the user stops the run are not lost
		l.result.Lost = l.unanswered()
	}
	return err
}

// offer sends the requests that are due and takes the answers, until the end of the run.
func (l *loop) offer(ctx context.Context) error {
	start := l.start
	for _, c := range l.conns {
		if c.secured != nil { // TLS may have more than the greeting has read
			if err := l.receive(c); err != nil {
				return err
			}
		}
	}
	if l.arrivals == nil {
		if err := l.ask(); err != nil {
			return err
		}
	}
	for {
		now := time.Since(start)
		// Before the check for the end, since requests that fell due while this thread did not
		// run count, too.
		if err := l.arrive(now); err != nil {
			return err
		}
		if err := l.wake(now); err != nil {
			return err
		}
		if now >= l.to && (l.unanswered() == 0 || now >= l.to+l.cfg.Grace) {
			return nil
		}
		if l.news != nil && now >= l.told+tellEvery {
			l.cfg.Live.add(l.news)
			l.told = now
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := l.poll.wait(l.pause(now))
		if err != nil {
			return err
		}
		for i := range n {
			id, input, output := l.poll.event(i)
			c := l.conns[id]
			if output {
				if err := l.unblock(c); err != nil {
					return err
				}
			}
			if input {
				if err := l.receive(c); err != nil {
					return err
				}
			}
			if err := l.send(c); err != nil {
				return err
			}
		}
	}
}

// arrive assigns the requests that are due to the connections in turn.
func (l *loop) arrive(now time.Duration) error {
	if l.arrivals == nil {
		return nil
	}
	l.touched = l.touched[:0]
	for l.next <= now && l.next < l.to {
		c := l.take()
		c.due.push(l.next)
		if l.next >= l.from {
			l.result.Lag.Add(now - l.next)
		}
		l.next = l.arrivals.next()
		if len(l.touched) < len(l.conns) { // after one round it has all connections
			l.touched = append(l.touched, c)
		}
	}
	for _, c := range l.touched {
		if err := l.send(c); err != nil {
			return err
		}
	}
	return nil
}

// take chooses the connection of the next arrival: each in turn, or each stream in turn. Over HTTP,
// where a connection has one request at a time, and for streams, it takes the connection with the
// fewest requests among the candidates, as a client's pool would.
func (l *loop) take() *conn {
	c, step := l.conns[l.turn], 1
	if l.cfg.Streams != nil {
		step = l.cfg.Streams.Count
		l.turn = (l.turn + 1) % step
	} else {
		l.turn = (l.turn + 1) % len(l.conns)
	}
	if l.cfg.Streams == nil && l.cfg.Wire != HTTP {
		return c
	}
	for i := c.id + step; i < c.id+len(l.conns) && c.due.n > 0; i += step {
		if other := l.conns[i%len(l.conns)]; other.due.n < c.due.n {
			c = other
		}
	}
	return c
}

// pause is how long to wait for answers; at most 100 ms, to check the context.
func (l *loop) pause(now time.Duration) time.Duration {
	if l.cfg.Poll {
		return 0
	}
	d := 100 * time.Millisecond
	if now < l.to {
		d = min(d, l.to-now)
		if l.arrivals != nil {
			d = min(d, l.next-now)
		}
		if len(l.thinking) > 0 {
			d = min(d, max(l.thinking[0].until-now, 0))
		}
	}
	return d
}

// unanswered is the number of requests that are due and have no answer yet.
func (l *loop) unanswered() (n int64) {
	for _, c := range l.conns {
		n += int64(c.due.n)
	}
	return n
}

// send writes the requests that are due and may be in flight.
func (l *loop) send(c *conn) error {
	allowed := c.due.n
	if l.cfg.InFlight > 0 {
		allowed = min(allowed, l.cfg.InFlight)
	}
	c.unsent += max(allowed-c.inFlight, 0)
	c.inFlight = max(allowed, c.inFlight)
	for c.unsent > 0 && !c.blocked {
		if c.offset == 0 && !c.begun {
			l.begin(c)
		}
		if len(c.ahead) > 0 {
			n, err := l.write(c, c.ahead)
			if err != nil {
				return err
			}
			c.ahead = c.ahead[n:]
			continue
		}
		p := c.burst
		if l.cfg.Gather {
			p = p[c.offset:min(len(p), c.unsent*len(c.frame))]
		} else if p = c.frame[c.offset:c.wire.admitted(c.frame)]; len(p) == 0 {
			if c.ahead = c.wire.pending(); len(c.ahead) == 0 {
				return nil // until more has been read
			}
			continue
		}
		if c.deadline > 0 && c.offset == 0 {
			c.sent = time.Now()
		}
		n, err := l.write(c, p)
		if err != nil {
			return err
		}
		c.offset += n
		c.unsent -= c.offset / len(c.frame)
		if c.offset %= len(c.frame); c.offset == 0 && n > 0 {
			c.begun = false
		}
	}
	return nil
}

// begin prepares the next request of c in its frame.
func (l *loop) begin(c *conn) {
	if l.cfg.Cycle {
		c.frame = c.wire.encode(c.frame[:0], l.cfg.Frames[c.next], l.cfg.Streams != nil)
	}
	if l.cfg.Streams != nil {
		l.stamp(c, l.start.Add(c.due.at(c.inFlight-c.unsent)))
	}
	c.ahead = c.wire.ready(c.frame)
	if l.cfg.Streams != nil {
		l.seqs[c.stream]++
	}
	if l.cfg.Cycle {
		c.next = (c.next + 1) % len(l.cfg.Frames)
	}
	c.begun = true
}

// stamp writes the name, the number and the time of capture of a stream's next frame into c's
// frame.
func (l *loop) stamp(c *conn, captured time.Time) {
	l.cfg.Streams.Stamps[c.next].write(c.frame, c.wire.at, c.stream, l.seqs[c.stream], captured.UnixMilli())
}

// write writes as much of p as the socket accepts, and watches for room if that was not all.
func (l *loop) write(c *conn, p []byte) (n int, err error) {
	var full bool
	if c.secured != nil {
		n, full, err = c.secured.write(p)
	} else if n, err = writeSocket(c.fd, p); err != nil && again(err) {
		n, err = 0, nil
	}
	switch {
	case errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET):
		return 0, c.cutOff()
	case err != nil:
		return 0, fmt.Errorf("load: connection %d: write: %w", c.number, err)
	}
	l.result.Wrote += int64(n)
	if full || c.secured == nil && n < len(p) {
		c.blocked = true
		return n, l.poll.output(c.fd, c.id, true)
	}
	return n, nil
}

// unblock resumes writing to a socket that has room again.
func (l *loop) unblock(c *conn) error {
	if c.secured != nil {
		if full, err := c.secured.flush(); full || err != nil {
			return err
		}
	}
	c.blocked = false
	return l.poll.output(c.fd, c.id, false)
}

// receive reads, with TLS until nothing is left, and counts the answers in the data.
func (l *loop) receive(c *conn) error {
	if c.secured == nil {
		_, err := l.receiveOnce(c)
		return err
	}
	for more := true; more; { // no event announces data that TLS has already read
		var err error
		if more, err = l.receiveOnce(c); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) cutOff() error {
	return fmt.Errorf("load: connection %d: closed by the server with %d requests unanswered: %w", c.number, c.due.n,
		io.ErrUnexpectedEOF)
}

// receiveOnce reads once, and reports whether there was any data.
func (l *loop) receiveOnce(c *conn) (more bool, err error) {
	var n int
	var written time.Time // by the server, of the last byte read
	switch {
	case c.secured != nil:
		if n, err = c.secured.tls.Read(l.buf); err == io.EOF {
			n, err = 0, nil
		}
	case c.deadline > 0:
		n, written, err = l.poll.readStamped(c.fd, l.buf)
	default:
		n, err = readSocket(c.fd, l.buf)
	}
	switch {
	case err != nil && again(err):
		return false, nil
	case err == nil && n == 0 && c.due.n > 0:
		return false, c.cutOff()
	case err == nil && n == 0:
		return false, fmt.Errorf("load: connection %d: closed by the server: %w", c.number, io.EOF)
	case err != nil:
		return false, fmt.Errorf("load: connection %d: read: %w", c.number, err)
	}
	now := time.Since(l.start)
	l.result.Read += int64(n)
	for p := l.buf[:n]; len(p) > 0; {
		a, k, err := c.wire.read(p, c.check)
		if err != nil {
			return false, fmt.Errorf("connection %d: %w", c.number, err)
		}
		if a.done {
			if a.place >= c.inFlight {
				return false, fmt.Errorf("%w: connection %d: an answer too many", errOutOfStep, c.number)
			}
			if err := l.answered(c, a, now, written); err != nil {
				return false, err
			}
		}
		p = p[k:]
	}
	return true, nil
}

// answered counts the answer to a request of c, and in a closed loop sends the next.
func (l *loop) answered(c *conn, a answer, now time.Duration, written time.Time) error {
	due := c.due.take(a.place)
	c.inFlight--
	l.result.Taken++
	if c.shown != nil {
		c.shown.show(due, now)
	}
	arrived := l.from <= now && now < l.to
	measured := l.from <= due && due < l.to
	if measured {
		l.judge(c, a, due, now, written)
	}
	if a.fault {
		l.failed(c, due, now, arrived, measured)
	} else {
		if arrived {
			l.result.Answered++
			// With Cycle this is the next frame's size; the sum is the same.
			l.result.Bytes += int64(len(c.frame))
		}
		if measured {
			l.result.Latency.Add(now - due)
			if l.cfg.Piece > 0 {
				l.result.Pieces[(due-l.from)/l.cfg.Piece].Add(now - due)
			}
			if l.cfg.Streams != nil {
				l.result.PerStream[c.stream].Answered++
			}
		}
		if l.news != nil {
			l.news.Latency.Add(now - due)
		}
		if err := l.verify(c, a.whole); err != nil {
			return err
		}
	}
	if l.arrivals == nil && now < l.to {
		l.again(c, now)
	}
	return nil
}

// failed counts an answer of c that is an error.
func (l *loop) failed(c *conn, due, now time.Duration, arrived, measured bool) {
	kind, text := c.wire.failure()
	superseded := l.cfg.Streams != nil && c.wire.superseded(kind)
	if l.news != nil && superseded {
		l.news.Superseded++
	} else if l.news != nil {
		l.news.Failed++
	}
	var of FramesOf // of its stream
	if superseded {
		of.Superseded++
	} else {
		of.Failed++
		l.result.fault(kind, text, 1)
		if arrived {
			l.result.Failed++
		}
		if measured {
			l.result.Refusal.Add(now - due)
		}
	}
	if measured && superseded {
		l.result.Superseded++
	}
	if measured && l.cfg.Streams != nil {
		stream := &l.result.PerStream[c.stream]
		stream.Superseded += of.Superseded
		stream.Failed += of.Failed
	}
}

// judge counts a request that was due in the measured time by the requirements on its answer.
func (l *loop) judge(c *conn, a answer, due, now time.Duration, written time.Time) {
	if c.deadline > 0 {
		// Wall time: the kernel has no other stamp.
		if late := written.Sub(c.sent) - c.deadline; late > 0 {
			l.result.Late.Add(late)
			l.result.LateRead.Add(time.Since(c.sent) - c.deadline)
		}
	}
	if l.cfg.Within > 0 {
		i := int((due - l.from) / SlotLength)
		for len(l.result.Slots) <= i {
			l.result.Slots = append(l.result.Slots, Slot{})
		}
		l.result.Slots[i].Due++
		if !a.fault && now-due <= l.cfg.Within {
			l.result.Slots[i].Good++
		}
	}
}

// verify compares the answer if it was collected, and decides whether to collect the next.
func (l *loop) verify(c *conn, whole []byte) error {
	if l.cfg.Check == nil {
		return nil
	}
	if whole != nil {
		c.check = false
		if err := l.cfg.Check(c.asked, whole); err != nil {
			return fmt.Errorf("load: connection %d: wrong answer: %w", c.number, err)
		}
	}
	if l.untilSample--; l.untilSample <= 0 {
		l.untilSample = l.cfg.CheckEvery
		c.check = true
	}
	return nil
}
