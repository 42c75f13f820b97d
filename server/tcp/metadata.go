package tcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva"
)

// question is what the metadata of a Shiva message says about its request. Byte slices are raw JSON
// values inside the message and live as long as it does.
type question struct {
	gate.Params
	id     []byte // echoed in the answer as it came; nil if absent
	names  []byte // "__tensors__": the tensors' names in their order; nil: tensors go by position
	timing bool   // the answer shall say where the time went

	forward []byte // backs Params.Forward, kept between questions
}

// defaultPriority is what a request has that names none.
const defaultPriority = 5

// parse reads meta, which the decoder has found to be a JSON object or empty. The keys are those that
// shiva/README.md lists ("Metadata of a request"); every other key goes to the container.
func (q *question) parse(meta []byte) error {
	q.reset()
	if len(meta) <= len("{}") {
		return nil
	}
	var first error
	q.Bridge = gate.InBridgeForm(meta)
	_ = shiva.EachField(meta, func(key, value []byte) bool {
		var fault error
		switch {
		case q.isAbsent(key, value):
			return true
		case q.isField(key, value):
			q.pass(key, value)
			if string(key) == "id" { // comes back whatever it is
				q.id = value
			}
			return true
		}
		switch string(key) {
		case "id":
			q.id = value
		case "__tensors__":
			q.names = value
		case "user":
			if value[0] != '"' {
				fault = unexpected("user", "a string", value)
				break
			}
			fault = json.Unmarshal(value, &q.User)
		case "version":
			q.Version, fault = parseVersion(value)
		case "inputs":
			q.Inputs = value
		case shiva.TextsKey:
			if value[0] != '{' {
				fault = unexpected(shiva.TextsKey, "an object of texts by input", value)
				break
			}
			q.Texts = value
		case "timeout_ms":
			q.Timeout, fault = parseTimeout(value)
		case "priority":
			q.Priority, fault = parsePriority(value)
		case gate.CandidatesKey:
			q.Choose, fault = gate.ParseCandidates(value)
		case gate.CacheKey:
			var cached bool
			cached, fault = parseBool(key, value)
			q.Fresh = !cached
		case gate.SaltKey:
			if value[0] != '"' {
				fault = unexpected(gate.SaltKey, "a string", value)
				break
			}
			fault = json.Unmarshal(value, &q.Salt)
		case "batch":
			q.Batch, fault = parseBool(key, value)
		case "timing":
			q.timing, fault = parseBool(key, value)
		case "parameters":
			if value[0] != '{' {
				fault = unexpected("parameters", "an object", value)
				break
			}
			_ = shiva.EachField(value, func(key, value []byte) bool { q.pass(key, value); return true })
		default:
			q.pass(key, value)
		}
		if first == nil {
			first = fault
		}
		return true // the id may come last, and belongs to the refusal too
	})
	q.ID = q.id
	if len(q.forward) > 0 {
		q.forward = append(q.forward, '}')
		q.Forward = q.forward
	}
	return first
}

// isField tells whether a member is an input of a bridge, whatever it is called.
func (q *question) isField(key, value []byte) bool {
	switch string(key) {
	case "__tensors__", shiva.TextsKey:
		return false
	case "inputs":
		return q.Bridge
	}
	return q.Bridge && gate.Refers(value)
}

// isAbsent tells whether a member is a bridge's field that is None. A key that no text fits is absent also where nothing
// else shows a bridge.
func (q *question) isAbsent(key, value []byte) bool {
	if string(value) != gate.Absent {
		return false
	}
	switch string(key) {
	case "timeout_ms", "priority", "batch", "timing", gate.CandidatesKey, gate.CacheKey:
		return true
	case "id": // goes back as it came, and is read as None there
		return false
	}
	return q.Bridge
}

// reset makes q what a message without metadata asks.
func (q *question) reset() {
	const keep = 4 << 10 // thousands of idle calls keep as much
	if cap(q.forward) > keep {
		q.forward = nil
	}
	*q = question{Params: gate.Params{Priority: defaultPriority}, forward: q.forward[:0]}
}

// pass adds a member to the object that goes to the container.
func (q *question) pass(key, value []byte) {
	if len(q.forward) == 0 {
		q.forward = append(q.forward, '{')
	} else {
		q.forward = append(q.forward, ',')
	}
	q.forward = shiva.AppendString(q.forward, string(key))
	q.forward = append(q.forward, ':')
	q.forward = append(q.forward, value...)
}

func parseTimeout(value []byte) (time.Duration, error) {
	ms, err := strconv.ParseFloat(string(value), 64)
	if err != nil || !(ms > 0) {
		return 0, unexpected("timeout_ms", "a number of milliseconds above 0", value)
	}
	const longest = 24 * time.Hour
	if ms > float64(longest/time.Millisecond) {
		return longest, nil
	}
	return max(time.Duration(ms*float64(time.Millisecond)), 1), nil
}

func parsePriority(value []byte) (int, error) {
	if len(value) == 1 && '0' <= value[0] && value[0] <= '9' {
		return int(value[0] - '0'), nil
	}
	return 0, unexpected("priority", "a whole number from 0 (highest) to 9", value)
}

func parseBool(key, value []byte) (bool, error) {
	switch string(value) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, unexpected(string(key), "true or false", value)
}

// parseVersion takes a string or a number.
func parseVersion(value []byte) (string, error) {
	switch c := value[0]; {
	case c == '"':
		var s string
		err := json.Unmarshal(value, &s)
		return s, err
	case c == '-' || '0' <= c && c <= '9':
		return string(value), nil
	}
	return "", unexpected("version", "a string or a number", value)
}

// parseNames reads "__tensors__", which must name each of n tensors.
func parseNames(value []byte, n int) ([]string, error) {
	var names []string
	if value[0] != '[' || json.Unmarshal(value, &names) != nil {
		return nil, unexpected("__tensors__", "a list of strings", value)
	}
	if len(names) != n {
		return nil, fmt.Errorf("%w: metadata key \"__tensors__\" names %d tensors, but the message has %d", scheduler.ErrInvalidInput, len(names), n)
	}
	return names, nil
}

func unexpected(key, want string, value []byte) error {
	const most = 60
	got := string(bytes.ToValidUTF8(value[:min(len(value), most)], nil))
	if len(value) > most {
		got += "…"
	}
	return fmt.Errorf("%w: metadata key %q: expected %s, got %s", scheduler.ErrInvalidInput, key, want, got)
}
