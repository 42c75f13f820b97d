package jsonscan_test

import (
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/jsonscan"
)

// TestWords: errors name the kinds of JSON, and no types of Go.
func TestWords(t *testing.T) {
	type inner struct {
		N    int8              `json:"n"`
		U    *uint16           `json:"u"`
		F    float32           `json:"f"`
		Yes  bool              `json:"yes"`
		Text string            `json:"text"`
		List []string          `json:"list"`
		Raw  []byte            `json:"raw"`
		Map  map[string]string `json:"map"`
	}
	for text, want := range map[string]string{
		`1`:                        "expected an object, got a number",
		`{"in":[]}`:                "in: expected an object, got a list",
		`{"in":{"n":300}}`:         "in.n: expected a whole number of 8 bits, got 300",
		`{"in":{"u":-1}}`:          "in.u: expected a whole number of 0 or more, of 16 bits, got -1",
		`{"in":{"f":"1"}}`:         "in.f: expected a number of 32 bits, got a string",
		`{"in":{"f":1e999}}`:       "in.f: expected a number of 32 bits, got 1e999",
		`{"in":{"yes":1}}`:         "in.yes: expected true or false, got a number",
		`{"in":{"text":true}}`:     "in.text: expected a string, got true or false",
		`{"in":{"list":{}}}`:       "in.list: expected a list, got an object",
		`{"in":{"raw":1}}`:         "in.raw: expected a string of base64, got a number",
		`{"in":{"map":{"a":1}}}`:   "in.map: expected a string, got a number",
		`{"in":{"nosuch":"here"}}`: `unknown field "nosuch"`,
	} {
		var v struct {
			In inner `json:"in"`
		}
		if err := jsonscan.Unmarshal([]byte(text), &v); err == nil || !strings.HasSuffix(err.Error(), want) ||
			strings.Contains(err.Error(), "json:") {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
}
