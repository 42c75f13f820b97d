package wire

import (
	"bytes"
	"encoding/json"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestBatchHeader(t *testing.T) {
	var h BatchHeader
	text := ` {"rows" : 5, "new":{"x":[1,{"y":null}]}, "inputs":[{"name":"im\u00e4ge","datatype":"UINT8","shape":[5,8,8],"more":true},` +
		`{"shape":[],"datatype":"BYTES","name":"é"}],"timeout_ms":48.5,"requests":[2,1,2],"parameters":[null,{"a":"}"},{}],"priority":[0,9,1],"traces":[null,"00-\u0061",null],"trace_states":[null,"a=\"",7],"pictures":{"im\u00e4ge":{"more":[],"ids":[71,9007199254740992],"of":[0,0,1,0,1]}}}` +
		"\n"
	for range 2 { // the memory is reused
		if err := h.Parse([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if h.Rows != 5 || h.Timeout != 48.5 || !reflect.DeepEqual(h.Requests, []int{2, 1, 2}) ||
			!reflect.DeepEqual(h.Priority, []int{0, 9, 1}) {
			t.Errorf("%+v", h)
		}
		if len(h.Parameters) != 3 || h.Parameters[0] != nil || string(h.Parameters[1]) != `{"a":"}"}` ||
			string(h.Parameters[2]) != "{}" {
			t.Errorf("parameters %q", h.Parameters)
		}
		if len(h.Traces) != 3 || h.Traces[0] != nil || string(h.Traces[1]) != "00-a" {
			t.Errorf("traces %q", h.Traces)
		}
		if len(h.Pictures) != 1 || string(h.Pictures[0].Input) != "imäge" ||
			!reflect.DeepEqual(h.Pictures[0].Of, []int{0, 0, 1, 0, 1}) ||
			!reflect.DeepEqual(h.Pictures[0].IDs, []int{71, 1 << 53}) {
			t.Errorf("pictures %+v", h.Pictures)
		}
		if len(h.States) != 3 || h.States[0] != nil || string(h.States[1]) != `a="` || h.States[2] != nil {
			t.Errorf("trace_states %q", h.States)
		}
		if len(h.Inputs) != 2 || string(h.Inputs[0].Name) != "imäge" || h.Inputs[0].DType != tensor.Uint8 ||
			!h.Inputs[0].Shape.Equal(tensor.Shape{5, 8, 8}) ||
			string(h.Inputs[1].Name) != "é" || h.Inputs[1].DType != tensor.Bytes || len(h.Inputs[1].Shape) != 0 {
			t.Errorf("inputs %+v", h.Inputs)
		}
	}
	if err := h.Parse([]byte(`{"rows":1,"inputs":[]}`)); err != nil || len(h.Requests) != 0 || len(h.Parameters) != 0 ||
		len(h.Traces) != 0 || len(h.States) != 0 || len(h.Pictures) != 0 || h.Timeout != 0 || len(h.Inputs) != 0 {
		t.Errorf("left over: %+v, %v", h, err)
	}
}

// TestFewTraces: nearly all requests of a batch are not traced.
func TestFewTraces(t *testing.T) {
	for _, text := range []string{
		`{"rows":7,"traces":[null,null,"a",null,"b",null,null]}`, `{"rows":7,"traces":[ null,null , "a",null, "b" ,null,null]}`,
		`{"rows":7,"traces":["","","a",{"null,":[null,null]},"b",null,7]}`,
	} {
		var h BatchHeader
		if err := h.Parse([]byte(text)); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for i, want := range []string{"", "", "a", "", "b", "", ""} {
			if string(h.Traces[i]) != want {
				t.Errorf("%s: trace %d is %q, expected %q", text, i, h.Traces[i], want)
			}
		}
	}
}

func TestBroken(t *testing.T) {
	for text, want := range map[string]string{
		``: "expected an object", `[]`: "expected an object", `{`: "expected the name of a member",
		`{}x`: "the end of the text", `{"rows":1}`: "", `{"rows":0}`: "rows is 0",
		`{}`: "rows is -1", `{"rows":1,}`: "expected the name of a member", `{"rows" 1}`: `expected ":"`,
		`{"rows":1 "x":2}`: `expected "," or "}"`,
		`{"rows":01}`:      `expected "," or "}" at byte 9, got "1}"`, `{"rows":1.5}`: "whole", `{"rows":1e0}`: "",
		`{"rows":15e-1}`: "whole", `{"rows":-}`: "expected a whole number", `{"rows":9999999999999999999}`: "of 64 bits",
		`{"rows":2,"requests":[1]}`: "1 rows in total, the batch has 2", `{"rows":2,"requests":[3]}`: "[3]",
		`{"rows":2,"requests":[0,2]}`:  "[0 2]",
		`{"rows":2,"requests":[-1,3]}`: "[-1 3]", `{"rows":2,"parameters":[null]}`: "1 parameters for 2",
		`{"rows":2,"priority":[1,2,3]}`: "3 priorities for 2", `{"rows":2,"traces":["00-a"]}`: "1 traces for 2",
		`{"rows":2,"trace_states":["a=b"]}`:                     "1 trace_states for 2",
		`{"rows":2,"pictures":{"x":{"of":[0],"ids":[1]}}}`:      "1 rows are of pictures, in a batch of 2",
		`{"rows":2,"pictures":{"x":{"of":[1,0],"ids":[1,2]}}}`:  "row 0 is of picture 1",
		`{"rows":2,"pictures":{"x":{"of":[0,-1],"ids":[1,2]}}}`: "row 1 is of picture -1",
		`{"rows":2,"pictures":{"x":{"of":[0,1],"ids":[1]}}}`:    "2 pictures have 1 ids",
		`{"rows":1,"pictures":{"x":{"ids":[]}}}`:                "0 rows are of pictures",
		`{"rows":1,"pictures":[]}`:                              "expected an object",
		`{"rows":1,"pictures":{"x":[]}}`:                        "expected an object", `{"rows":1,"pictures":{}}`: "",
		`{"rows":2,"traces":[null,null]}`: "", `{"rows":3,"traces":[null,null,null,null]}`: "4 traces for 3",
		`{"rows":2,"traces":[null,null,]}`: "expected a value", `{"rows":2,"traces":[null,null,`: "the text ends",
		`{"rows":2,"traces":[null,nul,null]}`:                               "expected a value",
		`{"rows":1,"inputs":[{"name":"x","datatype":"FP32"}]}`:              "without name, datatype or shape",
		`{"rows":1,"inputs":[{"name":"x","datatype":"FP33","shape":[]}]}`:   `"FP33"`,
		`{"rows":1,"inputs":[{"name":1,"datatype":"FP32","shape":[]}]}`:     "expected a string",
		`{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[NaN]}]`: "expected a whole number",
		"{\"rows\":1,\"x\":\"\n\"}":                                         "expected a value at byte 16",
		"{\"rows\":1,\"x\":\"\xff\"}":                                       "UTF-8", `{"rows":1,"x":"\q"}`: `got "\\q\"}"`,
		`{"rows":1,"x":"`: "the text ends", `{"rows":1,"x":"\`: `got "\\"`, `{"rows":1,"x":tru}`: "expected a value",
		`{"rows":1,"x":1.}`: `at byte 16, got "}"`, `{"rows":1,"x":1e}`: `at byte 16, got "}"`,
		`{"rows":1,"x":` + strings.Repeat("[", 100): "deeply", `{"rows":1,"timeout_ms":1e999}`: "a number of at most",
	} {
		var h BatchHeader
		err := h.Parse([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, expected %q", text, err, want)
		}
	}
}

func TestResultHeader(t *testing.T) {
	var h ResultHeader
	text := []byte(`{"outputs":[`)
	text = AppendTensor(text, "sc\"ores\x01é", tensor.Float32, 64, tensor.Shape{10})
	text = append(AppendTensor(append(text, ','), "", tensor.Bool, -1, nil), ']')
	text = append(AppendRowErrors(text, []RowError{{Row: 3, Message: []byte("a\nb\xff")}, {Row: 0}}), '}')
	if err := h.Parse(text, 64); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if string(h.Outputs[0].Name) != "sc\"ores\x01é" || !h.Outputs[0].Shape.Equal(tensor.Shape{64, 10}) ||
		h.Outputs[1].DType != tensor.Bool || len(h.Outputs[1].Shape) != 0 {
		t.Errorf("%+v", h.Outputs)
	}
	if len(h.Errors) != 2 || h.Errors[0].Row != 3 || string(h.Errors[0].Message) != "a\nb\uFFFD" || h.Failed {
		t.Errorf("%+v", h.Errors)
	}
	if err := h.Parse([]byte(`{"error":"x"}`), 1); err != nil || !h.Failed || string(h.Error) != "x" ||
		len(h.Outputs) != 0 {
		t.Errorf("%+v, %v", h, err)
	}
	// Python's text for a file name that is not UTF-8.
	if err := h.Parse([]byte(`{"error":"no file a\udcff"}`), 1); err != nil || string(h.Error) != "no file a\uFFFD" {
		t.Errorf("%q, %v", h.Error, err)
	}
	if err := h.Parse([]byte(`{"errors":[{"row":1}]}`), 1); err == nil {
		t.Error("a row error without a message was taken")
	}
}

func TestFeedbackHeader(t *testing.T) {
	var h FeedbackHeader
	text := `{"application":"app","user":"an\"na","rows":2,"inputs":[{"name":"x","datatype":"FP32","shape":[2,4]}],"later":{},` +
		`"outputs":[{"name":"y","datatype":"INT64","shape":[2]}],"truth":[{"name":"y","datatype":"INT8","shape":[1,2]}],"label":{"y":[1,2]},"loss":0.25}`
	for range 2 {
		if err := h.Parse([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if string(h.Application) != "app" || string(h.User) != `an"na` || h.Rows != 2 ||
			string(h.Label) != `{"y":[1,2]}` || h.Loss != 0.25 || !h.Lost ||
			!h.Inputs[0].Shape.Equal(tensor.Shape{2, 4}) || !h.Outputs[0].Shape.Equal(tensor.Shape{2}) ||
			!h.Truth[0].Shape.Equal(tensor.Shape{1, 2}) {
			t.Errorf("%+v", h)
		}
	}
	if err := h.Parse([]byte(`{"application":"app"}`)); err == nil {
		t.Error("feedback to no rows was taken")
	}
}

// TestShapeGivenTwice: the last shape counts, and does not change that of the previous tensor.
func TestShapeGivenTwice(t *testing.T) {
	var h ResultHeader
	text := `{"outputs":[{"name":"a","datatype":"INT8","shape":[2]},{"name":"b","datatype":"INT8","shape":[9],"shape":[3]}]}`
	if err := h.Parse([]byte(text), 2); err != nil || !h.Outputs[0].Shape.Equal(tensor.Shape{2}) ||
		!h.Outputs[1].Shape.Equal(tensor.Shape{3}) {
		t.Errorf("%+v, %v", h.Outputs, err)
	}
}

// TestResultTakesNoMemory: the memory for a header is bounded by what a result can have, not by
// the length of the header.
func TestResultTakesNoMemory(t *testing.T) {
	const size = 1 << 20
	for name, text := range map[string]string{
		"dimensions": `{"outputs":[{"name":"y","datatype":"FP32","shape":[` + strings.Repeat("1,", size/2) + `1]}]}`,
		"shapes": `{"outputs":[{"name":"y","datatype":"FP32"` +
			strings.Repeat(`,"shape":[1,1,1,1,1,1,1,1]`, size/26) + `}]}`,
		"outputs": `{"outputs":[` + strings.Repeat(`{"name":"","datatype":"BOOL","shape":[]},`, size/41) + `]}`,
		"errors":  `{"errors":[` + strings.Repeat(`{"row":0,"message":""},`, size/23) + `]}`,
	} {
		var h ResultHeader
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := h.Parse([]byte(text), 8)
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 2*uint64(len(text))+64<<10 {
			t.Errorf("%s: a header of %d bytes took %d (%v)", name, len(text), taken, err)
		}
	}
}

func TestAllocations(t *testing.T) {
	var b BatchHeader
	var r ResultHeader
	batch := []byte(`{"rows":2,"inputs":[{"name":"x","datatype":"FP32","shape":[2,8]}],"timeout_ms":48.5}`)
	result := []byte(`{"outputs":[{"name":"y","datatype":"FP32","shape":[2,8]}]}`)
	var text []byte
	if n := testing.AllocsPerRun(100, func() {
		if b.Parse(batch) != nil || r.Parse(result, 2) != nil {
			t.Fatal("not parsed")
		}
		text = AppendTensor(text[:0], "name", tensor.Float32, 64, tensor.Shape{8, 8})
		text = AppendMillis(text, 48_500)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzHeaders: a header that the scanner accepts is JSON to encoding/json, too, with the same
// meaning; no input makes it panic.
func FuzzHeaders(f *testing.F) {
	f.Add([]byte(`{"rows":2,"inputs":[{"name":"x","datatype":"FP32","shape":[2,8]}],"timeout_ms":48.5,"requests":[1,1],"parameters":[null,{}],"priority":[0,1],"traces":["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",null]}`))
	f.Add([]byte(`{"rows":3,"inputs":[{"name":"image","datatype":"BYTES","shape":[2]},{"name":"image_regions","datatype":"FP32","shape":[3,4,2]}],"pictures":{"image":{"of":[0,0,1],"ids":[71,72]}}}`))
	f.Add([]byte(`{"outputs":[{"name":"\u00e9","datatype":"BYTES","shape":[]}],"errors":[{"row":0,"message":"x\n"}]}`))
	f.Add([]byte(`{"error":"\ud83d\ude00"}`))
	f.Add([]byte(`{"application":"a","user":"u","rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}],"outputs":[{"name":"y","datatype":"INT8","shape":[]}],"truth":[{"name":"y","datatype":"INT8","shape":[3]}],"label":[1],"loss":0.5}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		budgettest.Input(t)
		var b BatchHeader
		if b.Parse(in) == nil {
			var want struct {
				Rows     int
				Timeout  float64 `json:"timeout_ms"`
				Requests []int
				Pictures map[string]struct{ Of, IDs []int }
			}
			same(t, in, &want)
			for _, p := range b.Pictures {
				if len(p.Of) != b.Rows ||
					plain(in) &&
						(!slices.Equal(want.Pictures[string(p.Input)].Of, p.Of) ||
							!slices.Equal(want.Pictures[string(p.Input)].IDs, p.IDs)) {
					t.Fatalf("%s: pictures %+v, encoding/json reads %+v", in, p, want.Pictures)
				}
			}
			// encoding/json reads keys of another case and duplicate keys differently.
			if plain(in) &&
				(want.Rows != b.Rows || want.Timeout != b.Timeout || len(want.Requests) != len(b.Requests)) {
				t.Fatalf("%s: %+v, encoding/json reads %+v", in, b, want)
			}
		}
		var told FeedbackHeader
		if told.Parse(in) == nil {
			var want struct {
				Rows  int
				Label json.RawMessage
			}
			same(t, in, &want)
			if plain(in) && want.Rows != told.Rows {
				t.Fatalf("%s: %+v, encoding/json reads %+v", in, told, want)
			}
		}
		var r ResultHeader
		if r.Parse(in, 64) == nil {
			var want struct{ Error string }
			same(t, in, &want)
			if plain(in) && want.Error != string(r.Error) {
				t.Fatalf("%s: error %q, encoding/json reads %q", in, r.Error, want.Error)
			}
		}
	})
}

func same(t *testing.T, in []byte, v any) {
	if !json.Valid(in) || !utf8.Valid(in) {
		t.Fatalf("%q was taken and is no JSON", in)
	}
	if err := json.Unmarshal(in, v); err != nil && plain(in) {
		t.Fatalf("%q was taken: %v", in, err)
	}
}

func plain(in []byte) bool {
	if bytes.ContainsAny(in, "\\") || !bytes.Equal(bytes.ToLower(in), in) && bytes.ContainsAny(in, "ROWTIMEQUSTſK") {
		return false
	}
	for _, key := range []string{`"rows"`, `"timeout_ms"`, `"requests"`, `"error"`, `"pictures"`, `"of"`, `"ids"`} {
		if bytes.Count(in, []byte(key)) > 1 {
			return false
		}
	}
	return true
}
