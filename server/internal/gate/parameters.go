package gate

import (
	"bytes"
	"fmt"
	"math"
	"strconv"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// The parameters of a batch's requests travel in one JSON header. If a container's JSON library
// refuses one of them, all requests of the batch fail. Containers are written in any language, so
// parameters are limited to what all common libraries accept.
const (
	// maxParameterDepth counts the object itself. There are two levels around it, and the default
	// limit of .NET is 64; Rust's serde_json accepts 127, Python about 1,000.
	maxParameterDepth = 62

	// maxParameterDigits is below what a float64 holds. Python accepts 4,300 digits; libraries that
	// turn large numbers into floats refuse infinity.
	maxParameterDigits = 308
)

// checkParameters reports whether the JSON object can go to a container.
func checkParameters(object []byte) error {
	for key, value := range jsonscan.Members(object) {
		if why := unfit(&jsonscan.Scanner{Text: value, Depth: maxParameterDepth - 1, Rules: jsonscan.KnownUTF8}); why !=
			"" {
			return fault.Invalid("parameter %s: %s", fault.Cut(strconv.Quote(string(key)), 80), why)
		}
	}
	return nil
}

// unfit says why the next JSON value, which is valid, does not suit every container; "" if it does.
func unfit(s *jsonscan.Scanner) (why string) {
	switch c := s.Peek(); {
	case (c == '{' || c == '[') && s.Depth == 0:
		return fmt.Sprintf("nested deeper than the %d levels that go to a container", maxParameterDepth)
	case c == '{':
		for range s.Members {
			if why = unfit(s); why != "" {
				break
			}
		}
	case c == '[':
		for range s.Elements {
			if why = unfit(s); why != "" {
				break
			}
		}
	case c != '-' && (c < '0' || '9' < c):
		s.Raw()
	default:
		number := s.Raw()
		if !bytes.ContainsAny(number, "eE") && len(number) <= maxParameterDigits {
			return ""
		}
		if f, err := strconv.ParseFloat(string(number), 64); err != nil || math.IsInf(f, 0) {
			return fmt.Sprintf("the number %s of %d characters is out of the range of FP64",
				fault.Cut(string(number), 20), len(number))
		}
	}
	return why
}

// ownMetadata returns the members of the metadata that the server reads itself, for a model that
// asked for them; the others are in Parameters. It leaves out the token, which is a secret, the
// user, for which models ask otherwise since caches depend on it, and what describes tensors.
func (r *Request) ownMetadata() []byte {
	if len(r.Metadata) <= len("{}") {
		return nil
	}
	rows := parameter.Shiva.Keys()
	var b []byte
	for key, value := range jsonscan.Members(r.Metadata) {
		switch string(key) {
		case "id", "version":
			if unfit(&jsonscan.Scanner{Text: value, Depth: maxParameterDepth - 1, Rules: jsonscan.KnownUTF8}) != "" {
				continue
			}
		case "user":
			continue
		default:
			if rows[string(key)] == nil {
				continue
			}
		}
		b = jsonscan.AppendMember(b, key, value)
	}
	if b == nil {
		return nil
	}
	return append(b, '}')
}

// withUser adds the user to the parameters, for a model that asked for it. A cache distinguishes
// requests by their parameters, so no user gets another user's answer.
func withUser(object []byte, user string) []byte {
	b := jsonscan.AppendString([]byte(`{"user":`), user)
	for key, value := range jsonscan.Members(object) {
		if string(key) != "user" {
			b = jsonscan.AppendMember(b, key, value)
		}
	}
	return append(b, '}')
}
