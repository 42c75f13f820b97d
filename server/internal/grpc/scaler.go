package grpc

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/shivad/shivad/scheduler/naming"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
)

// A scaler is an external scaler for KEDA: it reports how many replicas a model needs. The admin
// door shows the same number, so callers need the right to read there.
type scaler struct {
	pb.UnimplementedExternalScalerServer
	door   *Door
	needed func(model, version string) (int, error) // Config.Needed
}

// scalerMetric is the scaler's only metric. KEDA divides it by its target and rounds up.
const scalerMetric = "replicas-needed"

// kedaKeys are the keys of scalerMetadata by which KEDA itself reaches the scaler.
var kedaKeys = []string{"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey"}

// replicas returns how many replicas the caller's model needs.
func (s *scaler) replicas(ctx context.Context, ref *pb.ScaledObjectRef) (int, error) {
	if err := s.door.who(ctx).Check(access.AdminRead, ""); err != nil {
		return 0, err
	}
	given := ref.GetScalerMetadata()
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if key != "model" && key != "version" && !slices.Contains(kedaKeys, key) {
			return 0, fault.Invalid("scalerMetadata has the unknown key %.100q: expected model, optionally version, and KEDA's own %s",
				key, strings.Join(kedaKeys, ", "))
		}
	}
	model, version := given["model"], given["version"]
	if model == "" {
		return 0, fault.Invalid("scalerMetadata has no model: expected the name of the model whose replicas are scaled")
	}
	if err := naming.CheckModel(model); err != nil {
		return 0, fault.Invalid("scalerMetadata.model: %w", err)
	}
	if version != "" {
		if err := naming.CheckVersion(version); err != nil {
			return 0, fault.Invalid("scalerMetadata.version: %w", err)
		}
	}
	return s.needed(model, version)
}

func (s *scaler) IsActive(ctx context.Context, q *pb.ScaledObjectRef) (*pb.IsActiveResponse, error) {
	n, err := s.replicas(ctx, q)
	return &pb.IsActiveResponse{Result: n > 0}, asStatus(err)
}

// activeEvery is the interval at which StreamIsActive looks at the model.
const activeEvery = time.Second

func (s *scaler) StreamIsActive(q *pb.ScaledObjectRef, stream grpc.ServerStreamingServer[pb.IsActiveResponse]) error {
	last := -1
	return s.door.repeat(stream.Context(), activeEvery, func() error {
		n, err := s.replicas(stream.Context(), q)
		if n = min(n, 1); err != nil || n == last {
			return asStatus(err)
		}
		last = n
		return stream.Send(&pb.IsActiveResponse{Result: n > 0})
	})
}

func (s *scaler) GetMetricSpec(ctx context.Context, q *pb.ScaledObjectRef) (*pb.GetMetricSpecResponse, error) {
	_, err := s.replicas(ctx, q)
	return &pb.GetMetricSpecResponse{
		MetricSpecs: []*pb.MetricSpec{{MetricName: scalerMetric, TargetSize: 1, TargetSizeFloat: 1}}}, asStatus(err)
}

func (s *scaler) GetMetrics(ctx context.Context, q *pb.GetMetricsRequest) (*pb.GetMetricsResponse, error) {
	n, err := s.replicas(ctx, q.GetScaledObjectRef())
	if err == nil && q.MetricName != scalerMetric {
		err = fault.Invalid("metricName is %.100q: expected %q, as GetMetricSpec returns it", q.MetricName,
			scalerMetric)
	}
	return &pb.GetMetricsResponse{
		MetricValues: []*pb.MetricValue{{MetricName: scalerMetric, MetricValue: int64(n),
			MetricValueFloat: float64(n)}}}, asStatus(err)
}
