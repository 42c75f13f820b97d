package grpc

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
)

// reserved reports whether a parameter's name may not be used: V2 over HTTP or Triton gives it a
// meaning that it does not have here.
func reserved(key string) bool {
	return key == "headers" || strings.HasPrefix(key, "triton_")
}

func badParameter(where, key, expected string, got any) error {
	return fault.Invalid("%sparameter %q: expected %s, got %v", where, key, expected, parameter.Typed(got))
}

// object is the JSON object of the parameters, its members in the order of their names.
func (p parameters) object() ([]byte, error) {
	for key, value := range p {
		if f, ok := value.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
			return nil, badParameter("", key, "a finite number", value)
		}
	}
	return json.Marshal(p)
}

// location reads where a tensor lies from its parameters.
func (p parameters) location(what, name string) (at parameter.Place, err error) {
	where := what + " " + strconv.Quote(name) + ": "
	for key, value := range p {
		field, ok := parameter.PlaceKey(key)
		if !ok {
			continue
		}
		if expected := at.Read(field, parameter.Typed(value)); expected != "" {
			return at, badParameter(where, key, expected, value)
		}
	}
	if lacks := at.Lacks(); lacks != "" {
		return at, fault.Invalid("%sthe parameter %s is missing, which its other shared memory parameters require",
			where, lacks)
	}
	return at, nil
}
