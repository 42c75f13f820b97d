package pipelines

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

func image() tensor.Spec {
	return tensor.Spec{
		Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 3}, Format: tensor.FormatNHWC,
		Image: &tensor.Image{Channels: tensor.ChannelsRGB, Resize: tensor.ResizeStretch, Height: 8, Width: 8},
	}
}

// regionsOf is what the server adds to the inputs of a model whose container cuts regions.
func regionsOf(name string) tensor.Spec {
	return tensor.Spec{Name: name + tensor.RegionsSuffix, DType: tensor.Float32, Shape: tensor.Shape{-1, 4},
		Optional: true, Regions: name}
}

// declared are the models of plates.
func declared() map[string]*scheduler.Spec {
	ragged := func(name string, d tensor.DType, row ...int) tensor.Spec {
		return tensor.Spec{Name: name, DType: d, Shape: append(tensor.Shape{-1}, row...), Ragged: "count"}
	}
	return map[string]*scheduler.Spec{
		"plate-detector": {
			Batching: scheduler.BatchingRows, Inputs: []tensor.Spec{image()},
			Outputs: []tensor.Spec{
				ragged("boxes", tensor.Float32, 4), ragged("scores", tensor.Float32), ragged("labels", tensor.Bytes),
				{Name: "count", DType: tensor.Int32, Shape: tensor.Shape{-1}},
			},
		},
		"plate-reader/2": {
			Batching: scheduler.BatchingRows, Inputs: []tensor.Spec{image(), regionsOf("image")},
			Outputs: []tensor.Spec{{Name: "text", DType: tensor.Bytes, Shape: tensor.Shape{-1}}},
		},
	}
}

func fit(d Definition, models map[string]*scheduler.Spec) (*Plan, error) {
	p, err := New(d)
	if err != nil {
		return nil, err
	}
	return p.Fit(func(model string) (*gate.Target, error) {
		spec := models[model]
		if spec == nil {
			return nil, fmt.Errorf("%w: no model %q", scheduler.ErrNotFound, model)
		}
		name, version, _ := strings.Cut(model, "/")
		return &gate.Target{ID: scheduler.ModelID{Name: name, Version: version}, Spec: *spec}, nil
	})
}

// TestFit: types and shapes are compared along every edge, and a fault names the stage, what its
// model takes and what it would get.
func TestFit(t *testing.T) {
	type models = map[string]*scheduler.Spec
	for _, tt := range []struct {
		name   string
		change func(d *Definition, m models)
		want   string
	}{
		{"fits", func(*Definition, models) {}, ""},
		{"no model", func(_ *Definition, m models) { delete(m, "plate-reader/2") }, `stage "read": scheduler: not found: no model "plate-reader/2"`},
		{"no input", func(d *Definition, _ models) { d.Stages[0].Inputs = map[string]string{"photo": "image"} },
			`stage "detect": model "plate-detector" has no input "photo"; it takes "image" uint8 [-1, -1, -1, 3]; stage "detect": input "image" of model "plate-detector" is missing`},
		{"no output", func(d *Definition, _ models) { d.Stages[1].Each = "detect.box" },
			`stage "read": each: stage "detect" makes no "box": model "plate-detector" has the outputs "boxes" float32 [-1, 4]`},
		{"no regions", func(_ *Definition, m models) { m["plate-reader/2"].Inputs = m["plate-reader/2"].Inputs[:1] },
			`stage "read": each: "detect.boxes" are boxes, and no input of this stage takes regions of a picture`},
		{"no boxes", func(d *Definition, _ models) { d.Stages[1].Each = "detect.scores" },
			`stage "read": each: "detect.scores" has elements of float32 []: expected boxes`},
		{"no elements", func(d *Definition, _ models) { d.Stages[1].Each = "detect.count" }, `each: "detect.count" has no elements`},
		{"type", func(d *Definition, m models) {
			d.Stages = append(d.Stages, admin.Stage{Name: "sort", Model: "sorter", Inputs: map[string]string{"text": "read.text"}})
			m["sorter"] = &scheduler.Spec{
				Inputs: []tensor.Spec{{Name: "text", DType: tensor.Int64, Shape: tensor.Shape{-1}}}}
		}, `stage "sort": input "text" of model "sorter": expected int64 [] for a row, got bytes [] for each row of "read.text"`},
		{"shape", func(d *Definition, m models) {
			d.Stages = append(d.Stages, admin.Stage{Name: "track", Model: "tracker", Inputs: map[string]string{"box": "detect.boxes"}})
			m["tracker"] = &scheduler.Spec{
				Inputs: []tensor.Spec{{Name: "box", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}}}
		}, `stage "track": input "box" of model "tracker": expected float32 [4] for a row, got float32 [-1, 4] for each row of "detect.boxes" (each = "detect.boxes" would make a row of each)`},
		{"list of a row", func(d *Definition, m models) {
			d.Stages = append(d.Stages, admin.Stage{Name: "track", Model: "tracker", Inputs: map[string]string{"boxes": "detect.boxes"}})
			m["tracker"] = &scheduler.Spec{Batching: scheduler.BatchingNone,
				Inputs: []tensor.Spec{{Name: "boxes", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}}}
		}, ""},
		{"siblings", func(d *Definition, m models) {
			d.Stages = append(d.Stages,
				admin.Stage{Name: "join", Model: "joiner", Each: "detect.boxes",
					Inputs: map[string]string{"score": "detect.scores", "box": "detect.boxes"}})
			m["joiner"] = &scheduler.Spec{Inputs: []tensor.Spec{
				{Name: "score", DType: tensor.Float32, Shape: tensor.Shape{-1}},
				{Name: "box", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}},
			}}
		}, ""},
		{"filter by class", func(d *Definition, m models) {
			d.Stages[1].Keep = &admin.Filter{Classes: []string{"plate"}}
			m["plate-detector"].Outputs[2].Name = "kinds"
		}, `stage "read": keep: classes: stage "detect" has neither "labels" BYTES nor "classes"`},
		{"filter by score", func(d *Definition, m models) {
			d.Stages[1].Keep = &admin.Filter{Score: 0.5}
			m["plate-detector"].Outputs[1].DType = tensor.Float64
		}, `stage "read": keep: score: stage "detect" has no "scores" FP32`},
		{"output of nobody", func(d *Definition, _ models) { d.Outputs = map[string]string{"t": "read.texts"} },
			`output "t" of the pipeline: model "plate-reader/2" makes no "texts"`},
		{"readers differ", func(_ *Definition, m models) {
			m["plate-reader/2"].Inputs[0].Image = &tensor.Image{Channels: tensor.ChannelsBGR}
		}, `stage "read": input "image": stage "detect" takes`},
		{"names meet", func(_ *Definition, m models) { m["plate-reader/2"].Outputs[0].Name = "of" },
			`stage "read": two tensors of the answer have the name "read.of"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, m := plates(), declared()
			tt.change(&d, m)
			_, err := fit(d, m)
			switch {
			case tt.want == "" && err != nil:
				t.Fatal(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestDeclaration: clients see the inputs of those that read them, and the outputs of all stages
// with what says whose they are.
func TestDeclaration(t *testing.T) {
	for _, tt := range []struct {
		outputs map[string]string
		want    string
	}{
		{nil, "detect.boxes float32 [-1, 4], ragged by detect.count; detect.scores float32 [-1], ragged by detect.count; " +
			"detect.labels bytes [-1], ragged by detect.count; detect.count int32 [-1]; read.text bytes [-1], ragged by read.rows; " +
			"read.rows int32 [-1]; read.of int32 [-1], ragged by read.rows; read.status int32 [-1], ragged by read.rows"},
		{map[string]string{"text": "read.text"}, "text bytes [-1], ragged by read.rows; " +
			"read.rows int32 [-1]; read.of int32 [-1], ragged by read.rows; read.status int32 [-1], ragged by read.rows"},
		{map[string]string{"text": "read.text", "boxes": "detect.boxes"}, "boxes float32 [-1, 4], ragged by detect.count; detect.count int32 [-1]; " +
			"text bytes [-1], ragged by read.rows; " +
			"read.rows int32 [-1]; read.of int32 [-1], ragged by read.rows; read.status int32 [-1], ragged by read.rows"},
	} {
		d := plates()
		d.Outputs = tt.outputs
		plan, err := fit(d, declared())
		if err != nil {
			t.Fatal(err)
		}
		if got := gate.Join(plan.Spec.Outputs, tensor.Spec.String, "; "); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
		if got := gate.Join(plan.Spec.Inputs, tensor.Spec.String, "; "); !strings.HasPrefix(got, "image uint8 [-1, -1, -1, 3], FORMAT_NHWC, rgb pictures") {
			t.Errorf("inputs %s", got)
		}
	}
}

// TestTakenNames: what Problems says of a pipeline that is not defined is what Create would.
func TestTakenNames(t *testing.T) {
	onRig(t, func(r *rig) {
		r.serve("maker", maker, takes(time.Millisecond))
		d := Definition{Name: "maker", Inputs: []string{"x"}, Outputs: map[string]string{"y": "s.y"},
			Stages: []admin.Stage{{Name: "s", Model: "nobody", Inputs: map[string]string{"x": "x"}}}}
		said := r.reg.Problems(d)
		if _, err := r.reg.Create(r.t.Context(), d); err == nil || len(said) != 2 ||
			said[0] != `invalid input: pipeline "maker": there is a model of that name` ||
			!strings.HasSuffix(err.Error(), said[0]) {
			t.Errorf("got %v of Create, and %q", err, said)
		}
	})
}
