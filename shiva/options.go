package shiva

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/shivad/shivad/shiva/backoff"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/token"
)

// An Option changes how a [Client] works.
type Option func(*options)

type options struct {
	dial         func(ctx context.Context, network, addr string) (net.Conn, error)
	dialTimeout  time.Duration
	backoff      backoff.Backoff
	inFlight     int
	limits       Limits
	pool         *tensor.Pool
	sendDeadline bool
	sharedBytes  int64 // 0: no memory is shared
	tls          *tls.Config
	token        *token.Source // nil: the token of the environment
	lookup       lookup        // nil: the dialer resolves names
	servers      int           // used at once, at most
	repeatable   bool
}

// clientPool is the default pool of clients. It has no budget, so that an answer that is never
// released costs only the reuse of its memory.
var clientPool = tensor.NewPool(0)

func newOptions(opts []Option) options {
	o := options{
		dial:        new(net.Dialer).DialContext,
		lookup:      net.DefaultResolver.LookupNetIP,
		servers:     16,
		dialTimeout: 10 * time.Second,
		backoff:     backoff.Backoff{First: 50 * time.Millisecond, Most: 5 * time.Second},
		inFlight:    64,
		pool:        clientPool,
	}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// setDefaultToken finds the token in the environment unless another was set.
func (o *options) setDefaultToken() (err error) {
	if o.token != nil {
		return nil
	}
	if o.token, err = token.FromEnvironment(); err != nil {
		return fmt.Errorf("shiva: %w", err)
	}
	return nil
}

// WithInFlight sets how many requests may wait for their answers on one connection; beyond that, Do
// waits. The default is 64, the minimum 1; shivad accepts 256 per connection.
func WithInFlight(n int) Option { return func(o *options) { o.inFlight = max(n, 1) } }

// WithLimits bounds the answers that are accepted; see [DecoderConfig].
func WithLimits(l Limits) Option { return func(o *options) { o.limits = l } }

// WithPool sets the pool for the memory of requests in flight and of answers. If the pool has a
// budget, answers must be released. The default is one pool without a budget for all clients of the
// process.
func WithPool(p *tensor.Pool) Option { return func(o *options) { o.pool = p } }

// WithDialer replaces the function that makes connections. It is called with "tcp" and the address,
// or "unix" and the path of a socket, and must return when its context ends. It also resolves
// names, unless WithLookup comes after it.
func WithDialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) Option {
	return func(o *options) { o.dial, o.lookup = dial, nil }
}

// WithLookup replaces the function that finds the addresses of a name; it is called like
// [net.Resolver.LookupNetIP]. nil leaves names to the dialer.
func WithLookup(find func(ctx context.Context, network, host string) ([]netip.Addr, error)) Option {
	return func(o *options) { o.lookup = find }
}

// WithServers sets how many servers a client uses at once, if it was given more addresses or a name
// that resolves to more. Each client makes its own choice, and keeps it while other servers come
// and go. The default is 16, the minimum 1.
func WithServers(n int) Option { return func(o *options) { o.servers = max(n, 1) } }

// WithRepeatable permits requests to run twice, as inference may if only its answers matter. A
// request whose answer was lost with its connection is then sent again, to another server or, if
// there is none, over another connection; so is a request to one of several servers that has fallen
// silent. Feedback is never sent again once a server may have it.
func WithRepeatable() Option { return func(o *options) { o.repeatable = true } }

// WithToken sets the token that identifies the client; "" shows none. The default is the token of
// the environment: the variables [token.Env] and [token.FileEnv], which are read at Dial. The file
// is read again for each connection, and when the server no longer accepts the token; if the file
// then has another token, the request is sent again on a new connection.
func WithToken(text string) Option { return func(o *options) { o.token = token.Fixed(text) } }

// WithTokenSource is WithToken for a token that may change, such as one in a file: see
// [token.FromFile].
func WithTokenSource(source *token.Source) Option { return func(o *options) { o.token = source } }

// WithDialTimeout bounds each attempt to connect. The default is 10 s.
func WithDialTimeout(d time.Duration) Option { return func(o *options) { o.dialTimeout = d } }

// WithBackoff sets the shortest and the longest pause between attempts to connect; the pause
// doubles with each failure, and is shortened by a random part of up to half. The default is 50 ms
// to 5 s.
func WithBackoff(shortest, longest time.Duration) Option {
	return func(o *options) { o.backoff = backoff.Backoff{First: shortest, Most: max(shortest, longest)} }
}

// WithDeadlineMetadata makes Do tell the server how long it will wait: if its context has a
// deadline and the message's metadata has no "timeout_ms", Do sends that key, too. The message
// itself is not changed.
func WithDeadlineMetadata() Option { return func(o *options) { o.sendDeadline = true } }
