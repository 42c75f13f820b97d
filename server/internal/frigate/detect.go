package frigate

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	mostRows = 20
	rowWidth = 6 // class, score, y_min, x_min, y_max, x_max
	scoreAt  = 1
	rowsSize = mostRows * rowWidth * 4
)

// outputName is the output with the detections, if a model has several.
const outputName = "detections"

// detect answers an image. The error ends the connection.
func (a *request) detect() ([][]byte, error) {
	route := a.settings.Models.of(a.file, a.ModelType)
	if route == "" {
		// This detector sent its model_request before the server was restarted. After any answer,
		// even an error, it would go on without one for ever. Without an answer it reconnects, and
		// begins with a model_request.
		return nil, fault.Malformed("expected a model_request before the first image, since frigate.models has no model for model_type %q",
			a.ModelType)
	}
	rows, err := a.infer(route)
	if err != nil {
		return noDetections(err), nil
	}
	return [][]byte{detectionsHeader, rows}, nil
}

// infer asks a model, and returns the bytes of its best rows. It counts every outcome.
func (a *request) infer(route string) ([]byte, error) {
	arrived := time.Now()
	r, err := a.inference(route, arrived)
	if err != nil {
		a.door.predict.Refused(err, arrived)
		return nil, err
	}
	answer, err := a.door.predict.Infer(a.ctx, r, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Release()
	return best(answer.Outputs[0])
}

// inference makes the request for the image. It holds a reference to the image's memory.
func (a *request) inference(route string, arrived time.Time) (*gate.Request, error) {
	name, version, _ := strings.Cut(route, "/")
	output, err := a.output(name, version)
	if err != nil {
		return nil, err
	}
	image, err := a.image()
	if err != nil {
		return nil, err
	}
	// The detector's clock starts when it sends, and the answer takes time to arrive, too.
	left := a.settings.RequestTimeout*9/10 - arrived.Sub(a.began)
	if left <= 0 {
		return nil, fmt.Errorf("%w: the image took %v to arrive, and the detector waits for %v (frigate.request_timeout)",
			scheduler.ErrDeadlineExceeded, arrived.Sub(a.began).Round(time.Millisecond), a.settings.RequestTimeout)
	}
	image.Retain()
	r := &gate.Request{
		Model: name, Version: version, Inputs: []tensor.Tensor{image}, Outputs: []gate.Output{{Name: output}},
		Arrived: arrived, Source: a.source, Client: a.client, Who: a.who, Use: &a.use,
	}
	r.Timeout = left
	return r, nil
}

// output returns the name of the model's output with the detections.
func (a *request) output(name, version string) (string, error) {
	s := a.service()
	if err := s.CheckAsked(name, version); err != nil {
		return "", err
	}
	m, err := s.Model(name, version)
	if err != nil {
		return "", err
	}
	for _, o := range m.Outputs {
		last := len(o.Shape) - 1
		if (o.Name == outputName || len(m.Outputs) == 1) && o.Datatype == tensor.Float32.V2() && last >= 0 &&
			o.Shape[last] == rowWidth {
			return o.Name, nil
		}
	}
	outputs := gate.Join(m.Outputs, func(o predict.TensorMetadata) string {
		return fmt.Sprintf("%q %s %s", o.Name, o.Datatype, tensor.Shape(o.Shape))
	}, ", ")
	return "", fault.Invalid("model %q does not answer with detections: expected one output, or one called %q, of FP32 with the last dimension %d (class, score, y_min, x_min, y_max, x_max), got %s",
		m.Name, outputName, rowWidth, outputs)
}

// image returns the image as a tensor.
func (a *request) image() (tensor.Tensor, error) {
	d, ok := dtypeOf(a.DType)
	if !ok {
		return tensor.Tensor{}, fault.Invalid("dtype %.50q: expected a name of numpy, such as uint8 or float32", a.DType)
	}
	if n, most := len(a.Shape), a.settings.Limits.Rank; n > most {
		return tensor.Tensor{}, fault.TooLarge("a shape of %d dimensions; limits.rank is %d", n, most)
	}
	if len(a.Shape) == 0 || a.Shape[0] != 1 {
		return tensor.Tensor{}, fault.Invalid("shape %s: expected that of one image, such as [1,320,320,3]",
			tensor.Shape(a.Shape))
	}
	t, err := tensor.New(d, a.Shape, a.data.Data)
	if err != nil {
		return t, fault.Invalid("%w", err)
	}
	t.Buf = a.data.Buf
	return t, nil
}

// dtypeOf returns the dtype with one of numpy's names.
func dtypeOf(name string) (tensor.DType, bool) {
	d, ok := tensor.FromName(name)
	return d, ok && d.OnWire() // numpy has those that Shiva has
}

// best returns the bytes of the rows with the highest scores, as detectors read them. It leaves out
// rows without a score.
func best(t tensor.Tensor) ([]byte, error) {
	if t.DType != tensor.Float32 || len(t.Data)%(rowWidth*4) != 0 {
		return nil, fmt.Errorf("%w: output %q: expected rows of %d float32, got %s %s", scheduler.ErrContainerFailed,
			t.Name, rowWidth, t.DType, t.Shape)
	}
	var rows [][rowWidth]float32
	for data := range slices.Chunk(t.Data, rowWidth*4) {
		var row [rowWidth]float32
		for i := range row {
			row[i] = math.Float32frombits(binary.NativeEndian.Uint32(data[4*i:]))
		}
		if row[scoreAt] > 0 { // NaN is not
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b [rowWidth]float32) int { return cmp.Compare(b[scoreAt], a[scoreAt]) })
	out := make([]byte, 0, rowsSize)
	for _, row := range rows[:min(len(rows), mostRows)] {
		for _, v := range row {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		}
	}
	return out[:rowsSize], nil
}
