package grpc

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestMetadata(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	spec := scheduler.Spec{
		Inputs: []tensor.Spec{{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, 8, 8}},
			{Name: "text", DType: tensor.Bytes, Shape: tensor.Shape{-1}}},
		Outputs:  []tensor.Spec{{Name: "scores", DType: tensor.BFloat16, Shape: tensor.Shape{-1, 10}}},
		Platform: "test", MaxBatch: 32, Parameters: []byte(`{"who":"me","n":3}`),
	}
	r.Model("m", spec, scheduler.WorkerFunc(func(*scheduler.Batch) error { return nil }))

	if a, err := r.client.ServerLive(ctx, &pb.ServerLiveRequest{}); err != nil || !a.Live {
		t.Errorf("live: %v %v", a, err)
	}
	if a, err := r.client.ServerReady(ctx, &pb.ServerReadyRequest{}); err != nil || !a.Ready {
		t.Errorf("ready: %v %v", a, err)
	}
	if a, err := r.client.ModelReady(ctx, &pb.ModelReadyRequest{Name: "m", Version: "1"}); err != nil || !a.Ready {
		t.Errorf("model ready: %v %v", a, err)
	}
	for _, q := range []*pb.ModelReadyRequest{{Name: "mm"}, {Name: "m", Version: "2"}, {}} {
		if a, err := r.client.ModelReady(ctx, q); err != nil || a.Ready {
			t.Errorf("%v is ready: %v %v", q, a, err)
		}
	}
	server, err := r.client.ServerMetadata(ctx, &pb.ServerMetadataRequest{})
	if err != nil || server.Name != "shivad" || server.Version != "test" ||
		!slices.Equal(server.Extensions, predict.Extensions) {
		t.Errorf("server: %v %v", server, err)
	}
	m, err := r.client.ModelMetadata(ctx, &pb.ModelMetadataRequest{Name: "m"})
	if err != nil || m.Name != "m" || m.Platform != "test" || !slices.Equal(m.Versions, []string{"1"}) ||
		len(m.Inputs) != 2 || len(m.Outputs) != 1 ||
		m.Inputs[0].Name != "image" || m.Inputs[0].Datatype != "UINT8" ||
		!slices.Equal(m.Inputs[0].Shape, []int64{-1, 8, 8}) ||
		m.Inputs[1].Datatype != "BYTES" || m.Outputs[0].Datatype != "BF16" || m.Properties["who"] != "me" ||
		m.Properties["n"] != "3" {
		t.Errorf("model: %v %v", m, err)
	}
	config, err := r.client.ModelConfig(ctx, &pb.ModelConfigRequest{Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	if c.Name != "m" || c.Platform != "test" || c.Backend != "shivad" || c.MaxBatchSize != 32 ||
		c.ModelTransactionPolicy.GetDecoupled() ||
		c.Input[0].DataType != pb.DataType_TYPE_UINT8 || !slices.Equal(c.Input[0].Dims, []int64{8, 8}) ||
		c.Input[1].DataType != pb.DataType_TYPE_STRING ||
		c.Output[0].DataType != pb.DataType_TYPE_BF16 || c.GetDynamicBatching().GetPriorityLevels() != 10 ||
		c.InstanceGroup[0].Count != 1 ||
		!slices.Equal(c.VersionPolicy.GetSpecific().GetVersions(), []int64{1}) ||
		c.Parameters["strategy"].StringValue != "deadline" {
		t.Errorf("config: %v", c)
	}
	_, err = r.client.ModelMetadata(ctx, &pb.ModelMetadataRequest{Name: "m", Version: "7"})
	failed(t, err, codes.NotFound, "NotFound", `"7"`)
	_, err = r.client.ModelConfig(ctx, &pb.ModelConfigRequest{Name: "x"})
	failed(t, err, codes.NotFound, "NotFound")
}

func TestStatistics(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.echo("m", tensor.Float32)
	for range 3 {
		if _, err := r.client.ModelInfer(ctx, raw("m", "FP32", []int{2, 1}, make([]byte, 8))); err != nil {
			t.Fatal(err)
		}
	}
	_, err := r.client.ModelInfer(ctx, raw("m", "INT32", []int{2, 1}, make([]byte, 8)))
	failed(t, err, codes.InvalidArgument, "InvalidInput", "int32")
	for _, name := range []string{"m", ""} {
		a, err := r.client.ModelStatistics(ctx, &pb.ModelStatisticsRequest{Name: name})
		if err != nil || len(a.ModelStats) != 1 {
			t.Fatalf("%v %v", a, err)
		}
		s := a.ModelStats[0]
		if s.Name != "m" || s.Version != "1" || s.LastInference == 0 || s.InferenceCount != 6 || s.ExecutionCount < 3 ||
			s.InferenceStats.Success.Count != 3 || s.InferenceStats.Fail.Count != 1 ||
			s.InferenceStats.Success.Ns == 0 ||
			s.InferenceStats.ComputeInfer.Count != 3 {
			t.Errorf("%v", s)
		}
		var rows, batches uint64
		for _, b := range s.BatchStats {
			rows += b.BatchSize * b.ComputeInfer.Count
			batches += b.ComputeInfer.Count
		}
		if rows != s.InferenceCount || batches != s.ExecutionCount {
			t.Errorf("%d rows in %d batches: %v", rows, batches, s)
		}
	}
	_, err = r.client.ModelStatistics(ctx, &pb.ModelStatisticsRequest{Name: "x"})
	failed(t, err, codes.NotFound, "NotFound")
}

func TestRepository(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.echo("m", tensor.Float32)
	index := func(onlyReady bool) string {
		a, err := r.client.RepositoryIndex(ctx, &pb.RepositoryIndexRequest{Ready: onlyReady})
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, m := range a.Models {
			text += fmt.Sprintf("%s/%s %s %s;", m.Name, m.Version, m.State, m.Reason)
		}
		return text
	}
	if got, want := index(false),
		"m/1 READY ;managed/ UNAVAILABLE unloaded;panics/ UNAVAILABLE unloaded;"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := index(true), "m/1 READY ;"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, err := r.client.RepositoryModelLoad(ctx, &pb.RepositoryModelLoadRequest{ModelName: "managed"}); err != nil {
		t.Error(err)
	}
	if got, want := index(true), "m/1 READY ;managed/ READY ;"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	unload := map[string]*pb.ModelRepositoryParameter{
		"unload_dependents": {ParameterChoice: &pb.ModelRepositoryParameter_BoolParam{}}}
	if _, err := r.client.RepositoryModelUnload(ctx,
		&pb.RepositoryModelUnloadRequest{ModelName: "managed", Parameters: unload}); err != nil {
		t.Error(err)
	}
	if got, want := index(true), "m/1 READY ;"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}

	_, err := r.client.RepositoryModelUnload(ctx, &pb.RepositoryModelUnloadRequest{ModelName: "m"})
	failed(t, err, codes.InvalidArgument, "InvalidInput", "connect by themselves")
	_, err = r.client.RepositoryModelLoad(ctx, &pb.RepositoryModelLoadRequest{ModelName: "x"})
	failed(t, err, codes.NotFound, "NotFound", `"managed"`)
	_, err = r.client.RepositoryModelLoad(ctx, &pb.RepositoryModelLoadRequest{ModelName: "managed", Parameters: unload})
	failed(t, err, codes.InvalidArgument, "InvalidInput", "unload_dependents")
	_, err = r.client.RepositoryIndex(ctx, &pb.RepositoryIndexRequest{RepositoryName: "other"})
	failed(t, err, codes.InvalidArgument, "InvalidInput", `"other"`)

	// A panic in one call affects only that call.
	_, err = r.client.RepositoryModelLoad(ctx, &pb.RepositoryModelLoadRequest{ModelName: "panics"})
	failed(t, err, codes.Internal, "Internal", "in the repository")
	if _, err := r.client.ServerLive(ctx, &pb.ServerLiveRequest{}); err != nil {
		t.Error(err)
	}
}

// A call that this server does not offer is UNIMPLEMENTED, and says what to do instead.
func TestUnimplemented(t *testing.T) {
	r := newRig(t)
	ctx, c := t.Context(), r.client
	const memory, traces, log = "send the tensors in the message", "traces are not supported", "configuration, under [log]"
	call := func(name, words string, err error) {
		if s := status.Convert(err); s.Code() != codes.Unimplemented || !strings.Contains(s.Message(), words) {
			t.Errorf("%s: %v, expected words of %q", name, s, words)
		}
	}
	call("system status", memory, second(c.SystemSharedMemoryStatus(ctx, &pb.SystemSharedMemoryStatusRequest{})))
	call("system register", memory, second(c.SystemSharedMemoryRegister(ctx, &pb.SystemSharedMemoryRegisterRequest{})))
	call("system unregister", memory,
		second(c.SystemSharedMemoryUnregister(ctx, &pb.SystemSharedMemoryUnregisterRequest{})))
	call("cuda register", memory, second(c.CudaSharedMemoryRegister(ctx, &pb.CudaSharedMemoryRegisterRequest{})))
	call("trace", traces, second(c.TraceSetting(ctx, &pb.TraceSettingRequest{})))
	call("log", log, second(c.LogSettings(ctx, &pb.LogSettingsRequest{})))
	err := r.dial().Invoke(ctx, "/inference.GRPCInferenceService/Nothing", &pb.ServerLiveRequest{},
		&pb.ServerLiveResponse{})
	call("unknown method", "unknown method", err)
}

// Clients list and unregister regions of CUDA shared memory before they begin: there are none.
func TestNoCudaRegions(t *testing.T) {
	c := newRig(t).client
	if a, err := c.CudaSharedMemoryStatus(t.Context(), &pb.CudaSharedMemoryStatusRequest{}); err != nil ||
		len(a.Regions) > 0 {
		t.Errorf("status: %v, %v", a, err)
	}
	_, err := c.CudaSharedMemoryStatus(t.Context(), &pb.CudaSharedMemoryStatusRequest{Name: "x"})
	failed(t, err, codes.NotFound, "NotFound", `"x"`)
	for _, name := range []string{"", "x"} {
		if _, err := c.CudaSharedMemoryUnregister(t.Context(),
			&pb.CudaSharedMemoryUnregisterRequest{Name: name}); err != nil {
			t.Errorf("unregister %q: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
