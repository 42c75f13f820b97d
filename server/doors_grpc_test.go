package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva/tensor"
)

// grpcClient speaks V2 over gRPC.
type grpcClient struct {
	conn   *grpc.ClientConn
	client pb.GRPCInferenceServiceClient
}

func newGRPC(t *testing.T, addr net.Addr) *grpcClient {
	t.Helper()
	conn, err := grpc.NewClient(addr.String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &grpcClient{conn, pb.NewGRPCInferenceServiceClient(conn)}
}

func grpcFault(err error) error {
	f := &refusal{code: int(status.Code(err)), text: status.Convert(err).Message()}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			f.kind, f.retryable = info.Reason, info.Metadata["retryable"] == "true"
		}
	}
	return f
}

func grpcQuestion(model string, x tensor.Tensor, timeout time.Duration) *pb.ModelInferRequest {
	in := &pb.ModelInferRequest_InferInputTensor{Name: "x", Datatype: x.DType.V2()}
	for _, n := range x.Shape {
		in.Shape = append(in.Shape, int64(n))
	}
	q := &pb.ModelInferRequest{ModelName: model, Inputs: []*pb.ModelInferRequest_InferInputTensor{in}}
	if timeout > 0 {
		q.Parameters = map[string]*pb.InferParameter{
			"timeout": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: timeout.Microseconds()}}}
	}
	return q
}

func (c *grpcClient) askRaw(ctx context.Context, model string, x tensor.Tensor,
	timeout time.Duration) (tensor.Tensor, error) {
	q := grpcQuestion(model, x, timeout)
	q.RawInputContents = [][]byte{x.Data}
	a, err := c.client.ModelInfer(ctx, q)
	if err != nil {
		return x, grpcFault(err)
	}
	if len(a.Outputs) != 1 || len(a.RawOutputContents) != 1 || a.Outputs[0].Contents != nil {
		return x, fmt.Errorf("%d outputs, %d of them raw", len(a.Outputs), len(a.RawOutputContents))
	}
	return grpcTensor(a.Outputs[0], a.RawOutputContents[0])
}

func (c *grpcClient) askTyped(ctx context.Context, model string, x tensor.Tensor,
	timeout time.Duration) (tensor.Tensor, error) {
	q := grpcQuestion(model, x, timeout)
	q.Inputs[0].Contents = toContents(x)
	if q.Parameters == nil {
		q.Parameters = map[string]*pb.InferParameter{}
	}
	q.Parameters["binary_data_output"] = &pb.InferParameter{
		ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: false}}
	a, err := c.client.ModelInfer(ctx, q)
	if err != nil {
		return x, grpcFault(err)
	}
	if len(a.Outputs) != 1 || len(a.RawOutputContents) != 0 {
		return x, fmt.Errorf("%d outputs, %d of them raw", len(a.Outputs), len(a.RawOutputContents))
	}
	d, _ := tensor.FromV2(a.Outputs[0].Datatype)
	return grpcTensor(a.Outputs[0], fromContents(d, a.Outputs[0].Contents))
}

func grpcTensor(out *pb.ModelInferResponse_InferOutputTensor, data []byte) (tensor.Tensor, error) {
	d, _ := tensor.FromV2(out.Datatype)
	shape := tensor.Shape{}
	for _, n := range out.Shape {
		shape = append(shape, int(n))
	}
	return tensor.New(d, shape, data)
}

// toContents puts elements into the field that the protocol has for them; empty if it has none.
func toContents(x tensor.Tensor) *pb.InferTensorContents {
	c := &pb.InferTensorContents{}
	size := max(x.DType.Size(), 1)
	if x.DType == tensor.Bytes {
		elements, _ := tensor.BytesElems(x)
		c.BytesContents = elements
		return c
	}
	for b := x.Data; len(b) >= size; b = b[size:] {
		switch x.DType {
		case tensor.Bool:
			c.BoolContents = append(c.BoolContents, b[0] != 0)
		case tensor.Int8:
			c.IntContents = append(c.IntContents, int32(int8(b[0])))
		case tensor.Int16:
			c.IntContents = append(c.IntContents, int32(int16(binary.NativeEndian.Uint16(b))))
		case tensor.Int32:
			c.IntContents = append(c.IntContents, int32(binary.NativeEndian.Uint32(b)))
		case tensor.Int64:
			c.Int64Contents = append(c.Int64Contents, int64(binary.NativeEndian.Uint64(b)))
		case tensor.Uint8:
			c.UintContents = append(c.UintContents, uint32(b[0]))
		case tensor.Uint16:
			c.UintContents = append(c.UintContents, uint32(binary.NativeEndian.Uint16(b)))
		case tensor.Uint32:
			c.UintContents = append(c.UintContents, binary.NativeEndian.Uint32(b))
		case tensor.Uint64:
			c.Uint64Contents = append(c.Uint64Contents, binary.NativeEndian.Uint64(b))
		case tensor.Float32:
			c.Fp32Contents = append(c.Fp32Contents, math.Float32frombits(binary.NativeEndian.Uint32(b)))
		case tensor.Float64:
			c.Fp64Contents = append(c.Fp64Contents, math.Float64frombits(binary.NativeEndian.Uint64(b)))
		}
	}
	return c
}

// fromContents reads them back; nil if one is out of d's range.
func fromContents(d tensor.DType, c *pb.InferTensorContents) (data []byte) {
	le := binary.LittleEndian
	narrow := func(v uint64) { data = append(data, le.AppendUint64(nil, v)[:d.Size()]...) }
	for _, v := range c.GetBoolContents() {
		data = append(data, map[bool]byte{true: 1}[v])
	}
	beyond := 64 - 8*d.Size()
	for _, v := range c.GetIntContents() {
		if int64(v)<<beyond>>beyond != int64(v) {
			return nil
		}
		narrow(uint64(v))
	}
	for _, v := range c.GetInt64Contents() {
		narrow(uint64(v))
	}
	for _, v := range c.GetUintContents() {
		if uint64(v)<<beyond>>beyond != uint64(v) {
			return nil
		}
		narrow(uint64(v))
	}
	for _, v := range c.GetUint64Contents() {
		narrow(v)
	}
	for _, v := range c.GetFp32Contents() {
		narrow(uint64(math.Float32bits(v)))
	}
	for _, v := range c.GetFp64Contents() {
		narrow(math.Float64bits(v))
	}
	for _, v := range c.GetBytesContents() {
		data = tensor.AppendElem(data, v)
	}
	return data
}

// rawCodec sends and receives bytes unchanged.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

func (c *grpcClient) garbage() error {
	return grpcFault(c.conn.Invoke(context.Background(), pb.GRPCInferenceService_ModelInfer_FullMethodName,
		[]byte{1<<3 | 2, 200, 'x'}, new([]byte), grpc.ForceCodecV2(rawCodec{})))
}
