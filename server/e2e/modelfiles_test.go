//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// scale writes a network y = factor * x.
func scale(t *testing.T, path string, factor int, shapes ...string) {
	t.Helper()
	cmd := exec.Command(python(t),
		append([]string{"server/e2e/testdata/scale.py", path, fmt.Sprint(factor)}, shapes...)...)
	cmd.Dir = root(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// serveFolder starts a server for the models of a folder.
func serveFolder(t *testing.T, dir string) *shivad {
	t.Helper()
	return startWith(t, []string{binary(t, "shivad"), "serve", "--models", dir, "--python", python(t), "--log-format", "json",
		"--containers", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--tcp", "127.0.0.1:0", "--rest", "127.0.0.1:0",
		"--grpc", "127.0.0.1:0"})
}

// A reply is what a model answers over HTTP.
type reply struct {
	Version string `json:"model_version"`
	Outputs []struct {
		Shape []int
		Data  []float64
	}
	Error string
}

// scaled asks a model for one row of ones of that shape.
func (s *shivad) scaled(model string, shape ...int) (r reply, err error) {
	n := 1
	for _, size := range shape {
		n *= size
	}
	body, err := json.Marshal(map[string]any{
		"inputs": []any{map[string]any{"name": "x", "datatype": "FP32", "shape": shape,
			"data": strings.Split(strings.Repeat("1 ", n-1)+"1", " ")}}})
	if err != nil {
		return r, err
	}
	body = bytes.ReplaceAll(body, []byte(`"1"`), []byte(`1`))
	answer, err := http.Post("http://"+s.rest+"/v2/models/"+model+"/infer", "application/json", bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return r, err
}

// eventually waits until a model multiplies by a factor.
func (s *shivad) eventually(model string, factor float64, version string) {
	s.t.Helper()
	budgettest.Until(s.t, fmt.Sprintf("%s to be %v, version %s", model, factor, version), func() bool {
		r, err := s.scaled(model, 1, 2)
		return err == nil && r.Outputs[0].Data[0] == factor && r.Version == version
	})
}

// degraded waits until readiness and metrics say that something is wrong with a file, or nothing.
func (s *shivad) degraded(text string) {
	s.t.Helper()
	budgettest.Until(s.t, fmt.Sprintf("it to be degraded: %q", text), func() bool {
		var ready struct {
			Ready    bool
			Degraded string
		}
		var status struct{ Warnings []string }
		if s.get("/readyz", &ready) != http.StatusOK || s.get("/v1/status", &status) != http.StatusOK {
			return false
		}
		answer, err := http.Get("http://" + s.admin + "/metrics")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		metrics, err := io.ReadAll(answer.Body)
		faulty := "shivad_model_files_faulty 0\n"
		if text != "" {
			faulty = "shivad_model_files_faulty 1\n"
		}
		return err == nil && ready.Ready && strings.Contains(ready.Degraded, text) &&
			(ready.Degraded == "") == (text == "") &&
			strings.Contains(strings.Join(status.Warnings, "\n"), text) && strings.Contains(string(metrics), faulty)
	})
}

// A folder is followed under load: whatever happens to the files, no request fails until the model
// is gone.
func TestE2EModelFolder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "scale.onnx")
	scale(t, file, 2)
	s := serveFolder(t, dir)
	s.eventually("scale", 2, "1")

	over := make(chan struct{})
	var load sync.WaitGroup
	var mu sync.Mutex
	asked, failed := 0, []string{}
	load.Go(func() {
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-over:
				tick.Stop()
				return
			case <-tick.C:
			}
			load.Go(func() {
				_, err := s.scaled("scale", 1, 2)
				mu.Lock()
				defer mu.Unlock()
				if asked++; err != nil {
					failed = append(failed, err.Error())
				}
			})
		}
	})

	scale(t, file, 3)
	s.eventually("scale", 3, "2")

	// A half-written file is not served, and, once it is whole, it is.
	next := filepath.Join(t.TempDir(), "next.onnx")
	scale(t, next, 4)
	text, err := os.ReadFile(next)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text[:len(text)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	s.degraded("scale serves what its file was: the change cannot be served: ")
	explained, err := exec.Command(binary(t, "shivactl"), "explain", "scale", "--admin", s.admin).CombinedOutput()
	if err != nil || !strings.Contains(string(explained), "Of its file: scale serves what its file was") {
		t.Errorf("explain does not tell of the file: %v\n%s", err, explained)
	}
	s.eventually("scale", 3, "2")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s.eventually("scale", 4, "3")
	s.degraded("")

	// A new file that is broken costs only itself.
	broken := filepath.Join(dir, "broken.onnx")
	if err := os.WriteFile(broken, []byte("not a network"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.degraded("broken is not served: ")
	if err := os.Rename(broken, filepath.Join(dir, "broken.txt")); err != nil {
		t.Fatal(err)
	}
	s.degraded("")
	s.eventually("scale", 4, "3")

	close(over)
	load.Wait()
	if asked < 100 || len(failed) > 0 {
		t.Errorf("of %d requests %d failed: %.5q", asked, len(failed), failed)
	}

	// Renamed, it is another model.
	if err := os.Rename(file, filepath.Join(dir, "renamed.onnx")); err != nil {
		t.Fatal(err)
	}
	s.eventually("renamed", 4, "1")
	s.waitReplicas("scale", 0)
	if err := os.Remove(filepath.Join(dir, "renamed.onnx")); err != nil {
		t.Fatal(err)
	}
	s.waitReplicas("renamed", 0)
	s.degraded("")
}

// Triton's directories and configurations work as they are, and so do its calls to load and unload.
func TestE2ETritonRepository(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"flat/config.pbtxt": `name: "flat" platform: "onnxruntime_onnx" max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 2, 2 ] reshape { shape: [ 1, 3, 2, 2 ] } } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 12 ] reshape { shape: [ 1, 12, 1, 1 ] } label_filename: "labels.txt" } ]`,
		"flat/labels.txt": strings.Repeat("fish\n", 12),
		"rows/config.pbtxt": `max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
instance_group { count: 2 kind: KIND_CPU } dynamic_batching { }`,
		"wrong/config.pbtxt": `max_batch_size: 8
input { name: "x" data_type: TYPE_INT64 dims: [ 2 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }`,
		"all/config.pbtxt": `platform: "ensemble"`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	scale(t, filepath.Join(dir, "flat", "1", "model.onnx"), 5, "1,3,2,2", "1,12,1,1")
	scale(t, filepath.Join(dir, "rows", "1", "model.onnx"), 6)
	scale(t, filepath.Join(dir, "wrong", "1", "model.onnx"), 7)
	s := serveFolder(t, dir)
	s.waitReplicas("rows", 2)
	s.waitReplicas("flat", 1)
	if r, err := s.scaled("flat", 3, 2, 2); err != nil || len(r.Outputs[0].Shape) != 1 || r.Outputs[0].Shape[0] != 12 ||
		r.Outputs[0].Data[11] != 5 {
		t.Errorf("flat: %+v, %v", r, err)
	}
	s.eventually("rows", 6, "1")
	budgettest.Until(t, "the faults of the other two", func() bool {
		var status struct{ Warnings []string }
		s.get("/v1/status", &status)
		text := strings.Join(status.Warnings, "\n")
		return strings.Contains(text, "it is an ensemble, which is no file") && strings.Contains(text, "config.pbtxt says that x is INT64, and the network has FP32")
	})

	order := func(what string) string {
		answer, err := http.Post("http://"+s.rest+"/v2/repository/models/rows/"+what, "application/json", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return answer.Status + string(text)
	}
	// Loading takes what is there now, without waiting for the files to settle.
	scale(t, filepath.Join(dir, "rows", "2", "model.onnx"), 8)
	if got := order("load"); !strings.HasPrefix(got, "200") {
		t.Fatal(got)
	}
	s.eventually("rows", 8, "2")
	if got := order("unload"); !strings.HasPrefix(got, "200") {
		t.Fatal(got)
	}
	s.waitReplicas("rows", 0)
	scale(t, filepath.Join(dir, "rows", "3", "model.onnx"), 9)
	if got := order("load"); !strings.HasPrefix(got, "200") {
		t.Fatal(got)
	}
	s.eventually("rows", 9, "3")
	if err := os.WriteFile(filepath.Join(dir, "rows", "3", "model.onnx"), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := order("load"); !strings.HasPrefix(got, "503") || !strings.Contains(got, "INVALID_PROTOBUF") {
		t.Errorf("a broken file: %s", got)
	}
	s.eventually("rows", 9, "3")
}

// The repositories of Triton in server/internal/modelfiles/testdata serve real networks, with their
// configurations as they are: an answer is the runtime's own. Those that cannot be served here say
// why, and disturb no other.
func TestE2ETritonExamples(t *testing.T) {
	dir := t.TempDir()
	script := func(args ...string) {
		t.Helper()
		cmd := exec.Command(python(t), append([]string{"server/e2e/testdata/triton.py"}, args...)...)
		cmd.Dir = root(t)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		t.Logf("%s", out)
	}
	examples := filepath.Join(root(t), "server", "internal", "modelfiles", "testdata", "triton")
	for _, repository := range []string{"densenet", "bare", "ensemble", "versions", "backends"} {
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(examples, repository))); err != nil {
			t.Fatal(err)
		}
	}
	script("fill", dir)
	s := serveFolder(t, dir)
	for model, replicas := range map[string]int{"densenet_onnx": 1, "text": 1, "trees": 1, "detect": 1, "recognize": 2} {
		s.waitReplicas(model, replicas)
	}
	script("ask", dir, s.rest)
	for _, fault := range []string{
		"read is not served", "engine is not served", "post is not served", "sequence is not served",
		"stream is not served", "wrong is not served",
	} {
		budgettest.Until(t, fault, func() bool {
			var status struct{ Warnings []string }
			s.get("/v1/status", &status)
			return strings.Contains(strings.Join(status.Warnings, "\n"), fault)
		})
	}
}
