package modelfiles

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/config"
)

// repositories are those of testdata/triton, as Triton's documentation and examples have them, and
// what becomes of their models: the commands after the file, or faults.
var repositories = map[string]struct {
	commands map[string]string // container -> arguments after its file
	replicas map[string]int
	ignored  []string
	faults   []string
}{
	// The example of the quick start: no batches, a row only by reshape, labels.
	"densenet": {commands: map[string]string{
		"densenet_onnx": `1/model.onnx --name=densenet_onnx --batch off --as raw --declare {"max_batch":0,"inputs":[{"name":"data_0","datatype":"FP32","dims":[3,224,224],"reshape":[1,3,224,224]}],"outputs":[{"name":"fc6_1","datatype":"FP32","dims":[1000],"reshape":[1,1000,1,1],"labels":"DIR/densenet_onnx/densenet_labels.txt"}]} --version 1`,
	}},
	// Two versions by a policy, batches, instances on two GPUs.
	"versions": {
		commands: map[string]string{
			"resnet@3": `3/resnet.onnx --name=resnet --device cuda:0,cuda:0,cuda:1,cuda:1 --batch 32 --as raw --declare {"max_batch":32,"inputs":[{"name":"input","datatype":"FP32","dims":[3,-1,-1]}],"outputs":[{"name":"scores","datatype":"FP32","dims":[1000]}]} --version 3`,
			"resnet@1": `1/resnet.onnx --name=resnet --device cuda:0,cuda:0,cuda:1,cuda:1 --batch 32 --as raw --declare {"max_batch":32,"inputs":[{"name":"input","datatype":"FP32","dims":[3,-1,-1]}],"outputs":[{"name":"scores","datatype":"FP32","dims":[1000]}]} --version 1`,
		},
		replicas: map[string]int{"resnet@3": 4},
		ignored: []string{"dynamic_batching.preferred_batch_size", "dynamic_batching.max_queue_delay_microseconds",
			"optimization", "model_warmup", "response_cache"},
	},
	// Files without a configuration: Triton completes them, and so do we.
	"bare": {commands: map[string]string{"text": `1/model.onnx --name=text --version 1`, "trees": `7/xgboost.json --name=trees --version 7`}},
	// An ensemble and its steps.
	"ensemble": {
		commands: map[string]string{
			"detect":    `1/model.onnx --name=detect --batch 8 --as raw --version 1`,
			"recognize": `2/model.xml --name=recognize --device cpu --batch 4 --as raw --version 2`,
		},
		replicas: map[string]int{"recognize": 2},
		faults:   []string{"read is not served: DIR/read/config.pbtxt: it is an ensemble, which is no file: each of its steps is served by its own name"},
	},
	// What needs Triton itself.
	"backends": {faults: []string{
		"engine is not served: DIR/engine/config.pbtxt: \"tensorrt_plan\" has no reader here: expected a network as onnxruntime_onnx, onnxruntime, openvino, fil, armnn_tflite",
		"post is not served: DIR/post/config.pbtxt: its model.py is for Triton's Python backend",
		"sequence is not served: DIR/sequence/config.pbtxt: sequence_batching: the network keeps a state",
		"stream is not served: DIR/stream/config.pbtxt: model_transaction_policy: a request has exactly one answer here",
		"wrong is not served: DIR/wrong/config.pbtxt: line 3: max_batch_size: expected a colon or {",
	}},
}

func TestTritonRepositories(t *testing.T) {
	for name, want := range repositories {
		t.Run(name, func(t *testing.T) {
			dir, err := filepath.Abs(filepath.Join("testdata", "triton", name))
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t)
			c := config.Default()
			c.ModelFolders = []config.ModelFolder{config.NewModelFolder(dir)}
			r.Configure(c)
			r.look()
			for container, command := range want.commands {
				got, ok := r.serves[container]
				if !ok {
					t.Errorf("%s is not served", container)
					continue
				}
				model, _, _ := strings.Cut(container, "@")
				args := strings.TrimPrefix(strings.Join(got.Command[4:], " "), filepath.Join(dir, model)+"/")
				if args != strings.ReplaceAll(command, "DIR", dir) {
					t.Errorf("%s is\n%s, want\n%s", container, args, command)
				}
				if n := want.replicas[container]; n > 0 && got.Replicas != config.Fixed(n) {
					t.Errorf("%s has %+v", container, got.Replicas)
				}
			}
			if len(r.serves) != len(want.commands) {
				t.Errorf("%d models serve, want %d", len(r.serves), len(want.commands))
			}
			for i, fault := range want.faults {
				want.faults[i] = strings.ReplaceAll(fault, "DIR", dir)
			}
			r.faults(want.faults...)
			var ignored []string
			for _, s := range r.slots {
				for _, key := range s.found.ignored {
					if !slices.Contains(ignored, key) {
						ignored = append(ignored, key)
					}
				}
			}
			if !slices.Equal(ignored, want.ignored) {
				t.Errorf("%q have no meaning, want %q", ignored, want.ignored)
			}
		})
	}
}

func TestTritonFaults(t *testing.T) {
	for text, want := range map[string]string{
		`name: "other"`:                                   `its name is "other": expected that of the directory`,
		`max_batch_size: -1`:                              `max_batch_size: expected 0 or more rows`,
		`max_batch_size: many`:                            `max_batch_size: expected an integer, got "many"`,
		`input { data_type: TYPE_FP32 }`:                  `input: a tensor has no name`,
		`input { name: "x" data_type: FP32 }`:             `input: x: data_type: expected a type as TYPE_FP32, got "FP32"`,
		`input { name: "x" data_type: TYPE_FP32 dims: x}`: `input: x: dims: expected an integer, got "x"`,
		`output { name: "y" data_type: TYPE_FP32 label_filename: "../y.txt" }`:                 `output: y: label_filename: "../y.txt" is outside`,
		`instance_group { count: 0 }`:                                                          `instance_group: count: expected 1 or more`,
		`instance_group { kind: KIND_TPU }`:                                                    `instance_group: kind: "KIND_TPU" is none of`,
		`instance_group { count: 2000000000 kind: KIND_CPU }`:                                  ``,
		`instance_group { count: 600 } instance_group { count: 600 }`:                          `instance_group: 1200 instances, limit 1024`,
		`version_policy { latest { num_versions: 0 } }`:                                        `version_policy: num_versions: expected 1 or more`,
		`default_model_filename: "../../etc/passwd"`:                                           `default_model_filename: "../../etc/passwd" is not the name of a file`,
		`max_batch_size: 8 parameters: { key: "x" value: { string_value: "y" } }`:              ``,
		`backend: "fil" parameters [{ key: "output_class" value: { string_value: "false" } }]`: ``,
		`backend: "fil" parameters [{ key: "output_class" value: { string_value: "true" } }]`:  `output_class is true: expected false`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, tritonFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readTriton(dir); (err == nil) != (want == "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestText(t *testing.T) {
	field := func(name string, line int, value any) textField { return textField{name, line, value} }
	for text, want := range map[string]message{
		"": nil,
		"a: 1 # one\nb: \"x\\\"y\" 'z';c:-1.5e3,": {field("a", 1, word("1")), field("b", 2, `x"yz`), field("c", 2, word("-1.5e3"))},
		"a [ 1, 2 ]\nb: [\"x\"\n, 'y',]": {field("a", 1, word("1")), field("a", 1, word("2")),
			field("b", 2, "x"), field("b", 2, "y")},
		"a { b { c: KIND } }": {field("a", 1, message{field("b", 1, message{field("c", 1, word("KIND"))})})},
		"a: < b: 1 > a [ { }, { b: 2 } ]": {field("a", 1, message{field("b", 1, word("1"))}),
			field("a", 1, message(nil)), field("a", 1, message{field("b", 1, word("2"))})},
		`a: "\n\101\xff"`: {field("a", 1, "\nA\xff")},
	} {
		if got, err := parseText(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"a":                       "expected a colon or {",
		"a:":                      "expected a value",
		"a: \"x":                  "a string has no end",
		"a: \"\\q\"":              "an escape that is none",
		"\n\na {":                 `line 3: a: expected "}" before the end`,
		"a: [1 2]":                "expected a comma or ] in a list",
		"}":                       `expected a key, got "}"`,
		strings.Repeat("a{", 100): "nested more than 32 deep",
		"a: [":                    "expected a value",
	} {
		if _, err := parseText(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
