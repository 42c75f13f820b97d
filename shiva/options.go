package shiva

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/token"
)

// An Option changes how a [Client] works.
type Option func(*options)

type options struct {
	dial         func(ctx context.Context, network, addr string) (net.Conn, error)
	dialTimeout  time.Duration
	minBackoff   time.Duration
	maxBackoff   time.Duration
	inFlight     int
	limits       Limits
	pool         *tensor.Pool
	sendDeadline bool
	sharedBytes  int64 // 0: no memory is shared
	tls          *tls.Config
	token        *token.Source // nil: that of the environment
}

// clientPool is the pool of clients that were given none. It has no budget, so that an answer
// which is never released costs nothing but its reuse.
var clientPool = tensor.NewPool(0)

func newOptions(opts []Option) options {
	o := options{
		dial:        new(net.Dialer).DialContext,
		dialTimeout: 10 * time.Second,
		minBackoff:  50 * time.Millisecond,
		maxBackoff:  5 * time.Second,
		inFlight:    64,
		pool:        clientPool,
	}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// knowToken finds the token of the environment unless there is another.
func (o *options) knowToken() (err error) {
	if o.token != nil {
		return nil
	}
	if o.token, err = token.FromEnvironment(); err != nil {
		return fmt.Errorf("shiva: %w", err)
	}
	return nil
}

// WithInFlight sets how many requests may be on the connection without their answers; the next
// Do waits for one of them. The default is 64, the least 1; a server of ours takes 256 of a
// connection.
func WithInFlight(n int) Option { return func(o *options) { o.inFlight = max(n, 1) } }

// WithLimits bounds the answers that are accepted, as [DecoderConfig] says.
func WithLimits(l Limits) Option { return func(o *options) { o.limits = l } }

// WithPool sets where the memory of requests on their way and of answers comes from. With a
// pool that has a budget, answers must be released. The default is one pool without a budget
// for all clients of the process.
func WithPool(p *tensor.Pool) Option { return func(o *options) { o.pool = p } }

// WithDialer replaces the function that makes connections. It is called with "tcp" and the address,
// or "unix" and the path of a socket, and must end when its context does.
func WithDialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) Option {
	return func(o *options) { o.dial = dial }
}

// WithToken sets the token that shows the server who the client is; "" shows none. The default is
// that of the environment: the variables of [token.Env] and [token.FileEnv], which are read at
// Dial. The file is read again for each connection, and when the server takes its token no longer;
// if it has another one by then, the request is sent again, on a new connection.
func WithToken(text string) Option { return func(o *options) { o.token = token.Fixed(text) } }

// WithTokenSource is WithToken with a token that may be replaced, as the default's file may be: see
// [token.FromFile].
func WithTokenSource(source *token.Source) Option { return func(o *options) { o.token = source } }

// WithDialTimeout bounds each attempt to connect. The default is 10 s.
func WithDialTimeout(d time.Duration) Option { return func(o *options) { o.dialTimeout = d } }

// WithBackoff sets the shortest and the longest time between attempts to connect; the time
// doubles with each failure, and a random half of it is left off. The default is 50 ms to 5 s.
func WithBackoff(shortest, longest time.Duration) Option {
	return func(o *options) { o.minBackoff, o.maxBackoff = shortest, max(shortest, longest) }
}

// WithDeadlineMetadata lets Do tell the server how long it will wait: when its context has a
// deadline and the message's metadata no "timeout_ms", that key is added. The message itself is
// not changed.
func WithDeadlineMetadata() Option { return func(o *options) { o.sendDeadline = true } }
