package kubernetes

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// runtimePod is the container of kserve/runtime.yaml, with the fields that KServe fills in, for a
// model in a folder. Its files are those that models/Containerfile puts into the image.
func runtimePod(t *testing.T, name, folder string) *pod {
	t.Helper()
	var spec struct {
		Spec struct{ Containers []corev1.Container }
	}
	text, err := json.Marshal(objects(t, read(t, "../kserve/runtime.yaml"))[0].Object)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), "{{.Name}}", name)), &spec); err != nil {
		t.Fatal(err)
	}
	c := spec.Spec.Containers[0]
	// Names for the ports in the image's settings.
	c.Ports = []corev1.ContainerPort{{Name: "8080", ContainerPort: 8080}, {Name: "9000", ContainerPort: 9000}, {Name: "8002", ContainerPort: 8002}}
	for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
		probe.HTTPGet.Port = intstr.FromString(probe.HTTPGet.Port.String())
	}
	if c.Command[0] != "shivad" {
		t.Fatalf("the runtime starts %v", c.Command)
	}
	c.Args = c.Command[1:]
	settings := strings.NewReplacer(
		`"python3"`, quoted(t, python(t)), `"/opt/shivad/loader.py"`, quoted(t, "../models/loader.py"), `"/mnt/models"`, quoted(t, folder),
		"/tmp/containers.sock", filepath.Join(t.TempDir(), "s"),
	).Replace(string(read(t, "../kserve/shivad.toml")))
	p := newPod(t, corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}, nil)
	for port := range p.ports {
		settings = strings.ReplaceAll(settings, `":`+port+`"`, `"`+p.address(port)+`"`)
	}
	path := filepath.Join(t.TempDir(), "shivad.toml")
	if err := os.WriteFile(path, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, a := range p.container.Args {
		p.container.Args[i] = strings.ReplaceAll(a, "/etc/shivad/shivad.toml", path)
	}
	p.start(built(t, "shivad"))
	return p
}

func quoted(t *testing.T, path string) string {
	t.Helper()
	absolute, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return `"` + absolute + `"`
}

func run(t *testing.T, program ...string) string {
	t.Helper()
	out, err := exec.Command(program[0], program[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", program, err, out)
	}
	return string(out)
}

// Each kind of model that the runtime declares is served, under the name of its InferenceService,
// to Triton's clients over both protocols. KServe's examples send float32 to estimators, which take
// float64.
func TestRuntime(t *testing.T) {
	iris, digits, file := t.TempDir(), t.TempDir(), t.TempDir()
	run(t, python(t), "testdata/iris.py", filepath.Join(iris, "model.joblib"))
	if err := os.WriteFile(filepath.Join(digits, "digits.onnx"), read(t, "../../digits/digits.onnx"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := `
from shiva_container import Tensor, model, serve

@model(name="anything", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])])
def double(x):
    return x + x

serve()
`
	if err := os.WriteFile(filepath.Join(file, "model.py"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, folder, input, shape, datatype, output, want string }{
		{"iris", iris, "input-0", "2,4", "FP32", "predict", "[b'setosa', b'setosa']"},
		{"numbers", digits, "image", "1,8,8", "UINT8", "label", "["},
		{"twice", file, "x", "1,2", "FP32", "y", "[[2.0, 2.0]]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := runtimePod(t, c.name, c.folder)
			p.becomes(p.container.ReadinessProbe, true)
			if no := p.live(); no != "" {
				t.Error(no)
			}
			lines := strings.Split(strings.TrimSpace(run(t, python(t), "testdata/ask.py", p.address("8080"), p.address("9000"), c.name, c.input, c.shape, c.datatype, c.output)), "\n")
			if len(lines) != 2 || lines[0] != lines[1] || !strings.HasPrefix(lines[0], c.want) {
				t.Errorf("answers %q, want %s twice", lines, c.want)
			}
			answer, err := http.Get("http://" + p.address("8002") + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if text, _ := io.ReadAll(answer.Body); !strings.Contains(string(text), `model="`+c.name+`"`) {
				t.Error("no metrics where the annotations say")
			}
		})
	}
}

// A folder without a model: the pod is live, not ready, and its log tells what is missing.
func TestRuntimeWithoutModel(t *testing.T) {
	p := runtimePod(t, "none", t.TempDir())
	p.becomes(p.container.LivenessProbe, true)
	until(t, "the reason to be in the log", func() bool {
		return strings.Contains(lastLines(p.log, 100), "expected model.py, or a file *.onnx")
	})
	if no := p.ready(); !strings.Contains(no, "503") {
		t.Errorf("ready without a model: %q", no)
	}
	if no := p.live(); no != "" {
		t.Error(no)
	}
}

// The image has the files that the runtime starts, copied from their places in the tree.
func TestContainerfile(t *testing.T) {
	for _, line := range strings.Split(string(read(t, "../models/Containerfile")), "\n") {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "COPY" || strings.HasPrefix(words[1], "--from") || strings.HasPrefix(words[1], "bin/dist/") {
			continue
		}
		for _, path := range words[1 : len(words)-1] {
			if _, err := os.Stat(filepath.Join("../../..", path)); err != nil {
				t.Error(err)
			}
		}
	}
}
