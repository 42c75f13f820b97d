package grpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/grpc/wire"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/server/internal/unfinished"
)

// unary wraps a generated handler so that package wire receives its message.
func (d *Door) unary(method grpc.MethodDesc) handler {
	return func(w *wire.Stream, stream grpc.ServerStream) error {
		who := d.who(stream.Context())
		var use access.Use
		defer use.End()
		bounds := func() wire.Bounds {
			s := d.settings.Load()
			b := wire.Bounds{Bytes: s.Limits.MetadataBytes, Setting: "limits.metadata_bytes", Timeout: s.MessageTimeout,
				Memory: &s.Memory}
			b.Sender = unfinished.Sender{Payers: who.Payers(connOf(stream.Context()).Account()),
				Stranger: who.Enter() != nil}
			if publicCalls[method.MethodName] {
				b.Bytes, b.Setting = freeBytes, "the limit for a question about health"
			} else {
				b.Admit = func(bytes int64) error { return connOf(stream.Context()).charge(&use, who, bytes) }
			}
			return b
		}
		decode := func(into any) error {
			if err := d.receiveOne(stream.Context(), w, bounds, func(m *wire.Message) {
				if err := proto.Unmarshal(m.All(), into.(proto.Message)); err != nil {
					m.Malformed("%v", err)
				}
			}); err != nil {
				return err
			}
			if q, ok := into.(interface{ GetRepositoryName() string }); ok && q.GetRepositoryName() != "" {
				return fault.Invalid("repository_name %q: this server has one repository, without a name",
					q.GetRepositoryName())
			}
			return unimplemented[method.MethodName]
		}
		answer, err := method.Handler(&service{door: d, predict: d.As(who), who: who}, stream.Context(), decode, nil)
		if err != nil {
			return err
		}
		use.Answered()
		return wire.Lost(stream.SendMsg(answer))
	}
}

// freeBytes is the size up to which messages cost nothing that ask about health or the protocol.
const freeBytes = 1 << 10

// mostBytes bounds the messages of services other than that of the protocol: the largest are those
// of KEDA, which may have a certificate.
const mostBytes = 64 << 10

// chargeLarge charges a message of such a service to its client's quotas if it is larger than it
// need be.
func (d *Door) chargeLarge(ctx context.Context, message any) error {
	m, ok := message.(proto.Message)
	if !ok || proto.Size(m) <= freeBytes {
		return nil
	}
	var use access.Use
	defer use.End()
	return asStatus(connOf(ctx).charge(&use, d.who(ctx), int64(proto.Size(m))))
}

// A chargedStream charges the large messages of a stream.
type chargedStream struct {
	grpc.ServerStream
	door *Door
}

func (s chargedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.door.chargeLarge(s.Context(), m)
}

// publicCalls are the calls that need no identity.
var publicCalls = map[string]bool{"ServerLive": true, "ServerReady": true}

// changingCalls maps each call that changes something to its action and its object.
var changingCalls = map[string][2]string{
	"RepositoryModelLoad": {"load", "model"}, "RepositoryModelUnload": {"unload", "model"},
	"SystemSharedMemoryRegister": {"register", "region"}, "SystemSharedMemoryUnregister": {"unregister", "region"},
}

// credentialsOf returns the credentials in a call's metadata and of its connection.
func credentialsOf(ctx context.Context) access.Credentials {
	shown := access.Bearer(access.InMetadata, metadata.ValueFromIncomingContext(ctx, "authorization"))
	shown.Certificate = connOf(ctx).certificate
	return shown
}

// who returns the identity of the caller.
func (d *Door) who(ctx context.Context) *access.Identity {
	shown := credentialsOf(ctx)
	return d.identities.Who(&shown)
}

// A service answers the calls of the protocol that are not inference. Its errors are those of
// gate's table, or wrap errUnimplemented.
type service struct {
	// For inference, see Door.description, and for calls that are not offered.
	pb.UnimplementedGRPCInferenceServiceServer
	door    *Door
	predict *predict.Service // as the caller may see it
	who     *access.Identity
}

func (s *service) ServerLive(context.Context, *pb.ServerLiveRequest) (*pb.ServerLiveResponse, error) {
	return &pb.ServerLiveResponse{Live: true}, nil
}

func (s *service) ServerReady(context.Context, *pb.ServerReadyRequest) (*pb.ServerReadyResponse, error) {
	return &pb.ServerReadyResponse{Ready: s.predict.Ready().Ready}, nil
}

// ModelReady returns no error: an unknown model is not ready, and clients call it before the model
// that they wait for exists.
func (s *service) ModelReady(_ context.Context, q *pb.ModelReadyRequest) (*pb.ModelReadyResponse, error) {
	r, err := s.predict.ModelReady(q.Name, q.Version)
	return &pb.ModelReadyResponse{Ready: r.Ready && err == nil}, nil
}

// convert turns an answer of package predict into a message, unless there is an error. Both have
// the same JSON members and the same words for enumerations; members without a field in the message
// are dropped.
func convert[M proto.Message](message M, answer any, err error) (M, error) {
	var none M
	if err != nil {
		return none, err
	}
	text, err := json.Marshal(answer)
	if err == nil {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, message)
	}
	if err != nil {
		return none, fmt.Errorf("%w: %w", fault.ErrInternal, err)
	}
	return message, nil
}

func (s *service) ServerMetadata(ctx context.Context, _ *pb.ServerMetadataRequest) (*pb.ServerMetadataResponse, error) {
	return convert(&pb.ServerMetadataResponse{}, s.predict.Server(connOf(ctx).Door()), nil)
}

func (s *service) ModelMetadata(_ context.Context, q *pb.ModelMetadataRequest) (*pb.ModelMetadataResponse, error) {
	m, err := s.predict.Model(q.Name, q.Version)
	return convert(&pb.ModelMetadataResponse{}, m, err)
}

func (s *service) ModelConfig(_ context.Context, q *pb.ModelConfigRequest) (*pb.ModelConfigResponse, error) {
	c, err := s.predict.ModelConfig(q.Name, q.Version)
	return convert(&pb.ModelConfigResponse{}, map[string]predict.ModelConfig{"config": c}, err)
}

func (s *service) ModelStatistics(_ context.Context,
	q *pb.ModelStatisticsRequest) (*pb.ModelStatisticsResponse, error) {
	list, err := s.predict.Statistics(q.Name, q.Version)
	out, err := convert(&pb.ModelStatisticsResponse{}, list, err)
	// Triton's answers have both; here cache look-ups are not timed.
	for _, m := range out.GetModelStats() {
		m.InferenceStats.CacheHit, m.InferenceStats.CacheMiss = &pb.StatisticDuration{}, &pb.StatisticDuration{}
	}
	return out, err
}

func (s *service) RepositoryIndex(_ context.Context,
	q *pb.RepositoryIndexRequest) (*pb.RepositoryIndexResponse, error) {
	return convert(&pb.RepositoryIndexResponse{}, map[string][]predict.IndexEntry{"models": s.predict.Index(q.Ready)},
		nil)
}

func (s *service) RepositoryModelLoad(ctx context.Context,
	q *pb.RepositoryModelLoadRequest) (*pb.RepositoryModelLoadResponse, error) {
	return &pb.RepositoryModelLoadResponse{}, s.predict.Load(ctx, s.caller(ctx), q.ModelName,
		slices.Sorted(maps.Keys(q.Parameters)))
}

func (s *service) RepositoryModelUnload(ctx context.Context,
	q *pb.RepositoryModelUnloadRequest) (*pb.RepositoryModelUnloadResponse, error) {
	return &pb.RepositoryModelUnloadResponse{}, s.predict.Unload(s.caller(ctx), q.ModelName)
}

// caller identifies the client, and the door that it uses.
func (s *service) caller(ctx context.Context) predict.Caller {
	return predict.Caller{Source: sourceOf(ctx, s.who), Listener: connOf(ctx).Door()}
}

// sourceOf identifies the client for the audit trail.
func sourceOf(ctx context.Context, who *access.Identity) access.Source {
	return access.Source{Identity: who.Name(), Address: connOf(ctx).Conn.RemoteAddr().String(), Door: "grpc"}
}

// errUnimplemented is the only error without a row in gate's table.
var errUnimplemented = errors.New("not offered by this server")

// unimplemented are the calls of the protocol's extensions that this server does not have.
var unimplemented = map[string]error{
	"CudaSharedMemoryRegister": fmt.Errorf("%w: CUDA shared memory is not supported: send the tensors in the message",
		errUnimplemented),
	"TraceSetting": fmt.Errorf("%w: traces are not supported", errUnimplemented),
	"LogSettings": fmt.Errorf("%w: the log's level and format are set in the server's configuration, under [log]",
		errUnimplemented),
}
