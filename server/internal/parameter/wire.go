package parameter

import (
	"cmp"

	"github.com/shivad/shivad/shiva/jsonscan"
)

// A Wire is a place where clients give parameters. Wires combine into sets.
type Wire uint8

// Wires.
const (
	Shiva    Wire = 1 << iota // metadata of a message
	HTTP                      // "parameters" of an inference
	GRPC                      // "parameters" of a ModelInfer
	Stream                    // "parameters" of a request of a ModelStreamInfer
	Clipper                   // the body of /name/predict
	Feedback                  // the body of feedback: /name/update, and the admin door's
	Library                   // Parameters of a server.Request
	Latest                    // of a question for the newest answer of a stream, at every door
)

// Sets of wires.
const (
	questions  = everywhere &^ (Clipper | Feedback)
	everywhere = Shiva | predict
	predict    = HTTP | GRPC | Stream | Clipper | Feedback | Library // in Predict Protocol units
)

// Wires lists all wires, with their names in documents.
var Wires = []struct {
	Wire Wire
	Name string
}{
	{Shiva, "Shiva"}, {HTTP, "HTTP"}, {GRPC, "gRPC"}, {Stream, "gRPC stream"},
	{Clipper, "Clipper"}, {Feedback, "feedback"}, {Library, "library"}, {Latest, "latest"},
}

// keys holds the rows of each wire, by name.
var keys = func() map[Wire]map[string]*Key {
	all := make(map[Wire]map[string]*Key)
	for _, w := range Wires {
		rows := make(map[string]*Key)
		for _, k := range Table {
			if k.On&w.Wire != 0 {
				k.wire = w.Wire
				rows[k.Name] = &k
			}
		}
		all[w.Wire] = rows
	}
	return all
}()

// Keys returns the rows of one wire, by name. The map is shared: do not modify it.
func (w Wire) Keys() map[string]*Key { return keys[w] }

// Members reads the members of a JSON object that are parameters on the wire, and passes every
// other member to other, if other is not nil. It returns the first error, but still reads the
// members after it.
func (w Wire) Members(v *Values, object []byte, other func(key, value []byte)) (err error) {
	rows := w.Keys()
	for key, value := range jsonscan.Members(object) {
		if k := rows[string(key)]; k != nil {
			err = cmp.Or(err, k.Read(v, JSON(value)))
		} else if other != nil {
			other(key, value)
		}
	}
	return err
}
