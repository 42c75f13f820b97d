package operate

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// A document without faults is the same after it is written and read again.
func FuzzParseDocument(f *testing.F) {
	for _, seed := range []string{
		`{"format":1,"applications":[{"name":"a","models":["m"],"policy":"exp4","params":{"eta":0.3},"slo":"50ms","default":{"x":[1]}}],"policies":[{"application":"a","user":"","state":{"format":1}}],"settings":{"m":{"delay":"1ms"}}}`,
		`{"format":1,"applications":null,"policies":[null],"settings":{"m":null}}`,
		`{"format":2}`, `{"applications":[]}`, `{"format":1}{}`, `[]`, `{"format":1,"applications":[{"name":null}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		budgettest.Input(t)
		d, faults := parseDocument(text)
		if len(faults) > 0 {
			return
		}
		written, err := json.Marshal(d)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		again, faults := parseDocument(written)
		rewritten, err := json.Marshal(again)
		if len(faults) > 0 || err != nil || !reflect.DeepEqual(written, rewritten) {
			t.Errorf("%s became %s: %q, %v", written, rewritten, faults, err)
		}
	})
}
