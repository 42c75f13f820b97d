package operate

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

func (s Sources) try(r *http.Request, sent []byte) (any, error) {
	var body struct {
		Version string          `json:"version"`
		Input   json.RawMessage `json:"input"`
	}
	if err := jsonscan.Unmarshal(sent, &body); err != nil || body.Input == nil {
		return nil, refuse(http.StatusBadRequest,
			`expected {"input": [[5.1, 3.5, 1.4, 0.2]]}, or an object of values by the names of inputs%s`,
			errorSuffix(err))
	}
	return s.Try(r.Context(), Trial{Who: s.who(r), Name: r.PathValue("name"), Version: body.Version, Input: body.Input})
}
