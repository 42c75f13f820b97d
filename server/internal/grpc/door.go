package grpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"path"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/grpc/wire"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/predict"
)

// Config of the door. All fields must be set, except those whose zero has a meaning.
type Config struct {
	listen.Entrance
	Predict *predict.Service
	// Identities has the identities of clients; nil: none is declared, and all have all rights.
	Identities *access.Identities
	// Needed returns how many replicas a model needs, for KEDA; version "" means all versions. nil:
	// the scaler is not offered.
	Needed func(model, version string) (int, error)

	Streams      int           // most calls of one connection at one time
	IdleTimeout  time.Duration // a connection without a call gets a GOAWAY after this; 0: never
	PingInterval time.Duration // a connection that is silent for this long is pinged
	PingTimeout  time.Duration // and closed if it does not answer for this long
	MinPing      time.Duration // a client that pings more often than this is closed

	Settings // initial
}

// Settings can change while the door is open. grpc-go takes the other fields of Config only once.
type Settings struct {
	Memory gate.Memory // of requests
	listen.Settings
	InFlight int // most requests of one ModelStreamInfer without an answer
	// OutboundBytes bounds a connection's unread answers; requests beyond it wait, see gate.Outbox.
	OutboundBytes int
	// Forward are the keys of a call's metadata, in lower case, that reach the model with each of
	// its requests: see [parameter.Forward].
	Forward []string
	// Limits are those of one message: MessageBytes of a request for inference; MetadataBytes of
	// its names, id and parameters, and of any other request. JSONDepth is not used.
	Limits gate.Limits
}

// A Door listens and serves until Shutdown.
type Door struct {
	*predict.Door

	identities *access.Identities
	log        *slog.Logger
	listener   *listener
	server     *grpc.Server

	// stopping ends when Shutdown begins.
	stopping context.Context
	stop     context.CancelFunc
	serving  sync.WaitGroup
	failed   chan error

	settings atomic.Pointer[Settings]
	refusals refusals

	mu    sync.Mutex
	conns map[*conn]struct{}
	bans  map[listen.Host]time.Time // when a host was last banned
}

// connectTimeout bounds HTTP/2's handshake.
const connectTimeout = 10 * time.Second

// Windows of HTTP/2: how much a client may send ahead. That of a call bounds the requests behind a
// ModelStreamInfer that has no free place. That of a connection is given back as bytes arrive.
// grpc-go's default would let a call's window grow to 16 MiB.
const (
	streamWindow = 1 << 20
	connWindow   = 16 << 20
)

// callWorkers is how many goroutines serve one call after another; a call that finds none free gets
// a goroutine of its own. A worker saves growing a new stack for each call, about a fifth of the
// cost of a small call.
const callWorkers = 256

// Listen opens the door.
func Listen(cfg Config) (*Door, error) {
	d := &Door{Door: cfg.Predict.Door(cfg.Metrics), identities: cmp.Or(cfg.Identities, new(access.Identities)),
		log: cfg.Log, failed: make(chan error, 1),
		conns: make(map[*conn]struct{}), bans: make(map[listen.Host]time.Time)}
	d.settings.Store(&cfg.Settings)
	l, err := listen.Listen(listen.Config{
		Entrance: cfg.Entrance, Door: "grpc",
		Settings: func() listen.Settings { return d.settings.Load().Settings },
	})
	if err != nil {
		return nil, err
	}
	d.stopping, d.stop = context.WithCancel(context.Background())
	d.listener = &listener{l, d}
	d.server = grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec()),
		grpc.StatsHandler(connections{d}),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.MaxConcurrentStreams(uint32(cfg.Streams)),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxHeaderListSize(uint32(min(cfg.Limits.MetadataBytes, math.MaxInt32))),
		grpc.MaxRecvMsgSize(min(cfg.Limits.MetadataBytes, mostBytes)), // others: see Door.bounds
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: cfg.IdleTimeout, Time: cfg.PingInterval,
			Timeout: cfg.PingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: cfg.MinPing, PermitWithoutStream: true}),
		grpc.NumStreamWorkers(callWorkers),
		grpc.WriteBufferSize(writeBuffer),
		experimental.BufferPool(new(buffers)),
		grpc.WaitForHandlers(true),
		grpc.InTapHandle(d.refuseEarly),
		grpc.ChainUnaryInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
				defer d.recovered(&err)
				err = d.throttle(ctx, func() (err error) {
					if err = d.chargeLarge(ctx, req); err == nil {
						reply, err = next(ctx, req)
					}
					return err
				})
				return reply, err
			}),
		grpc.ChainStreamInterceptor(
			func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
				defer d.recovered(&err)
				return d.throttle(stream.Context(), func() error {
					return d.counted(stream.Context(), info.FullMethod, func() error {
						return next(srv, chargedStream{stream, d})
					})
				})
			}),
	)
	d.server.RegisterService(d.description(), &service{door: d})
	healthpb.RegisterHealthServer(d.server, &health{door: d})
	if cfg.Needed != nil {
		pb.RegisterExternalScalerServer(d.server, &scaler{door: d, needed: cfg.Needed})
	}
	reflection.Register(d.server)
	ended := make(chan struct{})
	d.serving.Go(func() { d.watch(ended) })
	d.serving.Go(func() {
		defer close(ended)
		if err := d.server.Serve(d.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			d.failed <- fmt.Errorf("grpc: %w", err)
		}
	})
	return d, nil
}

// Addrs are the addresses on which the door listens.
func (d *Door) Addrs() []net.Addr { return d.listener.All() }

// Failed receives the error that ends serving before Shutdown.
func (d *Door) Failed() <-chan error { return d.failed }

// Configure changes the settings. Those of connections apply to the next connection, InFlight to
// the next ModelStreamInfer, those of messages to the next message of any call, and OutboundBytes
// at once. Any goroutine may call it.
func (d *Door) Configure(s Settings) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settings.Store(&s)
	for c := range d.conns {
		c.setLimit(s.OutboundBytes)
	}
}

// Settings returns the current ones.
func (d *Door) Settings() Settings { return *d.settings.Load() }

// Shutdown closes the door: it accepts no connections, sends clients a GOAWAY, refuses messages
// that have arrived only in part, and sends the answers that are due. It returns when all
// connections have ended. When ctx ends first, it cuts off the rest, whose clients do not read. The
// scheduler must have answered everything before.
func (d *Door) Shutdown(ctx context.Context) {
	d.stop()
	hurry := context.AfterFunc(ctx, d.server.Stop)
	d.server.GracefulStop()
	if !hurry() {
		d.log.Warn("cut off grpc connections whose clients read neither their answers nor the GOAWAY")
	}
	d.serving.Wait()
}

// recovered turns a panic of a handler into an error: a bug in one call must not end the others.
func (d *Door) recovered(err *error) {
	if p := recover(); p != nil {
		*err = statusOf(d.bug(p)).Err()
	}
}

func (d *Door) bug(p any) error {
	d.log.Error("panic in the grpc endpoint", "panic", p, "stack", string(debug.Stack()))
	return fmt.Errorf("%w: panic: %v", fault.ErrInternal, p)
}

// counted runs a call, which is a stream of HTTP/2, if its client's quotas allow one more.
func (d *Door) counted(ctx context.Context, method string, run func() error) error {
	if publicCalls[path.Base(method)] {
		return run()
	}
	c, who := connOf(ctx), d.who(ctx)
	err := c.Claim(who.Account())
	var taken access.Payers
	if err == nil {
		taken, err = who.Payers(c.Account()).Open(access.GRPCStreams)
	}
	if err != nil {
		d.Refused(err, time.Now())
		return statusOf(err).Err()
	}
	defer taken.Close(access.GRPCStreams)
	return run()
}

// description is that of the service, with the door's handlers around the generated ones or in
// their place, so that package wire reads all messages.
func (d *Door) description() *grpc.ServiceDesc {
	desc := pb.GRPCInferenceService_ServiceDesc
	desc.Methods, desc.Streams = nil, nil
	for _, m := range pb.GRPCInferenceService_ServiceDesc.Methods {
		handler := d.unary(m)
		if m.MethodName == "ModelInfer" {
			handler = d.infer
		}
		// Each method is declared as a stream: only for those does grpc-go run interceptors itself.
		desc.Streams = append(desc.Streams,
			grpc.StreamDesc{StreamName: m.MethodName, Handler: d.guarded(handler), ServerStreams: true})
	}
	for _, s := range pb.GRPCInferenceService_ServiceDesc.Streams {
		s.Handler = d.guarded(d.inferStream) // ModelStreamInfer is the only one
		desc.Streams = append(desc.Streams, s)
	}
	return &desc
}

// A handler serves a call, given the transport's side of it.
type handler func(w *wire.Stream, stream grpc.ServerStream) error

// guarded adapts a handler to grpc-go, and gives errors their status.
func (d *Door) guarded(h handler) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		w, err := wire.Of(stream.Context(), statusOf)
		if err == nil {
			err = h(w, stream)
		}
		return asStatus(err)
	}
}
