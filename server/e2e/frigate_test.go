//go:build e2e

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var detectorTimeout = flag.Duration("detector-timeout", 30*time.Second,
	"request_timeout of TestE2EFrigate, on a quiet machine 200ms, as Frigate has it")

// Eight detectors on libzmq with two replicas in Python, one of which is killed: every detector
// gets every answer, and requests share batches. request_timeout is long, as this machine may be
// slow, unless -detector-timeout is given; package frigate tests the maximum time of an answer, on
// virtual time.
func TestE2EFrigate(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "shivad.toml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(`
[frigate]
request_timeout = %q
models = { "rectangles.onnx:yolo-generic" = "rectangles" }

[[container]]
name = "rectangles"
command = [%q, "server/e2e/python/detector_model.py"]
replicas = 2
`, *detectorTimeout, python(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startWith(t,
		[]string{binary(t, "shivad"), "--config", file, "--log-format", "json", "--tcp", "127.0.0.1:0", "--rest", "",
			"--grpc", "",
			"--frigate", "unix:" + filepath.Join(dir, "frigate"), "--containers", "127.0.0.1:0", "--admin", "127.0.0.1:0"})
	s.waitReplicas("rectangles", 2)
	var status struct {
		Processes []struct{ PID int }
		Doors     []struct {
			Name        string
			Connections int
		}
	}
	s.get("/v1/status", &status)
	if len(status.Processes) != 2 || status.Doors[len(status.Doors)-1].Name != "frigate" {
		t.Fatalf("%+v", status)
	}
	cmd := exec.Command(python(t), "server/e2e/python/detectors.py", "ipc://"+filepath.Join(dir, "frigate"),
		fmt.Sprint(status.Processes[0].PID))
	cmd.Dir, cmd.Env, cmd.Stderr = root(t), s.env(), os.Stderr
	out, err := cmd.Output()
	var did struct {
		Answers int
		Wrong   []any
		Longest float64
	}
	if err != nil || json.Unmarshal(out, &did) != nil || did.Answers != 8*60 || len(did.Wrong) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	longest := time.Duration(did.Longest * float64(time.Second)).Round(time.Millisecond)
	t.Logf("the longest answer took %v", longest)
	if longest >= *detectorTimeout {
		t.Errorf("a detector has waited for %v, and given up after %v", longest, *detectorTimeout)
	}
	batches, rows := s.shows(`shivad_batch_rows_count{model="rectangles",version="1"} `), s.shows(`shivad_batch_rows_sum{model="rectangles",version="1"} `)
	if batches == 0 || rows < 1.5*batches {
		t.Errorf("%v rows in %v batches: detectors do not share them", rows, batches)
	}
}

// shows returns the value of a series on /metrics; 0: there is none.
func (s *shivad) shows(series string) (value float64) {
	s.t.Helper()
	resp, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		if text, ok := strings.CutPrefix(line, series); ok {
			_, _ = fmt.Sscan(text, &value)
		}
	}
	return value
}
