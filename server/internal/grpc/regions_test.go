package grpc

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/shiva/tensor"
)

// placed returns the parameters of a tensor in a region.
func placed(region string, offset, size int) map[string]*pb.InferParameter {
	return map[string]*pb.InferParameter{
		"shared_memory_region": parameterOf(region), "shared_memory_offset": parameterOf(offset),
		"shared_memory_byte_size": parameterOf(size),
	}
}

// register registers a file of that many bytes as r, and nothing else.
func (r *rig) register(t *testing.T, size uint64) {
	t.Helper()
	ctx := t.Context()
	register := &pb.SystemSharedMemoryRegisterRequest{Name: "r", Key: "/file", ByteSize: size}
	if _, err := r.client.SystemSharedMemoryRegister(ctx, register); err != nil {
		t.Fatal(err)
	}
	_, err := r.client.SystemSharedMemoryRegister(ctx, register)
	failed(t, err, codes.InvalidArgument, "InvalidInput", "shared memory region 'r' already in manager")
	register.Name, register.Offset = "s", 1<<63
	_, err = r.client.SystemSharedMemoryRegister(ctx, register)
	failed(t, err, codes.InvalidArgument, "InvalidInput", "failed to register shared memory region 's': invalid args")
	for _, name := range []string{"", "r"} {
		status, err := r.client.SystemSharedMemoryStatus(ctx, &pb.SystemSharedMemoryStatusRequest{Name: name})
		if one := status.GetRegions()["r"]; err != nil || len(status.Regions) != 1 || one.Name != "r" ||
			one.Key != "/file" || one.ByteSize != size {
			t.Errorf("status of %q: %v, %v", name, status, err)
		}
	}
	_, err = r.client.SystemSharedMemoryStatus(ctx, &pb.SystemSharedMemoryStatusRequest{Name: "none"})
	failed(t, err, codes.NotFound, "NotFound", "Unable to find system shared memory region: 'none'")
	meta, err := r.client.ServerMetadata(ctx, &pb.ServerMetadataRequest{})
	if err != nil || !strings.Contains(strings.Join(meta.Extensions, " "), regions.Extension) {
		t.Error(meta, err)
	}
}

// Inputs come from regions and outputs go there, in single calls and on streams. An output in a
// region has contents without bytes, since clients count contents.
func TestRegions(t *testing.T) {
	r := newRig(t)
	r.echo("m", tensor.Float32)
	ctx, dir := t.Context(), t.TempDir()
	r.door.Regions().Configure(regions.Settings{Directory: dir, RegionBytes: 1 << 20, Regions: 4})
	q := floats("m", 1, 2, 3, 4.5)
	data := q.RawInputContents[0]
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, append(data, make([]byte, 64)...), 0o600); err != nil {
		t.Fatal(err)
	}
	r.register(t, uint64(len(data))+64)

	q.RawInputContents = nil
	q.Inputs[0].Parameters = placed("r", 0, len(data))
	q.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{
		{Name: q.Inputs[0].Name, Parameters: placed("r", len(data), 64)}}
	check := func(a *pb.ModelInferResponse) {
		t.Helper()
		reply := a.Outputs[0].Parameters
		if size := reply["shared_memory_byte_size"].GetInt64Param(); len(reply) != 3 || size != int64(len(data)) ||
			len(a.RawOutputContents) != 1 || len(a.RawOutputContents[0]) != 0 || a.Outputs[0].Contents != nil {
			t.Errorf("%v, expected the place of %d bytes", a, len(data))
		}
		all, err := os.ReadFile(file)
		if err != nil || string(all[len(data):][:len(data)]) != string(data) {
			t.Errorf("the file has %v, %v", all, err)
		}
		// In place.
		if err := os.WriteFile(file, append(data, make([]byte, 64)...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, typed := range []bool{false, true} {
		q.Parameters = map[string]*pb.InferParameter{"binary_data_output": parameterOf(!typed)}
		a, err := r.client.ModelInfer(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		if typed { // there are no raw contents
			a.RawOutputContents = [][]byte{nil}
		}
		check(a)
	}
	stream, err := r.client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(q); err != nil {
		t.Fatal(err)
	}
	a, err := stream.Recv()
	if err != nil || a.ErrorMessage != "" {
		t.Fatal(a, err)
	}
	a.InferResponse.RawOutputContents = [][]byte{nil}
	check(a.InferResponse)

	for words, change := range map[string]func(){
		"Unable to find shared memory region: 'none'": func() {
			maps.Copy(q.Inputs[0].Parameters, placed("none", 0, len(data)))
		},
		"Invalid offset + byte size for shared memory region: 'r'": func() {
			maps.Copy(q.Inputs[0].Parameters, placed("r", 65, len(data)))
		},
		"input byte size mismatch for input '" + q.Inputs[0].Name: func() {
			maps.Copy(q.Inputs[0].Parameters, placed("r", 0, len(data)-1))
		},
		"Invalid offset for shared memory region: 'r'": func() {
			maps.Copy(q.Outputs[0].Parameters, placed("r", len(data)+64, 4))
		},
		"should be at least " + "16 bytes to hold the results": func() { maps.Copy(q.Outputs[0].Parameters, placed("r", 0, 15)) },
		`"shared_memory_offset": expected a whole number of bytes`: func() {
			q.Inputs[0].Parameters["shared_memory_offset"] = parameterOf(-1)
		},
		"has contents; expected one of them": func() {
			q.Inputs[0].Contents = &pb.InferTensorContents{Fp32Contents: []float32{1}}
		},
	} {
		q.Inputs[0].Parameters, q.Outputs[0].Parameters = placed("r", 0, len(data)), placed("r", 0, len(data))
		change()
		if _, err := r.client.ModelInfer(ctx, q); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, expected %s", err, words)
		}
		q.Inputs[0].Contents = nil
	}
	q.Inputs[0].Parameters = placed("r", 0, len(data))
	if _, err := r.client.SystemSharedMemoryUnregister(ctx, &pb.SystemSharedMemoryUnregisterRequest{}); err != nil {
		t.Error(err)
	}
	_, err = r.client.ModelInfer(ctx, q)
	failed(t, err, codes.NotFound, "NotFound", "Unable to find shared memory region: 'r'")
}
