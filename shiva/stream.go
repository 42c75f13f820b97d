package shiva

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// ErrFinished is the error of Push after Finish.
var ErrFinished = errors.New("shiva: the stream takes no more frames: it is finished")

const (
	// KeepAll is the value of [StreamConfig].Keep for streams whose frames must all be executed.
	KeepAll = -1

	maxStreamKeep = 1 << 10 // the server's bound

	// answerGrace is how long the client waits, after a frame's deadline, for the server's own
	// answer, which is more specific than a timeout.
	answerGrace = time.Second
)

// A StreamConfig configures a [Stream].
type StreamConfig struct {
	Model string // the route: a model, "model/version" or an application
	Name  string // of the stream, such as a camera's; each client and model has its own names

	// Keep is how many frames may wait, in the server and in the client: one more supersedes the
	// oldest. 0 means 1, only the newest; the maximum is 1024. With KeepAll no frame is superseded,
	// and Push waits instead.
	Keep int

	// Timeout is each frame's deadline, which the server counts from the frame's arrival. A frame
	// without an answer a second after its deadline, counted from Push, fails with a CallError. 0:
	// the server's default deadline applies, and the client has none.
	Timeout time.Duration
}

// A Frame is one request of a [Stream].
type Frame struct {
	// The model's inputs, by position or by their names, as for [Client.Infer].
	Tensors  []tensor.Tensor
	Metadata []byte // further keys of the request, none of the stream's; an object, or empty

	Seq        int64     // its number; 0: one more than the previous frame's, from 0
	CapturedAt time.Time // zero: when it is pushed
}

// An Answer is the answer to a frame of a [Stream], or its error. Superseded frames have no Answer.
type Answer struct {
	Seq int64
	// From Frame.CapturedAt to the arrival of the answer, by this machine's clock.
	Age     time.Duration
	Skipped int // frames superseded since the previous executed one

	// The outputs, by name with [Message.Output]; the receiver releases them. nil with an error.
	*Message
}

// StreamCounts counts the frames of a [Stream] that have no Answer.
type StreamCounts struct {
	Superseded int // replaced by a newer frame, before they were sent or executed
	Dropped    int // answered, but dropped for newer answers before they were taken
}

// A Stream sends frames of one source, such as a camera, to a model, over a connection of its own.
// Any goroutine may push frames, and any may take answers; usually one does each.
//
// A camera is often faster than a model, and viewers want to see the newest frame. So frames do not
// queue up: a newer one supersedes those that wait, in the server and, while the connection takes
// no more, in the client. Answers have the order of the frames. Answers that are not taken are
// kept, the newest ones, as many as frames may wait.
//
// With [KeepAll] each frame has an answer, and Push waits while as many frames as [WithInFlight]
// allows have no answer, or one that was not taken. So a single goroutine must not push more than
// that before it takes answers.
//
// A connection that is lost is replaced, as by a [Client]. The frames that were sent on it fail.
// While connecting fails, the frames that wait for an attempt fail with its error. Among several
// servers a stream stays with one until that server is unreachable, reports that it is shutting
// down, or has fallen silent: no answer for 2 s, and none to a liveness check within 2 s.
//
// Frames that the operating system has accepted count as sent. On a network slower than the camera,
// they delay the newest frame; WithInFlight(2) bounds their number.
type Stream struct {
	link    *link // the stream's own
	cfg     StreamConfig
	keep    int    // how many frames, and answers, may wait in the client; 0: all
	members []byte // metadata of every frame

	push     chan struct{} // holds a token unless a goroutine is pushing, which orders the frames
	metadata []byte        // scratch of the pushing goroutine
	nextSeq  int64         // used by the pushing goroutine

	room     chan struct{} // holds a token when another frame may fit
	arrived  chan struct{} // holds a token when there is an answer to take, or the stream has ended
	finished chan struct{} // closed by Finish

	// Guarded by link.mu.

	ending  bool // Finish was called
	open    int  // frames that are neither answered nor superseded
	answers []streamAnswer
	skipped int // frames superseded in the client that no Answer has counted yet
	counts  StreamCounts
	timer   *time.Timer // calls expire; nil without a timeout
	timed   bool        // timer is running
}

// A frameCall is the stream's part of a call.
type frameCall struct {
	stream   *Stream
	seq      int64
	captured time.Time
	pushed   time.Time
	// Frames between the previous one and this one that were superseded before they were sent.
	skipped int
}

type streamAnswer struct {
	Answer
	err error
}

// Stream opens a stream to the client's server, or to one of its servers. The stream makes a
// connection of its own, like [Dial] with the client's options, and must be closed separately.
func (c *Client) Stream(ctx context.Context, cfg StreamConfig) (*Stream, error) {
	if cfg.Name == "" {
		return nil, errors.New("shiva: a stream needs a name")
	}
	if cfg.Keep < KeepAll || cfg.Keep > maxStreamKeep {
		return nil, fmt.Errorf("shiva: keep of stream %q is %d, expected KeepAll or 0 to %d", cfg.Name, cfg.Keep,
			maxStreamKeep)
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("shiva: timeout of stream %q is %v, expected 0 or more", cfg.Name, cfg.Timeout)
	}
	s := &Stream{
		cfg:      cfg,
		push:     make(chan struct{}, 1),
		room:     make(chan struct{}, 1),
		arrived:  make(chan struct{}, 1),
		finished: make(chan struct{}),
	}
	s.members = jsonscan.AppendString([]byte(`"stream":`), cfg.Name)
	switch cfg.Keep {
	case KeepAll:
		s.members = append(s.members, `,"keep":"all"`...)
	case 0, 1:
		s.keep = 1
		s.members = append(s.members, `,"keep":"latest"`...)
	default:
		s.keep = cfg.Keep
		s.members = strconv.AppendInt(append(s.members, `,"keep":`...), int64(cfg.Keep), 10)
	}
	if cfg.Timeout > 0 {
		s.members = appendTimeoutMember(append(s.members, ','), cfg.Timeout)
	}
	s.link = newLink(c.opts, s.keep+1)
	if err := c.connectStream(ctx, s.link); err != nil {
		return nil, err
	}
	signal(s.push)
	return s, nil
}

// Push sends a frame and returns its number. It copies the frame, so the caller may reuse its
// memory when Push returns.
//
// Push does not wait for the network. If as many frames wait to be sent as the stream keeps, the
// oldest of them is superseded. With [KeepAll] it waits for room, until ctx ends. [Stream.Answers]
// yields the results. Push itself fails for a frame that cannot be encoded, after Finish and after
// Close.
func (s *Stream) Push(ctx context.Context, f Frame) (seq int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, s.link.callError(false, err)
	}
	if err := s.await(ctx, s.push); err != nil {
		return 0, err
	}
	defer signal(s.push)
	if seq = f.Seq; seq == 0 {
		seq = s.nextSeq
	}
	now := time.Now()
	if f.CapturedAt.IsZero() {
		f.CapturedAt = now
	}
	request, parts, err := s.encode(&f, seq)
	if err != nil {
		return 0, err
	}
	k := s.link.newCall(request, parts)
	k.frame = frameCall{stream: s, seq: seq, captured: f.CapturedAt, pushed: now}
	queued := false
	for !queued && err == nil {
		if queued, err = s.enqueue(k); !queued && err == nil {
			err = s.await(ctx, s.room)
		}
	}
	if err != nil {
		request.Release()
		s.link.freeCall(k)
		return 0, err
	}
	s.nextSeq = seq + 1
	return seq, nil
}

// await takes a token, unless ctx or the stream ends first.
func (s *Stream) await(ctx context.Context, tokens <-chan struct{}) error {
	select {
	case <-tokens:
		return nil
	case <-ctx.Done():
		return s.link.callError(false, ctx.Err())
	case <-s.finished:
		if s.link.ctx.Err() != nil {
			return s.link.callError(false, ErrClosed)
		}
		return ErrFinished
	}
}

func (s *Stream) encode(f *Frame, seq int64) (*tensor.Buffer, parts, error) {
	for key := range jsonscan.Members(f.Metadata) {
		switch string(key) {
		case timeoutKey:
			if s.cfg.Timeout == 0 {
				continue
			}
		case "stream", "seq", "captured_at", "keep":
		default:
			continue
		}
		return nil, parts{}, fmt.Errorf("shiva: metadata of a frame has key %q, which the stream sets", key)
	}
	at := len(s.members)
	members := append(s.members, `,"seq":`...)
	members = strconv.AppendInt(members, seq, 10)
	members = append(members, `,"captured_at":`...)
	members = strconv.AppendInt(members, f.CapturedAt.UnixMilli(), 10)
	members, tensors, err := appendNames(members, f.Metadata, f.Tensors)
	s.members = members[:at]
	if err != nil {
		return nil, parts{}, err
	}
	s.metadata = appendObject(s.metadata[:0], members, f.Metadata)
	m, p := s.link.place(&Message{Namespace: s.cfg.Model, Metadata: s.metadata, Tensors: tensors})
	request, err := s.link.encodeAsIs(m)
	if err != nil {
		p.release()
	}
	return request, p, err
}

// enqueue queues a frame for sending. It returns false if there is no room.
func (s *Stream) enqueue(k *call) (ok bool, err error) {
	c := s.link
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return false, c.callError(false, ErrClosed)
	case s.ending:
		return false, ErrFinished
	case s.keep == 0 && c.ring.n+len(s.answers) >= c.opts.inFlight:
		return false, nil
	}
	c.ring.push(k)
	s.open++
	if s.keep > 0 && c.ring.n-c.ring.sent > s.keep {
		s.supersedeUnsent()
	}
	if limit := s.cfg.Timeout; limit > 0 && !s.timed {
		s.expireIn(limit + answerGrace)
	}
	signal(c.wake)
	return true, nil
}

// supersedeUnsent drops the oldest unsent frame, for a newer one.
func (s *Stream) supersedeUnsent() {
	c := s.link
	old := *c.ring.at(c.ring.sent)
	c.ring.removeUnsent(old)
	heir := *c.ring.at(c.ring.sent)
	heir.frame.skipped += old.frame.skipped + 1
	old.request.Release()
	c.freeCall(old)
	s.open--
	s.counts.Superseded++
}

// answered ends the call of a frame that was removed from the ring. The caller holds the link's
// mutex.
func (s *Stream) answered(k *call, m *Message, err error) {
	if k.abandoned {
		if m != nil {
			m.Release()
		}
		s.link.freeCall(k)
		signal(s.room)
		return
	}
	skipped := 0
	if m != nil {
		if e := ParseError(m); e != nil {
			m.Release()
			m, err = nil, e
			if e.Type == Unauthenticated { // for the frames after it
				s.link.renewLocked(s.link.opts.token.Token())
			}
		} else if text := jsonscan.Field(m.Metadata, "skipped"); text != nil {
			skipped, _ = strconv.Atoi(string(text))
		}
	}
	s.conclude(&k.frame, m, skipped, err)
	s.link.freeCall(k)
}

// conclude records how a frame ended.
func (s *Stream) conclude(f *frameCall, m *Message, skipped int, err error) {
	s.open--
	s.skipped += f.skipped
	a := streamAnswer{Answer{Seq: f.seq, Age: max(0, f.pushed.Sub(f.captured)) + time.Since(f.pushed), Message: m}, err}
	if e, ok := errors.AsType[*RemoteError](err); ok && e.Type == Superseded {
		s.counts.Superseded++
		signal(s.room)
		if s.open == 0 {
			signal(s.arrived) // the stream may have ended
		}
		return
	}
	if err == nil {
		a.Skipped, s.skipped = s.skipped+skipped, 0
	}
	if s.keep > 0 && len(s.answers) == s.keep {
		s.drop()
		s.counts.Dropped++
	}
	s.answers = append(s.answers, a)
	signal(s.arrived)
}

// take removes the oldest answer.
func (s *Stream) take() streamAnswer {
	a := s.answers[0]
	s.answers[0] = streamAnswer{}
	if len(s.answers) == 1 {
		s.answers = s.answers[:0] // keeps the capacity
	} else {
		s.answers = s.answers[1:]
	}
	return a
}

// drop discards the oldest answer.
func (s *Stream) drop() {
	if a := s.take(); a.Message != nil {
		a.Release()
	}
}

func (s *Stream) expireIn(d time.Duration) {
	s.timed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.expire)
	} else {
		s.timer.Reset(d)
	}
}

// expire fails the frames that have waited too long for an answer. Frames that were sent keep their
// place on the connection nevertheless.
func (s *Stream) expire() {
	c := s.link
	c.mu.Lock()
	defer c.mu.Unlock()
	s.timed = false
	for i := 0; i < c.ring.n && !c.closed; {
		k := *c.ring.at(i)
		if k.abandoned {
			i++
			continue
		}
		if left := s.cfg.Timeout + answerGrace - time.Since(k.frame.pushed); left > 0 {
			s.expireIn(left)
			return
		}
		if i < c.ring.sent {
			k.abandoned = true
			i++
			s.conclude(&k.frame, nil, 0, c.callError(true, context.DeadlineExceeded))
			continue
		}
		c.ring.removeUnsent(k)
		k.request.Release()
		s.conclude(&k.frame, nil, 0, c.callError(false, context.DeadlineExceeded))
		c.freeCall(k)
	}
}

// Answers yields the answers of the frames, in the order of the frames, each with its error, if
// any: a [*RemoteError], [*DecodeError] or [*CallError], as from [Client.Do]. An error ends its
// frame and not the stream. Superseded frames are not yielded; the next answer counts them, and so
// does [Stream.Counts].
//
// The receiver must release each Answer without an error. The loop ends when Finish was called and
// no frame is left, at Close, and when ctx ends; after the latter, a later loop continues.
func (s *Stream) Answers(ctx context.Context) iter.Seq2[Answer, error] {
	return func(yield func(Answer, error) bool) {
		for {
			a, ok := s.nextAnswer(ctx)
			if !ok || !yield(a.Answer, a.err) {
				return
			}
		}
	}
}

// nextAnswer waits for an answer; it returns false at the end.
func (s *Stream) nextAnswer(ctx context.Context) (a streamAnswer, ok bool) {
	for ctx.Err() == nil {
		s.link.mu.Lock()
		end := s.link.closed || s.ending && s.open == 0
		if ok = len(s.answers) > 0 && !s.link.closed; ok {
			a = s.take()
			signal(s.room)
		}
		if end || len(s.answers) > 0 {
			signal(s.arrived) // for another loop
		}
		s.link.mu.Unlock()
		if ok || end {
			break
		}
		select {
		case <-s.arrived:
		case <-ctx.Done():
		}
	}
	return a, ok
}

// Counts returns how many frames so far ended without an Answer.
func (s *Stream) Counts() StreamCounts {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.counts
}

// Finish ends the pushing of frames. Loops over Answers end after the answer to the last frame.
func (s *Stream) Finish() {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if !s.ending {
		s.ending = true
		close(s.finished)
		signal(s.arrived)
	}
}

// Close ends the stream and its connection, fails the frames in progress, and releases the answers
// that were not taken. When it returns, no goroutine of the stream is left.
func (s *Stream) Close() error {
	s.Finish()
	err := s.link.Close()
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
	for len(s.answers) > 0 {
		s.drop()
	}
	return err
}
