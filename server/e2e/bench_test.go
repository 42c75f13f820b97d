//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// shivactl bench reads the model's inputs and gets correct answers through every door, on TCP and
// on Unix sockets, with random tensors, with files and with frames of streams.
func TestE2EBench(t *testing.T) {
	s := start(t, config(t, digits))
	s.waitReplicas("digits", 1)
	for _, k := range []struct{ door, addr string }{
		{"tcp", s.tcp}, {"rest", s.rest}, {"grpc", s.grpc},
		{"tcp", s.sockets["tcp"]}, {"rest", s.sockets["rest"]}, {"grpc", s.sockets["grpc"]},
	} {
		door, addr := k.door, k.addr
		for name, args := range map[string][]string{
			"closed loop": {"--conns", "4"},
			"open loop":   {"--rate", "50", "--data", filepath.Join(root(t), "examples", "digits", "images")},
			"streams":     {"--streams", "3", "--fps", "20", "--keep", "2"},
		} {
			args = append([]string{"bench", "digits/1", "--door", door, "--addr", addr, "--for", "500ms", "--timeout", "20s", "--json"}, args...)
			out, err := exec.Command(binary(t, "shivactl"), args...).Output()
			var report struct {
				Sent, Answered, Superseded, Failed, Unanswered int64
				Streams                                        []struct{ Answered int64 }
				Errors                                         []struct{ Kind, First string }
			}
			if err := json.Unmarshal(out, &report); err != nil {
				t.Fatalf("%s at %s: %v: %s", name, addr, err, out)
			}
			if err != nil || report.Answered == 0 || report.Sent != report.Answered+report.Superseded || len(report.Errors) != 0 || name == "streams" && len(report.Streams) != 3 {
				t.Errorf("%s at %s: %v, %s", name, addr, err, out)
			}
		}
		out, err := exec.Command(binary(t, "shivactl"), "bench", "digit", "--door", door, "--addr", addr).CombinedOutput()
		if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != 1 || !strings.Contains(string(out), "digits") {
			t.Errorf("an unknown model at %s: %v, %s", addr, err, out)
		}
	}
}
