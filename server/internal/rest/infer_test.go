package rest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

const inferM = "/v2/models/m/infer"

// The example of the protocol's text, as far as possible: it has one element for a shape of three.
func TestExampleOfTheProtocol(t *testing.T) {
	r := newRig(t, nil)
	r.Model("mymodel", scheduler.Spec{
		Inputs: []tensor.Spec{{Name: "input0", DType: tensor.Uint32, Shape: tensor.Shape{2, 2}},
			{Name: "input1", DType: tensor.Bool, Shape: tensor.Shape{3}}},
		Outputs: []tensor.Spec{{Name: "output0", DType: tensor.Float32, Shape: tensor.Shape{3, 2}},
			{Name: "output1", DType: tensor.Float32, Shape: tensor.Shape{1}}},
	}, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		out, err := tensor.FromSlice(tensor.Shape{1, 3, 2}, []float32{1, 1.1, 2, 2.1, 3, 3.1})
		if err != nil {
			return err
		}
		other, err := tensor.FromSlice(tensor.Shape{1, 1}, []float32{0})
		if err != nil {
			return err
		}
		b.Complete([]tensor.Tensor{out, other}, nil)
		return nil
	}))
	const body = `{
      "id" : "42",
      "inputs" : [
        {
          "name" : "input0",
          "shape" : [ 2, 2 ],
          "datatype" : "UINT32",
          "data" : [ 1, 2, 3, 4 ]
        },
        {
          "name" : "input1",
          "shape" : [ 3 ],
          "datatype" : "BOOL",
          "data" : [ true, false, true ]
        }
      ],
      "outputs" : [
        {
          "name" : "output0"
        }
      ]
    }`
	want := `{"model_name":"mymodel","model_version":"1","id":"42","outputs":[{"name":"output0","datatype":"FP32","shape":[3,2],"data":[1,1.1,2,2.1,3,3.1]}]}`
	for _, path := range []string{"/v2/models/mymodel/infer", "/v2/models/mymodel/versions/1/infer"} {
		if a := r.ask("POST", path, body, "Content-Type: text/plain"); a.status != 200 || string(a.body) != want ||
			a.header.Get("Content-Length") != strconv.Itoa(len(want+"\n")) {
			t.Errorf("%s: %v %v, want %s", path, a, a.header, want)
		}
	}
}

// every is a model that echoes one row of each datatype of the protocol.
var every = func() (specs []tensor.Spec) {
	for _, d := range []tensor.DType{tensor.Bool, tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64,
		tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64,
		tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64, tensor.Bytes} {
		specs = append(specs, tensor.Spec{Name: "input_" + d.V2(), DType: d, Shape: tensor.Shape{-1, 2}})
	}
	return specs
}()

// everyJSON is data for every, as it must be returned.
var everyJSON = map[tensor.DType]string{
	tensor.Bool: "true,false", tensor.Uint8: "0,255", tensor.Uint16: "1,65535", tensor.Uint32: "2,4294967295",
	tensor.Uint64: "3,18446744073709551615",
	tensor.Int8:   "-128,127", tensor.Int16: "-32768,32767", tensor.Int32: "-2147483648,2147483647", tensor.Int64: "-9223372036854775808,9223372036854775807",
	tensor.Float16: "0.5,-65504", tensor.BFloat16: "1,-0.15625", tensor.Float32: "0.1,3.4028235e+38", tensor.Float64: "5e-324,0.1",
	tensor.Bytes: `"","é\n😀"`,
}

// Every datatype goes in and out in JSON, in binary, and mixed.
func TestEveryDatatype(t *testing.T) {
	r := newRig(t, nil)
	r.Model("m", spec(every...), scheduler.WorkerFunc(r.Echo))
	for name, inBinary := range map[string]func(i int) bool{
		"json":   func(int) bool { return false },
		"binary": func(int) bool { return true },
		"mixed":  func(i int) bool { return i%2 == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			var inputs, outputs []string
			var data, wantBinary []byte
			wantOutputs := []string{}
			for i, s := range every {
				v, err := readData(t, s.DType, tensor.Shape{2}, "["+everyJSON[s.DType]+"]")
				if err != nil {
					t.Fatal(err)
				}
				out := strings.Replace(s.Name, "input", "output", 1)
				if inBinary(i) {
					inputs = append(inputs,
						fmt.Sprintf(`{"name":%q,"datatype":%q,"shape":[1,2],"parameters":{"binary_data_size":%d}}`,
							s.Name, s.DType.V2(), len(v.Data)))
					data = append(data, v.Data...)
				} else {
					inputs = append(inputs,
						fmt.Sprintf(`{"name":%q,"datatype":%q,"shape":[1,2],"data":[[%s]]}`, s.Name, s.DType.V2(),
							everyJSON[s.DType]))
				}
				if inBinary(i + 1) { // except those that were sent in binary
					outputs = append(outputs, fmt.Sprintf(`{"name":%q,"parameters":{"binary_data":true}}`, out))
					wantOutputs = append(wantOutputs,
						fmt.Sprintf(`{"name":%q,"datatype":%q,"shape":[1,2],"parameters":{"binary_data_size":%d}}`, out,
							s.DType.V2(), len(v.Data)))
					wantBinary = append(wantBinary, v.Data...)
				} else {
					outputs = append(outputs, fmt.Sprintf(`{"name":%q}`, out))
					wantOutputs = append(wantOutputs,
						fmt.Sprintf(`{"name":%q,"datatype":%q,"shape":[1,2],"data":[%s]}`, out, s.DType.V2(),
							everyJSON[s.DType]))
				}
			}
			head := `{"inputs":[` + strings.Join(inputs, ",") + `],"outputs":[` + strings.Join(outputs, ",") + `]}`
			want := `{"model_name":"m","model_version":"1","outputs":[` + strings.Join(wantOutputs, ",") + `]}`
			var headers []string
			if len(data) > 0 {
				headers = append(headers, "inference-header-content-length: "+strconv.Itoa(len(head)))
			}
			a := r.ask("POST", inferM, head+string(data), headers...)
			kind, length := "application/json", ""
			if len(wantBinary) > 0 {
				kind, length = "application/octet-stream", strconv.Itoa(len(want))
			}
			if a.status != 200 || string(a.body) != want+string(wantBinary) || a.header.Get("Content-Type") != kind ||
				a.header.Get("Inference-Header-Content-Length") != length {
				t.Errorf("got  %v %v\nwant %s", a, a.header, want)
			}
		})
	}
}

// fp32 returns a request for rows of four floats.
func fp32(rows int, rest string) string {
	return fmt.Sprintf(`{"inputs":[{"name":"input0","datatype":"FP32","shape":[%d,4],"data":[%s]}]%s}`, rows,
		strings.TrimSuffix(strings.Repeat("1,2,3,4.5,", rows), ","), rest)
}

// echoed returns the answer to it.
func echoed(rows int, before string) string {
	return fmt.Sprintf(`{"model_name":"m","model_version":"1",%s"outputs":[{"name":"output0","datatype":"FP32","shape":[%d,4],"data":[%s]}]}`,
		before, rows,
		strings.TrimSuffix(strings.Repeat("1,2,3,4.5,", rows), ","))
}

// The order of the members does not matter, nor do unknown members; one row may omit its dimension.
func TestFormsOfARequest(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	for _, c := range []struct{ body, want string }{
		{fp32(3, ""), echoed(3, "")},
		{fp32(1, `,"id":"ü\u0041\""`), echoed(1, `"id":"üA\"",`)},
		{`{"outputs":[],"more":{"x":[null]},"inputs":[{"data":[[1,2,3,4.5]],"extra":1,"shape":[1,4],"datatype":"FP32","name":"input0"}]}`,
			echoed(1, "")},
		// What is null counts as absent.
		{fp32(1, `,"id":null,"parameters":null,"outputs":null`), echoed(1, "")},
		{fp32(1, `,"parameters":{"priority":null,"timeout":null,"user":null,"timing":null,"binary_data_output":null,"mine":null},"outputs":[{"name":"output0","parameters":null}]`),
			echoed(1, "")},
		{fp32(1, `,"outputs":[{"name":"output0","parameters":{"binary_data":null,"classification":null,"shared_memory_region":null}}]`),
			echoed(1, "")},
		{strings.Replace(fp32(1, ""), `"name"`, `"parameters":null,"name"`, 1), echoed(1, "")},
		{strings.Replace(fp32(1, ""), `"name"`, `"parameters":{"binary_data_size":null,"shared_memory_offset":null},"name"`, 1),
			echoed(1, "")},
		{"\n\t {\"inputs\" : [ { \"name\" : \"input0\" , \"datatype\":\"FP32\", \"shape\" : [ 4 ] , \"data\" : [ 1 , 2,3, 4.5 ] } ] } \r\n",
			strings.Replace(echoed(1, ""), "[1,4]", "[4]", 1)},
		{fp32(1, `,"outputs":[{"name":"output0","parameters":{"classification":2}}]`),
			`{"model_name":"m","model_version":"1","outputs":[{"name":"output0","datatype":"BYTES","shape":[1,2],"data":["4.500000:3","3.000000:2"]}]}`},
	} {
		if a := r.ask("POST", inferM, c.body); a.status != 200 || string(a.body) != c.want {
			t.Errorf("%s:\ngot  %v\nwant %s", c.body, a, c.want)
		}
	}
}

func TestBinaryForms(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	r.Model("texts", spec(tensor.Spec{Name: "input0", DType: tensor.Bytes, Shape: tensor.Shape{-1, 1}}),
		scheduler.WorkerFunc(r.Echo))
	r.Model("fixed", spec(tensor.Spec{Name: "input0", DType: tensor.Uint8, Shape: tensor.Shape{2, 2}}),
		scheduler.WorkerFunc(r.Echo))
	four := string(memory([]float32{1, 2, 3, 4.5}))
	head := func(rest string) string {
		return `{"inputs":[{"name":"input0","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]` +
			rest + `}`
	}
	reply := `{"model_name":"m","model_version":"1","outputs":[{"name":"output0","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]}`
	for name, c := range map[string]struct {
		path, head, data, want string
		header                 string
	}{
		"binary_data_output": {inferM, head(`,"parameters":{"binary_data_output":true}`), four, reply + four, ""},
		"binary_data over it": {inferM, head(`,"parameters":{"binary_data_output":true},"outputs":[{"name":"output0","parameters":{"binary_data":false}}]`),
			four, echoed(1, ""), ""},
		"output without a word on it": {inferM, head(`,"parameters":{"binary_data_output":true},"outputs":[{"name":"output0"}]`),
			four, reply + four, ""},
		"in binary, out JSON": {inferM, head(""), four, echoed(1, ""), ""},
		"raw":                 {inferM, "", four, reply + four, ""},
		"raw, JSON wanted":    {inferM, "", four + four, echoed(2, ""), "Accept: application/json"},
		"raw text": {"/v2/models/texts/infer", "", "hello",
			`{"model_name":"texts","model_version":"1","outputs":[{"name":"output0","datatype":"BYTES","shape":[1,1],"data":["hello"]}]}`,
			"Accept: application/json"},
		"raw without rows": {"/v2/models/fixed/infer", "", "abcd",
			`{"model_name":"fixed","model_version":"1","outputs":[{"name":"output0","datatype":"UINT8","shape":[2,2],"data":[97,98,99,100]}]}`,
			"Accept: application/json"},
	} {
		t.Run(name, func(t *testing.T) {
			headers := []string{"Inference-Header-Content-Length: " + strconv.Itoa(len(c.head)), "Content-Type: application/octet-stream"}
			if c.header != "" {
				headers = append(headers, c.header)
			}
			if a := r.ask("POST", c.path, c.head+c.data, headers...); a.status != 200 || string(a.body) != c.want {
				t.Errorf("got  %v\nwant %q", a, c.want)
			}
		})
	}
	for name, c := range map[string]struct {
		path, body, length string
		status             int
		words              string
	}{
		"too few rows":         {inferM, four[:15], "0", 400, `input "input0": 15 bytes do not make a tensor of FP32 [-1, 4]: expected 16 or, with a dimension of -1, a multiple of that`},
		"too many":             {"/v2/models/fixed/infer", "abcde", "0", 400, "5 bytes do not make"},
		"no number":            {inferM, four, "x", 400, "expected one number of bytes"},
		"negative":             {inferM, four, "-1", 400, "expected one number of bytes"},
		"longer than the body": {inferM, head("") + four, "1000", 400, "is 1000, but the body has"},
		"cuts the JSON":        {inferM, head("") + four, "20", 400, "JSON"},
		"too long for JSON":    {inferM, head("") + four, strconv.Itoa(len(head("")) + 1), 400, "JSON"},
		"too few bytes": {inferM, head("") + four[:10], strconv.Itoa(len(head(""))), 400,
			"add up to " + strconv.Itoa(len(head(""))+16) + " bytes, but the body has " + strconv.Itoa(len(head(""))+10)},
		"too many bytes": {inferM, head("") + four + "x", strconv.Itoa(len(head(""))), 400, "but the body has"},
		"wrong size":     {inferM, strings.Replace(head(""), "16", "12", 1) + four, strconv.Itoa(len(head(""))), 400, `input "input0": FP32 of shape [1, 4] takes 16 bytes, binary_data_size is 12`},
		"huge size": {inferM, strings.Replace(strings.Replace(head(""), ":16", ":9223372036854775807", 1), "FP32", "BYTES", 1) + four,
			strconv.Itoa(len(head("")) + 18), 413, "limits.message_bytes is 16777216"},
	} {
		t.Run(name, func(t *testing.T) {
			r.refused(r.ask("POST", c.path, c.body, "Inference-Header-Content-Length: "+c.length), c.status, c.words)
		})
	}
	bad := `{"inputs":[{"name":"input0","datatype":"BYTES","shape":[1,1],"parameters":{"binary_data_size":9}}]}`
	r.refused(r.ask("POST", "/v2/models/texts/infer", bad+"\xff\xff\xff\xffhello",
		"Inference-Header-Content-Length: "+strconv.Itoa(len(bad))), 400, "bytes element 0 of 1 announces 4294967295 bytes")
}

// Outputs are whatever the model returns, even texts like net/http's own answer to a malformed
// head. The length of the output is such that this text is, at least once, at the beginning of a
// write to the socket and all of it.
func TestOutputsLikeHTTP(t *testing.T) {
	r := newRig(t, nil)
	plain := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
	r.Model("bytes", scheduler.Spec{Inputs: plain, Outputs: plain}, scheduler.WorkerFunc(r.Echo))
	const words = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"
	c := r.raw("")
	in := bufio.NewReader(c)
	step := 1
	if !budgettest.Whole() {
		step = 17
	}
	for before := 0; before < 4200; before += step {
		body := strings.Repeat("x", before) + words
		fmt.Fprintf(c, "POST /v2/models/bytes/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: 0\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("after %d bytes: %v", before, err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !strings.HasSuffix(string(got), "]}"+body) {
			t.Fatalf("after %d bytes: %d %v, %d bytes of an answer: %q", before, resp.StatusCode, err, len(got),
				got[max(0, len(got)-300):])
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	input := func(members string) string { return `{"inputs":[{` + members + `}]}` }
	for _, c := range []struct {
		body   string
		status int
		words  []string
	}{
		{"", 400, []string{"malformed message: JSON: expected an object, but the text ends after 0 bytes"}},
		{"[]", 400, []string{"expected an object at byte 0"}},
		{"{}", 400, []string{`expected "inputs", which is missing`}},
		{`{"inputs":null}`, 400, []string{`expected "inputs", which is missing`}},
		{`{"inputs":nul}`, 400, []string{"malformed"}},
		{`{"inputs":[null]}`, 400, []string{"an object at byte 11"}},
		{`{"inputs":[]}`, 400, []string{"expected 1 tensor"}},
		{`{"inputs":{}}`, 400, []string{"an array of inputs"}},
		{`{"inputs":[5]}`, 400, []string{"an object at byte 11"}},
		{`{"id":42,"inputs":[]}`, 400, []string{`"id": expected a string, got 42`}},
		{fp32(1, "") + "x", 400, []string{"expected the end of the text", `"x"`}},
		{fp32(1, "")[:50], 400, []string{"malformed"}},
		{fp32(1, `,"id":"a","id":"b"`), 400, []string{`"id"`, "duplicate name"}},
		{fp32(1, `,"parameters":{"x":1,"x":2}`), 400, []string{`"x"`, "duplicate name"}},
		{fp32(1, `,"parameters":[1]`), 400, []string{"an object"}},
		{fp32(1, `,"parameters":{"priority":-1}`), 400, []string{`parameter "priority": expected a whole number`, "got -1"}},
		{fp32(1, `,"parameters":{"timeout":"soon"}`), 400, []string{`parameter "timeout"`, `got "soon"`}},
		{fp32(1, `,"parameters":{"user":true}`), 400, []string{`parameter "user": expected a string, got true`}},
		{fp32(1, `,"parameters":{"binary_data_output":1}`), 400, []string{`"binary_data_output": expected true or false, got 1`}},
		{fp32(1, `,"parameters":{"input_parameters":{}}`), 400, []string{"input_parameters", "reserved"}},
		{fp32(1, `,"outputs":[{"name":"nope"}]`), 400, []string{`no output "nope"; model "m" has "output0"`}},
		{fp32(1, `,"outputs":[{"name":"output0"},{"name":"output0"}]`), 400, []string{`output "output0" is requested twice`}},
		{fp32(1, `,"outputs":[{}]`), 400, []string{`outputs[0]: expected "name"`}},
		{fp32(1, `,"parameters":{"triton_x":1}`), 400, []string{`"triton_x"`, "reserved"}},
		{fp32(1, `,"outputs":[{"name":"output0","parameters":{"shared_memory_region":"x","shared_memory_byte_size":16}}]`),
			400, []string{`output "output0"`, "shared memory is not offered"}},
		{input(`"datatype":"FP32","shape":[1,4],"data":[1,2,3,4]`), 400, []string{`inputs[0]: expected "name"`}},
		{input(`"name":"input0","shape":[1,4],"data":[1,2,3,4]`), 400, []string{`input "input0": expected "datatype"`}},
		{input(`"name":"input0","datatype":"FP32","data":[1,2,3,4]`), 400, []string{`input "input0": expected "shape"`}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,4]`), 400, []string{"neither data nor"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4],"parameters":{"binary_data_size":16}`),
			400, []string{"both data and binary_data_size"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}`), 400, []string{"Inference-Header-Content-Length"}},
		// A proxy has taken the header away: the bytes are no fault of the JSON.
		{input(`"name":"input0","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}`) + strings.Repeat("\x00", 16),
			400, []string{"Inference-Header-Content-Length is missing"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}`) + strings.Repeat("\xff", 16),
			400, []string{"Inference-Header-Content-Length is missing"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}`) + `{"a":[1,2,3],}..`,
			400, []string{"Inference-Header-Content-Length is missing"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,4],"parameters":{"shared_memory_region":"a","shared_memory_byte_size":16}`),
			400, []string{`input "input0"`, "shared memory is not offered"}},
		{input(`"name":"input0","datatype":"FP31","shape":[1,4],"data":[1,2,3,4]`), 400,
			[]string{`input "input0": unknown datatype "FP31"`, "BF16"}},
		{input(`"name":"input0","datatype":"COMPLEX64","shape":[1,4],"data":[1,2,3,4]`), 400, []string{"COMPLEX64 cannot be written as JSON"}},
		{input(`"name":"input0","datatype":"FP32","shape":[-1,4],"data":[1,2,3,4]`), 400,
			[]string{`shape[0]: expected a whole number from 0`, "got -1"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1.5,4],"data":[1,2,3,4]`), 400, []string{"shape[0]", "got 1.5"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,18446744073709551615],"data":[1,2,3,4]`), 400, []string{"shape[1]"}},
		{input(`"name":"input0","datatype":"FP32","shape":[4294967296,4294967296],"data":[1]`), 413, []string{"limits.message_bytes"}},
		{input(`"name":"input0","datatype":"FP32","shape":[0,4294967296,4294967296],"data":[]`), 413, []string{"limits.message_bytes"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1000000,4],"data":[1]`), 400, []string{"takes 4000000 elements, got 1"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,784],"data":null`), 400, []string{`"input0"`, "neither data nor"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,784],"data":{}`), 400, []string{`input "input0": data: expected an array, got {}`}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,784],"data":true`), 400, []string{"data: expected an array, got true"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,784],"data":"[1]"`), 400, []string{`data: expected an array, got "[1]"`}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,784],"data":7`), 400, []string{"data: expected an array, got 7"}},
		{input(`"name":"input0","datatype":"BYTES","shape":[1,784],"data":7`), 400, []string{"data: expected an array, got 7"}},
		{input(`"data":-0,"name":"input0","datatype":"FP32","shape":[1,784]`), 400, []string{"data: expected an array, got -0"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,1,1,1,1,1,1,1,1],"data":[1]`), 413, []string{"limits.rank is 8"}},
		{input(`"name":"input0","datatype":"FP32","shape":[1,5],"data":[1,2,3,4,5]`), 400,
			[]string{`input "input0": expected float32 [-1, 4]`, "got float32 [1, 5]"}},
		{input(`"name":"input1","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]`), 400,
			[]string{`input "input0" is missing`, `"input1"`}},
		{input(`"name":"input0","datatype":"FP64","shape":[1,4],"data":[1,2,3,4]`), 400, []string{"expected float32"}},
		{`{"inputs":[` + strings.Repeat(`{"name":"x","datatype":"INT8","shape":[1],"data":[1]},`, 17) + `{}]}`, 413,
			[]string{"limits.tensors is 16"}},
		{fp32(1, `,"outputs":[`+strings.Repeat(`{"name":"x"},`, 17)+`{}]`), 413, []string{"limits.tensors is 16"}},
		{fp32(1, `,"x":`+strings.Repeat("[", 50)+strings.Repeat("]", 50)), 400, []string{"malformed"}},
		{fp32(1, `,"x":"`+strings.Repeat("x", 65<<10)+`"`), 413, []string{"limits.metadata_bytes is 65536"}},
		{fp32(1, `,"x":[`+strings.Repeat("1,", 33<<10)+`1]`), 413, []string{"limits.metadata_bytes is 65536"}},
		{"{\"\xff\":1}", 400, []string{"not UTF-8"}},
	} {
		r.refused(r.ask("POST", inferM, c.body), c.status, c.words...)
	}
	if a := r.ask("POST", inferM, input(`"name":"input0","datatype":"FP32","shape":[0,4],"data":[]`)); a.status !=
		200 || !strings.Contains(string(a.body), `"shape":[0,4],"data":[]`) {
		t.Errorf("no rows: %v", a)
	}
	r.refused(r.ask("POST", "/v2/models/other/infer", fp32(1, "")), 404, `"other"`)
	r.refused(r.ask("POST", "/v2/models/m/versions/9/infer", fp32(1, "")), 404, `no version "9"`)
	if a := r.ask("POST", inferM, fp32(1, "")); a.status != 200 {
		t.Errorf("afterwards: %v", a)
	}
}

// A request's parameters arrive where they belong.
func TestParameters(t *testing.T) {
	r := newRig(t, nil)
	w := r.held("m")
	var got []byte
	w.Seen = func(b *scheduler.Batch) { got = bytes.Clone(b.Parts[0].Parameters) }
	answered := make(chan answer)
	go func() {
		answered <- r.ask("POST", inferM,
			`{"inputs":[{"name":"input0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4.5],"parameters":{"content_type":"np","nothing":null}}],
			"outputs":[{"name":"output0","parameters":{"unit":"K"}}],
			"parameters":{"priority":1,"timeout":20000000,"timing":true,"sequence_id":7,"sequence_start":true,"colour":"b\u006cue","deep":{"x":[1]}}}`)
	}()
	budgettest.Until(t, "the batch", func() bool { return len(w.Pending()) == 1 })
	if err := w.Answer(); err != nil {
		t.Fatal(err)
	}
	a := <-answered
	if a.status != 200 || !strings.HasPrefix(a.header.Get("Server-Timing"), "queue;dur=") ||
		!strings.Contains(a.header.Get("Server-Timing"), ", execute;dur=") {
		t.Errorf("%v %v", a, a.header)
	}
	want := `{"sequence_id":7,"sequence_start":true,"colour":"b\u006cue","deep":{"x":[1]},"input_parameters":{"input0":{"content_type":"np","nothing":null}},"output_parameters":{"output0":{"unit":"K"}}}`
	if string(got) != want || !json.Valid(got) {
		t.Errorf("the container gets %s, want %s", got, want)
	}
}

// Headers that the settings list reach the model, unless the request has a parameter of that name;
// others never do. The list can change on an open connection.
func TestForwardedHeaders(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Forward = []string{"x-request-id", "cookie"} })
	seen := make(chan string, 1)
	r.Model("m", spec(tensor.Spec{Name: "input0", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}),
		scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			seen <- string(b.Parts[0].Parameters)
			return r.Echo(b)
		}))
	head := []string{"X-Request-ID: a-7", "Cookie: k=v", "X-Other: no", "Authorization: Bearer secret"}
	expect := func(body, want string, headers ...string) {
		t.Helper()
		if a := r.ask("POST", inferM, body, headers...); a.status != 200 {
			t.Fatal(a)
		}
		if got := <-seen; got != want {
			t.Errorf("the container gets %s, want %s", got, want)
		}
	}
	expect(fp32(1, ""), `{"x-request-id":"a-7","cookie":"k=v"}`, head...)
	expect(fp32(1, ""), "")
	expect(fp32(1, `,"parameters":{"x-request-id":5,"mine":true}`), `{"x-request-id":5,"mine":true,"cookie":"k=v"}`, head...)
	expect(string(make([]byte, 16)), `{"x-request-id":"a-7","cookie":"k=v"}`, append(head, headLength+": 0")...)
	settings := r.door.Settings()
	settings.Forward = []string{"x-other"}
	r.door.Configure(settings)
	expect(fp32(1, ""), `{"x-other":"no"}`, head...)
}

// An application's choice is in the answer's parameters.
func TestChoice(t *testing.T) {
	missing := []gate.Missing{{Model: "a/1", Why: "late"}, {Model: "b/2", Why: "gone"}}
	for want, c := range map[string]gate.Choice{
		`,"parameters":{"confidence":0.5}`: {Confidence: 0.5},
		`,"parameters":{"confidence":0,"missing":"{\"a/1\":\"late\",\"b/2\":\"gone\"}",` +
			`"default":true,"default_explanation":"none \"was\" heard"}`: {
			Missing: missing, Default: true, Explanation: `none "was" heard`,
		},
	} {
		e := &emitter{}
		e.json(&predict.Answer{Model: "m", Version: "1", Choice: &c}, "", nil)
		if got := string(e.buf); got != `{"model_name":"m","model_version":"1"`+want+`,"outputs":[]}` {
			t.Errorf("%s, want %s in it", got, want)
		}
	}
}

// A request whose deadline passes while it waits is answered by then.
func TestTimeout(t *testing.T) {
	r := newRig(t, nil)
	w := r.held("m")
	r.refused(r.ask("POST", inferM, fp32(1, `,"parameters":{"timeout":20000}`)), 504, "deadline exceeded")
	for w.Answer() == nil {
	}
}

// A value that JSON lacks is null, or refused with a hint at binary data.
func TestOutputsBeyondJSON(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	head := `{"inputs":[{"name":"input0","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]}`
	odd := string(
		memory([]float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)),
			float32(math.Copysign(0, -1))}))
	length := "Inference-Header-Content-Length: " + strconv.Itoa(len(head))
	want := strings.Replace(echoed(1, ""), "1,2,3,4.5", "null,null,null,-0.0", 1)
	if a := r.ask("POST", inferM, head+odd, length); a.status != 200 || string(a.body) != want {
		t.Errorf("%v, want %s", a, want)
	}
	r.Model("texts", spec(tensor.Spec{Name: "input0", DType: tensor.Bytes, Shape: tensor.Shape{-1}}),
		scheduler.WorkerFunc(r.Echo))
	r.refused(r.ask("POST", "/v2/models/texts/infer", "\xff", "Inference-Header-Content-Length: 0", "Accept: application/json"),
		400, `output "output0": element 0 is not UTF-8`, "binary_data")
	if a := r.ask("POST", "/v2/models/texts/infer", "\xff", "Inference-Header-Content-Length: 0"); a.status != 200 ||
		!bytes.HasSuffix(a.body, []byte("\x01\x00\x00\x00\xff")) {
		t.Errorf("in binary: %v", a)
	}
	r.Model("complex", spec(tensor.Spec{Name: "input0", DType: tensor.Complex64, Shape: tensor.Shape{-1}}),
		scheduler.WorkerFunc(r.Echo))
	r.refused(r.ask("POST", "/v2/models/complex/infer", "12345678", "Inference-Header-Content-Length: 0", "Accept: application/json"),
		400, "COMPLEX64 cannot be written as JSON")
}

// Long texts and many elements are written in steps; the length of a JSON head is right however
// long it is.
func TestLongOutputs(t *testing.T) {
	r := newRig(t, nil)
	r.Model("m",
		spec(tensor.Spec{Name: "input0", DType: tensor.Bytes, Shape: tensor.Shape{-1, 2}},
			tensor.Spec{Name: "input1", DType: tensor.Float32, Shape: tensor.Shape{-1, 50000}}),
		scheduler.WorkerFunc(r.Echo))
	long := strings.Repeat("é\"\n😀", 40000)
	floats := make([]float32, 50000)
	for i := range floats {
		floats[i] = float32(i) / 7
	}
	texts, err := json.Marshal([]string{long, "x"})
	if err != nil {
		t.Fatal(err)
	}
	head := fmt.Sprintf(`{"inputs":[{"name":"input0","datatype":"BYTES","shape":[1,2],"data":%s},{"name":"input1","datatype":"FP32","shape":[1,50000],"parameters":{"binary_data_size":200000}}]`, texts)
	for _, outputs := range []string{`,"outputs":[{"name":"output0"},{"name":"output1","parameters":{"binary_data":true}}]}`,
		`}`} {
		a := r.ask("POST", inferM, head+outputs+memory(floats),
			"Inference-Header-Content-Length: "+strconv.Itoa(len(head+outputs)))
		body := a.body
		if n := a.header.Get("Inference-Header-Content-Length"); n != "" {
			size, _ := strconv.Atoi(n)
			if string(body[size:]) != memory(floats) {
				t.Errorf("the bytes after a head of %s are not those that were sent", n)
			}
			body = body[:size]
		}
		var got struct {
			Outputs []struct {
				Data json.RawMessage
			}
		}
		var text []string
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(got.Outputs[0].Data, &text); err != nil || text[0] != long || text[1] != "x" {
			t.Errorf("text came back otherwise: %v", err)
		}
		if back := []float32{}; got.Outputs[1].Data != nil {
			if err := json.Unmarshal(got.Outputs[1].Data, &back); err != nil || memory(back) != memory(floats) {
				t.Errorf("floats came back otherwise: %v", err)
			}
		}
	}
	if n := strings.Count(r.Log.String(), "many times slower"); n != 1 {
		t.Errorf("the log warns %d times of large tensors in JSON, want once:\n%s", n, r.Log)
	}
}

// A request whose client has disconnected leaves the queue.
func TestClientGone(t *testing.T) {
	r := newRig(t, nil)
	w := r.held("m")
	var conns []interface{ Close() error }
	for range 3 { // two in flight, one in the queue
		body := fp32(1, "")
		conns = append(conns,
			r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", inferM, len(body), body)))
	}
	model := r.Sched.Models()[0]
	inFlight := r.Metrics.Door("rest").InFlight
	budgettest.Until(t, "three requests inside", func() bool { return inFlight() == 3 })
	for _, c := range conns {
		c.Close()
	}
	budgettest.Until(t, "all to have left", func() bool { return inFlight() == 0 && model.Stats().QueueRows == 0 })
	for w.Answer() == nil {
	}
}

// Metrics count all requests, including refused ones.
func TestCounting(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	r.ask("POST", inferM, fp32(1, ""))
	r.ask("POST", inferM, "{")
	r.ask("POST", "/v2/models/none/infer", "{")
	r.client.CloseIdleConnections()
	door := r.Metrics.Door("rest")
	budgettest.Until(t, "connections to end", func() bool { return door.Connections() == 0 && door.InFlight() == 0 })
	if total := r.Metrics.Model("m", "1").Totals(); total.Succeeded.Count != 1 || total.Executed.Count != 1 {
		t.Errorf("%+v", total)
	}
	if total := r.Metrics.Unrouted().Totals(); total.Failed.Count != 2 {
		t.Errorf("%+v", total)
	}
}
