package load

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Config configures a run: what to send, where, how and for how long. Frames and Addr must be
// set; every other zero field means the default in its comment.
type Config struct {
	Network string // "tcp" (default) or "unix"
	Addr    string
	TLS     *tls.Config // nil: plain

	Wire Wire // protocol of that address; Shiva (default)

	// Token, if set, is shown to the server over gRPC, where Frames have no place for it.
	Token string

	// Frames are the requests: connection i sends Frames[i%len(Frames)] over and over. Each is
	// one whole Shiva message, one whole request of HTTP/1.1, or for GRPC the ModelInferRequest
	// without anything around it. They must not change while Run runs.
	Frames [][]byte
	// Cycle makes each connection send all Frames in turn instead of its own alone; not with Gather
	// or Check.
	Cycle bool
	// Streams, if set, makes the requests frames of streams.
	Streams *Streams
	// Deadlines, if set, has a deadline for each of Frames, counted from when it is sent. The
	// lateness of answers is then measured, with one request in flight on each connection, since
	// answers are in order.
	Deadlines []time.Duration

	Conns int // connections; 0: one
	// InFlight is the number of unanswered requests of one connection. Closed loop: always this
	// many; 0 means one. Open loop: further ones wait, which counts towards their latency; 0 means
	// no limit.
	InFlight int

	// Gather writes all requests that are due on a connection at once, as a proxy or a client
	// with many threads may. Without it each request has a write of its own.
	Gather bool

	// Poll polls for answers instead of sleeping until there are some. Latencies then do not
	// include the time to wake a sleeping core for the generator, which on a virtual machine is
	// longer than the rest of a round trip. It takes a core.
	Poll bool

	// Rate is the number of requests per second of an open loop, over all connections; 0: closed
	// loop.
	Rate float64
	// Even spaces an open loop's requests evenly; otherwise they arrive at random (Poisson), like
	// those of many independent users.
	Even bool
	// Think is the time from an answer to the next request of a closed loop. Latencies count from
	// its end.
	Think Think
	// Seed fixes the random arrivals and think times, so that two servers can be offered the same
	// load.
	Seed uint64

	// Within, if set, is the longest latency of a good answer in Slots.
	Within time.Duration

	// Piece, if set, is the length of the pieces of the measured time in Pieces.
	Piece time.Duration

	// Live, if set, gets the answers while the run goes on.
	Live *Live

	Warmup   time.Duration // load that is not counted; 0: none
	Duration time.Duration // load that is counted; 0: one second
	Grace    time.Duration // longest wait for answers after that; 0: five seconds

	// Check, if set, compares an answer with its request, both as bytes: the first of each
	// connection, then one in CheckEvery (0: 1000) of all. Its error ends the run. "!error"
	// answers are counted, not checked.
	Check      func(request, answer []byte) error
	CheckEvery int

	// Loops is the number of threads that share the connections; 0: one, which suffices up to a few
	// hundred thousand requests per second, and leaves the other cores to the server.
	Loops int
}

// Result is the measurement of a run. The measured time begins after the warm-up and lasts
// Config.Duration.
type Result struct {
	Began    time.Time     // the measured time
	Elapsed  time.Duration // Config.Duration, or less if the run ended early
	Offered  float64       // requests per second offered; 0: closed loop
	Answered int64         // good answers that arrived in the measured time
	Bytes    int64         // of the requests with good answers
	// Of the whole run, including the warm-up and the end: answers of all kinds, and bytes on the
	// connections, without TCP's and IP's headers and gRPC's exchange before its first request.
	Taken, Wrote, Read int64
	Failed             int64 // "!error" answers in the measured time
	Lost               int64 // requests still without an answer at the end of the grace
	// Failure is the first of Faults: kind and text.
	Failure string
	// Faults are the errors of the whole run by kind, the most frequent first, without those of
	// superseded frames.
	Faults []Fault
	// Superseded counts frames due in the measured time that a newer frame superseded. They are
	// neither failed nor refused.
	Superseded int64
	// PerStream counts the frames of each stream that were due in the measured time, by outcome.
	PerStream []FramesOf
	// Latency holds the good answers to requests due in the measured time, from when they were due.
	Latency Histogram
	// Refusal holds the "!error" answers in the same way.
	Refusal Histogram
	// Late and LateRead hold, with Config.Deadlines, the lateness of answers of both kinds after
	// their deadlines: Late by the kernel's time of the server's write, LateRead by the time of the
	// generator's read. Their difference is the generator's wait for a core.
	Late, LateRead Histogram
	// Lag holds the generator's own delay in sending requests that were due in the measured time.
	// It is part of their latency.
	Lag Histogram
	// Slots divides the measured time into pieces of SlotLength, with Config.Within.
	Slots []Slot
	// Pieces is Latency by the pieces of the measured time in which the requests were due, with
	// Config.Piece.
	Pieces []Histogram
}

// SlotLength is the length of a Slot.
const SlotLength = 50 * time.Millisecond

// A Slot counts the requests that were due in one piece of the measured time.
type Slot struct{ Due, Good int }

// A Fault counts the errors of one kind.
type Fault struct {
	Kind  string // Shiva's type of error, the status of HTTP, the code of gRPC
	Count int64
	First string // text of the first one
}

// Rate returns the good answers per second.
func (r *Result) Rate() float64 { return float64(r.Answered) / r.Elapsed.Seconds() }

// Run offers the load and returns the measurement. It fails when a connection cannot be opened or
// is lost, when answers do not parse, or when Check rejects one; "!error" answers are a result, not
// a failure. When ctx ends, Run returns its error. Once the connections are open, Run returns the
// measurement so far along with any error.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	loops := make([]*loop, c.Loops)
	for i := range loops {
		l, err := newLoop(c, i)
		if err != nil {
			return nil, err
		}
		defer l.close()
		loops[i] = l
	}
	for i := range c.Conns {
		l := loops[i%c.Loops]
		if err := l.dial(ctx, i); err != nil {
			return nil, err
		}
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, c.Loops)
	start := time.Now()
	var wg sync.WaitGroup // joined below; a loop ends by its clock, by its error, or by ctx
	for i, l := range loops {
		wg.Go(func() {
			if errs[i] = l.run(ctx, start); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()

	r := &Result{Began: start.Add(c.Warmup), Offered: c.Rate, PerStream: make([]FramesOf, c.count())}
	var lost error
	for i, l := range loops {
		r.merge(&l.result)
		r.Elapsed = max(r.Elapsed, min(l.ended, l.to)-l.from)
		if errs[i] != nil && (lost == nil || errors.Is(lost, context.Canceled)) {
			lost = errs[i]
		}
	}
	slices.SortStableFunc(r.Faults, func(a, b Fault) int { return cmp.Compare(b.Count, a.Count) })
	return r, lost
}

// complete fills in the defaults, or returns an error about options that exclude each other.
func (c *Config) complete() error {
	if c.Network == "" {
		c.Network = "tcp"
	}
	if len(c.Frames) == 0 {
		return errors.New("load: no frames to send")
	}
	if c.Rate < 0 || c.InFlight < 0 || c.Conns < 0 || c.Loops < 0 {
		return fmt.Errorf("load: a negative rate (%v), in flight (%d), connections (%d) or loops (%d)", c.Rate,
			c.InFlight, c.Conns, c.Loops)
	}
	if err := c.checkThink(); err != nil {
		return err
	}
	if len(c.Deadlines) > 0 {
		if len(c.Deadlines) != len(c.Frames) {
			return fmt.Errorf("load: %d deadlines for %d frames", len(c.Deadlines), len(c.Frames))
		}
		c.InFlight = 1
	}
	if c.TLS != nil && len(c.Deadlines) > 0 {
		return errors.New("load: deadlines are measured by the kernel's timestamps, which are not available with TLS")
	}
	if c.Streams != nil {
		if err := c.streams(); err != nil {
			return err
		}
	}
	if c.Cycle && (c.Gather || c.Check != nil) {
		return errors.New("load: frames in turn can neither be gathered nor checked")
	}
	if c.Wire == HTTP && c.InFlight > 1 || c.Wire != Shiva && c.Gather {
		return errors.New("load: HTTP has one request in flight on a connection, and only Shiva's can be gathered")
	}
	if c.Wire == HTTP {
		c.InFlight = 1
	}
	c.Conns = max(c.Conns, 1)
	c.Loops = min(max(c.Loops, 1), c.Conns)
	if c.Rate == 0 {
		c.InFlight = max(c.InFlight, 1)
	}
	if c.Duration <= 0 {
		c.Duration = time.Second
	}
	if c.Grace <= 0 {
		c.Grace = 5 * time.Second
	}
	if c.CheckEvery <= 0 {
		c.CheckEvery = 1000
	}
	return nil
}

// merge adds the measurement of a loop.
func (r *Result) merge(l *Result) {
	r.Answered += l.Answered
	r.Taken += l.Taken
	r.Wrote += l.Wrote
	r.Read += l.Read
	r.Bytes += l.Bytes
	r.Failed += l.Failed
	r.Lost += l.Lost
	r.Superseded += l.Superseded
	r.Latency.Merge(&l.Latency)
	r.Refusal.Merge(&l.Refusal)
	r.Late.Merge(&l.Late)
	r.LateRead.Merge(&l.LateRead)
	r.Lag.Merge(&l.Lag)
	for i, s := range l.Slots {
		if i == len(r.Slots) {
			r.Slots = append(r.Slots, Slot{})
		}
		r.Slots[i].Due += s.Due
		r.Slots[i].Good += s.Good
	}
	for i := range l.Pieces {
		if i == len(r.Pieces) {
			r.Pieces = append(r.Pieces, Histogram{})
		}
		r.Pieces[i].Merge(&l.Pieces[i])
	}
	for i, f := range l.PerStream {
		r.PerStream[i].Answered += f.Answered
		r.PerStream[i].Superseded += f.Superseded
		r.PerStream[i].Failed += f.Failed
	}
	for _, f := range l.Faults {
		r.fault(f.Kind, f.First, f.Count)
	}
	if r.Failure == "" {
		r.Failure = l.Failure
	}
}

// maxKinds bounds the kinds of errors that are told apart, since a server may return any text.
const maxKinds = 32

// fault counts errors of a kind.
func (r *Result) fault(kind, text string, n int64) {
	of := func(kind string) int {
		return slices.IndexFunc(r.Faults, func(f Fault) bool { return f.Kind == kind })
	}
	i := of(kind)
	if i < 0 && len(r.Faults) >= maxKinds {
		kind = "others"
		i = of(kind)
	}
	if i < 0 {
		i, r.Faults = len(r.Faults), append(r.Faults, Fault{Kind: kind, First: text})
	}
	r.Faults[i].Count += n
	if r.Failure == "" {
		r.Failure = kind + ": " + text
	}
}

// dial opens a connection for connection number i of the run.
func (l *loop) dial(ctx context.Context, i int) error {
	var d net.Dialer
	nc, err := d.DialContext(ctx, l.cfg.Network, l.cfg.Addr)
	if err != nil {
		return fmt.Errorf("load: connection %d: %w", i, err)
	}
	defer nc.Close()
	c := &conn{number: i, next: i % len(l.cfg.Frames)}
	spoken := nc
	if l.cfg.TLS != nil {
		if c.secured, err = encrypt(ctx, nc, &l.cfg); err != nil {
			return fmt.Errorf("load: connection %d: %w", i, err)
		}
		spoken = c.secured.tls
	}
	if l.cfg.Streams != nil {
		c.stream = i % l.cfg.Streams.Count
	}
	if c.wire, err = newWire(l.cfg.Wire, l.cfg.Token); err != nil {
		return err
	}
	if s := l.cfg.Streams; s != nil && s.Each != nil {
		c.shown = &streamWire{Each: s.Each, shown: FrameAnswer{Stream: i}}
		c.wire = c.shown
	}
	c.asked = l.cfg.Frames[c.next]
	c.frame = c.wire.encode(nil, c.asked, l.cfg.Streams != nil)
	if l.cfg.Streams != nil {
		l.stamp(c, time.Now())
	}
	if g, ok := c.wire.(*grpcWire); ok { // it begins with an exchange
		_ = nc.SetDeadline(time.Now().Add(greetTimeout))
		if err := g.greet(spoken, c.frame); err != nil {
			return fmt.Errorf("load: connection %d: greeting: %w", i, err)
		}
		if l.cfg.Streams != nil {
			l.seqs[c.stream]++
		}
	}
	if c.fd, err = detach(nc); err != nil {
		return fmt.Errorf("load: connection %d: %w", i, err)
	}
	if c.secured != nil {
		c.secured.own(c.fd)
	}
	return l.add(c)
}

// greetTimeout bounds the exchange before the first request.
const greetTimeout = 10 * time.Second
