package grpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// dtypes are all datatypes of the protocol, each with the bytes of 6 elements, and the same as
// contents if there is a field for it.
var dtypes = []struct {
	name     string
	data     []byte
	contents *pb.InferTensorContents
}{
	{"BOOL", []byte{1, 0, 1, 1, 0, 0},
		&pb.InferTensorContents{BoolContents: []bool{true, false, true, true, false, false}}},
	{"UINT8", []byte{0, 1, 2, 127, 128, 255}, &pb.InferTensorContents{UintContents: []uint32{0, 1, 2, 127, 128, 255}}},
	{"UINT16", elements(uint16(0), 1, 255, 256, 32768, 65535),
		&pb.InferTensorContents{UintContents: []uint32{0, 1, 255, 256, 32768, 65535}}},
	{"UINT32", elements(uint32(0), 1, 65536, 1<<31, 5, math.MaxUint32),
		&pb.InferTensorContents{UintContents: []uint32{0, 1, 65536, 1 << 31, 5, math.MaxUint32}}},
	{"UINT64", elements(uint64(0), 1, 1<<32, 1<<63, 5, math.MaxUint64),
		&pb.InferTensorContents{Uint64Contents: []uint64{0, 1, 1 << 32, 1 << 63, 5, math.MaxUint64}}},
	{"INT8", elements(int8(0), 1, -1, 127, -128, 5),
		&pb.InferTensorContents{IntContents: []int32{0, 1, -1, 127, -128, 5}}},
	{"INT16", elements(int16(0), 1, -1, 32767, -32768, 5),
		&pb.InferTensorContents{IntContents: []int32{0, 1, -1, 32767, -32768, 5}}},
	{"INT32", elements(int32(0), 1, -1, math.MaxInt32, math.MinInt32, 5),
		&pb.InferTensorContents{IntContents: []int32{0, 1, -1, math.MaxInt32, math.MinInt32, 5}}},
	{"INT64", elements(int64(0), 1, -1, math.MaxInt64, math.MinInt64, 5),
		&pb.InferTensorContents{Int64Contents: []int64{0, 1, -1, math.MaxInt64, math.MinInt64, 5}}},
	{"FP16", elements(uint16(0), 0x3c00, 0x8000, 0x7c00, 0x7e00, 1), nil},
	{"BF16", elements(uint16(0), 0x3f80, 0x8000, 0x7f80, 0x7fc0, 1), nil},
	{"FP32",
		elements(float32(0), 1.5, float32(math.Copysign(0, -1)), float32(math.Inf(1)), math.Float32frombits(0x7fc12345),
			math.SmallestNonzeroFloat32),
		&pb.InferTensorContents{Fp32Contents: []float32{0, 1.5, float32(math.Copysign(0, -1)), float32(math.Inf(1)),
			math.Float32frombits(0x7fc12345), math.SmallestNonzeroFloat32}}},
	{"FP64", elements(0, 1.5, math.Copysign(0, -1), math.Inf(-1), math.Float64frombits(0x7ff8000012345678), 5e-324),
		&pb.InferTensorContents{Fp64Contents: []float64{0, 1.5, math.Copysign(0, -1), math.Inf(-1),
			math.Float64frombits(0x7ff8000012345678), 5e-324}}},
	{"BYTES", texts("", "a", "\x00\xff", "long "+strings.Repeat("x", 300), "é", "\n"),
		&pb.InferTensorContents{BytesContents: [][]byte{{}, []byte("a"), []byte("\x00\xff"),
			[]byte("long " + strings.Repeat("x", 300)), []byte("é"), []byte("\n")}}},
}

func elements[T tensor.Element](values ...T) []byte {
	t, err := tensor.FromSlice(tensor.Shape{len(values)}, values)
	if err != nil {
		panic(err)
	}
	return t.Data
}

func texts(values ...string) []byte {
	t, err := tensor.FromStrings(tensor.Shape{len(values)}, values)
	if err != nil {
		panic(err)
	}
	return t.Data
}

// Every datatype, raw and typed, is returned bit by bit: as bytes, or as elements if requested, in
// whatever form it was sent.
func TestDatatypes(t *testing.T) {
	r := newRig(t)
	for _, c := range dtypes {
		d, _ := tensor.FromV2(c.name)
		r.echo(c.name, d)
		for _, shape := range [][]int{{1, 6}, {2, 3}, {6, 1}, {6}} {
			a, err := r.client.ModelInfer(t.Context(), raw(c.name, c.name, shape, c.data))
			if err != nil {
				t.Errorf("%s raw %v: %v", c.name, shape, err)
				continue
			}
			if len(a.Outputs) != 1 || a.Outputs[0].Name != "x" || a.Outputs[0].Datatype != c.name ||
				!slices.Equal(a.Outputs[0].Shape, int64s(shape)) ||
				a.Outputs[0].Contents != nil || len(a.RawOutputContents) != 1 ||
				!bytes.Equal(a.RawOutputContents[0], c.data) {
				t.Errorf("%s raw %v: %v", c.name, shape, a)
			}
			if c.contents == nil {
				continue
			}
			q := typed(c.name, c.name, int64s(shape), c.contents)
			if a, err = r.client.ModelInfer(t.Context(), q); err != nil || a.Outputs[0].Contents != nil ||
				len(a.RawOutputContents) != 1 || !bytes.Equal(a.RawOutputContents[0], c.data) {
				t.Errorf("%s typed %v: %v %v", c.name, shape, a, err)
			}
			for _, q := range []*pb.ModelInferRequest{q, raw(c.name, c.name, shape, c.data)} {
				if a, err = r.client.ModelInfer(t.Context(), wantTyped(q)); err != nil {
					t.Errorf("%s typed %v: %v", c.name, shape, err)
					continue
				}
				// Compare bits and not values: NaN does not equal itself.
				got, _ := proto.MarshalOptions{Deterministic: true}.Marshal(a.Outputs[0].GetContents())
				want, _ := proto.MarshalOptions{Deterministic: true}.Marshal(c.contents)
				if len(a.RawOutputContents) != 0 || !slices.Equal(a.Outputs[0].Shape, int64s(shape)) ||
					!bytes.Equal(got, want) {
					t.Errorf("%s typed %v: %v", c.name, shape, a)
				}
			}
		}
	}
}

// wantTyped makes a request ask for typed outputs.
func wantTyped(q *pb.ModelInferRequest) *pb.ModelInferRequest {
	q.Parameters = map[string]*pb.InferParameter{
		"binary_data_output": {ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: false}}}
	return q
}

// If one output of a model has no typed form, all are answered raw, whatever was requested.
func TestNoTypedForm(t *testing.T) {
	r := newRig(t)
	spec := scheduler.Spec{
		Inputs: []tensor.Spec{{Name: "x", DType: tensor.Int8, Shape: tensor.Shape{-1}}},
		Outputs: []tensor.Spec{{Name: "n", DType: tensor.Int32, Shape: tensor.Shape{-1}},
			{Name: "h", DType: tensor.Float16, Shape: tensor.Shape{-1}}},
	}
	r.Model("m", spec, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		n, _ := tensor.FromSlice(tensor.Shape{b.Rows}, make([]int32, b.Rows))
		h, _ := tensor.New(tensor.Float16, tensor.Shape{b.Rows}, make([]byte, 2*b.Rows))
		b.Complete([]tensor.Tensor{n, h}, nil)
		return nil
	}))
	q := wantTyped(typed("m", "INT8", []int64{2}, &pb.InferTensorContents{IntContents: []int32{1, 2}}))
	a, err := r.client.ModelInfer(t.Context(), q)
	if err != nil || len(a.RawOutputContents) != 2 || len(a.RawOutputContents[0]) != 8 ||
		len(a.RawOutputContents[1]) != 4 || a.Outputs[0].Contents != nil {
		t.Errorf("%v %v", a, err)
	}
	q.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "n"}}
	if a, err = r.client.ModelInfer(t.Context(), q); err != nil || len(a.RawOutputContents) != 0 ||
		len(a.Outputs[0].Contents.GetIntContents()) != 2 {
		t.Errorf("%v %v", a, err)
	}
}

func TestInvalidInputs(t *testing.T) {
	r := newRig(t)
	for _, c := range dtypes {
		d, _ := tensor.FromV2(c.name)
		r.echo(c.name, d)
	}
	ints := func(v ...int32) *pb.InferTensorContents { return &pb.InferTensorContents{IntContents: v} }
	uints := func(v ...uint32) *pb.InferTensorContents { return &pb.InferTensorContents{UintContents: v} }
	change := func(q *pb.ModelInferRequest, f func(*pb.ModelInferRequest)) *pb.ModelInferRequest { f(q); return q }
	param := func(v any) *pb.InferParameter {
		switch v := v.(type) {
		case int:
			return &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: int64(v)}}
		case string:
			return &pb.InferParameter{ParameterChoice: &pb.InferParameter_StringParam{StringParam: v}}
		case float64:
			return &pb.InferParameter{ParameterChoice: &pb.InferParameter_DoubleParam{DoubleParam: v}}
		}
		return &pb.InferParameter{}
	}
	with := func(key string, v any) *pb.ModelInferRequest {
		return change(floats("FP32", 1), func(q *pb.ModelInferRequest) {
			q.Parameters = map[string]*pb.InferParameter{key: param(v)}
		})
	}
	for _, c := range []struct {
		q     *pb.ModelInferRequest
		words []string
	}{
		{raw("FP32", "FP32", []int{2, 2}, make([]byte, 12)), []string{`"x"`, "expected 16 bytes", "FP32 [2, 2]", "got 12"}},
		{raw("FP32", "FP32", []int{2, -2}, make([]byte, 16)), []string{`"x"`, "negative dimension"}},
		{raw("FP32", "FP32", []int{1 << 40, 1 << 40}, nil), []string{`"x"`, "too many elements"}},
		{raw("FP32", "FP31", []int{1, 1}, make([]byte, 4)), []string{`"x"`, `"FP31" is not a datatype`}},
		{raw("FP32", "INT32", []int{1, 1}, make([]byte, 4)), []string{`"x"`, "expected float32", "got int32"}},
		{raw("FP32", "FP32", []int{1, 1, 1}, make([]byte, 4)), []string{`"x"`, "[1, 1, 1]"}},
		{raw("BYTES", "BYTES", []int{1, 1}, []byte{9, 0, 0, 0, 'a'}), []string{`"x"`}},
		{raw("BYTES", "BYTES", []int{1, 1}, []byte{0, 0, 0, 0, 'a'}), []string{`"x"`, "after the last"}},
		{&pb.ModelInferRequest{ModelName: "FP32"}, []string{`"x"`, "got 0"}},
		{change(floats("FP32", 1), func(q *pb.ModelInferRequest) { q.Inputs[0].Name = "y" }),
			[]string{`"x" is missing`, `"y"`}},
		{change(floats("FP32", 1), func(q *pb.ModelInferRequest) {
			q.RawInputContents = append(q.RawInputContents, nil)
		}), []string{"each of 1 input, got 2"}},
		{change(floats("FP32", 1), func(q *pb.ModelInferRequest) { q.Inputs = append(q.Inputs, q.Inputs[0]) }),
			[]string{"each of 2 inputs, got 1"}},
		{change(floats("FP32", 1), func(q *pb.ModelInferRequest) { q.Inputs[0].Contents = ints(1) }), []string{`"x"`, "one of the two for all inputs"}},

		{typed("INT8", "INT8", []int64{1, 2}, ints(1, 128)), []string{`"x"`, "element 1 is 128", "-128 to 127"}},
		{typed("INT8", "INT8", []int64{1, 2}, ints(-129, 1)), []string{`"x"`, "element 0 is -129"}},
		{typed("INT16", "INT16", []int64{1, 1}, ints(1<<15)), []string{`"x"`, "32768", "-32768 to 32767"}},
		{typed("UINT8", "UINT8", []int64{1, 1}, uints(256)), []string{`"x"`, "256", "0 to 255"}},
		{typed("UINT16", "UINT16", []int64{1, 1}, uints(math.MaxUint32)), []string{`"x"`, "4294967295", "0 to 65535"}},
		{typed("INT32", "INT32", []int64{2, 2}, ints(1, 2, 3)), []string{`"x"`, "expected 4 elements in int_contents, got 3"}},
		{typed("INT32", "INT32", []int64{1, 1}, nil), []string{`"x"`, "expected 1 element in int_contents, got 0"}},
		{typed("INT32", "INT32", []int64{1, 1}, uints(1)), []string{`"x"`, "expected INT32 in int_contents, got elements in uint_contents"}},
		{
			typed("INT32", "INT32", []int64{1, 1},
				&pb.InferTensorContents{IntContents: []int32{1}, BoolContents: []bool{true}}), []string{`"x"`, "bool_contents"}},
		{typed("FP16", "FP16", []int64{1, 1}, uints(1)), []string{`"x"`, "FP16", "raw_input_contents only"}},
		{typed("BF16", "BF16", []int64{1, 1}, nil), []string{`"x"`, "BF16", "raw_input_contents only"}},

		{with("priority", -1), []string{`"priority"`, "a whole number from 0"}},
		{with("priority", "high"), []string{`"priority"`, "string high"}},
		{with("timeout", -1), []string{`"timeout"`, "microseconds"}},
		{with("triton_x", 1), []string{`"triton_x"`, "reserved"}},
		{with("binary_data_output", 1), []string{`"binary_data_output"`, "expected true or false, got int64 1"}},
		{with("in_order", "yes"), []string{`"in_order"`, "for ModelStreamInfer only"}},
		{change(floats("FP32", 1), func(q *pb.ModelInferRequest) {
			q.Parameters = map[string]*pb.InferParameter{"in_order": parameterOf(true)}
		}), []string{`"in_order"`, "for ModelStreamInfer only"}},
		{with("f", math.NaN()), []string{`"f"`, "finite"}},
		{change(floats("FP32", 1), func(q *pb.ModelInferRequest) {
			q.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "nope"}}
		}), []string{`"nope"`, `"x"`}},
		{change(floats("FP32", 1), func(q *pb.ModelInferRequest) {
			q.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{
				{Name: "x", Parameters: map[string]*pb.InferParameter{"classification": param("all")}}}
		}), []string{`"x"`, `"classification"`, "string all"}},
		{change(floats("FP32", 1), func(q *pb.ModelInferRequest) {
			q.Inputs[0].Parameters = map[string]*pb.InferParameter{"shared_memory_region": param("r")}
		}), []string{`"x"`, "shared_memory_byte_size is missing"}},
		{change(floats("FP32", 1), func(q *pb.ModelInferRequest) {
			q.Inputs[0].Parameters = map[string]*pb.InferParameter{"shared_memory_region": param("r"), "shared_memory_byte_size": param(16)}
		}), []string{"each of 0 inputs, got 1 (1 more are in shared memory)"}},
		{change(floats("FP32", 1), func(q *pb.ModelInferRequest) {
			q.Inputs[0].Parameters = map[string]*pb.InferParameter{"shared_memory_region": param("r"), "shared_memory_byte_size": param(16)}
			q.RawInputContents = nil
		}), []string{`"x"`, "shared memory is not offered"}},
	} {
		_, err := r.client.ModelInfer(t.Context(), c.q)
		failed(t, err, codes.InvalidArgument, "InvalidInput", c.words...)
	}
	// All are counted, and none is left.
	if n := r.inside(); n != 0 {
		t.Errorf("%d requests are still inside", n)
	}
}

// A request's parameters reach the container, or take effect.
func TestParameters(t *testing.T) {
	r := newRig(t)
	x := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, -1}}}
	seen := make(chan string, 1)
	r.Model("m", scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		p := b.Parts[0]
		seen <- fmt.Sprintf("%s %d", p.Parameters, p.Priority)
		out, _ := tensor.Concat([]tensor.Tensor{p.Inputs[0]}, nil)
		b.Complete([]tensor.Tensor{out}, nil)
		return nil
	}))
	q := floats("m", 1, 3, 2)
	q.Id = "the id"
	q.ModelVersion = "1"
	q.Parameters = map[string]*pb.InferParameter{
		"priority":    {ParameterChoice: &pb.InferParameter_Uint64Param{Uint64Param: 3}},
		"timeout":     {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 1_900_000}},
		"sequence_id": {ParameterChoice: &pb.InferParameter_StringParam{StringParam: "s\"1"}},
		"b":           {ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: true}},
		"d":           {ParameterChoice: &pb.InferParameter_DoubleParam{DoubleParam: 1.5}},
		"i":           {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: -7}},
		"u": {
			ParameterChoice: &pb.InferParameter_Uint64Param{Uint64Param: math.MaxUint64}},
		"triton_enable_empty_final_response": {ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: true}},
	}
	q.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{
		{Name: "x", Parameters: map[string]*pb.InferParameter{
			"classification": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 2}}}}}
	a, err := r.client.ModelInfer(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := <-seen, `{"b":true,"d":1.5,"i":-7,"sequence_id":"s\"1","u":18446744073709551615} 2`; got != want {
		t.Errorf("the container got %s, want %s", got, want)
	}
	if a.Id != "the id" || a.ModelName != "m" || a.ModelVersion != "1" || a.Outputs[0].Datatype != "BYTES" ||
		!bytes.Equal(a.RawOutputContents[0], texts("3.000000:1", "2.000000:2")) {
		t.Errorf("%v", a)
	}
}

// Metadata of a call that the settings list reaches the model with each request, unless that has a
// parameter of the name; other metadata never does.
func TestForwardedMetadata(t *testing.T) {
	r := newRig(t, func(c *Config, _ *int64) { c.Forward = []string{"x-request-id", "cookie"} })
	x := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, -1}}}
	seen := make(chan string, 1)
	r.Model("m", scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		seen <- string(b.Parts[0].Parameters)
		out, _ := tensor.Concat([]tensor.Tensor{b.Parts[0].Inputs[0]}, nil)
		b.Complete([]tensor.Tensor{out}, nil)
		return nil
	}))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "X-Request-ID", "a", "x-request-id", "b", "x-other", "no",
		"authorization", "Bearer secret")
	expect := func(want string) {
		t.Helper()
		if got := <-seen; got != want {
			t.Errorf("the container gets %s, want %s", got, want)
		}
	}
	own := floats("m", 1)
	own.Parameters = map[string]*pb.InferParameter{
		"x-request-id": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 5}}}
	stream, err := r.client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for q, want := range map[*pb.ModelInferRequest]string{floats("m", 1): `{"x-request-id":"a, b"}`, own: `{"x-request-id":5}`} {
		if _, err := r.client.ModelInfer(ctx, q); err != nil {
			t.Fatal(err)
		}
		expect(want)
		if err := stream.Send(q); err != nil {
			t.Fatal(err)
		}
		if a, err := stream.Recv(); err != nil || a.ErrorMessage != "" {
			t.Fatal(a, err)
		}
		expect(want)
	}
	if _, err := r.client.ModelInfer(t.Context(), floats("m", 1)); err != nil {
		t.Fatal(err)
	}
	expect("")
}

// Each condition of the table has its code, and its type in the details.
func TestErrors(t *testing.T) {
	for _, err := range []error{
		fault.ErrProtocol, scheduler.ErrTooLarge, scheduler.ErrInvalidInput, scheduler.ErrNotFound,
		scheduler.ErrOverloaded, scheduler.ErrDeadlineExceeded,
		scheduler.ErrUnavailable, scheduler.ErrContainerFailed, scheduler.ErrContainerLost, fault.ErrUnauthenticated,
		fault.ErrPermissionDenied,
		scheduler.ErrDraining, scheduler.ErrCanceled, fault.ErrInternal, errors.New("nobody knows"),
	} {
		row := fault.Of(err)
		s := statusOf(fmt.Errorf("%w: why", err))
		var info *errdetails.ErrorInfo
		var retry *errdetails.RetryInfo
		for _, d := range s.Details() {
			switch d := d.(type) {
			case *errdetails.ErrorInfo:
				info = d
			case *errdetails.RetryInfo:
				retry = d
			}
		}
		if s.Code() != codes.Code(row.GRPC) || !strings.HasSuffix(s.Message(), ": why") ||
			info.GetReason() != row.Type ||
			info.GetMetadata()["retryable"] != fmt.Sprint(row.Retryable) ||
			(retry != nil) != errors.Is(err, scheduler.ErrOverloaded) {
			t.Errorf("%v: %v %v", err, s, s.Details())
		}
	}
	long := statusOf(fmt.Errorf("%w: %s", scheduler.ErrNotFound, strings.Repeat("é", 5000)))
	if n := len(long.Message()); n > maxText+4 || n < maxText-4 || !strings.HasSuffix(long.Message(), "é…") {
		t.Errorf("a long text has %d bytes and ends in %q", n, long.Message()[n-8:])
	}

	r := newRig(t)
	r.Model("fails",
		scheduler.Spec{Inputs: []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, -1}}}},
		scheduler.WorkerFunc(func(b *scheduler.Batch) error { b.Fail(errors.New("ZeroDivisionError")); return nil }))
	_, err := r.client.ModelInfer(t.Context(), floats("fails", 1))
	failed(t, err, codes.Internal, "ContainerFailed", "ZeroDivisionError")
	_, err = r.client.ModelInfer(t.Context(), floats("fals", 1))
	failed(t, err, codes.NotFound, "NotFound", `nearest: "fails"`)
	replica := r.Model("left",
		scheduler.Spec{Inputs: []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, -1}}}},
		scheduler.WorkerFunc(func(*scheduler.Batch) error { return nil }))
	replica.Remove(errors.New("it left"))
	_, err = r.client.ModelInfer(t.Context(), floats("left", 1))
	failed(t, err, codes.Unavailable, "Unavailable")
}

// grpc-timeout is a deadline like any other, also for a request in the queue.
func TestDeadline(t *testing.T) {
	r := newRig(t)
	w := r.held("m")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := r.client.ModelInfer(ctx, floats("m", 1))
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("%v", err)
	}
	budgettest.Until(r.T, "the request to end", func() bool { return r.inside() == 0 })

	// A deadline of the request itself is answered by the server.
	q := floats("m", 1)
	q.Parameters = map[string]*pb.InferParameter{
		"timeout": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 20_000}}}
	_, err = r.client.ModelInfer(t.Context(), q)
	failed(t, err, codes.DeadlineExceeded, "DeadlineExceeded")
	for w.Answer() == nil {
	}
}

// A client that gives up leaves the queue at once.
func TestCancelLeavesTheQueue(t *testing.T) {
	r := newRig(t)
	w := new(schedtest.Worker)
	x := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 1}}}
	r.Model("m", scheduler.Spec{Inputs: x, Outputs: x}, w)
	waiting := func() int {
		rows := 0
		for _, m := range r.Sched.Models() {
			rows += m.Stats().QueueRows
		}
		return rows
	}
	// Requests that fill the replica's slots, and then some that wait.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 20)
	for range 20 {
		go func() {
			_, err := r.client.ModelInfer(ctx, floats("m", 1))
			done <- err
		}()
	}
	budgettest.Until(r.T, "a queue", func() bool { return waiting() > 10 && r.inside() == 20 })
	cancel()
	for range 20 {
		if err := <-done; status.Code(err) != codes.Canceled {
			t.Errorf("%v", err)
		}
	}
	budgettest.Until(r.T, "an empty queue", func() bool { return waiting() == 0 })
	budgettest.Until(r.T, "all to have ended", func() bool { return r.inside() == 0 })
	for w.Answer() == nil {
	}
}

func TestCompression(t *testing.T) {
	r := newRig(t, func(c *Config, _ *int64) { c.Limits.MessageBytes = 4 << 20 })
	r.echo("m", tensor.Float32)
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i / 1000)
	}
	for _, name := range []string{gzip.Name, "deflate"} {
		before := metric(r, `shivad_sent_bytes_total{door="grpc"} `)
		a, err := r.client.ModelInfer(t.Context(), raw("m", "FP32", []int{1, len(data) / 4}, data),
			grpc.UseCompressor(name))
		if err != nil || !bytes.Equal(a.RawOutputContents[0], data) {
			t.Errorf("%s: %v", name, err)
		}
		if n := metric(r, `shivad_sent_bytes_total{door="grpc"} `) - before; n > 100_000 {
			t.Errorf("%s: %d bytes for the answer of %d", name, n, len(data))
		}
		if _, err := r.client.ServerMetadata(t.Context(), &pb.ServerMetadataRequest{},
			grpc.UseCompressor(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// A bomb: ten megabytes in ten kilobytes.
		_, err = r.client.ModelInfer(t.Context(), raw("m", "FP32", []int{1, 10 << 18}, make([]byte, 10<<20)),
			grpc.UseCompressor(name))
		failed(t, err, codes.ResourceExhausted, "TooLarge", "limits.message_bytes is 4194304")
		// The same size in tensors that are each within the limit.
		q := raw("m", "FP32", []int{1, 3 << 18}, make([]byte, 3<<20))
		q.RawInputContents = append(q.RawInputContents, q.RawInputContents[0])
		_, err = r.client.ModelInfer(t.Context(), q, grpc.UseCompressor(name))
		failed(t, err, codes.ResourceExhausted, "TooLarge", "limits.message_bytes is 4194304")
	}
}

// metric returns a metric of the server, by its name and labels.
func metric(r *rig, name string) int {
	r.T.Helper()
	n, ok := findMetric(r, name)
	if !ok {
		r.T.Fatalf("no %s", name)
	}
	return n
}

func findMetric(r *rig, name string) (int, bool) {
	r.T.Helper()
	w := httptest.NewRecorder()
	r.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if value, ok := strings.CutPrefix(line, name); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				r.T.Fatal(err)
			}
			return int(n), true
		}
	}
	return 0, false
}
