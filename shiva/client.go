package shiva

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/shivad/shivad/shiva/jsontext"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// ErrClosed is why a call fails whose client was closed.
var ErrClosed = errors.New("shiva: client is closed")

// A CallError is why a request got no answer. It wraps the reason: that of the connection,
// [ErrClosed], or that of the call's context.
type CallError struct {
	Addr string
	// Bytes of the request may have reached the server; false: it certainly did not run.
	MayHaveRun bool
	Err        error
}

func (e *CallError) Error() string {
	fate := "it was not sent"
	if e.MayHaveRun {
		fate = "it may have run"
	}
	return fmt.Sprintf("shiva: no answer from %s to the request (%s): %v", e.Addr, fate, e.Err)
}

func (e *CallError) Unwrap() error { return e.Err }

// A Client sends messages to one server and takes its answers, over one connection at a time.
// Any number of goroutines may use it at once: their requests are pipelined, and answers are
// matched by their order.
//
// A connection that is lost is made anew for the next request. A request whose bytes were
// handed to the lost one fails, for only its sender knows whether it may run twice; one that
// was still waiting goes out on the new one. When connecting fails, the requests that wait for
// it fail with the reason; further ones wait for the next attempt, which comes after a growing
// pause.
type Client struct {
	addr  string
	opts  options
	sizes outputSizes

	ctx   context.Context // until Close
	close context.CancelFunc
	slots chan struct{} // one taken by each call in the ring
	wake  chan struct{} // holds a token when there may be something to send
	done  chan struct{} // closed when run has ended
	// Holds *call. Clients do not share it: channels may not leave a synctest bubble.
	calls sync.Pool

	mu     sync.Mutex
	ring   ring
	conn   net.Conn      // the last one made
	shown  string        // the token that it has shown
	leaves bool          // it ends when what was sent on it is answered
	shared *sharedMemory // of conn; nil: none, or it is lost
	closed bool
}

// A call is one Do, or a frame of a stream.
type call struct {
	// Gets a token when finished is set, unless the call was abandoned; capacity 1.
	done chan struct{}

	// Guarded by Client.mu.
	request   *tensor.Buffer // as it goes on the wire, until it is taken to be sent
	shown     string         // the token of the connection that it was sent on
	answer    *Message
	err       error
	finished  bool
	abandoned bool // nobody waits for the answer any more; it is dropped
	frame     frameCall

	parts parts // of shared memory
}

func (c *Client) newCall(request *tensor.Buffer, p parts) *call {
	k, _ := c.calls.Get().(*call)
	if k == nil {
		k = &call{done: make(chan struct{}, 1)}
	}
	k.request, k.parts = request, p
	return k
}

func (c *Client) freeCall(k *call) {
	k.parts.release()
	k.request, k.shown, k.answer, k.err, k.finished, k.abandoned, k.frame = nil, "", nil, nil, false, false, frameCall{}
	c.calls.Put(k)
}

// Dial connects to a server. The address is host:port, a host alone for [DefaultPort], either of
// them behind "tls://" where the server speaks TLS (see [WithTLS]), or "unix:PATH" for a socket on
// this machine ("unix:@name": an abstract one). The context bounds this first connecting only.
//
// The Client has a goroutine or two until it is closed.
func Dial(ctx context.Context, addr string, opts ...Option) (*Client, error) {
	if err := unixsocket.CheckAddress(addr); err != nil {
		return nil, fmt.Errorf("shiva: %q: %w", addr, err)
	}
	o := newOptions(opts)
	host, encrypted := cutTLS(addr)
	if o.tls != nil && !encrypted {
		return nil, fmt.Errorf("shiva: expected tls://host:port with WithTLS, got %q", addr)
	}
	if _, unix := unixsocket.Cut(addr); !unix {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(host, strconv.Itoa(DefaultPort))
		}
		if addr = host; encrypted {
			addr = tlsScheme + "//" + host
		}
	}
	return start(ctx, addr, o, 0)
}

// start makes a client that has room for some requests beside those in flight.
func start(ctx context.Context, addr string, opts options, room int) (*Client, error) {
	if err := opts.knowToken(); err != nil {
		return nil, err
	}
	c := &Client{
		addr:  addr,
		opts:  opts,
		slots: make(chan struct{}, opts.inFlight),
		wake:  make(chan struct{}, 1),
		done:  make(chan struct{}),
		ring:  newRing(opts.inFlight + room),
	}
	conn, shared, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.conn, c.shared = conn, shared
	c.ctx, c.close = context.WithCancel(context.Background())
	go c.run(conn, shared) // until Close, which waits for it
	return c, nil
}

// dial makes a connection. If the server does not know the token it is looked for once more: it may
// have been replaced a moment ago.
func (c *Client) dial(ctx context.Context) (net.Conn, *sharedMemory, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.dialTimeout)
	defer cancel()
	for {
		token := c.opts.token.Token()
		conn, shared, err := c.dialAs(ctx, token)
		if e, ok := errors.AsType[*RemoteError](err); ok && e.Type == Unauthenticated && token != c.opts.token.Token() {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("shiva: connecting to %s: %w", c.addr, err)
		}
		c.mu.Lock()
		c.shown = token
		c.mu.Unlock()
		return conn, shared, nil
	}
}

func (c *Client) dialAs(ctx context.Context, token string) (net.Conn, *sharedMemory, error) {
	host, encrypted := cutTLS(c.addr)
	network, addr := unixsocket.Target(host)
	conn, err := c.opts.dial(ctx, network, addr)
	if err == nil && encrypted {
		conn, err = handshake(ctx, conn, addr, c.opts.tls)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := introduce(ctx, conn, token); err != nil {
		conn.Close()
		return nil, nil, err
	}
	shared, err := c.share(ctx, conn)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	return conn, shared, nil
}

// introduce shows the server at the other end of a new connection the client's token, in the first
// message as it must be. That the server does not know it is an error; an older server has no
// answer to the question, and no tokens.
func introduce(ctx context.Context, conn net.Conn, token string) error {
	if token == "" {
		return nil
	}
	answer, err := exchange(ctx, conn, &Message{Namespace: WhoAmINamespace, Metadata: append(jsontext.AppendMember(nil, TokenKey, jsontext.AppendString(nil, token)), '}')})
	if err != nil {
		return err
	}
	defer answer.Release()
	if e := ParseError(answer); e != nil && e.Type == Unauthenticated {
		return e
	}
	return nil
}

// renew is for a request whose token the server takes no longer. It reports whether there is
// another token to try. A connection that has not shown that one ends when all that was sent on it
// is answered.
func (c *Client) renew(refused string) bool {
	token := c.opts.token.Token()
	if token == refused {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewLocked(token)
	return true
}

func (c *Client) renewLocked(token string) {
	if token != c.shown {
		c.leaves = true
		c.leave()
	}
}

// leave ends a connection that is to end, once nothing is to come on it.
func (c *Client) leave() {
	if c.leaves && c.ring.sent == 0 {
		c.conn.Close()
	}
}

// exchange sends a message on a connection that nobody else uses, and reads its answer.
func exchange(ctx context.Context, conn net.Conn, m *Message) (*Message, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
		defer conn.SetDeadline(time.Time{})
	}
	request, err := AppendMessage(nil, m)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	d := NewDecoder(DecoderConfig{})
	defer d.Close()
	for block := make([]byte, 4<<10); ; {
		n, err := conn.Read(block)
		if err != nil {
			return nil, err
		}
		if _, answer, err := d.Push(block[:n]); answer != nil || err != nil {
			return answer, err
		}
	}
}

// Close ends the connection and fails the calls in progress. It returns when nothing of the
// client runs any more.
func (c *Client) Close() error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		c.close()
		c.conn.Close()
	}
	c.mu.Unlock()
	<-c.done
	return nil
}

// Do sends m and waits for its answer, which belongs to the caller, who releases it. m is not
// retained: it is encoded before anything else happens, and may be changed or released when Do
// returns.
//
// The error is a [*RemoteError] if the server answered "!error", a [*DecodeError] if the answer
// could not be decoded, and a [*CallError] if there was none. When ctx ends before the answer
// comes, Do returns at once with a CallError that wraps ctx's error; a request that was sent
// still takes its turn on the connection, and one of the places of [WithInFlight], until the
// server has answered it.
func (c *Client) Do(ctx context.Context, m *Message) (*Message, error) {
	for {
		answer, err := c.do(ctx, m)
		if err != errStale && err != errRenewed {
			return answer, err
		}
	}
}

func (c *Client) do(ctx context.Context, m *Message) (*Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, c.callError(false, err)
	}
	m, parts := c.place(m)
	request, err := c.encode(ctx, m)
	if err == nil {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			request.Release()
			err = c.callError(false, ctx.Err())
		case <-c.ctx.Done():
			request.Release()
			err = c.callError(false, ErrClosed)
		}
	}
	if err != nil {
		parts.release()
		return nil, err
	}
	k := c.newCall(request, parts)
	if !c.enqueue(k) {
		return nil, c.callError(false, ErrClosed)
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		if finished, sent := c.abandon(k); !finished {
			return nil, c.callError(sent, ctx.Err())
		}
		<-k.done
	}
	answer, err, shown := k.answer, k.err, k.shown
	c.freeCall(k)
	if err != nil {
		return nil, err
	}
	if e := ParseError(answer); e != nil {
		answer.Release()
		if e.Type == Unauthenticated && c.renew(shown) {
			return nil, errRenewed
		}
		return nil, e
	}
	return answer, nil
}

func (c *Client) callError(mayHaveRun bool, err error) *CallError {
	return &CallError{Addr: c.addr, MayHaveRun: mayHaveRun, Err: err}
}

// encode returns m as it goes on the wire. A copy, although large tensors could be sent from
// where they lie: Do returns when its context ends, and the caller must then have his memory
// back, while the bytes may be half sent.
func (c *Client) encode(ctx context.Context, m *Message) (*tensor.Buffer, error) {
	if deadline, ok := ctx.Deadline(); ok && c.opts.sendDeadline {
		withTimeout := *m
		withTimeout.Metadata = appendTimeout(nil, m.Metadata, time.Until(deadline))
		m = &withTimeout
	}
	return c.encodeAsIs(m)
}

func (c *Client) encodeAsIs(m *Message) (*tensor.Buffer, error) {
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
	if jsontext.Field(metadata, timeoutKey) != nil {
		return append(dst, metadata...)
	}
	return appendObject(dst, appendTimeoutMember(nil, timeout), metadata)
}

const timeoutKey = "timeout_ms"

func appendTimeoutMember(dst []byte, timeout time.Duration) []byte {
	dst = append(dst, `"`+timeoutKey+`":`...)
	return strconv.AppendFloat(dst, max(timeout.Seconds()*1e3, 0), 'f', 3, 64)
}

// appendObject appends an object of the members and those of metadata.
func appendObject(dst, members, metadata []byte) []byte {
	s := jsontext.Scanner{Text: metadata}
	if s.Peek() != '{' && s.At < len(metadata) {
		return append(dst, metadata...) // no object: the server's to refuse
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

// errStale is the end of a call whose tensors are in the memory of a connection that was lost
// before the request was sent.
var errStale = errors.New("the connection was lost, with the shared memory that has the tensors")

// errRenewed is the end of a call that was refused by a token, for which there is another now.
var errRenewed = errors.New("the server has refused a token that has been replaced")

// dropStale ends the next calls to be sent that cannot be, for errStale.
func (c *Client) dropStale() {
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

// enqueue puts a call, which has a slot, into the ring. If the client is closed it ends the
// call instead.
func (c *Client) enqueue(k *call) bool {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.slots
		k.request.Release()
		c.freeCall(k)
		return false
	}
	c.ring.push(k)
	c.mu.Unlock()
	signal(c.wake)
	return true
}

// signal puts a token into a channel that has room for one.
func signal(tokens chan struct{}) {
	select {
	case tokens <- struct{}{}:
	default:
	}
}

// abandon gives a call up whose context has ended. If it has finished meanwhile, its token is
// in its channel. Otherwise the caller must not touch it again.
func (c *Client) abandon(k *call) (finished, sent bool) {
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

// finishLocked ends a call that was taken out of the ring.
func (c *Client) finishLocked(k *call, answer *Message, err error) {
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

// deliver gives an answer, or an error in its place, to the oldest call. It is false if none waits.
func (c *Client) deliver(answer *Message, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.sent == 0 {
		return false
	}
	if c.ring.sent == c.opts.inFlight {
		signal(c.wake) // a frame may wait for this place
	}
	c.finishLocked(c.ring.pop(), answer, err)
	c.leave()
	return true
}

// failSent ends the calls that were sent.
func (c *Client) failSent(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		err = ErrClosed
	}
	for c.ring.sent > 0 {
		c.finishLocked(c.ring.pop(), nil, c.callError(true, err))
	}
}

// failUnsent ends the calls that wait to be sent, while none is sent.
func (c *Client) failUnsent(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := c.ring.nextUnsent(); k != nil; k = c.ring.nextUnsent() {
		k.request.Release()
		k.request = nil
		c.finishLocked(c.ring.pop(), nil, c.callError(false, err))
	}
}

// run owns the connections, one after the other, until the client is closed.
func (c *Client) run(conn net.Conn, shared *sharedMemory) {
	defer close(c.done)
	failures := 0
	for c.setConn(conn, shared) {
		answers, err := c.serve(conn)
		c.unshare()
		c.failSent(err)
		if e, ok := errors.AsType[*RemoteError](err); ok {
			// A server that refuses this client says so once: to connect again would not answer
			// the callers.
			c.failUnsent(e)
		}
		if answers > 0 {
			failures = 0
		} else {
			failures++ // a server that accepts and hangs up is no better than one that refuses
		}
		if conn, shared = c.connect(&failures); conn == nil {
			break
		}
	}
	c.failUnsent(ErrClosed)
}

// setConn makes conn the one that Close closes; false if the client is closed already.
func (c *Client) setConn(conn net.Conn, shared *sharedMemory) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		conn.Close()
		shared.disconnect()
		return false
	}
	c.conn, c.shared, c.leaves = conn, shared, false
	return true
}

// unshare ends the use of the memory of a connection that has ended.
func (c *Client) unshare() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shared.disconnect()
	c.shared = nil
}

// connect waits until there is something to send and makes a connection for it; nil if the
// client was closed. The calls that wait while an attempt fails are failed.
func (c *Client) connect(failures *int) (net.Conn, *sharedMemory) {
	// A connection that breaks is made anew at once; the pause is between attempts that lead to
	// nothing.
	last := time.Now()
	for {
		if !c.waitUnsent() || !c.sleep(time.Until(last.Add(c.backoff(*failures)))) {
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
		c.failUnsent(err)
	}
}

// backoff is the pause after so many failures.
func (c *Client) backoff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	d := c.opts.maxBackoff
	if n := failures - 1; n < 32 && c.opts.minBackoff < d>>n {
		d = c.opts.minBackoff << n
	}
	return d - time.Duration(rand.Int64N(int64(d)/2+1))
}

// waitUnsent waits for a call that wants to be sent; false if the client was closed.
func (c *Client) waitUnsent() bool {
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

// sleep is false if the client was closed.
func (c *Client) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.ctx.Done():
		return false
	}
}
