package grpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/grpc/wire"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A delivery is a transport with one message on it.
type delivery struct {
	wire.Transport
	data      []byte
	announced int // bytes, by the message's header
	frame     int // bytes per frame
}

func (d *delivery) ReadMessageHeader(header []byte) error {
	header[0] = 0
	binary.BigEndian.PutUint32(header[1:], uint32(d.announced))
	return nil
}

func (d *delivery) Read(n int) (mem.BufferSlice, error) {
	if n > len(d.data) {
		return nil, io.EOF
	}
	var out mem.BufferSlice
	for n > 0 {
		k := min(n, d.frame)
		out = append(out, mem.SliceBuffer(d.data[:k]))
		d.data = d.data[k:]
		n -= k
	}
	return out, nil
}

var testLimits = gate.Limits{MessageBytes: 64 << 20, MetadataBytes: 1 << 16, Tensors: 255, Rank: 255}

// doorOf returns a door with memory of a pool.
func doorOf(pool *tensor.Pool) *Door {
	door := new(Door)
	door.settings.Store(&Settings{Limits: testLimits, Memory: gate.Memory{Pool: pool}})
	return door
}

// receive reads a request from a delivery.
func (d *delivery) receive(door *Door) (*request, error) {
	r := new(request)
	_, err := wire.New(d, statusOf).Receive(door.bounds(r), false, r.read)
	return r, err
}

// decode reads a request from frames of that size.
func decode(data []byte, frame int, pool *tensor.Pool) (*request, error) {
	return (&delivery{data: data, announced: len(data), frame: frame}).receive(doorOf(pool))
}

// compare returns how a request differs from what the generated code reads; "" if it does not.
func compare(r *request, m *pb.ModelInferRequest) string {
	var b strings.Builder
	check := func(what string, got, want any) {
		if !reflect.DeepEqual(got, want) {
			fmt.Fprintf(&b, "%s: got %#v, want %#v\n", what, got, want)
		}
	}
	check("model", []string{r.Model, r.Version, r.id}, []string{m.ModelName, m.ModelVersion, m.Id})
	check("parameters", r.parameters, parametersOf(m.Parameters))
	check("inputs", len(r.inputs), len(m.Inputs))
	check("outputs", len(r.outputs), len(m.Outputs))
	check("raw", len(r.raw), len(m.RawInputContents))
	if b.Len() > 0 {
		return b.String()
	}
	for i, in := range r.inputs {
		want := m.Inputs[i]
		check("name", in.name, want.Name)
		check("datatype", in.datatype, want.Datatype)
		check("shape", append([]int64{}, in.shape...), append([]int64{}, want.Shape...))
		check("parameters", in.parameters, parametersOf(want.Parameters))
		number, data, count, mixed := contentsOf(want.Contents)
		if in.contents.mixed != 0 || mixed {
			check("mixed", in.contents.mixed != 0, mixed)
			continue
		}
		check("contents' field", in.contents.number, number)
		check("contents", in.contents.Data(), data)
		check("elements", in.contents.count, count)
	}
	for i, out := range r.outputs {
		check("name", out.name, m.Outputs[i].Name)
		check("parameters", out.parameters, parametersOf(m.Outputs[i].Parameters))
	}
	for i := range r.raw {
		if !bytes.Equal(r.raw[i].Data(), m.RawInputContents[i]) {
			check("raw contents", r.raw[i].Data(), m.RawInputContents[i])
		}
	}
	return b.String()
}

func parametersOf(m map[string]*pb.InferParameter) parameters {
	var p parameters
	for key, v := range m {
		if p == nil {
			p = parameters{}
		}
		switch v := v.GetParameterChoice().(type) {
		case *pb.InferParameter_BoolParam:
			p[key] = v.BoolParam
		case *pb.InferParameter_Int64Param:
			p[key] = v.Int64Param
		case *pb.InferParameter_StringParam:
			p[key] = v.StringParam
		case *pb.InferParameter_DoubleParam:
			p[key] = v.DoubleParam
			if math.IsNaN(v.DoubleParam) {
				p[key] = "NaN" // NaN does not equal itself
			}
		case *pb.InferParameter_Uint64Param:
			p[key] = v.Uint64Param
		default:
			p[key] = nil
		}
	}
	return p
}

// contentsOf returns the field that has values, and its elements as they are stored here.
func contentsOf(c *pb.InferTensorContents) (number int, data []byte, count int, mixed bool) {
	data = []byte{}
	fields := 0
	is := func(num, n int) bool {
		if n > 0 {
			number, count = num, n
			fields++
		}
		return n > 0
	}
	if is(boolContents, len(c.GetBoolContents())) {
		for _, v := range c.BoolContents {
			data = append(data, map[bool]byte{true: 1}[v])
		}
	}
	if is(intContents, len(c.GetIntContents())) {
		for _, v := range c.IntContents {
			data = binary.LittleEndian.AppendUint32(data, uint32(v))
		}
	}
	if is(int64Contents, len(c.GetInt64Contents())) {
		for _, v := range c.Int64Contents {
			data = binary.LittleEndian.AppendUint64(data, uint64(v))
		}
	}
	if is(uintContents, len(c.GetUintContents())) {
		for _, v := range c.UintContents {
			data = binary.LittleEndian.AppendUint32(data, v)
		}
	}
	if is(uint64Contents, len(c.GetUint64Contents())) {
		for _, v := range c.Uint64Contents {
			data = binary.LittleEndian.AppendUint64(data, v)
		}
	}
	if is(fp32Contents, len(c.GetFp32Contents())) {
		for _, v := range c.Fp32Contents {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
	}
	if is(fp64Contents, len(c.GetFp64Contents())) {
		for _, v := range c.Fp64Contents {
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(v))
		}
	}
	if is(bytesContents, len(c.GetBytesContents())) {
		for _, v := range c.BytesContents {
			data = tensor.AppendElem(data, v)
		}
	}
	return number, data, count, fields > 1
}

// odd returns encodings that are allowed although no library writes them, and some that are not.
func odd() map[string][]byte {
	full := func() []byte {
		m := floats("m", 1, 2, 3)
		m.Id, m.ModelVersion = "id", "1"
		m.Parameters = map[string]*pb.InferParameter{
			"p": {ParameterChoice: &pb.InferParameter_DoubleParam{DoubleParam: 2.5}}, "": nil}
		m.Inputs = append(m.Inputs,
			typed("", "INT8", []int64{-1, math.MaxInt64}, &pb.InferTensorContents{IntContents: []int32{1, -1}}).
				Inputs...)
		m.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "o", Parameters: m.Parameters}}
		b, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		return b
	}()
	tag := protowire.AppendTag
	bytesOf := wire.AppendBytes
	contents := func(c []byte) []byte { return bytesOf(nil, requestInputs, bytesOf(nil, inputContents, c)) }
	varint := func(num protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(tag(nil, num, protowire.VarintType), v)
	}
	group := append(append(tag(nil, 99, protowire.StartGroupType), varint(1, 5)...),
		tag(nil, 99, protowire.EndGroupType)...)
	unpacked := slices.Concat(varint(intContents, 7), varint(intContents, math.MaxUint64),
		bytesOf(nil, intContents, []byte{1, 2, 0x80, 0x01}))
	two := bytesOf(nil, requestInputs,
		slices.Concat(bytesOf(nil, inputContents, varint(boolContents, 300)),
			bytesOf(nil, inputContents, varint(boolContents, 0))))
	return map[string][]byte{
		"empty": {},
		"full":  full,
		"twice": append(bytes.Clone(full), full...),
		"cut":   full[:len(full)-1],
		"unknown fields": slices.Concat(varint(100, 1), group, bytesOf(nil, 101, []byte("xyz")),
			protowire.AppendFixed32(tag(nil, 7, protowire.Fixed32Type), 1), full),
		"known ones, wrong types": slices.Concat(varint(requestModel, 1), varint(requestInputs, 2),
			varint(requestRaw, 3),
			bytesOf(nil, requestInputs,
				slices.Concat(varint(inputName, 1),
					protowire.AppendFixed64(tag(nil, inputShape, protowire.Fixed64Type), 1)))),
		"model twice":    slices.Concat(bytesOf(nil, requestModel, []byte("a")), bytesOf(nil, requestModel, []byte("b"))),
		"unpacked":       contents(unpacked),
		"contents twice": two,
		"floats one by one": contents(
			slices.Concat(protowire.AppendFixed32(tag(nil, fp32Contents, protowire.Fixed32Type), 1),
				bytesOf(nil, fp32Contents, make([]byte, 8)))),
		"two fields":   contents(slices.Concat(varint(intContents, 7), varint(uintContents, 7))),
		"half a float": contents(bytesOf(nil, fp32Contents, make([]byte, 6))),
		"unpacked shape": bytesOf(nil, requestInputs,
			slices.Concat(varint(inputShape, 3), varint(inputShape, math.MaxUint64))),
		"entry twice": bytesOf(nil, requestParameters,
			slices.Concat(bytesOf(nil, 1, []byte("k")), bytesOf(nil, 2, varint(paramInt64, 4)),
				bytesOf(nil, 2, varint(paramBool, 1)), bytesOf(nil, 1, []byte("l")))),
		"long varint":     {0x0a, 0x81, 0x80, 0x80, 0x80, 0x00, 'a'},
		"too long varint": {0x0a, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02, 'a'},
		"field 0":         {0x02, 0},
		"not UTF-8":       {0x0a, 1, 0xff},
		"end of no group": {0x0c},
		"group not ended": tag(nil, 99, protowire.StartGroupType),
		"length beyond":   {0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"wire type 7":     {0x0f},
	}
}

// checkDecode decodes data in pieces of size and with the generated code, and reports any
// difference.
func checkDecode(t *testing.T, data []byte, size int) {
	pool := tensor.NewPool(64 << 20)
	r, err := decode(data, size, pool)
	var m pb.ModelInferRequest
	theirs := proto.Unmarshal(data, &m)
	switch {
	case err == nil && theirs != nil:
		t.Errorf("pieces of %d: read, but the generated code says %v", size, theirs)
	case err == nil:
		for _, p := range []parameters{r.parameters} {
			nameNaNs(p)
		}
		for _, in := range r.inputs {
			nameNaNs(in.parameters)
		}
		for _, out := range r.outputs {
			nameNaNs(out.parameters)
		}
		if diff := compare(r, &m); diff != "" {
			t.Errorf("pieces of %d: %s", size, diff)
		}
	case theirs == nil && errors.Is(err, fault.ErrProtocol):
		t.Errorf("pieces of %d: %v, but the generated code reads it", size, err)
	}
	r.release()
	if n := pool.InUse(); n != 0 {
		t.Errorf("pieces of %d: %d bytes are still out", size, n)
	}
}

func nameNaNs(p parameters) {
	for key, v := range p {
		if f, ok := v.(float64); ok && math.IsNaN(f) {
			p[key] = "NaN"
		}
	}
}

func TestOddEncodings(t *testing.T) {
	for name, data := range odd() {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 2, 3, 7, 1 << 20} {
				checkDecode(t, data, size)
			}
		})
	}
}

func FuzzRequest(f *testing.F) {
	for _, data := range odd() {
		f.Add(data, 3)
	}
	for _, c := range dtypes {
		b, err := proto.Marshal(typed("m", c.name, []int64{6}, c.contents))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, 100)
	}
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		budgettest.Input(t)
		checkDecode(t, data, max(1, size%1000))
		checkDecode(t, data, len(data)+1)
	})
}

// The generated code reads answers as they were written.
func TestReply(t *testing.T) {
	pool := tensor.NewPool(1 << 20)
	big, err := pool.Get(20_000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range big.Bytes() {
		big.Bytes()[i] = byte(i * 7)
	}
	c := new(outbox)
	a := &predict.Answer{Model: "m", Version: "2", Outputs: []tensor.Tensor{
		{Name: "big", DType: tensor.Float32, Shape: tensor.Shape{5000}, Data: big.Bytes(), Buf: big},
		{Name: "scalar", DType: tensor.Bool, Shape: tensor.Shape{}, Data: []byte{7}},
		{Name: "none", DType: tensor.Int16, Shape: tensor.Shape{0, 3}, Data: []byte{}},
		{Name: "heap", DType: tensor.Uint8, Shape: tensor.Shape{10_000}, Data: make([]byte, 10_000)},
	}}
	for _, r := range []*reply{
		{answer: a, id: "id", out: c.depart(0)}, {answer: a, id: "id", out: c.depart(0), typed: true},
		{answer: a, id: "id", out: c.depart(0), stream: true}, {stream: true, id: "x", err: fault.ErrInternal},
	} {
		slice, err := newCodec().Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		data := slice.Materialize()
		var m *pb.ModelInferResponse
		if r.stream {
			var s pb.ModelStreamInferResponse
			if err := proto.Unmarshal(data, &s); err != nil {
				t.Fatal(err)
			}
			if (s.ErrorMessage != "") != (r.err != nil) || s.InferResponse == nil {
				t.Errorf("%v", &s)
			}
			m = s.InferResponse
		} else if m = new(pb.ModelInferResponse); true {
			if err := proto.Unmarshal(data, m); err != nil {
				t.Fatal(err)
			}
		}
		if r.err != nil {
			if m.Id != "x" {
				t.Errorf("%v", m)
			}
			continue
		}
		if m.ModelName != "m" || m.ModelVersion != "2" || m.Id != "id" || len(m.Outputs) != 4 ||
			m.Outputs[1].Shape != nil || !slices.Equal(m.Outputs[2].Shape, []int64{0, 3}) {
			t.Errorf("%v", m)
		}
		for i, out := range a.Outputs {
			if !r.typed {
				if !bytes.Equal(m.RawOutputContents[i], out.Data) {
					t.Errorf("%s differs", out.Name)
				}
				continue
			}
			number, values, _, _ := contentsOf(m.Outputs[i].Contents)
			want := out.Data
			switch out.Name {
			case "scalar":
				want = []byte{1}
			case "heap":
				want = make([]byte, 4*len(want))
			}
			if !bytes.Equal(values, want) || number != dtypeFields[out.DType] && len(want) > 0 {
				t.Errorf("%s typed differs: %d", out.Name, number)
			}
		}
		slice.Free()
	}
	if len(c.held) != 0 {
		t.Errorf("%d are held", len(c.held))
	}
	big.Release()
	if n := pool.InUse(); n != 0 {
		t.Errorf("%d bytes are still out", n)
	}
}

// A tensor takes memory of the pool and hardly any besides, in and out.
func TestAllocations(t *testing.T) {
	pool := tensor.NewPool(0)
	const size = 602_112
	data, err := proto.Marshal(raw("m", "FP32", []int{1, size / 4}, make([]byte, size)))
	if err != nil {
		t.Fatal(err)
	}
	door, c := doorOf(pool), new(outbox)
	allocated := bytesPer(50, func() {
		// The transport owns the frames.
		r, err := (&delivery{data: data, announced: len(data), frame: len(data)}).receive(door)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.complete(); err != nil {
			t.Fatal(err)
		}
		a := &predict.Answer{Model: "m", Outputs: r.Inputs}
		out, _ := newCodec().Marshal(&reply{answer: a, out: c.depart(0)})
		if out.Len() < size {
			t.Fatal(out.Len())
		}
		r.Inputs[0].Release()
		out.Free()
	})
	if pool.InUse() != 0 {
		t.Error("memory is still out")
	}
	if tensor.Invariants || budgettest.Race {
		return // there buffers are never reused, and each of them is new
	}
	if allocated > 4<<10 {
		t.Errorf("%d bytes are allocated for a request of %d and its answer", allocated, size)
	}
}

// A tensor of the usual size gets its memory at once, without another copy on the way; a tensor
// that is only announced does not.
func TestMemoryComesAtOnce(t *testing.T) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20, 7 << 20} { // as large as their classes
		data, err := proto.Marshal(raw("m", "FP32", []int{1, size / 4}, make([]byte, size)))
		if err != nil {
			t.Fatal(err)
		}
		pool := tensor.NewPool(int64(size)) // no room for an earlier stage
		r, err := decode(data, 16<<10, pool)
		if err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		r.release()
	}
	pool := tensor.NewPool(0)
	large := raw("m", "FP32", []int{1, 64 << 18}, nil)
	large.RawInputContents = nil
	data, err := proto.Marshal(large)
	if err != nil {
		t.Fatal(err)
	}
	data = protowire.AppendVarint(protowire.AppendTag(data, 7, protowire.BytesType), 64<<20) // raw_input_contents
	announced := len(data) + 64<<20
	r, err := (&delivery{data: append(data, make([]byte, 2<<20)...), announced: announced, frame: 16 << 10}).
		receive(doorOf(pool))
	if n := pool.InUse(); err == nil || n > 16<<20 {
		t.Errorf("%d bytes are taken for 2 MiB that arrived (%v)", n, err)
	}
	r.release()
}

// bytesPer returns how many bytes f allocates.
func bytesPer(runs int, f func()) uint64 {
	for range 3 {
		f()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		f()
	}
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) / uint64(runs)
}
