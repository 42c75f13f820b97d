package shiva

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/shiva/backoff"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// errRetired is why a retired link takes no more requests: its address is no longer a server's.
var errRetired = errors.New("shiva: no server is at this address any more")

var errUntried = errors.New("the first connection is being made")

// A link is the part of a [Client] that concerns one server, or all of a [Stream]: one connection
// at a time, and the requests on it. Any number of goroutines may use it.
//
// After a connection is lost, the next request makes a new one. Requests that were sent, even in
// part, on the lost connection fail; those that were still waiting are sent on the new one. When
// connecting fails, the requests that wait for the connection fail with the reason; later ones wait
// for the next attempt, after a pause that grows.
type link struct {
	opts options
	// One of several servers: the link connects without a request, takes requests only while
	// connected, and fails waiting requests, too, when the connection is lost.
	oneOfSeveral bool
	// For a stream among several servers: where to connect, best first. nil: to at.
	choose  func(*link) []address
	changed func() // if oneOfSeveral: called after each attempt to connect
	sizes   outputSizes

	ctx   context.Context // until Close
	close context.CancelFunc
	slots chan struct{} // holds a token for each call in the ring
	wake  chan struct{} // holds a token when there may be something to send
	done  chan struct{} // closed when run has ended
	// Holds *call. Not shared between links: channels may not leave a synctest bubble.
	calls sync.Pool

	at atomic.Pointer[address] // of the current connection, or the last one; nil: there was none
	up atomic.Bool             // if oneOfSeveral: the link takes requests

	checks sync.WaitGroup // liveness checks that run

	mu           sync.Mutex
	ring         ring
	conn         net.Conn      // the current connection; nil: none
	connToken    string        // the token that conn has shown
	ending       bool          // conn ends when all requests sent on it are answered
	avoidAddr    string        // the address of a server that drains or is silent; "": none
	shared       *sharedMemory // of conn; nil: none, or lost
	downReason   error         // why there is no connection; nil: there is one, or none was tried
	retired      bool          // the link ends when all requests sent on it are answered
	closed       bool
	lastAnswer   time.Time   // time of the last answer, or of a request sent while none waited
	checkTimer   *time.Timer // of the next liveness check; nil: none
	giveUpReason error       // why giveUp closed conn; nil: it did not
}

// A call is one Do, or a frame of a stream.
type call struct {
	// Receives a token when finished is set, unless the call was abandoned; capacity 1.
	done chan struct{}

	// Guarded by link.mu.
	request   *tensor.Buffer // in wire form, until the writer takes it
	token     string         // the token of the connection that it was sent on
	answer    *Message
	err       error
	finished  bool
	abandoned bool // nothing waits for the answer any more: drop it
	frame     frameCall

	parts parts // of shared memory, held until the call is freed
}

func (c *link) newCall(request *tensor.Buffer, p parts) *call {
	k, _ := c.calls.Get().(*call)
	if k == nil {
		k = &call{done: make(chan struct{}, 1)}
	}
	k.request, k.parts = request, p
	return k
}

func (c *link) freeCall(k *call) {
	k.parts.release()
	k.request, k.token, k.answer, k.err, k.finished, k.abandoned, k.frame = nil, "", nil, nil, false, false, frameCall{}
	c.calls.Put(k)
}

// newLink makes a link with room for some more requests than those in flight. It must be run.
func newLink(opts options, room int) *link {
	c := &link{
		opts:  opts,
		slots: make(chan struct{}, opts.inFlight),
		wake:  make(chan struct{}, 1),
		done:  make(chan struct{}),
		ring:  newRing(opts.inFlight + room),
	}
	c.ctx, c.close = context.WithCancel(context.Background())
	return c
}

// start connects the link, and runs it until Close.
func (c *link) start(ctx context.Context) error {
	conn, shared, err := c.dial(ctx)
	if err != nil {
		c.close()
		return err
	}
	c.conn, c.shared = conn, shared
	go c.run(conn, shared) // until Close, which waits for it
	return nil
}

// renew handles a request whose token the server no longer accepts. It reports whether there is
// another token to try. A connection that has not shown that token ends when all requests sent on
// it are answered.
func (c *link) renew(refused string) bool {
	token := c.opts.token.Token()
	if token == refused {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewLocked(token)
	return true
}

func (c *link) renewLocked(token string) {
	if token != c.connToken {
		c.ending = true
		c.endIfIdle()
	}
}

// endIfIdle closes the connection if it is to end and no answer is outstanding.
func (c *link) endIfIdle() {
	if c.ending && c.ring.sent == 0 && c.conn != nil {
		c.conn.Close()
	}
}

// retire ends the link when all requests sent on it are answered. Its other requests fail.
func (c *link) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up.Store(false)
	c.retired, c.ending = true, true
	if c.endIfIdle(); c.conn == nil {
		c.close()
	}
}

// Close ends the connection and fails the calls in progress. When it returns, no goroutine of the
// link is left.
func (c *link) Close() error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		c.close()
		if c.conn != nil {
			c.conn.Close()
		}
	}
	c.mu.Unlock()
	<-c.done
	return nil
}

// Do is [Client.Do] on this link; tell: send the deadline to the server.
func (c *link) Do(ctx context.Context, m *Message, tell bool) (*Message, error) {
	share := true
	for {
		answer, err := c.do(ctx, m, tell, share)
		switch err {
		case errStale, errRenewed:
		case errUnshared:
			share = false
		default:
			return answer, err
		}
	}
}

// do sends m once; share: its tensors may be in shared memory.
func (c *link) do(ctx context.Context, m *Message, tell, share bool) (*Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, c.callError(false, err)
	}
	var parts parts
	if share {
		m, parts = c.place(m)
	}
	placed := !parts.empty()
	request, err := c.admit(ctx, m, tell)
	if err != nil {
		parts.release()
		return nil, err
	}
	k := c.newCall(request, parts)
	if err := c.enqueue(k); err != nil {
		return nil, c.callError(false, err)
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		if finished, sent := c.abandon(k); !finished {
			return nil, c.callError(sent, ctx.Err())
		}
		<-k.done
	}
	answer, err, token := k.answer, k.err, k.token
	c.freeCall(k)
	if err != nil {
		return nil, err
	}
	if e := ParseError(answer); e != nil {
		answer.Release()
		if e.Type == Unauthenticated && c.renew(token) {
			return nil, errRenewed
		}
		if e.Unshared && placed {
			return nil, errUnshared
		}
		return nil, e
	}
	return answer, nil
}

// admit takes a slot, and returns m in wire form. It waits for the slot first, since the deadline
// that the server is told counts from when the request is sent.
func (c *link) admit(ctx context.Context, m *Message, tell bool) (*tensor.Buffer, error) {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, c.callError(false, ctx.Err())
	case <-c.ctx.Done():
		return nil, c.callError(false, c.ended())
	}
	request, err := c.encode(ctx, m, tell)
	if err != nil {
		<-c.slots
	}
	return request, err
}

func (c *link) callError(mayHaveRun bool, err error) *CallError {
	addr := "any server" // a stream that was never connected
	if at := c.at.Load(); at != nil {
		addr = at.text
	}
	return &CallError{Addr: addr, MayHaveRun: mayHaveRun, Err: err}
}

// encode returns m in wire form. It copies large tensors, too, although they could be sent from
// where they are: Do returns when its context ends, perhaps in the middle of sending them, and the
// caller may then change their memory.
func (c *link) encode(ctx context.Context, m *Message, tell bool) (*tensor.Buffer, error) {
	if deadline, ok := ctx.Deadline(); ok && tell {
		left := time.Until(deadline)
		if left <= 0 { // the context's timer is late
			return nil, c.callError(false, context.DeadlineExceeded)
		}
		withTimeout := *m
		withTimeout.Metadata = appendTimeout(nil, m.Metadata, left)
		m = &withTimeout
	}
	return c.encodeAsIs(m)
}

func (c *link) encodeAsIs(m *Message) (*tensor.Buffer, error) {
	size, err := MessageSize(m)
	if err != nil {
		return nil, err
	}
	b, err := c.opts.pool.Get(size)
	if err != nil {
		return nil, fmt.Errorf("shiva: memory for a request: %w", err)
	}
	if _, err := AppendMessage(b.Bytes()[:0], m); err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

// appendTimeout appends metadata with "timeout_ms" as its first key, unless it has one.
func appendTimeout(dst, metadata []byte, timeout time.Duration) []byte {
	if jsonscan.Field(metadata, timeoutKey) != nil {
		return append(dst, metadata...)
	}
	return appendObject(dst, appendTimeoutMember(nil, timeout), metadata)
}

const timeoutKey = "timeout_ms"

func appendTimeoutMember(dst []byte, timeout time.Duration) []byte {
	dst = append(dst, `"`+timeoutKey+`":`...)
	return strconv.AppendFloat(dst, max(timeout.Seconds()*1e3, 0.001), 'f', 3, 64)
}

// appendObject appends an object of the given members and those of metadata.
func appendObject(dst, members, metadata []byte) []byte {
	s := jsonscan.Scanner{Text: metadata}
	if s.Peek() != '{' && s.At < len(metadata) {
		return append(dst, metadata...) // not an object: the server refuses it
	}
	dst = append(dst, '{')
	dst = append(dst, members...)
	if s.At == len(metadata) {
		return append(dst, '}')
	}
	s.At++
	rest := metadata[s.At:]
	if s.Peek() != '}' {
		dst = append(dst, ',')
	}
	return append(dst, rest...)
}

// errStale fails a call whose tensors are in the shared memory of a connection that was lost before
// the request was sent.
var errStale = errors.New("the connection was lost, and with it the shared memory that holds the tensors")

// errRenewed fails a call that was refused for its token, if there is another token now.
var errRenewed = errors.New("the server has refused a token that has been replaced")

// errUnshared fails a call that the server did not execute, for it could not use its shared memory.
var errUnshared = errors.New("the server could not use the shared memory that holds the tensors")

// dropStale removes stale calls from the head of the unsent ones, and fails them with errStale.
func (c *link) dropStale() {
	for c.ring.sent < c.ring.n {
		k := *c.ring.at(c.ring.sent)
		if k.parts.empty() || k.parts.memory == c.shared {
			return
		}
		c.ring.removeUnsent(k)
		k.request.Release()
		k.request = nil
		var err error = errStale
		if k.frame.stream != nil {
			err = c.callError(false, errStale)
		}
		c.finishLocked(k, nil, err)
	}
}

// enqueue puts a call, which has a slot, into the ring. If the link takes no calls, it frees the
// call and returns the reason.
func (c *link) enqueue(k *call) error {
	c.mu.Lock()
	if err := c.refusalLocked(); err != nil {
		c.mu.Unlock()
		<-c.slots
		k.request.Release()
		c.freeCall(k)
		return err
	}
	c.ring.push(k)
	c.mu.Unlock()
	signal(c.wake)
	return nil
}

// refusalLocked returns why the link takes no calls; nil: it takes them.
func (c *link) refusalLocked() error {
	switch {
	case c.closed:
		return ErrClosed
	case c.retired:
		return errRetired
	case c.oneOfSeveral && !c.up.Load() && c.downReason == nil:
		return errUntried
	case c.oneOfSeveral && !c.up.Load():
		return c.downReason
	}
	return nil
}

// waiting returns how many requests have no answer.
func (c *link) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ring.n
}

// down returns why one of several servers has no connection; nil: it has one, or was not tried yet.
func (c *link) down() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up.Load() || c.retired {
		return nil
	}
	return c.downReason
}

// signal puts a token into a channel that has room for one.
func signal(tokens chan struct{}) {
	select {
	case tokens <- struct{}{}:
	default:
	}
}

// abandon gives up a call whose context has ended. If the call has finished meanwhile, its channel
// holds the token. Otherwise the caller must not touch it again.
func (c *link) abandon(k *call) (finished, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case k.finished:
		return true, true
	case c.ring.removeUnsent(k):
		<-c.slots
		k.request.Release()
		c.freeCall(k)
		return false, false
	default:
		k.abandoned = true
		return false, true
	}
}

// finishLocked ends a call that was removed from the ring.
func (c *link) finishLocked(k *call, answer *Message, err error) {
	if answer != nil && k.parts.memory != nil && !k.abandoned {
		if err = c.collect(&k.parts, answer); err != nil {
			answer.Release()
			answer = nil
		}
	}
	if s := k.frame.stream; s != nil {
		s.answered(k, answer, err)
		return
	}
	<-c.slots
	if k.abandoned {
		if answer != nil {
			answer.Release()
		}
		c.freeCall(k)
		return
	}
	k.answer, k.err, k.finished = answer, err, true
	k.done <- struct{}{}
}

// deliver gives an answer, or an error in its place, to the oldest call. It returns false if no
// call waits.
func (c *link) deliver(answer *Message, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.sent == 0 {
		return false
	}
	if c.ring.sent == c.opts.inFlight {
		signal(c.wake) // a frame may wait for this slot
	}
	if c.checkTimer != nil {
		c.lastAnswer = time.Now()
	}
	if c.drains(answer) {
		// Another connection may reach another server, even at the same address.
		c.ending = true
		c.up.Store(false)
		c.downReason, c.avoidAddr = errDraining, c.at.Load().text
	}
	c.finishLocked(c.ring.pop(), answer, err)
	c.endIfIdle()
	return true
}

var errDraining = errors.New("the server is shutting down")

// drains reports whether an answer is Draining and another server may be reachable.
func (c *link) drains(answer *Message) bool {
	if answer == nil || answer.Namespace != ErrorNamespace ||
		!(c.oneOfSeveral || c.choose != nil || c.opts.repeatable) {
		return false
	}
	return ParseError(answer).Type == Draining
}

// failSent fails the calls that were sent.
func (c *link) failSent(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		err = ErrClosed
	}
	for c.ring.sent > 0 {
		c.finishLocked(c.ring.pop(), nil, c.callError(true, err))
	}
}

// failUnsent fails the calls that wait to be sent. No sent call may be in the ring.
func (c *link) failUnsent(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := c.ring.nextUnsent(); k != nil; k = c.ring.nextUnsent() {
		k.request.Release()
		k.request = nil
		c.finishLocked(c.ring.pop(), nil, c.callError(false, err))
	}
}

// run owns the connections, one after the other, until the link is closed or retired. conn is the
// first; nil: make it.
func (c *link) run(conn net.Conn, shared *sharedMemory) {
	defer close(c.done)
	defer c.endChecks()
	failures := 0
	for {
		if conn == nil {
			if conn, shared = c.connect(&failures); conn == nil {
				break
			}
		}
		if !c.setConn(conn, shared) {
			break
		}
		began := time.Now()
		answers, err := c.serve(conn)
		conn, err = nil, c.cause(err)
		why := c.disconnected(err)
		c.failSent(err)
		if e, ok := errors.AsType[*RemoteError](err); ok {
			// A server that refuses this client refuses each of its connections: connecting again
			// would not help the callers.
			c.failUnsent(e)
		}
		if c.oneOfSeveral {
			c.failUnsent(why)
		}
		if answers > 0 || c.oneOfSeveral && time.Since(began) >= c.opts.backoff.Most {
			failures = 0
		} else {
			failures++ // accepting and hanging up counts like refusing
		}
	}
	c.failUnsent(c.ended())
}

// ended returns why the link has ended, or is about to.
func (c *link) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired && !c.closed {
		return errRetired
	}
	return ErrClosed
}

// setConn makes conn the connection that Close closes; false if the link is closed or retired
// already.
func (c *link) setConn(conn net.Conn, shared *sharedMemory) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.retired {
		conn.Close()
		shared.disconnect()
		return false
	}
	c.conn, c.shared, c.ending, c.avoidAddr, c.giveUpReason = conn, shared, false, "", nil
	if c.oneOfSeveral {
		c.up.Store(true)
		c.changed()
	}
	return true
}

// disconnected records that the connection has ended, and ends the use of its shared memory. It
// returns the reason for the waiting requests.
func (c *link) disconnected(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shared.disconnect()
	c.shared = nil
	c.conn = nil
	c.up.Store(false)
	if c.downReason = err; c.avoidAddr != "" {
		c.downReason = errDraining
	}
	if c.retired {
		c.close()
	}
	return c.downReason
}

// connect waits until there is a request to send and makes a connection for it; nil if the client
// was closed. Calls that wait while an attempt fails fail with it.
func (c *link) connect(failures *int) (net.Conn, *sharedMemory) {
	// Reconnect at once after a connection breaks, and pause only between failed attempts.
	last := time.Now()
	for {
		if !c.oneOfSeveral && !c.waitUnsent() || !c.sleep(time.Until(last.Add(c.opts.backoff.After(*failures)))) {
			return nil, nil
		}
		conn, shared, err := c.dial(c.ctx)
		if err == nil {
			return conn, shared
		}
		if c.ctx.Err() != nil {
			return nil, nil
		}
		last = time.Now()
		*failures++
		if c.failUnsent(err); c.oneOfSeveral {
			c.mu.Lock()
			c.downReason = err
			c.mu.Unlock()
			c.changed()
		}
	}
}

// waitUnsent waits until a call is ready to send; false if the client was closed.
func (c *link) waitUnsent() bool {
	for {
		c.mu.Lock()
		unsent := c.ring.n > c.ring.sent
		c.mu.Unlock()
		if unsent {
			return true
		}
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			return false
		}
	}
}

// sleep returns false if the client was closed.
func (c *link) sleep(d time.Duration) bool { return backoff.Wait(d, c.ctx.Done()) }
