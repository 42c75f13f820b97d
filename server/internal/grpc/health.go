package grpc

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
)

// health is grpc.health.v1.Health, for orchestrators and for clients that balance load. Service "",
// or the name of the protocol's service, is the server; "model" and "model/version" are models.
type health struct {
	healthpb.UnimplementedHealthServer
	door *Door
}

// watchEvery is the interval at which Watch looks at a service.
const watchEvery = 100 * time.Millisecond

func (h *health) Check(ctx context.Context, q *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s, err := h.status(ctx, q.Service)
	return &healthpb.HealthCheckResponse{Status: s}, asStatus(err)
}

// Watch sends the status at once, and then whenever it changes.
func (h *health) Watch(q *healthpb.HealthCheckRequest,
	stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	last := healthpb.HealthCheckResponse_UNKNOWN
	return h.door.repeat(stream.Context(), watchEvery, func() error {
		s, err := h.status(stream.Context(), q.Service)
		if err != nil {
			s = healthpb.HealthCheckResponse_SERVICE_UNKNOWN
		}
		if s == last {
			return nil
		}
		last = s
		return stream.Send(&healthpb.HealthCheckResponse{Status: s})
	})
}

// repeat calls look at once, and then at each interval, until look fails, the client leaves or the
// door closes.
func (d *Door) repeat(ctx context.Context, every time.Duration, look func() error) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := look(); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return asStatus(predict.Late(ctx, scheduler.ErrCanceled))
		case <-d.stopping.Done():
			return asStatus(gate.ErrDraining)
		}
	}
}

// status returns the status of the server, which any client may know, or of a model.
func (h *health) status(ctx context.Context, service string) (healthpb.HealthCheckResponse_ServingStatus, error) {
	var r predict.Readiness
	if service == "" || service == pb.GRPCInferenceService_ServiceDesc.ServiceName {
		r = h.door.Ready()
	} else {
		var err error
		name, version, _ := strings.Cut(service, "/")
		if r, err = h.door.As(h.door.who(ctx)).ModelReady(name, version); err != nil {
			return 0, err
		}
	}
	if r.Ready {
		return healthpb.HealthCheckResponse_SERVING, nil
	}
	return healthpb.HealthCheckResponse_NOT_SERVING, nil
}
