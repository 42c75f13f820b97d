package rest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// FuzzBody sends bodies through the whole door, except the sockets: plain, with a length of their
// JSON, and compressed. Every answer is one of the table, is JSON if it is not binary, and all
// memory is returned. Accepted bodies are JSON to encoding/json as well.
func FuzzBody(f *testing.F) {
	r := newRig(f, nil)
	r.Model("m",
		spec(tensor.Spec{Name: "input0", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}},
			tensor.Spec{Name: "input1", DType: tensor.Bytes, Shape: tensor.Shape{-1, 1}}),
		scheduler.WorkerFunc(r.Echo))
	plain := `{"id":"a","parameters":{"timeout":1000000,"x":1.5},"inputs":[{"name":"input0","datatype":"FP32","shape":[1,2],"data":[1,2e1]},{"name":"input1","datatype":"BYTES","shape":[1,1],"data":["\u00e9"]}],"outputs":[{"name":"output0"}]}`
	head := `{"inputs":[{"name":"input0","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}},{"name":"input1","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":6}}],"parameters":{"binary_data_output":true}}`
	f.Add([]byte(plain), -1, byte(0))
	f.Add([]byte(head+"12345678\x02\x00\x00\x00ab"), len(head), byte(0))
	f.Add([]byte("12345678"), 0, byte(0))
	f.Add([]byte(packed(f, "gzip", plain)), -1, byte(1))
	f.Add([]byte(packed(f, "deflate", plain)), -1, byte(2))
	f.Add([]byte(packed(f, "bare", head)), len(head), byte(2))
	f.Fuzz(func(t *testing.T, body []byte, length int, coding byte) {
		budgettest.Input(t)
		q := httptest.NewRequest("POST", inferM, bytes.NewReader(body))
		if length >= 0 {
			q.Header.Set(headLength, strconv.Itoa(length))
		}
		if coding %= 3; coding > 0 {
			q.Header.Set("Content-Encoding", []string{"gzip", "deflate"}[coding-1])
		}
		w := httptest.NewRecorder()
		r.door.ServeHTTP(w, connected(q, r.door))
		switch w.Code {
		case http.StatusOK:
			if length < 0 && coding == 0 && !json.Valid(body) {
				t.Errorf("accepted, and no JSON: %q", body)
			}
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusGatewayTimeout,
			http.StatusTooManyRequests:
		default:
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
		answer := w.Body.Bytes()
		if n := w.Header().Get(headLength); n != "" {
			size, err := strconv.Atoi(n)
			if err != nil || size > len(answer) {
				t.Fatalf("a head of %q in %d bytes", n, len(answer))
			}
			answer = answer[:size]
		}
		if !json.Valid(answer) || w.Code != 200 && !strings.HasPrefix(string(answer), `{"error":`) {
			t.Errorf("status %d: %q", w.Code, answer)
		}
		if n := r.Pool.InUse(); n != 0 {
			t.Fatalf("%d bytes of the pool are out after %q", n, body)
		}
	})
}

// FuzzPath: any path is found or not; a found path has its names.
func FuzzPath(f *testing.F) {
	for _, r := range routes {
		f.Add(r.path)
	}
	f.Add("/v2/models/%2F/infer")
	f.Fuzz(func(t *testing.T, path string) {
		budgettest.Input(t)
		found, model, version := find(path)
		if found == nil {
			return
		}
		if (strings.Contains(found.path, "{model}") || strings.Contains(found.path, "{region}")) == (model == "") ||
			strings.Contains(found.path, "{version}") == (version == "") {
			t.Errorf("%q is %s with model %q, version %q", path, found.path, model, version)
		}
	})
}
