package shiva_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// metadataCases are edge cases of JSON; they seed the fuzz test, and plain tests compare them with
// encoding/json.
var metadataCases = []string{
	``, `{}`, ` { } `, "\t\r\n{}", `{"a":1}`, `{"a" : 1 , "b":[ ] }`, `{"a":{"b":[1,2,{"c":null}]}}`, `{"a":1,"a":2}`, `{"":""}`,
	`{,}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{'a':1}`, `{"a":1 "b":2}`, `{"a":1}}`, `{"a":1`, `{"a`, `{"a":`,
	`{`, `}`, `{} {}`, "{}\x00", "{\x00}",
	`[]`, `[1]`, `[1,]`, `[,1]`, `[1 2]`, `[[]`, `null`, `nul`, `nulll`, `true`, `tru`, `false`, `"a"`, `"a`, `1`, ` `,
	`{"n":0}`, `{"n":-0}`, `{"n":-}`, `{"n":+1}`, `{"n":01}`, `{"n":1.}`, `{"n":.5}`, `{"n":1.5}`, `{"n":1e5}`,
	`{"n":1E+5}`, `{"n":1e-5}`, `{"n":1e}`, `{"n":1e+}`, `{"n":-1.25e-300}`, `{"n":1180591620717411303424}`,
	`{"n":NaN}`, `{"n":Infinity}`, `{"n":-Infinity}`, `{"n":0x1}`, `{"n":1_0}`,
	`{"s":"\"\\\/\b\f\n\r\t"}`, `{"s":"\x"}`, `{"s":"\u00e9"}`, `{"s":"\u00E9"}`, `{"s":"\u00g9"}`, `{"s":"\u00e"}`,
	`{"s":"\u"}`, `{"s":"\`, "{\"s\":\"\n\"}", "{\"s\":\"\x1f\"}", "{\"s\":\"\x7f\"}",
	`{"s":"\ud83c\udf89"}`, `{"s":"\uD83C\uDF89"}`, `{"s":"\ud83c"}`, `{"s":"\udf89"}`, `{"s":"\ud83cx"}`,
	`{"s":"\ud83c\n"}`, `{"s":"\ud83c\ud83c"}`, `{"s":"\ud83c\u0041"}`, `{"s":"\udf89\ud83c"}`, `{"\ud83c":1}`,
	`{"s":"\ud83c\udf89\udf89"}`, `{"s":"\\ud83c"}`, `{"s":"\ud7ff\ue000"}`,
	"{\"s\":\"é日🎉\"}", "{\"s\":\"\xff\"}", "{\"s\":\"\xe6\x97\"}", "{\"s\":\"\xed\xa0\x80\"}", "\ufeff{}", "{\"é\":1}", "{}\xff",
	`{"\u0069\u0064":"x"}`, `{"a\"b":1,"a\\":2}`,
	strings.Repeat(`{"a":`, 128) + `1` + strings.Repeat(`}`, 128), strings.Repeat(`{"a":`, 129) + `1` + strings.Repeat(`}`, 129),
	`{"a":` + strings.Repeat(`[`, 127) + strings.Repeat(`]`, 127) + `}`,
	`{"a":` + strings.Repeat(`[`, 128) + strings.Repeat(`]`, 128) + `}`,
	strings.Repeat(`[`, 100000),
}

func TestValidObject(t *testing.T) {
	for _, s := range metadataCases {
		kind := shiva.Kind("")
		if e, ok := errors.AsType[*shiva.DecodeError](shiva.ValidObject([]byte(s))); ok {
			kind = e.Kind
			if e.Offset < 0 || e.Offset > int64(len(s)) || !e.Keep() {
				t.Errorf("%.60q: fault at %d of %d bytes, keep %t", s, e.Offset, len(s), e.Keep())
			}
		}
		if want := metadataKind([]byte(s), 128); kind != want {
			t.Errorf("%.60q: %q, want %q", s, kind, want)
		}
	}
}

// The words that Python writes for numbers that JSON lacks become null in received metadata, but
// only in the place of numbers, so that readers of metadata need only a JSON parser.
func TestNonFiniteNumbers(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": NaN}`: `{"a": null}`,
		`{"a":NaN,"b":[Infinity,-Infinity,{"c":NaN}],"d":-1}`: `{"a":null,"b":[null,null,{"c":null}],"d":-1}`,
		`{"NaN":"NaN","Infinity":"\"NaN","i":-Infinity}`:      `{"NaN":"NaN","Infinity":"\"NaN","i":null}`,
		`{"a":` + strings.Repeat(`[NaN,`, 100) + `1` + strings.Repeat(`]`, 100) + `}`: `{"a":` +
			strings.Repeat(`[null,`, 100) + `1` + strings.Repeat(`]`, 100) + `}`,
		`{"a":[` + strings.Repeat(`NaN,`, 100_000) + `1]}`: `{"a":[` + strings.Repeat(`null,`, 100_000) + `1]}`,
		`{"a":nan}`: "", `{"a":Nan}`: "", `{"a":+Infinity}`: "", `{"a":Inf}`: "", `{"a":- Infinity}`: "",
		`{"a":NaNNaN}`: "", `{NaN:1}`: "", `{"a":1NaN}`: "", `NaN`: "", `{"a":--Infinity}`: "",
	} {
		pool := tensor.NewPool(0)
		r := decodeAll(t, shiva.DecoderConfig{Pool: pool}, mustEncode(t, &shiva.Message{Metadata: []byte(text)}))
		switch {
		case want == "" &&
			(len(r.messages) > 0 || r.kind != shiva.KindInvalidJSON && r.kind != shiva.KindMetadataNotObject):
			t.Errorf("%.60s: %d messages, then %s", text, len(r.messages), r.kind)
		case want != "" && (len(r.messages) != 1 || string(r.messages[0].Metadata) != want):
			t.Errorf("%.60s: %d messages, then %s", text, len(r.messages), r.kind)
		}
		r.release()
		checkLeaks(t, pool)
	}
	// The id of a message that is refused for a different reason.
	_, _, err := shiva.NewDecoder(shiva.DecoderConfig{Pool: tensor.NewPool(8)}).
		Push(mustEncode(t, &shiva.Message{Metadata: []byte(`{"a":NaN,"id":7,"pad":"1234567890"}`)}))
	if e, ok := errors.AsType[*shiva.DecodeError](err); !ok || e.Kind != shiva.KindOverBudget || e.ID != "7" {
		t.Errorf("%v; want the id of what does not fit the budget", err)
	}
}
