package shiva

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
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
	return fmt.Sprintf("shiva: no answer from %s to the request (%s): %v", e.Addr, e.fate(), e.Err)
}

func (e *CallError) fate() string {
	if e.MayHaveRun {
		return "it may have run"
	}
	return "it was not sent"
}

func (e *CallError) Unwrap() error { return e.Err }

// A Client sends messages to a server, or to one of several, and takes their answers. Any number of
// goroutines may use it at once: their requests are pipelined over one connection with each server,
// and answers are matched by their order.
//
// # One server
//
// A connection that is lost is made anew for the next request. A request whose bytes were handed to
// the lost one fails, for only its sender knows whether it may run twice (see [WithRepeatable]);
// one that was still waiting goes out on the new one. When connecting fails, the requests that wait
// for it fail with the reason; further ones wait for the next attempt, which comes after a growing
// pause.
//
// # Several servers
//
// They are the addresses given to [Dial], or those that a name resolves to. A connection with each
// is held while the client is open, 16 at most ([WithServers]); a server counts from its first
// answer on. A request goes to the one that has fewer requests waiting of two that are chosen at
// random.
//
// A request that a server did not execute is sent to another one: it was not sent, or answered
// Draining, Unavailable (no container of the model), NotFound (another server may have it) or,
// once, Overloaded. With WithRepeatable so is one whose answer was lost, that a container took with
// it, or that waits at a server which has fallen silent: no answer for 2 s, and none within 2 s
// when it is asked whether it lives on another connection. When no server is left it begins anew
// after a pause if time may mend that, until its context ends, or for as long as an attempt to
// connect may take (10 s) if that has no deadline. If there is no answer after all the error is an
// [*AttemptsError], which has the addresses and what became of the request at each.
//
// Feedback goes to another server only if it was not sent or was answered Draining.
//
// Names are looked up again while the client is in use, every 20 s, and each second while a server
// cannot be reached. A server whose address is no longer among those of its name gets no further
// requests and answers those it has; a name that cannot be resolved, or resolves to nothing, keeps
// its last addresses.
type Client struct {
	opts options
	name string       // the addresses, as they were given
	seed maphash.Seed // which servers are used of too many
	// The one server of an address that stands for nothing else; nil: there may be others.
	alone *link

	ctx     context.Context // until Close
	close   context.CancelFunc
	changed chan struct{}           // holds a token after a link has connected or failed to
	links   atomic.Pointer[[]*link] // the servers that are used; never empty after Dial
	looks   atomic.Int64            // when names are looked up next, Unix nanoseconds; 0: never

	lookups sync.WaitGroup
	sources []*source // owned by Dial, and then by the lookup under way

	mu     sync.Mutex
	all    []*link // those that run: links, and what was retired
	closed bool
}

// Dial connects to a server, or to several that have commas between them. The address of one is
// host:port, a host alone for [DefaultPort], either of them behind "tls://" where the server speaks
// TLS (see [WithTLS]), or "unix:PATH" for a socket on this machine ("unix:@name": an abstract one).
// A host that has several addresses of one family stands for several servers; if it has such of
// both families those of IPv4 are used, assuming that each server has both.
//
// The context bounds this first connecting only. Of several servers one has to answer.
//
// The Client has a goroutine or two for each server until it is closed.
func Dial(ctx context.Context, addr string, opts ...Option) (*Client, error) {
	o := newOptions(opts)
	list, err := parseAddresses(addr, o.tls != nil)
	if err != nil {
		return nil, err
	}
	if err := o.knowToken(); err != nil {
		return nil, err
	}
	c := &Client{opts: o, name: addr, seed: maphash.MakeSeed(), changed: make(chan struct{}, 1)}
	c.ctx, c.close = context.WithCancel(context.Background())
	if err := c.open(ctx, list); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the connections and fails the calls in progress. It returns when nothing of the client
// runs any more.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.close()
	c.lookups.Wait() // then nobody adds links
	for _, l := range c.all {
		l.Close()
	}
	return nil
}

// Do sends m and waits for its answer, which belongs to the caller, who releases it. m is not
// retained: it is encoded before anything else happens, and may be changed or released when Do
// returns.
//
// The error is a [*RemoteError] if the server answered "!error", a [*DecodeError] if the answer
// could not be decoded, a [*CallError] if there was none, and an [*AttemptsError], which wraps
// those, if several servers were tried in vain. When ctx ends before the answer comes, Do returns
// at once with an error that wraps ctx's; a request that was sent still takes its turn on the
// connection, and one of the places of [WithInFlight], until the server has answered it.
func (c *Client) Do(ctx context.Context, m *Message) (*Message, error) {
	return c.ask(ctx, m, c.opts.sendDeadline)
}

// ask is Do. tell says whether the server is told the deadline.
func (c *Client) ask(ctx context.Context, m *Message, tell bool) (*Message, error) {
	if c.alone != nil {
		return c.alone.Do(ctx, m, tell)
	}
	c.follow()
	return c.insist(ctx, m, tell)
}
