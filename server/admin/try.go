package admin

import (
	"encoding/json"
	"net/http"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// A Trial is a request that an operator makes to see what a model, or an application, answers. It
// needs the right to infer as well.
type Trial struct {
	Who     *access.Identity
	Name    string
	Version string // "": the default
	// Input is the value of the only input, or an object of values by input: numbers, texts and
	// lists of them, or {"b64": "..."} for bytes, such as those of a picture, with "shape" for the
	// bytes of a tensor.
	Input json.RawMessage
}

// Tried is the answer to a Trial.
type Tried struct {
	Model   string        `json:"model"` // that answered
	Version string        `json:"version"`
	Outputs []TriedOutput `json:"outputs"`
	Queue   float64       `json:"queue_seconds"`
	Execute float64       `json:"execute_seconds"`
	Total   float64       `json:"total_seconds"` // spent in the server
	Rows    int           `json:"batch_rows"`    // of the batch that it was in
	// Reported by an application about its answer.
	Confidence *float64          `json:"confidence,omitempty"`
	Default    string            `json:"default_explanation,omitempty"` // why it is the default
	Missing    map[string]string `json:"missing_models,omitempty"`      // each with the reason
}

// A TriedOutput is an output as JSON has it.
type TriedOutput struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Shape    []int  `json:"shape"`
	Data     []any  `json:"data"` // its first elements, flat; null for values that JSON lacks
	Elements int    `json:"elements"`
}

func (s Sources) try(r *http.Request, sent []byte) (any, error) {
	var body struct {
		Version string          `json:"version"`
		Input   json.RawMessage `json:"input"`
	}
	if err := jsonscan.Unmarshal(sent, &body); err != nil || body.Input == nil {
		return nil, refuse(http.StatusBadRequest, `expected {"input": [[5.1, 3.5, 1.4, 0.2]]}, or an object of values by the names of inputs%s`, errorSuffix(err))
	}
	return s.Trials.Try(r.Context(), Trial{Who: s.who(r), Name: r.PathValue("name"), Version: body.Version, Input: body.Input})
}
