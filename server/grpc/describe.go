package grpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/internal/wire"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/predict"
)

// unary makes a handler of a generated one, whose message is received as all are.
func (d *Door) unary(generated grpc.MethodHandler) handler {
	limitOf := func(s *Settings) limit { return limit{bytes: s.Limits.MetadataBytes, setting: "limits.metadata_bytes"} }
	return func(w wire.Stream, stream grpc.ServerStream) error {
		decode := func(into any) error {
			return d.receiveOne(stream.Context(), w, limitOf, func(s *scanner) {
				var b []byte
				for s.more() {
					b = append(b, s.piece(s.end-s.pos)...)
				}
				if s.err != nil {
					return
				}
				if err := proto.Unmarshal(b, into.(proto.Message)); err != nil {
					s.malformed("%v", err)
				}
			})
		}
		answer, err := generated(&service{door: d}, stream.Context(), decode, nil)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(answer); err != nil {
			return lost(err)
		}
		return nil
	}
}

// A service answers the protocol's questions that are not inference. Its errors are those of
// gate's table, or wrap errUnimplemented.
type service struct {
	pb.UnimplementedGRPCInferenceServiceServer // ModelInfer and ModelStreamInfer, which come another way: see Door.description
	door                                       *Door
}

func (s *service) ServerLive(context.Context, *pb.ServerLiveRequest) (*pb.ServerLiveResponse, error) {
	return &pb.ServerLiveResponse{Live: true}, nil
}

func (s *service) ServerReady(context.Context, *pb.ServerReadyRequest) (*pb.ServerReadyResponse, error) {
	return &pb.ServerReadyResponse{Ready: s.door.Ready().Ready}, nil
}

// ModelReady has no error: a model that does not exist is not ready, and clients that wait for
// one ask before it does.
func (s *service) ModelReady(_ context.Context, q *pb.ModelReadyRequest) (*pb.ModelReadyResponse, error) {
	r, err := s.door.ModelReady(q.Name, q.Version)
	return &pb.ModelReadyResponse{Ready: r.Ready && err == nil}, nil
}

func (s *service) ServerMetadata(context.Context, *pb.ServerMetadataRequest) (*pb.ServerMetadataResponse, error) {
	m := s.door.Server(s.door.Addr())
	return &pb.ServerMetadataResponse{Name: m.Name, Version: m.Version, Extensions: m.Extensions}, nil
}

func (s *service) ModelMetadata(_ context.Context, q *pb.ModelMetadataRequest) (*pb.ModelMetadataResponse, error) {
	m, err := s.door.Model(q.Name, q.Version)
	if err != nil {
		return nil, err
	}
	tensors := func(list []predict.TensorMetadata) []*pb.ModelMetadataResponse_TensorMetadata {
		out := make([]*pb.ModelMetadataResponse_TensorMetadata, len(list))
		for i, t := range list {
			out[i] = &pb.ModelMetadataResponse_TensorMetadata{Name: t.Name, Datatype: t.Datatype, Shape: int64s(t.Shape)}
		}
		return out
	}
	return &pb.ModelMetadataResponse{Name: m.Name, Versions: m.Versions, Platform: m.Platform,
		Inputs: tensors(m.Inputs), Outputs: tensors(m.Outputs), Properties: m.Properties}, nil
}

func (s *service) ModelConfig(_ context.Context, q *pb.ModelConfigRequest) (*pb.ModelConfigResponse, error) {
	c, err := s.door.ModelConfig(q.Name, q.Version)
	if err != nil {
		return nil, err
	}
	out := &pb.ModelConfig{
		Name: c.Name, Platform: c.Platform, Backend: c.Backend,
		VersionPolicy: &pb.ModelVersionPolicy{PolicyChoice: &pb.ModelVersionPolicy_Specific_{
			Specific: &pb.ModelVersionPolicy_Specific{Versions: c.VersionPolicy.Specific.Versions}}},
		MaxBatchSize:           int32(c.MaxBatchSize),
		Parameters:             map[string]*pb.ModelParameter{},
		ModelTransactionPolicy: &pb.ModelTransactionPolicy{Decoupled: c.Transaction.Decoupled},
	}
	for _, t := range c.Input {
		out.Input = append(out.Input, &pb.ModelInput{Name: t.Name, DataType: pb.DataType(pb.DataType_value[t.DataType]), Dims: int64s(t.Dims), Optional: t.Optional,
			Format: pb.ModelInput_Format(pb.ModelInput_Format_value[t.Format])})
	}
	for _, t := range c.Output {
		out.Output = append(out.Output, &pb.ModelOutput{Name: t.Name, DataType: pb.DataType(pb.DataType_value[t.DataType]), Dims: int64s(t.Dims)})
	}
	if b := c.Batching; b != nil {
		out.SchedulingChoice = &pb.ModelConfig_DynamicBatching{DynamicBatching: &pb.ModelDynamicBatching{
			MaxQueueDelayMicroseconds: uint64(b.MaxQueueDelayMicroseconds),
			PriorityLevels:            uint64(b.PriorityLevels),
			DefaultPriorityLevel:      uint64(b.DefaultPriorityLevel),
		}}
	}
	for _, g := range c.InstanceGroup {
		out.InstanceGroup = append(out.InstanceGroup, &pb.ModelInstanceGroup{Name: g.Name, Count: int32(g.Count),
			Kind: pb.ModelInstanceGroup_Kind(pb.ModelInstanceGroup_Kind_value[g.Kind])})
	}
	for key, p := range c.Parameters {
		out.Parameters[key] = &pb.ModelParameter{StringValue: p.StringValue}
	}
	return &pb.ModelConfigResponse{Config: out}, nil
}

func (s *service) ModelStatistics(_ context.Context, q *pb.ModelStatisticsRequest) (*pb.ModelStatisticsResponse, error) {
	list, err := s.door.Statistics(q.Name, q.Version)
	if err != nil {
		return nil, err
	}
	took := func(d predict.Duration) *pb.StatisticDuration {
		return &pb.StatisticDuration{Count: d.Count, Ns: d.Nanos}
	}
	out := &pb.ModelStatisticsResponse{}
	for _, m := range list.Models {
		i := m.InferenceStats
		stats := &pb.ModelStatistics{
			Name: m.Name, Version: m.Version,
			LastInference: uint64(m.LastInference), InferenceCount: m.InferenceCount, ExecutionCount: m.ExecutionCount,
			InferenceStats: &pb.InferStatistics{
				Success: took(i.Success), Fail: took(i.Fail), Queue: took(i.Queue),
				ComputeInput: took(i.ComputeInput), ComputeInfer: took(i.ComputeInfer), ComputeOutput: took(i.ComputeOutput),
				CacheHit: &pb.StatisticDuration{}, CacheMiss: &pb.StatisticDuration{},
			},
		}
		for _, b := range m.BatchStats {
			stats.BatchStats = append(stats.BatchStats, &pb.InferBatchStatistics{BatchSize: uint64(b.BatchSize),
				ComputeInput: took(b.ComputeInput), ComputeInfer: took(b.ComputeInfer), ComputeOutput: took(b.ComputeOutput)})
		}
		out.ModelStats = append(out.ModelStats, stats)
	}
	return out, nil
}

func (s *service) RepositoryIndex(_ context.Context, q *pb.RepositoryIndexRequest) (*pb.RepositoryIndexResponse, error) {
	if err := oneRepository(q.RepositoryName); err != nil {
		return nil, err
	}
	out := &pb.RepositoryIndexResponse{}
	for _, e := range s.door.Index(q.Ready) {
		out.Models = append(out.Models, &pb.RepositoryIndexResponse_ModelIndex{Name: e.Name, Version: e.Version, State: string(e.State), Reason: e.Reason})
	}
	return out, nil
}

func (s *service) RepositoryModelLoad(ctx context.Context, q *pb.RepositoryModelLoadRequest) (*pb.RepositoryModelLoadResponse, error) {
	if err := oneRepository(q.RepositoryName); err != nil {
		return nil, err
	}
	return &pb.RepositoryModelLoadResponse{}, s.door.Load(ctx, s.caller(ctx), q.ModelName, slices.Sorted(maps.Keys(q.Parameters)))
}

func (s *service) RepositoryModelUnload(ctx context.Context, q *pb.RepositoryModelUnloadRequest) (*pb.RepositoryModelUnloadResponse, error) {
	if err := oneRepository(q.RepositoryName); err != nil {
		return nil, err
	}
	return &pb.RepositoryModelUnloadResponse{}, s.door.Unload(s.caller(ctx), q.ModelName)
}

// caller is whose call it is.
func (s *service) caller(ctx context.Context) predict.Caller {
	by := predict.Caller{Door: s.door.Addr()}
	if p, ok := peer.FromContext(ctx); ok {
		by.From = p.Addr.String()
	}
	return by
}

// oneRepository refuses names of repositories: a server has one, and it has no name.
func oneRepository(name string) error {
	if name != "" {
		return fmt.Errorf("%w: repository_name %q: this server has one repository, without a name", scheduler.ErrInvalidInput, name)
	}
	return nil
}

func int64s(list []int) []int64 {
	out := make([]int64, len(list))
	for i, n := range list {
		out[i] = int64(n)
	}
	return out
}

// errUnimplemented is the one error that gate's table has no row for.
var errUnimplemented = errors.New("not implemented")

var (
	errNoRegions = fmt.Errorf("%w: %w", errUnimplemented, errNoSharedMemory)
	errNoTraces  = fmt.Errorf("%w: this server takes no traces", errUnimplemented)
	errNoLogging = fmt.Errorf("%w: the log's level and format are set in the server's configuration, under [log]", errUnimplemented)
)

func (*service) SystemSharedMemoryStatus(context.Context, *pb.SystemSharedMemoryStatusRequest) (*pb.SystemSharedMemoryStatusResponse, error) {
	return nil, errNoRegions
}

func (*service) SystemSharedMemoryRegister(context.Context, *pb.SystemSharedMemoryRegisterRequest) (*pb.SystemSharedMemoryRegisterResponse, error) {
	return nil, errNoRegions
}

func (*service) SystemSharedMemoryUnregister(context.Context, *pb.SystemSharedMemoryUnregisterRequest) (*pb.SystemSharedMemoryUnregisterResponse, error) {
	return nil, errNoRegions
}

func (*service) CudaSharedMemoryStatus(context.Context, *pb.CudaSharedMemoryStatusRequest) (*pb.CudaSharedMemoryStatusResponse, error) {
	return nil, errNoRegions
}

func (*service) CudaSharedMemoryRegister(context.Context, *pb.CudaSharedMemoryRegisterRequest) (*pb.CudaSharedMemoryRegisterResponse, error) {
	return nil, errNoRegions
}

func (*service) CudaSharedMemoryUnregister(context.Context, *pb.CudaSharedMemoryUnregisterRequest) (*pb.CudaSharedMemoryUnregisterResponse, error) {
	return nil, errNoRegions
}

func (*service) TraceSetting(context.Context, *pb.TraceSettingRequest) (*pb.TraceSettingResponse, error) {
	return nil, errNoTraces
}

func (*service) LogSettings(context.Context, *pb.LogSettingsRequest) (*pb.LogSettingsResponse, error) {
	return nil, errNoLogging
}
