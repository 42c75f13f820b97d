package main

import (
	"testing"

	"github.com/shivad/shivad/shiva/nested"
	"github.com/shivad/shivad/shiva/tensor"
)

// pipelineLines are commandLines about pipelines, in an order of their own.
var pipelineLines = []commandLine{
	{"pipelines-empty", "", "pipelines"},
	{"pipelines-create", "", "pipelines create plates plates.toml"},
	{"pipelines-create-twice", "", "pipelines create plates plates.toml"},
	{"pipelines-create-replace", "", "pipelines create plates plates.toml --replace --json"},
	{"pipelines-create-unknown", "", "pipelines create later later.json"},
	{"pipelines-create-faults", `{"inputs": "image", "stages": [{"nam": "x"}]}`, "pipelines create bad -"},
	{"pipelines-create-not-in", "", "pipelines create other plates.toml"},
	{"pipelines", "", "pipelines"},
	{"pipelines-show", "", "pipelines plates"},
	{"pipelines-show-none", "", "pipelines show nothing"},
	{"pipelines-check", "", "pipelines check plates"},
	{"pipelines-check-later", "", "pipelines check later"},
	{"pipelines-check-file", "", "pipelines check later later.json --json"},
	{"pipelines-draw", "", "pipelines draw plates"},
	{"pipelines-delete", "", "pipelines delete later --yes"},
	{"pipelines-help", "", "help pipelines"},
}

// writePipelines writes the files that pipelineLines name.
func writePipelines(t *testing.T) {
	t.Helper()
	write(t, "later.json", `{"stages": [{"name": "find", "model": "detectr"}]}`)
	write(t, "plates.toml", `[pipeline.plates]
inputs = ["image"]
outputs = { boxes = "find.boxes", "read.text" = "read.text" }
[[pipeline.plates.stage]]
name = "find"
model = "digits"
inputs = { image = "image" }
[[pipeline.plates.stage]]
name = "read"
model = "plain/1"
inputs = { image = "image" }
each = "find.boxes"
keep = { classes = ["plate", "<sign>"], score = 0.5, most = 16 }
margin = 0.05
timeout = "50ms"
required = true
`)
}

// A classifier behind a detector has scores of its classes, and no object of its own.
func TestDrawnBeforeAClassifier(t *testing.T) {
	value := func(output string, values ...float32) nested.Field {
		x, err := tensor.FromSlice(tensor.Shape{len(values)}, values)
		if err != nil {
			t.Fatal(err)
		}
		return nested.Field{Name: output, Output: output, Value: x}
	}
	of := func(fields ...nested.Field) *nested.Object { return &nested.Object{Fields: fields} }
	look := nested.Field{Name: "look", Object: of(value("scores", 0.25, 0.75))}
	dot := of(value("boxes", 1, 2, 3, 4), value("scores", 0.5), look)
	find := of(nested.Field{Name: "objects", List: []*nested.Object{dot}})
	all, err := drawn(of(nested.Field{Name: "find", Object: find}))
	if err != nil || len(all) != 1 || all[0].score != 0.5 || all[0].box[3] != 4 {
		t.Errorf("expected one object of the detector, got %+v (%v)", all, err)
	}
}
