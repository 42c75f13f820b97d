package shiva_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// metadataCases are texts around the rules of JSON; the fuzz test begins with them, and plain
// tests run them against encoding/json.
var metadataCases = []string{
	``, `{}`, ` { } `, "\t\r\n{}", `{"a":1}`, `{"a" : 1 , "b":[ ] }`, `{"a":{"b":[1,2,{"c":null}]}}`, `{"a":1,"a":2}`, `{"":""}`,
	`{,}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{'a':1}`, `{"a":1 "b":2}`, `{"a":1}}`, `{"a":1`, `{"a`, `{"a":`, `{`, `}`, `{} {}`, "{}\x00", "{\x00}",
	`[]`, `[1]`, `[1,]`, `[,1]`, `[1 2]`, `[[]`, `null`, `nul`, `nulll`, `true`, `tru`, `false`, `"a"`, `"a`, `1`, ` `,
	`{"n":0}`, `{"n":-0}`, `{"n":-}`, `{"n":+1}`, `{"n":01}`, `{"n":1.}`, `{"n":.5}`, `{"n":1.5}`, `{"n":1e5}`, `{"n":1E+5}`, `{"n":1e-5}`, `{"n":1e}`, `{"n":1e+}`, `{"n":-1.25e-300}`, `{"n":1180591620717411303424}`, `{"n":NaN}`, `{"n":Infinity}`, `{"n":-Infinity}`, `{"n":0x1}`, `{"n":1_0}`,
	`{"s":"\"\\\/\b\f\n\r\t"}`, `{"s":"\x"}`, `{"s":"\u00e9"}`, `{"s":"\u00E9"}`, `{"s":"\u00g9"}`, `{"s":"\u00e"}`, `{"s":"\u"}`, `{"s":"\`, "{\"s\":\"\n\"}", "{\"s\":\"\x1f\"}", "{\"s\":\"\x7f\"}",
	`{"s":"\ud83c\udf89"}`, `{"s":"\uD83C\uDF89"}`, `{"s":"\ud83c"}`, `{"s":"\udf89"}`, `{"s":"\ud83cx"}`, `{"s":"\ud83c\n"}`, `{"s":"\ud83c\ud83c"}`, `{"s":"\ud83c\u0041"}`, `{"s":"\udf89\ud83c"}`, `{"\ud83c":1}`, `{"s":"\ud83c\udf89\udf89"}`, `{"s":"\\ud83c"}`, `{"s":"\ud7ff\ue000"}`,
	"{\"s\":\"é日🎉\"}", "{\"s\":\"\xff\"}", "{\"s\":\"\xe6\x97\"}", "{\"s\":\"\xed\xa0\x80\"}", "\ufeff{}", "{\"é\":1}", "{}\xff",
	`{"\u0069\u0064":"x"}`, `{"a\"b":1,"a\\":2}`,
	strings.Repeat(`{"a":`, 128) + `1` + strings.Repeat(`}`, 128), strings.Repeat(`{"a":`, 129) + `1` + strings.Repeat(`}`, 129),
	`{"a":` + strings.Repeat(`[`, 127) + strings.Repeat(`]`, 127) + `}`, `{"a":` + strings.Repeat(`[`, 128) + strings.Repeat(`]`, 128) + `}`,
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

// The words that Python writes for numbers which JSON has not are null in what is received,
// where numbers may stand and nowhere else; who reads metadata has to do with JSON only.
func TestNonFiniteNumbers(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": NaN}`: `{"a": null}`,
		`{"a":NaN,"b":[Infinity,-Infinity,{"c":NaN}],"d":-1}`:                         `{"a":null,"b":[null,null,{"c":null}],"d":-1}`,
		`{"NaN":"NaN","Infinity":"\"NaN","i":-Infinity}`:                              `{"NaN":"NaN","Infinity":"\"NaN","i":null}`,
		`{"a":` + strings.Repeat(`[NaN,`, 100) + `1` + strings.Repeat(`]`, 100) + `}`: `{"a":` + strings.Repeat(`[null,`, 100) + `1` + strings.Repeat(`]`, 100) + `}`,
		`{"a":[` + strings.Repeat(`NaN,`, 100_000) + `1]}`:                            `{"a":[` + strings.Repeat(`null,`, 100_000) + `1]}`,
		`{"a":nan}`: "", `{"a":Nan}`: "", `{"a":+Infinity}`: "", `{"a":Inf}`: "", `{"a":- Infinity}`: "", `{"a":NaNNaN}`: "", `{NaN:1}`: "", `{"a":1NaN}`: "", `NaN`: "", `{"a":--Infinity}`: "",
	} {
		pool := tensor.NewPool(0)
		r := decodeAll(t, shiva.DecoderConfig{Pool: pool}, mustEncode(t, &shiva.Message{Metadata: []byte(text)}))
		switch {
		case want == "" && (len(r.messages) > 0 || r.kind != shiva.KindInvalidJSON && r.kind != shiva.KindMetadataNotObject):
			t.Errorf("%.60s: %d messages, then %s", text, len(r.messages), r.kind)
		case want != "" && (len(r.messages) != 1 || string(r.messages[0].Metadata) != want):
			t.Errorf("%.60s: %d messages, then %s", text, len(r.messages), r.kind)
		}
		r.release()
		checkLeaks(t, pool)
	}
	// The id of a message that is refused for another reason.
	_, _, err := shiva.NewDecoder(shiva.DecoderConfig{Pool: tensor.NewPool(8)}).Push(mustEncode(t, &shiva.Message{Metadata: []byte(`{"a":NaN,"id":7,"pad":"1234567890"}`)}))
	if e, ok := errors.AsType[*shiva.DecodeError](err); !ok || e.Kind != shiva.KindOverBudget || e.ID != "7" {
		t.Errorf("%v; want the id of what does not fit the budget", err)
	}
}

func TestEachField(t *testing.T) {
	for _, tt := range []struct {
		text   string
		fields string // key=value, separated by blanks
		ok     bool
	}{
		{``, "", true},
		{` {} `, "", true},
		{`{"a":1}`, "a=1", true},
		{` { "a" : 1 , "b" : [1,{"a":2}] , "c":"x" } `, `a=1 b=[1,{"a":2}] c="x"`, true},
		{`{"a":1,"a":2}`, "a=1 a=2", true},
		{`{"\u0069d":"\u0069"}`, `id="\u0069"`, true},
		{`{"a":1,"b":}`, "a=1", false},
		{`{"a":1`, "a=1", false},
		{`{"a":1 "b":2}`, "a=1", false},
		{`{"a"`, "", false},
		{`{"a`, "", false},
		{`{"a":`, "", false},
		{`{"a" 1}`, "", false},
		{`{`, "", false},
		{`{1:2}`, "", false},
		{`{"a":1,`, "a=1", false},
		{`[1]`, "", false},
		{` `, "", false},
	} {
		var fields []string
		err := shiva.EachField([]byte(tt.text), func(key, value []byte) bool {
			fields = append(fields, string(key)+"="+string(value))
			return true
		})
		if got := strings.Join(fields, " "); got != tt.fields || (err == nil) != tt.ok {
			t.Errorf("%q: %q, %v; want %q, valid %t", tt.text, got, err, tt.fields, tt.ok)
		}
	}
	var seen []string
	if err := shiva.EachField([]byte(`{"a":1,"b":2,"c":3}`), func(key, _ []byte) bool {
		seen = append(seen, string(key))
		return string(key) != "b"
	}); err != nil || !slices.Equal(seen, []string{"a", "b"}) {
		t.Errorf("stopped after %q, %v", seen, err)
	}
	if v := shiva.Field([]byte(`{"a":1,"b":2,"a":3}`), "a"); string(v) != "3" {
		t.Errorf("of two values %q is taken, want the last one", v)
	}
}

func TestParseString(t *testing.T) {
	for text, want := range map[string]string{`"a"`: "a", `""`: "", `"\u00e9\n\""`: "é\n\"", `"é"`: "é"} {
		if s, ok := shiva.ParseString([]byte(text)); !ok || s != want {
			t.Errorf("%s: %q, %t", text, s, ok)
		}
	}
	for _, text := range []string{``, `a`, `1`, `"a`, `"`, `"a"b`, `"a" `, `null`, `"\x"`} {
		if s, ok := shiva.ParseString([]byte(text)); ok {
			t.Errorf("%s is taken for the string %q", text, s)
		}
	}
}

func TestAppendString(t *testing.T) {
	for s, want := range map[string]string{"": `""`, "a\"b\\": `"a\"b\\"`, "\n\r\t\x01": `"\n\r\t\u0001"`, "é日🎉\u2028": "\"é日🎉\u2028\"", "a\xffb\xc0": "\"a\ufffdb\ufffd\""} {
		if got := string(shiva.AppendString([]byte("x"), s)); got != "x"+want {
			t.Errorf("%q is written %s, want %s", s, got, want)
		}
	}
}
