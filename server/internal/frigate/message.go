package frigate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/plural"
)

// A header is the JSON of a question. Its members determine the kind of question.
type header struct {
	ModelRequest bool
	ModelData    bool
	ModelName    string // of a file

	Shape     []int
	DType     string // numpy's name
	ModelType string
}

// parseHeader reads the members that the door knows, and skips all others and those that are null.
func parseHeader(text []byte, depth int) (h header, err error) {
	s := jsonscan.Scanner{Text: text, Depth: depth, Rules: jsonscan.Distinct}
	for name := range s.Members {
		if s.Null() {
			continue
		}
		switch string(name) {
		case "model_request":
			h.ModelRequest = s.Bool()
		case "model_data":
			h.ModelData = s.Bool()
		case "model_name":
			h.ModelName = string(s.Str())
		case "shape":
			for range s.Elements {
				h.Shape = append(h.Shape, s.Int())
			}
		case "dtype":
			h.DType = string(s.Str())
		case "model_type":
			h.ModelType = string(s.Str())
		default:
			s.Raw()
		}
	}
	return h, s.End()
}

// A request is a message of a detector that is being answered.
type request struct {
	*conn
	settings    *Settings // as of its arrival
	began       time.Time // when its first byte arrived
	who         *access.Identity
	use         access.Use
	closeReason error // why the connection ends after the answer; nil: it stays open

	header
	data zmtp.Frame // the image, or the model file
}

// answer returns the frames of the answer. A faulty question has an answer as well; an error ends
// the connection without one.
func (a *request) answer(m *zmtp.Message) ([][]byte, error) {
	if len(m.Frames) == 0 || len(m.Frames[0].Data) > 0 {
		return nil, fault.Malformed("expected a message that begins with an empty frame, as a REQ socket sends it")
	}
	switch err := cmp.Or(a.admit(m), a.parse(m)); {
	case err != nil:
		return a.failed(err), nil
	case a.ModelRequest:
		return a.status(a.modelRequest()), nil
	case a.ModelData:
		return a.status(a.save()), nil
	}
	return a.detect()
}

// admit charges the question to its client's quotas, and checks that the client may ask at all.
func (a *request) admit(m *zmtp.Message) error {
	a.who = a.door.identities.Who(&a.credentials)
	if err := a.Claim(a.who.Account()); err != nil {
		a.Because(metrics.ClosedQuota)
		a.closeReason = err
		return err
	}
	bytes := int64(0)
	for _, f := range m.Frames {
		bytes += int64(len(f.Data))
	}
	if err := a.Charge(&a.use, a.who.Payers(a.Account()), bytes, time.Now()); err != nil {
		return err
	}
	if err := a.who.Enter(); err != nil {
		return err
	}
	if m.Refused != nil && !errors.Is(m.Refused, scheduler.ErrOverloaded) {
		return fmt.Errorf("%w: %w", scheduler.ErrOverloaded, m.Refused)
	}
	return m.Refused
}

// parse reads the header, and finds the data behind it.
func (a *request) parse(m *zmtp.Message) error {
	frames := m.Frames[1:]
	if len(frames) < 1 || len(frames) > 2 {
		return fault.Malformed("expected a header and an image, a header and a model's file, or a header; got %s",
			plural.Of(len(frames), "frame"))
	}
	text, most := frames[0].Data, a.settings.Limits.MetadataBytes
	if len(text) > most {
		return fault.TooLarge("the header has %d bytes; limits.metadata_bytes is %d", len(text), most)
	}
	h, err := parseHeader(text, a.settings.Limits.JSONDepth)
	if err != nil {
		return fault.Malformed("the header: %w", err)
	}
	a.header = h
	if len(frames) == 2 {
		a.data = frames[1]
	}
	switch {
	case a.ModelRequest && a.ModelData:
		return fault.Malformed("the header has both model_request and model_data; expected one of them")
	case a.ModelRequest && len(frames) == 2:
		return fault.Malformed("expected a model_request in one frame, got two")
	case !a.ModelRequest && len(frames) == 1:
		return fault.Malformed("expected a second frame with the bytes of an image or of a model's file, got the header alone")
	case a.ModelRequest || a.ModelData:
		if n := len(a.ModelName); n == 0 || n > mostName {
			return fault.Invalid("model_name: expected a file's name of 1 to %d bytes, got %d", mostName, n)
		}
	}
	return nil
}

// failed returns the answer to a question that failed: no detections, or no such model.
func (a *request) failed(err error) [][]byte {
	if a.ModelRequest || a.ModelData {
		return a.status(modelStatus{}, err)
	}
	a.door.predict.Refused(err, time.Now())
	return noDetections(err)
}

// A modelStatus is the answer to a model_request or to a model file.
type modelStatus struct {
	Available *bool  `json:"model_available,omitempty"` // for a model_request
	Saved     *bool  `json:"model_saved,omitempty"`     // for a model file
	Loaded    bool   `json:"model_loaded"`
	Name      string `json:"model_name"`
	Message   string `json:"message"`
}

// status returns a status as a frame; err is why the model is not loaded.
func (a *request) status(s modelStatus, err error) [][]byte {
	switch {
	case a.ModelRequest && s.Available == nil:
		s.Available = new(false)
	case a.ModelData && s.Saved == nil:
		s.Saved = new(false)
	}
	s.Name, s.Loaded, s.Message = fault.Cut(a.ModelName, mostName), err == nil, "ready"
	if err != nil {
		s.Message = fault.Text(err)
	}
	text, _ := json.Marshal(s) // cannot fail: booleans and strings
	return [][]byte{text}
}

// detectionsHeader is the header of detections.
var detectionsHeader = []byte(`{"shape": [20, 6], "dtype": "float32"}`)

// noDetections returns the answer to a detection that failed: zeros, and the error.
func noDetections(err error) [][]byte {
	text, _ := json.Marshal(struct {
		Shape [2]int `json:"shape"`
		DType string `json:"dtype"`
		Type  string `json:"type"`
		Error string `json:"error"`
	}{[2]int{mostRows, rowWidth}, "float32", fault.Of(err).Type, fault.Text(err)})
	return [][]byte{text, make([]byte, rowsSize)}
}

// service is the server as this client may use it.
func (a *request) service() *predict.Service { return a.door.predict.As(a.who) }
