package grpc

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

func watching(t *testing.T, r *rig, service string) grpc.ServerStreamingClient[healthpb.HealthCheckResponse] {
	t.Helper()
	w, err := healthpb.NewHealthClient(r.dial()).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestHealth(t *testing.T) {
	r := newRig(t)
	c := healthpb.NewHealthClient(r.dial())
	check := func(service string, want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if a, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}); err != nil ||
			a.Status != want {
			t.Errorf("%q: %v %v", service, a, err)
		}
	}
	w := watching(t, r, "m/1")
	next := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if a, err := w.Recv(); err != nil || a.Status != want {
			t.Errorf("watched: %v %v, expected %v", a, err, want)
		}
	}
	check("", healthpb.HealthCheckResponse_SERVING)
	check("inference.GRPCInferenceService", healthpb.HealthCheckResponse_SERVING)
	_, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "m"})
	failed(t, err, codes.NotFound, "NotFound")
	next(healthpb.HealthCheckResponse_SERVICE_UNKNOWN)

	spec := scheduler.Spec{Inputs: []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1}}}}
	replica := r.Model("m", spec, scheduler.WorkerFunc(func(*scheduler.Batch) error { return nil }))
	next(healthpb.HealthCheckResponse_SERVING)
	check("m", healthpb.HealthCheckResponse_SERVING)
	check("m/1", healthpb.HealthCheckResponse_SERVING)
	_, err = c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "m/2"})
	failed(t, err, codes.NotFound, "NotFound")

	replica.Remove(errors.New("it left"))
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	check("m", healthpb.HealthCheckResponse_NOT_SERVING)
	r.Gate.Drain()
	check("", healthpb.HealthCheckResponse_NOT_SERVING)
}

// A client without the .proto files finds the service and its messages.
func TestReflection(t *testing.T) {
	r := newRig(t)
	s, err := reflectionpb.NewServerReflectionClient(r.dial()).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(q *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := s.Send(q); err != nil {
			t.Fatal(err)
		}
		a, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	var names []string
	for _, s := range ask(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}).GetListServicesResponse().GetService() {
		names = append(names, s.Name)
	}
	for _, want := range []string{"inference.GRPCInferenceService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %v", want, names)
		}
	}
	files := ask(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: "inference.GRPCInferenceService.ModelInfer"}}).GetFileDescriptorResponse().
		GetFileDescriptorProto()
	if len(files) == 0 {
		t.Fatal("no descriptor")
	}
	var file descriptorpb.FileDescriptorProto
	if err := proto.Unmarshal(files[0], &file); err != nil ||
		file.GetService()[0].GetName() != "GRPCInferenceService" || len(file.GetService()[0].GetMethod()) != 20 {
		t.Errorf("%v %v", file.GetService(), err)
	}
	if err := s.CloseSend(); err != nil {
		t.Error(err)
	}
}
