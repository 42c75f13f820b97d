package jsonscan_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// texts are edge cases of JSON that seed the fuzz test.
var texts = []string{
	``, `{}`, ` { } `, "\t\r\n{}", `{"a":1}`, `{"a" : 1 , "b":[ ] }`, `{"a":{"b":[1,2,{"c":null}]}}`, `{"a":1,"a":2}`, `{"":""}`,
	`{,}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{'a':1}`, `{"a":1 "b":2}`, `{"a":1}}`, `{"a":1`, `{"a`, `{"a":`,
	`{`, `}`, `{} {}`, "{}\x00", "{\x00}",
	`[]`, `[1]`, `[1,]`, `[,1]`, `[1 2]`, `[[]`, `null`, `nul`, `nulll`, `true`, `tru`, `false`, `"a"`, `"a`, `1`, ` `,
	`[0,-0,1.5,1e5,1E+5,1e-5,-1.25e-300,1180591620717411303424]`, `-`, `+1`, `01`, `1.`, `.5`, `1e`, `1e+`,
	`[NaN,Infinity,-Infinity]`, `-NaN`, `0x1`, `1_0`,
	`9223372036854775807`, `-9223372036854775808`, `9223372036854775808`, `1.0`, `1e400`, `-0`,
	`"\"\\\/\b\f\n\r\t"`, `"\x"`, `"\u00e9\u00E9"`, `"\u00g9"`, `"\u00e"`, `"\u"`, `"\`, "\"\n\"", "\"\x1f\"", "\"\x7f\"",
	`"\ud83c\udf89"`, `"\uD83C\uDF89"`, `"\ud83c"`, `"\udf89"`, `"\ud83cx"`, `"\ud83c\n"`, `"\ud83c\ud83c"`,
	`"\ud83c\u0041"`, `"\udf89\ud83c"`, `{"\ud83c":1}`, `"\ud83c\udf89\udf89"`, `"\\ud83c"`, `"\ud7ff\ue000"`,
	"\"é日🎉\"", "\"\xff\"", "\"\xe6\x97\"", "\"\xed\xa0\x80\"", "\ufeff{}", "{\"é\":1}", "{}\xff",
	`{"\u0069\u0064":"x"}`, `{"a\"b":1,"a\\":2}`,
	strings.Repeat(`{"a":`, 64) + `1` + strings.Repeat(`}`, 64), strings.Repeat(`[`, 65) + strings.Repeat(`]`, 65),
	strings.Repeat(`[`, 100000),
	`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":10,"i":11}`,
}

// FuzzScanner compares the scanner with encoding/json: it accepts the same texts, except those that
// are not UTF-8, nested too deeply or have lone surrogates, with the same values.
func FuzzScanner(f *testing.F) {
	for _, s := range texts {
		f.Add([]byte(s))
	}
	const depth = 64
	f.Fuzz(func(t *testing.T, b []byte) {
		budgettest.Input(t)
		valid := json.Valid(b) && utf8.Valid(b) && nesting(b) <= depth
		strict := valid && !loneSurrogate(b)
		if got := jsonscan.Valid(b, depth); got != strict {
			t.Fatalf("%q is valid: %t, want %t", b, got, strict)
		}
		if end, ok := jsonscan.Skip(bytes.TrimLeft(b, " \t\r\n"), 0, depth); strict && (!ok || end > len(b)) {
			t.Fatalf("%q ends at %d, %t", b, end, ok)
		}
		twice := false
		for _, rules := range []jsonscan.Rules{0, jsonscan.Distinct, jsonscan.LoneSurrogates} {
			s := jsonscan.Scanner{Text: b, Depth: depth, Rules: rules}
			got, again := value(&s)
			err := s.End()
			twice = twice || again
			want := strict && !(twice && rules == jsonscan.Distinct)
			if rules == jsonscan.LoneSurrogates {
				want = valid
			}
			if (err == nil) != want && !strings.Contains(fmt.Sprint(err), "a number of at most") {
				t.Fatalf("%q with rules %d: %v", b, rules, err)
			}
			if e, ok := err.(*jsonscan.Error); err != nil && (!ok || e.Offset < 0 || e.Offset > len(b)) {
				t.Fatalf("%q: %#v", b, err)
			}
			if err == nil {
				var theirs any
				if err := json.Unmarshal(b, &theirs); err != nil || fmt.Sprint(got) != fmt.Sprint(theirs) {
					t.Fatalf("%q is %v, want %v (%v)", b, got, theirs, err)
				}
			}
		}
		// Python's words for non-finite numbers.
		s := jsonscan.Scanner{Text: b, Depth: depth, Rules: jsonscan.NonFinite}
		s.Raw()
		plain := finite(b)
		if got, want := s.End() == nil, jsonscan.Valid(plain, depth); got != want {
			t.Fatalf("%q with words: %t, want %t", b, got, want)
		} else if got && (!bytes.Equal(jsonscan.AppendFinite(nil, b), plain) || len(plain) > len(b)+s.Words) {
			t.Fatalf("%q with words is %q, %d of them, want %q", b, jsonscan.AppendFinite(nil, b), s.Words, plain)
		}
		// An object, a member and a string.
		members := map[string]json.RawMessage{}
		for name, value := range jsonscan.Members(b) {
			members[string(name)] = bytes.Clone(value)
		}
		var want map[string]json.RawMessage
		if !strict || json.Unmarshal(b, &want) != nil {
			return
		}
		if fmt.Sprintf("%q", members) != fmt.Sprintf("%q", want) && want != nil {
			t.Fatalf("%q: members %q, want %q", b, members, want)
		}
		for name, v := range want {
			if !bytes.Equal(jsonscan.Field(b, name), v) {
				t.Fatalf("%q: %q is %q, want %q", b, name, jsonscan.Field(b, name), v)
			}
			var s string
			isString := v[0] == '"' && json.Unmarshal(v, &s) == nil
			if p, ok := jsonscan.Unquote(v); ok != isString || p != s {
				t.Fatalf("%q as a string is %q, %t; want %q, %t", v, p, ok, s, isString)
			}
		}
	})
}

// value reads any value as encoding/json does, and reports whether an object in it has a duplicate
// name.
func value(s *jsonscan.Scanner) (v any, twice bool) {
	switch s.Peek() {
	case '{':
		object := map[string]any{}
		for name := range s.Members {
			key := string(name)
			_, there := object[key]
			member, inside := value(s)
			object[key] = member
			twice = twice || there || inside
		}
		return object, twice
	case '[':
		list := []any{}
		for i := range s.Elements {
			element, inside := value(s)
			if i != len(list) {
				panic("elements are not counted")
			}
			list = append(list, element)
			twice = twice || inside
		}
		return list, twice
	case '"':
		return string(s.Str()), false
	case 't', 'f':
		return s.Bool(), false
	case 'n':
		if s.Null() {
			return nil, false
		}
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return s.Float(), false
	}
	s.Raw()
	return nil, false
}

// finite replaces the words for numbers that JSON lacks, wherever they are outside strings.
func finite(b []byte) []byte {
	out, inString := []byte{}, false
	for len(b) > 0 {
		n := 1
		switch {
		case inString && b[0] == '\\':
			n = min(2, len(b))
		case b[0] == '"':
			inString = !inString
		case inString:
		default:
			for _, word := range []string{"-Infinity", "Infinity", "NaN"} {
				if rest, ok := bytes.CutPrefix(b, []byte(word)); ok {
					out, b, n = append(out, "null"...), rest, 0
					break
				}
			}
		}
		out, b = append(out, b[:n]...), b[n:]
	}
	return out
}

// loneSurrogate reports whether valid JSON has an escaped half of a surrogate pair.
func loneSurrogate(b []byte) bool {
	s := string(b)
	high := false // the previous escape was a high half
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			if high {
				return true
			}
			i++
			continue
		}
		low := false
		if s[i+1] == 'u' {
			switch strings.ToLower(s[i+2 : i+4]) {
			case "d8", "d9", "da", "db":
				if high {
					return true
				}
				high = true
				i += 6
				continue
			case "dc", "dd", "de", "df":
				low = true
			}
			i += 6
		} else {
			i += 2
		}
		if low != high {
			return true
		}
		high = false
	}
	return high
}

// nesting returns how deeply valid JSON is nested.
func nesting(b []byte) (deepest int) {
	depth, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// TestFaults: each fault has what was expected, where, and what was found.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		text, want string
		read       func(s *jsonscan.Scanner)
	}{
		{`5`, `expected an object at byte 0, got "5"`, readObject},
		{``, `expected an object, but the text ends after 0 bytes`, readObject},
		{`{5}`, `expected the name of a member at byte 1, got "5}"`, readObject},
		{`{"a" 5}`, `expected ":" at byte 5, got "5}"`, readObject},
		{`{"a":}`, `expected a value at byte 5, got "}"`, readObject},
		{`{"a":1 "b":2}`, `expected "," or "}" at byte 7, got "\"b\":2}"`, readObject},
		{`{"a":1,"a":2}`, `"a" at byte 7 is a duplicate name`, readObject},
		{`{"a":1} x`, `expected the end of the text at byte 8, got "x"`, readObject},
		{`{"a":[[[[1]]]]}`, `nested too deeply at byte 7`, readObject},
		{"{\"a\":\"\xff\"}", `the value at byte 5 is not UTF-8`, readObject},
		{`[1,]`, `expected a whole number of 64 bits at byte 3, got "]"`, readInts},
		{`[1,2`, `expected "," or "]", but the text ends after 4 bytes`, readInts},
		{`[1.5]`, `expected a whole number of 64 bits at byte 1, got "1.5]"`, readInts},
		{`[9223372036854775808]`, `expected a whole number of 64 bits at byte 1`, readInts},
		{`[01]`, `expected "," or "]" at byte 2, got "1]"`, readInts},
		{`[[1]]`, `expected a whole number of 64 bits at byte 1, got "[1]]"`, readInts},
		{`1e999`, `expected a number of at most 1.7976931e+308 at byte 0, got "1e999"`,
			func(s *jsonscan.Scanner) { s.Float() }},
		{`5`, `expected a string at byte 0, got "5"`, func(s *jsonscan.Scanner) { s.Str() }},
		{`"\ud800"`, `expected a string at byte 1, got`, func(s *jsonscan.Scanner) { s.Str() }},
		{`truth`, `expected true or false at byte 0, got "truth"`, func(s *jsonscan.Scanner) { s.Bool() }},
		{`truex`, `expected the end of the text at byte 4, got "x"`, func(s *jsonscan.Scanner) { s.Bool() }},
		{`nil`, `expected true or false at byte 0, got "nil"`, func(s *jsonscan.Scanner) { s.Bool() }},
		{`[1111111111,1111111111]`, `more than 20 bytes`, readInts},
		{`"1111111111111111111111"`, `more than 20 bytes`, func(s *jsonscan.Scanner) { s.Raw() }},
	} {
		s := jsonscan.Scanner{Text: []byte(tt.text), Depth: 3, Limit: 20, Rules: jsonscan.Distinct}
		tt.read(&s)
		if err := s.End(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.text, err, tt.want)
		}
		// After a fault nothing is read.
		if s.Peek() != 0 || s.Raw() != nil || s.Str() != nil || s.Int() != 0 || s.Null() || s.Bool() {
			t.Errorf("%s: something was read after the fault", tt.text)
		}
		for range s.Members {
			t.Errorf("%s: a member was read after the fault", tt.text)
		}
	}
	s := jsonscan.Scanner{Text: []byte(`[1,2,3]`), Depth: 1}
	reason := fmt.Errorf("enough")
	for i := range s.Elements {
		if s.Raw(); i == 1 {
			s.Fail(reason)
		}
	}
	if s.Fail(fmt.Errorf("again")); s.End() != reason {
		t.Errorf("ended for %v", s.Err())
	}
}

func readObject(s *jsonscan.Scanner) {
	for range s.Members {
		s.Raw()
	}
}

func readInts(s *jsonscan.Scanner) {
	for range s.Elements {
		s.Int()
	}
}

func TestMembers(t *testing.T) {
	for text, want := range map[string]string{
		``: "", ` {} `: "", `{"a":1}`: "a=1", ` { "a" : 1 , "b" : [1,{"a":2}] , "c":"x" } `: `a=1 b=[1,{"a":2}] c="x"`,
		`{"a":1,"a":2}`:        "a=1 a=2",
		`{"\u0069d":"\u0069"}`: `id="\u0069"`, `{"a":1,"b":}`: "a=1", `{"a":1`: "a=1", `{"a":1 "b":2}`: "a=1",
		`{"a"`: "", `{"a`: "", `{"a":`: "",
		`{"a" 1}`: "", `{`: "", `{1:2}`: "", `{"a":1,`: "a=1", `[1]`: "", ` `: "",
	} {
		var got []string
		for name, value := range jsonscan.Members([]byte(text)) {
			got = append(got, string(name)+"="+string(value))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for name := range jsonscan.Members([]byte(`{"a":1,"b":2,"c":3}`)) {
		if string(name) == "b" {
			break
		}
	}
	if v := jsonscan.Field([]byte(`{"a":1,"b":2,"a":3}`), "a"); string(v) != "3" {
		t.Errorf("of two values %q is taken, want the last one", v)
	}
}

func TestUnmarshal(t *testing.T) {
	var v struct {
		A any
		B []string `json:"b"`
	}
	if err := jsonscan.Unmarshal([]byte(` {"a": 12345678901234567890, "b": ["x"]} `), &v); err != nil ||
		v.A != json.Number("12345678901234567890") || len(v.B) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	for text, want := range map[string]string{
		`{"a":1,"a":2}`: "duplicate name", `{"a":{"x":[{"y":1,"y":2}]}}`: "duplicate name",
		`{"c":1}`: `unknown field "c"`, `{} {}`: "the end of the text", `{"a":1`: "the text ends",
		``: "the text ends", `{"b":5}`: "number", "{\"a\":\"\xff\"}": "UTF-8", `{"a":` + strings.Repeat("[", 1000): "nested too deeply",
	} {
		if err := jsonscan.Unmarshal([]byte(text), &v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
}

// TestAllocations: reading does not allocate, unless a string has escapes.
func TestAllocations(t *testing.T) {
	text := []byte(`{"id":"17","names":["image","mask"],"timeout_ms":50.5,"rows":[1,2],"parameters":{"threshold":0.5,"labels":["a"]},"ready":true}`)
	n := testing.AllocsPerRun(100, func() {
		s := jsonscan.Scanner{Text: text, Depth: 4, Rules: jsonscan.Distinct}
		for name := range s.Members {
			switch string(name) {
			case "id":
				s.Str()
			case "names":
				for range s.Elements {
					s.Str()
				}
			case "timeout_ms":
				s.Float()
			case "rows":
				for range s.Elements {
					s.Int()
				}
			default:
				s.Raw()
			}
		}
		if s.End() != nil || jsonscan.Field(text, "ready") == nil || jsonscan.Field(nil, "ready") != nil ||
			!jsonscan.Valid(text, 4) {
			t.Fatal(s.Err())
		}
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestUnquote(t *testing.T) {
	for text, want := range map[string]string{`"a"`: "a", `""`: "", `"\u00e9\n\""`: "é\n\"", `"é"`: "é"} {
		if s, ok := jsonscan.Unquote([]byte(text)); !ok || s != want {
			t.Errorf("%s: %q, %t", text, s, ok)
		}
	}
	for _, text := range []string{``, `a`, `1`, `"a`, `"`, `"a"b`, `"a" `, `null`, `"\x"`, `a"`} {
		if s, ok := jsonscan.Unquote([]byte(text)); ok {
			t.Errorf("%s is taken for the string %q", text, s)
		}
	}
}

func TestAppendString(t *testing.T) {
	for s, want := range map[string]string{"": `""`, "a\"b\\": `"a\"b\\"`, "\n\r\t\x01": `"\n\r\t\u0001"`,
		"é日🎉\u2028": "\"é日🎉\u2028\"", "a\xffb\xc0": "\"a\ufffdb\ufffd\""} {
		if got := string(jsonscan.AppendString([]byte("x"), s)); got != "x"+want {
			t.Errorf("%q is written %s, want %s", s, got, want)
		}
	}
}

// FuzzString: AppendString writes JSON that reads back as the same text.
func FuzzString(f *testing.F) {
	for _, s := range []string{"", "a", "\"\\\n\r\t\x00\x1f\x7f", "größe 日本 🎉", "\xff\xc0\xaf a\xe6\x97", "\u2028\ufffd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		budgettest.Input(t)
		b := jsonscan.AppendString([]byte("x"), s)[1:]
		// Each byte that is not UTF-8 becomes one U+FFFD, as in a range over the string.
		want := string([]rune(s))
		if got, ok := jsonscan.Unquote(b); !ok || got != want {
			t.Fatalf("%q is written %q and read %q, %t", s, b, got, ok)
		}
		var std string
		if err := json.Unmarshal(b, &std); err != nil || std != want {
			t.Fatalf("%q is written %q, which encoding/json reads as %q, %v", s, b, std, err)
		}
	})
}
