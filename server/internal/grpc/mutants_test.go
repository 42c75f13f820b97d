package grpc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/grpc/wire"
	"github.com/shivad/shivad/server/internal/jsontest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Requests for inference that are nearly right: TestMutants in a short form, "make soak" a
// million of them, and FuzzMutants guided by coverage. The target in codec_test.go changes bytes:
// hardly any of its requests gets past the reading of its fields, which is all that it tests.

// mutants sends mutants of samples to a door.
type mutants struct {
	*rig
	samples []*pb.ModelInferRequest
	cameras []*pb.ModelInferRequest // those of the samples for the slow model
	tally   jsontest.Tally
	stream  grpc.ClientStream // shared with other requests; nil: none yet
	conn    *grpc.ClientConn
	ctx     context.Context // as the context of a call on a connection
}

func newMutants(t testing.TB) *mutants {
	m := &mutants{rig: newRig(t)}
	add := func(q *pb.ModelInferRequest) { m.samples = append(m.samples, q) }
	for _, c := range dtypes {
		d, _ := tensor.FromV2(c.name)
		m.echo(c.name, d)
		add(raw(c.name, c.name, []int{2, 3}, c.data))
		if c.contents != nil {
			add(typed(c.name, c.name, []int64{6, 1}, c.contents))
			add(wantTyped(typed(c.name, c.name, []int64{1, 6}, c.contents)))
		}
	}
	two := []tensor.Spec{{Name: "a", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}},
		{Name: "b", DType: tensor.Int64, Shape: tensor.Shape{-1}}}
	m.Model("two", scheduler.Spec{Inputs: two, Outputs: two}, scheduler.WorkerFunc(m.Echo))
	both := &pb.ModelInferRequest{ModelName: "two", Id: "7", ModelVersion: "1",
		Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "a", Datatype: "FP32", Shape: []int64{1, 2}},
			{Name: "b", Datatype: "INT64", Shape: []int64{1}}},
		Outputs: []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "b"}, {Name: "a",
			Parameters: map[string]*pb.InferParameter{"classification": parameterOf(1)}}},
		Parameters: map[string]*pb.InferParameter{"priority": parameterOf(2), "timeout": parameterOf(9_000_000),
			"user": parameterOf("u"), "other": parameterOf(true)},
		RawInputContents: [][]byte{make([]byte, 8), make([]byte, 8)}}
	add(both)
	fixed := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{2, 2}}}
	m.Model("fixed", scheduler.Spec{Inputs: fixed, Outputs: fixed}, scheduler.WorkerFunc(m.Echo))
	add(raw("fixed", "INT32", []int{2, 2}, make([]byte, 16)))
	camera := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}}
	m.Model("camera", scheduler.Spec{Inputs: camera, Outputs: camera}, scheduler.WorkerFunc(m.Slowly))
	add(raw("camera", "FP32", []int{1, 2}, make([]byte, 8)))
	m.cameras = m.samples[len(m.samples)-1:]
	m.conn = m.dial(grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	m.ctx = context.WithValue(context.Background(), connKey{}, &conn{outbox: outbox{box: gate.Outbox{Limit: 8 << 20}}})
	return m
}

// A mutant is a request made of a sample.
type mutant struct {
	body  []byte
	right bool            // it is the sample, unchanged
	frame *jsontest.Frame // the frame of a stream that it is; nil: none, or unknown
}

func (q *mutant) String() string { return fmt.Sprintf("%d bytes: %.2000x", len(q.body), q.body) }

// make makes a request: from the sample one with other types, shapes, counts, contents and
// parameters, and from its bytes one with other fields.
func (m *mutants) make(c *jsontest.Choices, samples []*pb.ModelInferRequest) *mutant {
	message := proto.Clone(jsontest.One(c, samples)).(*pb.ModelInferRequest)
	changes, framed := c.N(5), len(samples) == len(m.cameras)
	if framed {
		changes /= 3 // few frames would be executed
	}
	for range changes {
		m.change(c, message)
	}
	q := &mutant{right: changes == 0}
	if framed || c.N(8) == 7 {
		q.frame = jsontest.ChooseFrame(c)
		q.right = q.right && q.frame.Right
		setFrame(message, q.frame)
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil { // a string that is not UTF-8, which the changes do not make
		m.T.Fatal(err)
	}
	q.body = body
	for range c.N(8) - 5 {
		q.body, q.right, q.frame = rewire(c, q.body), false, nil
	}
	return q
}

// setFrame gives a message the keys of a frame, and its id.
func setFrame(q *pb.ModelInferRequest, f *jsontest.Frame) {
	if q.Parameters == nil {
		q.Parameters = map[string]*pb.InferParameter{}
	}
	for _, key := range []string{"stream", "seq", "captured_at", "keep"} {
		delete(q.Parameters, key)
	}
	for _, key := range f.Keys {
		p := &pb.InferParameter{} // empty for a value that no parameter has
		var v any
		_ = json.Unmarshal([]byte(key.Text), &v) // 1e400 is not a valid JSON number
		switch v := v.(type) {
		case bool:
			p = parameterOf(v)
		case string:
			p = parameterOf(v)
		case float64:
			p.ParameterChoice = &pb.InferParameter_DoubleParam{DoubleParam: v}
			if n, err := strconv.ParseInt(key.Text, 10, 64); err == nil {
				p.ParameterChoice = &pb.InferParameter_Int64Param{Int64Param: n}
			} else if n, err := strconv.ParseUint(key.Text, 10, 64); err == nil {
				p.ParameterChoice = &pb.InferParameter_Uint64Param{Uint64Param: n}
			}
		}
		q.Parameters[key.Name] = p
	}
	_ = json.Unmarshal([]byte(cmp.Or(f.ID, `""`)), &q.Id)
}

var (
	dimensions = []int64{0, 1, 2, 3, 6, -1, 7, 1 << 16, math.MaxInt32, math.MaxInt32 + 1, 1 << 62, math.MaxInt64,
		math.MinInt64}
	names = []string{"x", "a", "b", "", "y", "é", "x\x00"}
	keys  = []string{"priority", "timeout", "binary_data_output", "user", "sequence_id", "sequence_start", "in_order",
		"triton_x", "shared_memory_region", "headers",
		"classification", "other", "", "triton_enable_empty_final_response", "stream", "seq", "captured_at", "keep"}
)

// anyParameter returns a parameter of any kind, or none.
func anyParameter(c *jsontest.Choices) *pb.InferParameter {
	n := jsontest.One(c, []int64{0, 1, -1, 2, 1000, 1 << 31, math.MaxInt64, math.MinInt64})
	switch c.N(6) {
	case 0:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: n}}
	case 1:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_Uint64Param{Uint64Param: uint64(n)}}
	case 2:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: n&1 == 1}}
	case 3:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_StringParam{StringParam: jsontest.One(c, names)}}
	case 4:
		return &pb.InferParameter{
			ParameterChoice: &pb.InferParameter_DoubleParam{
				DoubleParam: jsontest.One(c, []float64{0, 1.5, math.NaN(), math.Inf(1), -1e300})}}
	}
	return &pb.InferParameter{}
}

// change makes one change to a request's structure.
func (m *mutants) change(c *jsontest.Choices, q *pb.ModelInferRequest) {
	parameters := func(p map[string]*pb.InferParameter) map[string]*pb.InferParameter {
		if p == nil {
			p = map[string]*pb.InferParameter{}
		}
		p[jsontest.One(c, keys)] = anyParameter(c)
		return p
	}
	kind := c.N(12)
	if kind < 6 && len(q.Inputs) > 0 {
		m.changeInput(c, jsontest.One(c, q.Inputs))
		return
	}
	switch kind {
	case 6:
		q.Parameters = parameters(q.Parameters)
	case 7:
		out := &pb.ModelInferRequest_InferRequestedOutputTensor{Name: jsontest.One(c, names)}
		if c.N(2) == 1 {
			out.Parameters = parameters(nil)
		}
		q.Outputs = append(q.Outputs, out)
	case 8:
		q.ModelName, q.ModelVersion = jsontest.One(c, m.samples).ModelName,
			jsontest.One(c, []string{"", "1", "2", "update", "1/2"})
	case 9: // one input more or less
		other := proto.Clone(jsontest.One(c, m.samples)).(*pb.ModelInferRequest)
		switch c.N(3) {
		case 0:
			q.Inputs = append(q.Inputs, other.Inputs...)
		case 1:
			q.Inputs = q.Inputs[:c.N(len(q.Inputs)+1)]
		default:
			slices.Reverse(q.Inputs)
		}
	case 10: // raw contents added or removed
		other := jsontest.One(c, m.samples)
		switch c.N(3) {
		case 0:
			q.RawInputContents = append(q.RawInputContents, other.RawInputContents...)
		case 1:
			q.RawInputContents = q.RawInputContents[:c.N(len(q.RawInputContents)+1)]
		default:
			q.RawInputContents = append(q.RawInputContents, []byte{})
		}
	default: // their bytes
		if len(q.RawInputContents) > 0 {
			i := c.N(len(q.RawInputContents))
			data := slices.Clone(q.RawInputContents[i])
			switch at := c.N(len(data) + 1); c.N(3) {
			case 0:
				data = data[:at]
			case 1:
				data = append(data, data[:at]...)
			default:
				data = binary.LittleEndian.AppendUint32(data[:at], uint32(jsontest.One(c, dimensions)))
			}
			q.RawInputContents[i] = data
		}
	}
}

func (m *mutants) changeInput(c *jsontest.Choices, in *pb.ModelInferRequest_InferInputTensor) {
	switch c.N(6) {
	case 0:
		if len(in.Shape) > 0 {
			in.Shape[c.N(len(in.Shape))] = jsontest.One(c, dimensions)
		}
	case 1:
		in.Shape = append(in.Shape, slices.Repeat([]int64{jsontest.One(c, dimensions)}, 1+c.N(12))...)
	case 2:
		in.Shape = in.Shape[:c.N(len(in.Shape)+1)]
	case 3:
		in.Datatype = jsontest.One(c,
			[]string{"FP32", "BYTES", "INT8", "FP16", "BOOL", "UINT64", "", "fp32", "COMPLEX64", "LONGDOUBLE"})
	case 4:
		in.Name = jsontest.One(c, names)
	default:
		other := jsontest.One(c, dtypes).contents
		switch {
		case c.N(3) == 0 || other == nil:
			in.Contents = nil
		case in.Contents == nil:
			in.Contents = proto.Clone(other).(*pb.InferTensorContents)
		default:
			proto.Merge(in.Contents, other) // two kinds, or more elements
		}
	}
}

// rewire makes one change to the fields of a message, or of a nested one: their order, number, wire
// type, or end.
func rewire(c *jsontest.Choices, b []byte) []byte {
	var fields [][]byte
	for rest := b; len(rest) > 0; {
		_, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			fields = append(fields, rest)
			break
		}
		fields = append(fields, rest[:n])
		rest = rest[n:]
	}
	if len(fields) == 0 {
		return protowire.AppendVarint(nil, uint64(jsontest.One(c, dimensions)))
	}
	i := c.N(len(fields))
	switch c.N(8) {
	case 0:
		fields = slices.Delete(fields, i, i+1)
	case 1:
		fields = append(fields, slices.Repeat(fields[i:i+1], 1+c.N(30))...)
	case 2:
		slices.Reverse(fields)
	case 3: // in a nested message
		if num, typ, n := protowire.ConsumeTag(fields[i]); n > 0 && typ == protowire.BytesType {
			if inner, m := protowire.ConsumeBytes(fields[i][n:]); m > 0 {
				fields[i] = wire.AppendBytes(nil, int(num), rewire(c, inner))
			}
		}
	case 4: // another wire type or number
		fields[i] = slices.Clone(fields[i])
		fields[i][0] ^= byte(1 << c.N(6))
	case 5: // a wrong announced length
		if num, typ, n := protowire.ConsumeTag(fields[i]); n > 0 && typ == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(fields[i][n:])
			fields[i] = append(protowire.AppendVarint(protowire.AppendTag(nil, num, typ),
				uint64(jsontest.One(c, dimensions))), inner...)
		}
	case 6: // groups, and fields of unknown numbers
		group := protowire.AppendTag(nil, protowire.Number(1+c.N(20)), protowire.StartGroupType)
		group = append(append(group, fields[i]...),
			protowire.AppendTag(nil, protowire.Number(1+c.N(20)), protowire.EndGroupType)...)
		fields = append(fields, group)
	default:
		all := slices.Concat(fields...)
		return all[:c.N(len(all)+1)]
	}
	return slices.Concat(fields...)
}

// run makes a request, sends it in one of several ways, and checks the answer.
func (m *mutants) run(c jsontest.Choices) {
	if c.N(16) == 15 {
		m.burst(&c)
		return
	}
	q := m.make(&c, m.samples)
	defer jsontest.Within(q.String)()
	var data []byte
	var err error
	switch c.N(16) {
	case 14:
		data, err = m.call(q)
	case 15:
		m.send(q)
		data, _, err = m.receive(q)
	default:
		data, err = m.inProcess(m.ctx, q, 1+c.N(200))
	}
	m.judge(q, data, err)
	budgettest.Until(m.T, "the memory to come back", m.Idle)
}

// burst sends requests to the slow model, most of them frames of a few streams: on one
// ModelStreamInfer, which answers in order, or as concurrent calls, one in eight of which is
// canceled soon. Afterwards no stream has a frame without an answer.
func (m *mutants) burst(c *jsontest.Choices) {
	burst := make([]*mutant, 2+c.N(6))
	var frames []*jsontest.Frame
	for i := range burst {
		burst[i] = m.make(c, m.cameras)
		if f := burst[i].frame; f != nil || bytes.Contains(burst[i].body, []byte("stream")) {
			frames = append(frames, f)
		}
	}
	defer jsontest.Within(func() string { return fmt.Sprint(burst) })()
	if c.N(2) == 0 {
		for _, q := range burst {
			m.send(q)
		}
		for i, q := range burst {
			frames := frames
			if len(frames) == len(burst) {
				frames = frames[i+1:] // a newer one was sent later
			}
			data, by, err := m.receive(q)
			m.judge(q, data, err)
			m.judgeFrame(q, data, by, err, frames)
		}
	} else {
		m.calls(c, burst, frames)
	}
	m.Silent("camera")
}

// calls makes all calls of a burst at once.
func (m *mutants) calls(c *jsontest.Choices, burst []*mutant, frames []*jsontest.Frame) {
	type result struct {
		data []byte
		err  error
		gone bool
	}
	results := make([]result, len(burst))
	var all sync.WaitGroup
	for i, q := range burst {
		ctx, cancel := context.WithCancel(m.ctx)
		defer cancel()
		if r := &results[i]; c.N(8) == 7 {
			r.gone = true
			time.AfterFunc(time.Duration(c.N(256))*time.Microsecond, cancel)
		}
		all.Go(func() { results[i].data, results[i].err = m.inProcess(ctx, q, 100) })
	}
	all.Wait()
	for i, q := range burst {
		if r := results[i]; !r.gone {
			m.judge(q, r.data, r.err)
			by := ""
			for _, d := range status.Convert(r.err).Details() {
				if info, ok := d.(*errdetails.ErrorInfo); ok {
					by = info.Metadata["by"]
				}
			}
			m.judgeFrame(q, r.data, by, r.err, frames)
		}
	}
}

// judgeFrame checks the answer to a frame: an invalid frame is refused, a valid one gets its number
// back, and a superseded one names the newer frame.
func (m *mutants) judgeFrame(q *mutant, data []byte, by string, err error, frames []*jsontest.Frame) {
	if q.frame == nil {
		return
	}
	if err != nil {
		if status.Code(err) == codes.Aborted && !q.frame.By(by, frames) {
			m.T.Fatalf("of %v\nframe %v, %v, is superseded by %q", frames, q.frame, q, by)
		}
		return
	}
	var a pb.ModelInferResponse
	if err := proto.Unmarshal(data, &a); err != nil {
		m.T.Fatalf("answered what is no answer: %v\n%v", err, q)
	}
	seq := ""
	if p := a.Parameters["seq"]; p != nil {
		seq = strconv.FormatInt(p.GetInt64Param(), 10)
	}
	if !q.frame.Stray && (!q.frame.Right || seq != q.frame.Value("seq") || a.Parameters["skipped"] == nil) {
		m.T.Fatalf("frame %v, %v, is answered %v", q.frame, q, &a)
	}
}

// inProcess reads the mutant in pieces of size and asks the door, without a socket.
func (m *mutants) inProcess(ctx context.Context, q *mutant, size int) ([]byte, error) {
	var r request
	defer r.release()
	w := wire.New(&delivery{data: q.body, announced: len(q.body), frame: size}, statusOf)
	if _, err := w.Receive(m.door.bounds(&r), false, r.read); err != nil {
		return nil, statusOf(err).Err()
	}
	reply, err := m.door.ask(ctx, &r, time.Now(), connOf(ctx))
	if err != nil {
		return nil, statusOf(err).Err()
	}
	defer reply.release()
	out := reply.marshal()
	defer out.Free()
	return out.Materialize(), nil
}

func (m *mutants) call(q *mutant) ([]byte, error) {
	var data []byte
	err := m.conn.Invoke(context.Background(), pb.GRPCInferenceService_ModelInfer_FullMethodName, q.body, &data)
	return data, err
}

// send sends the mutant on a stream that continues whatever the answer is.
func (m *mutants) send(q *mutant) {
	var err error
	if m.stream == nil {
		desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
		if m.stream, err = m.conn.NewStream(m.ctx, desc,
			pb.GRPCInferenceService_ModelStreamInfer_FullMethodName); err != nil {
			m.T.Fatal(err)
		}
	}
	if err = m.stream.SendMsg(q.body); err != nil {
		m.T.Fatalf("the stream ends with %v\nafter %v", err, q)
	}
}

// receive returns the answer to q, which is the next on the stream, and as JSON the frame that
// superseded q, if any.
func (m *mutants) receive(q *mutant) (data []byte, by string, err error) {
	if err = m.stream.RecvMsg(&data); err != nil {
		m.T.Fatalf("the stream ends with %v\nafter %v", err, q)
	}
	var a pb.ModelStreamInferResponse
	if err := proto.Unmarshal(data, &a); err != nil {
		m.T.Fatalf("%v\nafter %v", err, q)
	}
	switch p := a.InferResponse.GetParameters()["by"]; {
	case p.GetStringParam() != "":
		by = strconv.Quote(p.GetStringParam())
	case p != nil:
		by = strconv.FormatInt(p.GetInt64Param(), 10)
	}
	if strings.Contains(a.ErrorMessage, "superseded") { // the other errors have no code of their own
		return nil, by, status.Error(codes.Aborted, a.ErrorMessage)
	} else if a.ErrorMessage != "" {
		return nil, by, status.Error(codes.InvalidArgument, a.ErrorMessage)
	}
	data, err = proto.Marshal(a.InferResponse)
	return data, by, err
}

// judge checks an answer: it is one of the table; a valid request gets it, and an answered one was
// a request and is echoed.
func (m *mutants) judge(q *mutant, data []byte, err error) {
	switch code := status.Code(err); code {
	case codes.OK:
		m.tally.Good(code)
	case codes.InvalidArgument:
		m.tally.Refused(code)
	case codes.NotFound, codes.ResourceExhausted, codes.DeadlineExceeded:
		m.tally.Other(code)
	case codes.Aborted: // superseded
		m.tally.Other(code)
		return
	default:
		m.T.Fatalf("%v\nafter %v", err, q)
	}
	if err != nil {
		if q.right {
			m.T.Fatalf("a right request is refused: %v\n%v", err, q)
		}
		return
	}
	var asked pb.ModelInferRequest
	var a pb.ModelInferResponse
	if err := proto.Unmarshal(q.body, &asked); err != nil {
		m.T.Fatalf("accepted, and no request: %v\n%v", err, q)
	}
	if err := proto.Unmarshal(data, &a); err != nil {
		m.T.Fatalf("answered what is no answer: %v\n%v", err, q)
	}
	if len(asked.Outputs) > 0 || len(asked.RawInputContents) == 0 ||
		len(asked.RawInputContents) != len(a.RawOutputContents) {
		return
	}
	for i, in := range asked.Inputs {
		at := slices.IndexFunc(a.Outputs, func(o *pb.ModelInferResponse_InferOutputTensor) bool {
			return o.Name == in.Name
		})
		if at < 0 { // a model with one input takes an input without a name
			at = i
		}
		if a.Outputs[at].Datatype == "BYTES" && in.Datatype == "UINT8" {
			continue // one text, sent as its UTF-8 bytes
		}
		if out := a.Outputs[at]; !sameShape(out.Shape, in.Shape) || out.Datatype != in.Datatype ||
			!bytes.Equal(a.RawOutputContents[at], asked.RawInputContents[i]) {
			m.T.Fatalf("asked %v\nechoed %v", &asked, &a)
		}
	}
}

// sameShape reports whether out is the shape of the echo of in. Requests without rows are answered
// without the model, so sizes that only the model knows are 0.
func sameShape(out, in []int64) bool {
	if len(in) == 0 || in[0] != 0 || len(out) != len(in) {
		return slices.Equal(out, in)
	}
	for i := range out {
		if out[i] != in[i] && out[i] != 0 {
			return false
		}
	}
	return true
}

func TestMutants(t *testing.T) {
	m := newMutants(t)
	jsontest.Drive(t, 20_000, &m.tally, m.run)
}

// FuzzMutants: the fuzzer's bytes choose the requests, guided by coverage.
func FuzzMutants(f *testing.F) {
	m := newMutants(f)
	jsontest.Fuzz(f, len(m.samples), nil, func(t *testing.T, c jsontest.Choices) {
		run := *m
		held := *m.rig
		held.Rig = m.For(t)
		run.rig, run.stream = &held, nil
		ctx, cancel := context.WithCancel(m.ctx) // its own stream ends with t
		defer cancel()
		run.ctx = ctx
		run.run(c)
	})
}
