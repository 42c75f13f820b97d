package load

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Form is an encoding of inference requests: a wire, and the form of the tensor on it.
type Form struct {
	Name  string
	Wire  Wire
	Frame func(model string, x tensor.Tensor) ([]byte, error)
	// Same compares an answer with its request for a model that echoes its input. The input's data
	// has size bytes. It is for Config.Check.
	Same func(size int, request, answer []byte) error
}

// Forms are the forms of the doors, for tensors named "x": Shiva; and for the Predict Protocol V2,
// bytes and numbers over HTTP and raw contents over gRPC. Answers have the form of the requests.
var Forms = []Form{
	{"shiva", Shiva, shivaFrame, func(_ int, request, answer []byte) error { return SameTensors(request, answer) }},
	{"rest", HTTP, restBinary, sameEnd},
	{"rest-json", HTTP, restJSON, sameNumbers},
	{"grpc", GRPC, grpcRaw, sameEnd},
}

// Floats makes n tensors of random float32 from 0 to 1.
func Floats(n int, shape tensor.Shape) ([]tensor.Tensor, error) {
	elements, ok := shape.Elements()
	if !ok {
		return nil, fmt.Errorf("load: cannot make a tensor of shape %s", shape)
	}
	r := rand.New(rand.NewPCG(2, uint64(n)))
	xs := make([]tensor.Tensor, n)
	for i := range xs {
		data := make([]byte, 0, 4*elements)
		for range elements {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(r.Float32()))
		}
		x, err := tensor.New(tensor.Float32, shape, data)
		if err != nil {
			return nil, fmt.Errorf("load: %w", err)
		}
		xs[i] = x
	}
	return xs, nil
}

func shivaFrame(model string, x tensor.Tensor) ([]byte, error) {
	return shiva.AppendMessage(nil, &shiva.Message{Namespace: model, Tensors: []tensor.Tensor{x}})
}

func restBinary(model string, x tensor.Tensor) ([]byte, error) { return formOf(HTTP, model, x) }
func grpcRaw(model string, x tensor.Tensor) ([]byte, error)    { return formOf(GRPC, model, x) }

func formOf(w Wire, model string, x tensor.Tensor) ([]byte, error) {
	x.Name = "x"
	frame, _, err := (&Request{Model: model, Inputs: []tensor.Tensor{x}}).Encode(w)
	return frame, err
}

func restJSON(model string, x tensor.Tensor) ([]byte, error) {
	if x.DType != tensor.Float32 {
		return nil, fmt.Errorf("load: a tensor of %s as JSON: only FP32 is written", x.DType.V2())
	}
	b := fmt.Appendf(nil, `{"inputs":[{"name":"x","datatype":"FP32","shape":%s,"data":[`, dims(x.Shape))
	for i := 0; i < len(x.Data); i += 4 {
		if i > 0 {
			b = append(b, ',')
		}
		v, format := float64(math.Float32frombits(binary.LittleEndian.Uint32(x.Data[i:]))), byte('f')
		if v != 0 && math.Abs(v) < 1e-6 {
			format = 'e'
		}
		b = strconv.AppendFloat(b, v, format, -1, 32)
	}
	return (&Request{Model: model}).post(string(append(b, "]}]}"...)), nil), nil
}

// sameEnd compares forms whose requests and answers both end with the tensor's bytes.
func sameEnd(size int, request, answer []byte) error {
	if len(answer) < size || !bytes.Equal(answer[len(answer)-size:], request[len(request)-size:]) {
		return fmt.Errorf("the answer's %d bytes do not end with the %d of the request's tensor", len(answer), size)
	}
	return nil
}

// sameNumbers compares a request and an answer in JSON.
func sameNumbers(_ int, request, answer []byte) error {
	// Both write the shortest digits, usually in the same notation. Comparing the texts then takes
	// a hundredth of the time.
	_, sent, _ := bytes.Cut(request, dataMember)
	_, rest, _ := bytes.Cut(answer, dataMember)
	if end := bytes.IndexByte(sent, ']'); end > 0 && bytes.HasPrefix(rest, sent[:end+1]) {
		return nil
	}
	var q struct{ Inputs []struct{ Data []float32 } }
	var a struct{ Outputs []struct{ Data []float32 } }
	_, body, _ := bytes.Cut(request, headEnd)
	if err := errors.Join(json.Unmarshal(body, &q), json.Unmarshal(answer, &a)); err != nil {
		return err
	}
	if len(q.Inputs) != 1 || len(a.Outputs) != 1 || !slices.Equal(q.Inputs[0].Data, a.Outputs[0].Data) {
		return errors.New("numbers differ from those sent")
	}
	return nil
}

var dataMember = []byte(`"data":[`)
