package shiva

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// ErrClosed is the reason that calls fail with after Close.
var ErrClosed = errors.New("shiva: client is closed")

// A CallError reports why a request got no answer. It wraps the reason: the error of the
// connection, [ErrClosed], or the error of the call's context.
type CallError struct {
	Addr string
	// Bytes of the request may have reached the server; if false, it certainly did not run.
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

// A Client sends messages to a server, or to one of several, and receives their answers. Any number
// of goroutines may use it at once: their requests are pipelined over one connection to each
// server, and answers are matched by their order.
//
// # One server
//
// After a connection is lost, the next request makes a new one. Requests that were sent, even in
// part, on the lost connection fail, since only the caller knows whether they may run twice (see
// [WithRepeatable]); requests that were still waiting are sent on the new one. When connecting
// fails, the requests that wait for the connection fail with the reason; later ones wait for the
// next attempt, after a pause that grows.
//
// # Several servers
//
// Several servers are given by several addresses, or by a name that resolves to several. While
// open, the client keeps a connection to each, to 16 at most ([WithServers]), and uses a server
// once it has answered for the first time. Of two servers chosen at random, a request goes to the
// one with fewer requests waiting.
//
// A request that a server did not execute is sent to another one: a request that was not sent, or
// was answered Draining, Unavailable (no container of the model), NotFound (another server may have
// it) or, once, Overloaded. With WithRepeatable, so is a request whose answer or, once, container
// was lost, unless the error says that the request ended the container, or that waits for a silent
// server: one that has answered nothing for 2 s, and then fails to answer a liveness check on
// another connection within 2 s. When no server is left and waiting may help, the client starts
// over after a pause, until the request's context ends or, if that has no deadline, for as long as
// an attempt to connect may take (10 s). If there is still no answer, the error is an
// [*AttemptsError] with the addresses and what happened at each.
//
// Feedback goes to another server only if it was not sent or was answered Draining.
//
// While the client is in use, names are looked up again every 20 s, and every second while a server
// is unreachable. A server whose address its name no longer has gets no further requests, and
// answers those it has. A name that cannot be resolved, or resolves to nothing, keeps its last
// addresses.
type Client struct {
	opts options
	name string       // the addresses, as given
	seed maphash.Seed // decides which servers are used if there are too many
	// The client's one server, if there can be no other; nil: there may be others.
	onlyLink *link

	ctx       context.Context // until Close
	close     context.CancelFunc
	changed   chan struct{}           // holds a token after a link connected or failed to
	links     atomic.Pointer[[]*link] // to the servers in use; not empty after Dial
	lookupDue atomic.Int64            // time of the next lookup, Unix nanoseconds; 0: never

	lookups sync.WaitGroup
	sources []*source // owned by Dial, and then by the lookup under way

	mu     sync.Mutex
	all    []*link // all that run: links, and retired ones
	closed bool
}

// Dial connects to a server, or to several whose addresses are separated by commas. An address is
// host:port, a host alone for [DefaultPort], either of these after "tls://" if the server speaks
// TLS (see [WithTLS]), or "unix:PATH" for a socket on this machine ("unix:@name": an abstract one).
// A host with several addresses of one family stands for several servers; if it has several of both
// families, the IPv4 addresses are used, on the assumption that each server has both.
//
// The context bounds only this first attempt to connect. Of several servers, one has to answer.
//
// The Client has a goroutine or two for each server until it is closed.
func Dial(ctx context.Context, addr string, opts ...Option) (*Client, error) {
	o := newOptions(opts)
	list, err := parseAddresses(addr, o.tls != nil)
	if err != nil {
		return nil, err
	}
	if err := o.setDefaultToken(); err != nil {
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

// Close ends the connections and fails the calls in progress. When it returns, no goroutine of the
// client is left.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.close()
	c.lookups.Wait() // no links are added after this
	for _, l := range c.all {
		l.Close()
	}
	return nil
}

// Do sends m and waits for its answer, which the caller must release. m is not retained: it is
// encoded before Do waits for the answer, and may be changed or released when Do returns.
//
// The error is a [*RemoteError] if the server answered "!error", a [*DecodeError] if the answer
// could not be decoded, a [*CallError] if there was no answer, and an [*AttemptsError], which wraps
// these, if all of several servers failed. If ctx ends before the answer arrives, Do returns at
// once with an error that wraps ctx's; a request that was sent still counts as in flight on the
// connection ([WithInFlight]) until the server has answered it.
func (c *Client) Do(ctx context.Context, m *Message) (*Message, error) {
	return c.ask(ctx, m, c.opts.sendDeadline)
}

// ask is Do; tell: send the deadline to the server.
func (c *Client) ask(ctx context.Context, m *Message, tell bool) (*Message, error) {
	if c.onlyLink != nil {
		return c.onlyLink.Do(ctx, m, tell)
	}
	c.lookUpIfDue()
	return c.tryServers(ctx, m, tell)
}
