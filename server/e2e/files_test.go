//go:build e2e

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A network in a file takes a picture and answers boxes with names, with one command and no code.
func TestE2EServeFile(t *testing.T) {
	dir := t.TempDir()
	for _, script := range [][]string{
		{"examples/ultralytics/dots.py", filepath.Join(dir, "dots.onnx")},
		{"-c", "import sys; sys.path.insert(0, 'examples/ultralytics'); import cv2, detect; cv2.imwrite('" + dir + "/scene.png', detect.scene(480)[:, :, ::-1])"},
	} {
		cmd := exec.Command(python(t), script...)
		cmd.Dir = root(t)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", script, err, out)
		}
	}
	s := startWith(t,
		[]string{binary(t, "shivad"), "serve", filepath.Join(dir, "dots.onnx"), "--python", python(t), "--log-format", "json",
			"--containers", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--tcp", "127.0.0.1:0", "--rest", "127.0.0.1:0",
			"--grpc", "127.0.0.1:0"})
	s.waitReplicas("dots", 1)
	out, err := exec.Command(binary(t, "shivactl"), "infer", "dots", filepath.Join(dir, "scene.png"), "--addr", s.tcp).
		CombinedOutput()
	if err != nil || strings.Count(string(out), " red ") != 3 || strings.Count(string(out), " green ") != 2 ||
		strings.Count(string(out), " blue ") != 2 {
		t.Errorf("expected three red, two green and two blue dots, got %v\n%s", err, out)
	}
	// As the second of two models: what it finds in parts of a picture is where it is in the whole.
	cmd := exec.Command(python(t), "-c", `
import os, sys
import numpy as np
from shiva_client import Client
parts = np.float32([[0, 0, 0.8, 0.8], [0.2, 0, 1, 0.8], [0, 0.2, 0.8, 1], [0.2, 0.2, 1, 1]])
with Client(os.environ["SHIVA_TCP"]) as client:
    whole = client.infer("dots", {"image": np.fromfile(sys.argv[1], np.uint8)})
    cut = client.infer("dots", {"image": np.fromfile(sys.argv[1], np.uint8), "image_regions": parts})
assert len(cut["count"]) == 4 and len(whole["boxes"]) == 7, (cut["count"], whole["boxes"])
for box, label in zip(whole["boxes"], whole["labels"]):
    near = np.abs(cut["boxes"] - box).max(axis=1) < 8
    assert near.any() and (cut["labels"][near] == label).all(), (box, label, cut)
`, filepath.Join(dir, "scene.png"))
	cmd.Env, cmd.Dir = s.env(), root(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("regions: %v\n%s", err, out)
	}
	out, err = exec.Command(binary(t, "shivactl"), "explain", "dots-raw", "--admin", s.admin).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "rows: 2, 3 and 8 random rows together had the answers that they have alone") {
		t.Errorf("explain does not tell the proof: %v\n%s", err, out)
	}
}
