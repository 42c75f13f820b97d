package admin

import (
	_ "embed"
	"net/http"
	"slices"
)

// The description of the door, in OpenAPI 3.1. A test holds it to what the door does.
//
//go:embed openapi.json
var openAPIDocument []byte

func openAPI(w http.ResponseWriter, r *http.Request) {
	respond(w, http.StatusOK, slices.Clip(openAPIDocument))
}
