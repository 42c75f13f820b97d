package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Request is an inference request for any door.
type Request struct {
	Model, Version string          // Version "": the model's default
	Inputs         []tensor.Tensor // named
	// Over Shiva: Names makes the request name its tensors, which a model of several inputs needs,
	// and Rows states that their first dimension counts rows, which containers of the old protocols
	// need.
	Names, Rows bool
	Timeout     time.Duration // 0: the model's default
	// Stream, if set, makes the request a frame of a stream, whose name is Stream and a number of
	// four digits.
	Stream string
	// InputsAt, if set, has the place of each of Inputs in shared memory that the server knows: its
	// data does not travel. OutputsAt are outputs, by name, that the server leaves in shared
	// memory. Over Shiva and gRPC.
	InputsAt  []Place
	OutputsAt []Output
	// Token, if set, is the client's token over Shiva and HTTP. For gRPC there is Config.Token.
	Token string
	// Keep is how many frames of a stream may wait, as the parameter takes it: "all", "latest"
	// or a number. "": as the server is configured.
	Keep string
}

// A Place is part of a region of shared memory.
type Place struct {
	Region       string
	Offset, Size int
}

// An Output is a tensor of an answer that goes to shared memory.
type Output struct {
	Name string
	Place
}

// A Stamp has the places in a frame of a stream whose values differ from one frame to the next. Run
// overwrites these values, each in its original width.
type Stamp struct {
	Stream, Seq, CapturedAt int
	binary                  bool // Seq and CapturedAt are varints, not digits
}

// Widths of the values at a Stamp's places. JSON allows blanks before a number, and protobuf a
// varint with more bytes than it needs.
const (
	streamDigits   = 4
	seqDigits      = 19
	capturedDigits = 13 // milliseconds, until the year 2286
	varintBytes    = 10
)

// Encode makes the bytes of the request for a wire, and its Stamp if it is a frame of a stream.
func (q *Request) Encode(w Wire) ([]byte, Stamp, error) {
	switch w {
	case Shiva:
		return q.shiva()
	case HTTP:
		return q.http()
	case GRPC:
		return q.grpc()
	default:
		return nil, Stamp{}, fmt.Errorf("load: there is no wire %d", w)
	}
}

// parameters are the members of a stream in JSON, with room for the values that a Stamp writes; ""
// without a stream.
func (q *Request) parameters() string {
	if q.Stream == "" {
		return ""
	}
	keep := ""
	if q.Keep != "" {
		value, err := strconv.ParseUint(q.Keep, 10, 32)
		text := strconv.FormatUint(value, 10)
		if err != nil {
			text = strconv.Quote(q.Keep)
		}
		keep = `,"keep":` + text
	}
	return fmt.Sprintf(`"stream":%q%s,"seq":%*d,"captured_at":%0*d`,
		q.Stream+strings.Repeat("0", streamDigits), keep, seqDigits, 0, capturedDigits,
		int64(math.Pow10(capturedDigits-1)))
}

// stampOf finds the places of parameters in a frame.
func (q *Request) stampOf(frame []byte, parameters string) Stamp {
	if parameters == "" {
		return Stamp{}
	}
	at := bytes.LastIndex(frame, []byte(parameters)) // over Shiva, tensors come first
	seq := at + strings.Index(parameters, `,"seq":`) + len(`,"seq":`)
	return Stamp{
		Stream: at + len(`"stream":"`) + len(q.Stream), Seq: seq,
		CapturedAt: seq + seqDigits + len(`,"captured_at":`),
	}
}

func (q *Request) shiva() ([]byte, Stamp, error) {
	m := &shiva.Message{Namespace: q.Model}
	if q.Version != "" {
		m.Namespace += "/" + q.Version
	}
	var members []string
	names := []string{}
	var texts []tensor.Tensor
	for _, t := range q.Inputs {
		if q.InputsAt != nil {
			break
		}
		if t.DType == tensor.Bytes {
			texts = append(texts, t)
			continue
		}
		m.Tensors, names = append(m.Tensors, t), append(names, t.Name)
	}
	if q.Rows {
		members = append(members, `"batch":true`)
	}
	if q.Names {
		list, err := json.Marshal(names)
		if err != nil {
			return nil, Stamp{}, err
		}
		members = append(members, `"__tensors__":`+string(list))
	}
	if q.InputsAt != nil || q.OutputsAt != nil {
		members = append(members, `"`+shiva.MemoryKey+`":`+q.places())
	}
	if texts != nil {
		object, err := shiva.AppendTexts(nil, texts...)
		if err != nil {
			return nil, Stamp{}, err
		}
		members = append(members, `"`+shiva.TextsKey+`":`+string(object))
	}
	if q.Token != "" {
		members = append(members, fmt.Sprintf(`"%s":%q`, shiva.TokenKey, q.Token))
	}
	if q.Timeout > 0 {
		members = append(members, fmt.Sprintf(`"timeout_ms":%g`, q.Timeout.Seconds()*1e3))
	}
	parameters := q.parameters()
	if parameters != "" {
		members = append(members, parameters)
	}
	if members != nil {
		m.Metadata = []byte("{" + strings.Join(members, ",") + "}")
	}
	frame, err := shiva.AppendMessage(nil, m)
	return frame, q.stampOf(frame, parameters), err
}

// places describes the tensors in shared memory for Shiva's metadata.
func (q *Request) places() string {
	place := func(name, middle string, p Place) string {
		return fmt.Sprintf(`{"name":%q%s,"region":%q,"offset":%d,"byte_size":%d}`, name, middle, p.Region, p.Offset,
			p.Size)
	}
	var inputs, outputs []string
	for i, p := range q.InputsAt {
		t := q.Inputs[i]
		inputs = append(inputs, place(t.Name, fmt.Sprintf(`,"datatype":%q,"shape":%s`, t.DType.V2(), dims(t.Shape)), p))
	}
	for _, o := range q.OutputsAt {
		outputs = append(outputs, place(o.Name, "", o.Place))
	}
	return `{"inputs":[` + strings.Join(inputs, ",") + `],"outputs":[` + strings.Join(outputs, ",") + `]}`
}

// dims returns a shape in JSON.
func dims(s tensor.Shape) string { return strings.ReplaceAll(s.String(), " ", "") }

// http encodes the request with the tensors after the JSON, by the binary tensor extension.
func (q *Request) http() ([]byte, Stamp, error) {
	var inputs []string
	var data []byte
	for _, t := range q.Inputs {
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, Stamp{}, err
		}
		inputs = append(inputs, fmt.Sprintf(`{"name":%s,"datatype":"%s","shape":%s,"parameters":{"binary_data_size":%d}}`,
			name, t.DType.V2(), dims(t.Shape), len(t.Data)))
		data = append(data, t.Data...)
	}
	parameters := q.parameters()
	members := `"binary_data_output":true`
	if q.Timeout > 0 {
		members += fmt.Sprintf(`,"timeout":%d`, q.Timeout.Microseconds())
	}
	if parameters != "" {
		members += "," + parameters
	}
	frame := q.post(fmt.Sprintf(`{"inputs":[%s],"parameters":{%s}}`, strings.Join(inputs, ","), members), data)
	return frame, q.stampOf(frame[:len(frame)-len(data)], parameters), nil
}

// post is an inference request whose body is head, which is JSON, followed by data, which is
// binary; nil: none.
func (q *Request) post(head string, data []byte) []byte {
	path := "/v2/models/" + url.PathEscape(q.Model)
	if q.Version != "" {
		path += "/versions/" + url.PathEscape(q.Version)
	}
	b := fmt.Appendf(nil, "POST %s/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n", path,
		len(head)+len(data))
	if q.Token != "" {
		b = fmt.Appendf(b, "Authorization: Bearer %s\r\n", q.Token)
	}
	if data != nil {
		b = fmt.Appendf(b, "Inference-Header-Content-Length: %d\r\n", len(head))
	}
	return append(append(append(b, "\r\n"...), head...), data...)
}

// Field numbers of the protocol's grpc_service.proto.
const (
	requestModel, requestVersion, requestParameters, requestInputs, requestOutputs, requestRaw = 1, 2, 4, 5, 6, 7

	tensorName, tensorDatatype, tensorShape, tensorParameters = 1, 2, 3, 4
	outputName, outputParameters                              = 1, 2
	mapKey, mapValue                                          = 1, 2
	parameterInt, parameterText                               = 2, 3
)

// grpc encodes a ModelInferRequest with raw contents. Parameters come first, so that they are in
// the first frame of HTTP/2.
func (q *Request) grpc() ([]byte, Stamp, error) {
	field := func(b []byte, number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
	}
	m := field(nil, requestModel, []byte(q.Model))
	if q.Version != "" {
		m = field(m, requestVersion, []byte(q.Version))
	}
	// parameter appends an entry of the map and returns where its value ends in m.
	parameter := func(key string, value []byte) int {
		m = field(m, requestParameters, field(field(nil, mapKey, []byte(key)), mapValue, value))
		return len(m)
	}
	text := func(s string) []byte { return field(nil, parameterText, []byte(s)) }
	number := func(varint []byte) []byte {
		return append(protowire.AppendTag(nil, parameterInt, protowire.VarintType), varint...)
	}
	var stamp Stamp
	if q.Stream != "" {
		stamp.binary = true
		stamp.Stream = parameter("stream", text(q.Stream+strings.Repeat("0", streamDigits))) - streamDigits
		stamp.Seq = parameter("seq", number(wideVarint(0))) - varintBytes
		stamp.CapturedAt = parameter("captured_at", number(wideVarint(0))) - varintBytes
		if n, err := strconv.ParseUint(q.Keep, 10, 32); err == nil {
			parameter("keep", number(protowire.AppendVarint(nil, n)))
		} else if q.Keep != "" {
			parameter("keep", text(q.Keep))
		}
		if stamp.CapturedAt+varintBytes > firstPart {
			return nil, Stamp{}, fmt.Errorf("load: the names of model and stream take %d bytes, which leaves no room for the stream's parameters", len(m))
		}
	}
	if q.Timeout > 0 {
		parameter("timeout", number(protowire.AppendVarint(nil, uint64(q.Timeout.Microseconds()))))
	}
	// places appends the parameters of a tensor that give its place.
	places := func(tensor []byte, parameters protowire.Number, p Place) []byte {
		for _, entry := range []struct {
			key   string
			value []byte
		}{
			{"shared_memory_region", text(p.Region)},
			{"shared_memory_offset", number(protowire.AppendVarint(nil, uint64(p.Offset)))},
			{"shared_memory_byte_size", number(protowire.AppendVarint(nil, uint64(p.Size)))},
		} {
			tensor = field(tensor, parameters, field(field(nil, mapKey, []byte(entry.key)), mapValue, entry.value))
		}
		return tensor
	}
	for i, t := range q.Inputs {
		var sizes []byte
		for _, d := range t.Shape {
			sizes = protowire.AppendVarint(sizes, uint64(d))
		}
		input := field(field(field(nil, tensorName, []byte(t.Name)), tensorDatatype, []byte(t.DType.V2())), tensorShape,
			sizes)
		if q.InputsAt != nil {
			input = places(input, tensorParameters, q.InputsAt[i])
		}
		m = field(m, requestInputs, input)
	}
	for _, o := range q.OutputsAt {
		m = field(m, requestOutputs, places(field(nil, outputName, []byte(o.Name)), outputParameters, o.Place))
	}
	for _, t := range q.Inputs {
		if q.InputsAt == nil {
			m = field(m, requestRaw, t.Data)
		}
	}
	return m, stamp, nil
}

// wideVarint is a varint of varintBytes bytes, more than most numbers need.
func wideVarint(v uint64) []byte {
	b := make([]byte, varintBytes)
	putWideVarint(b, v)
	return b
}

func putWideVarint(b []byte, v uint64) {
	for i := range varintBytes - 1 {
		b[i] = byte(v>>(7*i)) | 0x80
	}
	b[varintBytes-1] = byte(v >> 63)
}

// write writes a frame's stream, number and time into its bytes. at turns the stamp's places into
// places in b.
func (s *Stamp) write(b []byte, at func(int) int, stream int, seq, capturedAt int64) {
	digits(b[at(s.Stream):][:streamDigits], int64(stream), '0')
	if s.binary {
		putWideVarint(b[at(s.Seq):], uint64(seq))
		putWideVarint(b[at(s.CapturedAt):], uint64(capturedAt))
		return
	}
	digits(b[at(s.Seq):][:seqDigits], seq, ' ')
	digits(b[at(s.CapturedAt):][:capturedDigits], capturedAt, ' ')
}

// digits writes n right-aligned into b.
func digits(b []byte, n int64, blank byte) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + n%10)
		if n == 0 && i < len(b)-1 {
			b[i] = blank
		}
		n /= 10
	}
}
