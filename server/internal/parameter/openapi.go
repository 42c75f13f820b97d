package parameter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// OpenAPI puts the keys of wires into an OpenAPI document. In the properties of a schema, a member
// `"$parameters": "HTTP"` stands for all keys of that wire.
func OpenAPI(document []byte) []byte {
	for _, w := range Wires {
		mark := fmt.Appendf(nil, `"$parameters": %q`, w.Name)
		document = bytes.ReplaceAll(document, mark, []byte(strings.Join(w.Wire.properties(), ", ")))
	}
	return document
}

// properties returns the schemas of a wire's keys, in the order of the table.
func (w Wire) properties() (list []string) {
	for _, k := range Table {
		if k.On&w == 0 {
			continue
		}
		means, err := json.Marshal(k.Means + " Default: " + k.Default + ".")
		if err != nil {
			panic(err) // marshalling a text cannot fail
		}
		list = append(list, fmt.Sprintf(`%q: {%s, "description": %s}`, k.Name, k.kind.schema, means))
	}
	return list
}

// Schema returns the JSON Schema of the key's value, a JSON object.
func (k *Key) Schema() string { return "{" + k.kind.schema + "}" }
