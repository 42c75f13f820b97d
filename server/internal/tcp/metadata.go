package tcp

import (
	"encoding/json"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// A question is the request in the metadata of a Shiva message. Byte slices are raw JSON values in
// the message's memory.
type question struct {
	gate.Request
	names []byte // "__tensors__": names of the tensors in order; nil: they are positional

	token []byte // shiva.TokenKey; nil: none

	shared []byte // shiva.MemoryKey: which tensors are in shared memory; nil: none

	// Not nil: some keys mean nothing to the server, as they are none of its keys for this kind of
	// question. The answer returns them.
	own map[string]*parameter.Key

	forward []byte // backs Parameters, reused by the next question
}

// The server's keys other than those that shape the message: of requests, and of questions for the
// newest answer of a stream.
var (
	parameters = parameter.Shiva.Keys()
	ofLatest   = parameter.Latest.Keys()
)

// keys returns the server's keys for messages with that namespace.
func (l *loop) keys(namespace string) map[string]*parameter.Key {
	if l.door.gate.AsksNewest(namespace) {
		return ofLatest
	}
	return parameters
}

// parse reads meta, which the decoder has checked to be a JSON object or empty. Keys that are
// neither below nor among keys, those of the wire, go to the container.
func (q *question) parse(meta []byte, keys map[string]*parameter.Key) error {
	q.reset()
	if len(meta) <= len("{}") {
		return nil
	}
	q.Metadata = meta
	var first error
	q.Bridge = gate.InBridgeForm(meta)
	for key, value := range jsonscan.Members(meta) {
		var wrong error
		switch {
		case q.isAbsent(key, value, keys):
			continue
		case q.isField(key, value):
			q.pass(key, value)
			if string(key) == "id" { // echoed, whatever it is
				q.ID = value
			}
			continue
		}
		switch string(key) {
		case "id":
			q.ID = value
		case shiva.NamesKey:
			q.names = value
		case shiva.MemoryKey:
			q.shared = value
		case shiva.TokenKey:
			if q.token != nil {
				wrong = fault.Invalid("metadata key %q occurs twice", shiva.TokenKey)
			}
			q.token = value
		case "version":
			q.Version, wrong = parseVersion(value)
		case "inputs":
			q.Legacy = value
		case shiva.TextsKey:
			q.Texts, wrong = value, needObject(shiva.TextsKey, "an object that maps the names of inputs to texts", value)
		case "parameters":
			if wrong = needObject("parameters", "an object", value); wrong == nil {
				for key, value := range jsonscan.Members(value) {
					q.pass(key, value)
				}
			}
		default:
			if p := keys[string(key)]; p != nil {
				wrong = p.Read(&q.Values, parameter.JSON(value))
			} else {
				q.pass(key, value)
				q.own = keys
			}
		}
		if first == nil {
			first = wrong // the refusal needs the id too, which may come last
		}
	}
	if len(q.forward) > 0 {
		q.forward = append(q.forward, '}')
		q.Parameters = q.forward
	}
	return first
}

// isField reports whether a member is a bridge's field for an input, whatever its key.
func (q *question) isField(key, value []byte) bool {
	return q.Bridge && string(key) != shiva.NamesKey && string(key) != shiva.TextsKey &&
		(string(key) == "inputs" || gate.Refers(value))
}

// isAbsent reports whether a member is a key of the server that is null, or a bridge's field that
// is None. For a key that takes no text that holds even if nothing else shows that the client is a
// bridge.
func (q *question) isAbsent(key, value []byte, keys map[string]*parameter.Key) bool {
	if string(value) == "null" {
		switch string(key) {
		case "version", "inputs", "parameters", shiva.NamesKey, shiva.TextsKey, shiva.MemoryKey, shiva.TokenKey:
			return true
		}
		return false // parameters read null themselves
	}
	if string(value) != gate.Absent {
		return false
	}
	if p := keys[string(key)]; p != nil && !p.TakesText() {
		return true
	}
	return q.Bridge && string(key) != "id" // an id is echoed, and becomes None in the bridge again
}

// reset makes q the question of a message without metadata.
func (q *question) reset() {
	const keep = 4 << 10 // each of thousands of idle calls may keep that much
	if cap(q.forward) > keep {
		q.forward = nil
	}
	*q = question{forward: q.forward[:0]}
}

// pass adds a member to the object for the container.
func (q *question) pass(key, value []byte) {
	q.forward = jsonscan.AppendMember(q.forward, key, value)
}

// parseVersion accepts a string or a number.
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

// nameTensors names tensors by "__tensors__", which must have a name for each.
func nameTensors(tensors []tensor.Tensor, value []byte) error {
	var names []string
	if value[0] != '[' || json.Unmarshal(value, &names) != nil {
		return unexpected(shiva.NamesKey, "a list of strings", value)
	}
	if len(names) != len(tensors) {
		return fault.Invalid("metadata key \"__tensors__\" names %s, but the message has %d", plural.Of(len(names), "tensor"),
			len(tensors))
	}
	for i, name := range names {
		tensors[i].Name = name
	}
	return nil
}

func needObject(key, want string, value []byte) error {
	if value[0] == '{' {
		return nil
	}
	return unexpected(key, want, value)
}

func unexpected(key, want string, value []byte) error {
	return &parameter.Error{Noun: "metadata key", Key: key, Expected: want, Got: parameter.JSON(value).String()}
}
