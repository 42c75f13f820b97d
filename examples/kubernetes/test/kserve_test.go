package kubernetes

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	c.Ports = []corev1.ContainerPort{{Name: "8080", ContainerPort: 8080}, {Name: "9000", ContainerPort: 9000},
		{Name: "8002", ContainerPort: 8002}}
	for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
		probe.HTTPGet.Port = intstr.FromString(probe.HTTPGet.Port.String())
	}
	if c.Command[0] != "shivad" {
		t.Fatalf("the runtime starts %v", c.Command)
	}
	c.Args = c.Command[1:]
	settings := strings.NewReplacer(
		`"python3"`, quoted(t, python(t)), `"/mnt/models"`, quoted(t, folder),
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
	if err := os.WriteFile(filepath.Join(digits, "digits.onnx"), read(t, "../../digits/digits.onnx"),
		0o600); err != nil {
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
			lines := strings.Split(
				strings.TrimSpace(run(t, python(t), "testdata/ask.py", p.address("8080"), p.address("9000"), c.name,
					c.input, c.shape, c.datatype, c.output)), "\n")
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
			change, err := http.Post("http://"+p.address("8002")+"/v1/config/reload", "application/json", nil)
			if err != nil {
				t.Fatal(err)
			}
			change.Body.Close()
			if change.StatusCode != http.StatusUnauthorized {
				t.Errorf("another pod's change is answered %d, want 401", change.StatusCode)
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

// A servingRuntime is what KServe's webhook compares of two runtimes.
type servingRuntime struct {
	Metadata struct{ Name string }
	Spec     struct {
		ProtocolVersions      []string
		SupportedModelFormats []modelFormat
	}
}

type modelFormat struct {
	Name, Version string
	AutoSelect    bool
	Priority      *int
}

// clash applies the webhook's rule: it refuses a runtime if another one has a protocol in common
// with it, and both select the same version of a format automatically, with the same priority. It
// returns the format.
func clash(a, b *servingRuntime) string {
	if !slices.ContainsFunc(a.Spec.ProtocolVersions, func(p string) bool {
		return slices.Contains(b.Spec.ProtocolVersions, p)
	}) {
		return ""
	}
	for _, one := range a.Spec.SupportedModelFormats {
		for _, other := range b.Spec.SupportedModelFormats {
			if one.AutoSelect && other.AutoSelect && strings.EqualFold(one.Name, other.Name) &&
				one.Version == other.Version &&
				one.Priority != nil && other.Priority != nil && *one.Priority == *other.Priority {
				return one.Name
			}
		}
	}
	return ""
}

// KServe takes the runtime where its own are installed. These are the formats of its runtimes that
// ours has, too, by release: the first ones of 0.15, the last of its main branch.
func TestRuntimeBesideKServes(t *testing.T) {
	runtime := func(name, protocols string, formats ...modelFormat) *servingRuntime {
		r := &servingRuntime{}
		r.Metadata.Name, r.Spec.ProtocolVersions, r.Spec.SupportedModelFormats = name, strings.Fields(protocols),
			formats
		return r
	}
	automatic := func(name, version string, priority int) modelFormat {
		return modelFormat{name, version, true, &priority}
	}
	theirs := []*servingRuntime{
		runtime("kserve-mlserver", "v2", automatic("sklearn", "0", 2), automatic("sklearn", "1", 2)),
		runtime("kserve-sklearnserver", "v1 v2", automatic("sklearn", "1", 1)),
		runtime("kserve-tritonserver", "v2 grpc-v2", automatic("onnx", "1", 1)),
		runtime("kserve-openvino", "v1 v2 v3 grpc-v2", automatic("onnx", "1", 2)),
		runtime("kserve-predictiveserver", "v1 v2", automatic("sklearn", "1", 1)),
	}
	text, err := json.Marshal(objects(t, read(t, "../kserve/runtime.yaml"))[0].Object)
	if err != nil {
		t.Fatal(err)
	}
	ours := &servingRuntime{}
	if err := json.Unmarshal(text, ours); err != nil {
		t.Fatal(err)
	}
	if len(ours.Spec.SupportedModelFormats) != 3 || len(ours.Spec.ProtocolVersions) != 2 {
		t.Fatalf("%+v", ours)
	}
	for _, r := range theirs {
		if format := clash(ours, r); format != "" {
			t.Errorf("KServe refuses the runtime beside %s: same priority for %s", r.Metadata.Name, format)
		}
	}
	eager := runtime("eager", "v2 grpc-v2", automatic("onnx", "1", 2), automatic("sklearn", "1", 2))
	if clash(eager, theirs[0]) != "sklearn" || clash(eager, theirs[1]) != "" || clash(eager, theirs[3]) != "onnx" {
		t.Error("the rule does not refuse what KServe refuses")
	}
	// So each InferenceService names the runtime, and a format that it has.
	for _, o := range objects(t, read(t, "../kserve/inferenceservices.yaml")) {
		name, _, _ := unstructured.NestedString(o.Object, "spec", "predictor", "model", "runtime")
		format, _, _ := unstructured.NestedString(o.Object, "spec", "predictor", "model", "modelFormat", "name")
		if name != ours.Metadata.Name ||
			!slices.ContainsFunc(ours.Spec.SupportedModelFormats, func(f modelFormat) bool {
				return f.Name == format
			}) {
			t.Errorf("%s names the runtime %q and the format %q", o.GetName(), name, format)
		}
	}
}
