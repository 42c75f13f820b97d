package operate

import (
	_ "embed"
	"net/http"
	"slices"

	"github.com/shivad/shivad/server/internal/parameter"
)

// The description of the door, in OpenAPI 3.1. A test compares it with what the door does.
//
//go:embed openapi.json
var openAPISource []byte

var openAPIDocument = parameter.OpenAPI(openAPISource)

func openAPI(w http.ResponseWriter, r *http.Request) {
	respond(w, http.StatusOK, slices.Clip(openAPIDocument))
}
