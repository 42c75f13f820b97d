package pipelines

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
)

// plates is a pipeline that finds plates in a picture and reads each of them.
func plates() Definition {
	return Definition{
		Name: "plates", Inputs: []string{"image"},
		Stages: []admin.Stage{
			{Name: "detect", Model: "plate-detector", Inputs: map[string]string{"image": "image"}},
			{Name: "read", Model: "plate-reader/2", Inputs: map[string]string{"image": "image"}, Each: "detect.boxes"},
		},
	}
}

// TestDefinitions: what is wrong with a definition by itself is said with the stage that it is in.
func TestDefinitions(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(d *Definition)
		want   string // "": it is sound
	}{
		{"sound", func(*Definition) {}, ""},
		{"no stages", func(d *Definition) { d.Stages = nil }, "stages: 0, expected 1 to 32"},
		{"name", func(d *Definition) { d.Name = "a/b" }, `name: "a/b" has a '/'`},
		{"dot in a name", func(d *Definition) { d.Stages[0].Name = "a.b" }, `stages[0]: the name "a.b" has a dot`},
		{"same name", func(d *Definition) { d.Stages[1].Name = "detect" }, `stages[1]: the name "detect" is given twice`},
		{"same input", func(d *Definition) { d.Inputs = []string{"image", "image"} }, `inputs[1]: "image" is given twice`},
		{"model", func(d *Definition) { d.Stages[1].Model = "m/*" }, `stage "read": model: version "*" is reserved`},
		{"unknown stage", func(d *Definition) { d.Stages[1].Each = "found.boxes" },
			`stage "read": each: "found.boxes" is neither an input of the pipeline nor STAGE.OUTPUT: there is no stage "found"; there are image, detect.…, read.…`},
		{"misspelled stage", func(d *Definition) { d.Stages[1].Each = "detct.boxes" },
			`: there is no stage "detct"; nearest: detect.boxes`},
		{"misspelled input", func(d *Definition) { d.Stages[1].Inputs = map[string]string{"image": "imgae"} },
			`stage "read": input "image": "imgae" is neither an input of the pipeline nor STAGE.OUTPUT; nearest: image`},
		{"each of an input", func(d *Definition) { d.Stages[1].Each = "image" },
			`stage "read": each: "image" is not an output of a stage`},
		{"circle", func(d *Definition) { d.Stages[0].Inputs["more"] = "read.text" },
			`stages "detect" → "read" → "detect" read one another in a circle`},
		{"itself", func(d *Definition) { d.Stages[0].Inputs["more"] = "detect.boxes" },
			`stages "detect" → "detect" read one another in a circle`},
		{"unused stage", func(d *Definition) { d.Outputs = map[string]string{"boxes": "detect.boxes"} },
			`stage "read": neither a stage nor an output of the pipeline reads what it makes`},
		{"unused input", func(d *Definition) { d.Inputs = append(d.Inputs, "mask") }, `input "mask": no stage reads it`},
		{"output is an input", func(d *Definition) { d.Outputs = map[string]string{"x": "image", "t": "read.text"} },
			`output "x": "image" is an input of the pipeline, expected STAGE.OUTPUT`},
		{"timeout", func(d *Definition) { d.Stages[1].Timeout = "soon" }, `stage "read": timeout: "soon" is not a duration`},
		{"slo", func(d *Definition) { d.SLO = "1us" }, `slo: 1µs, expected 1ms to `},
		{"keep", func(d *Definition) { d.Keep = -7 }, `keep: -7, expected "all"`},
		{"filter", func(d *Definition) { d.Stages[1].Keep = &admin.Filter{Most: -1} }, `stage "read": keep: most: -1`},
		{"filter without a bound", func(d *Definition) { d.Stages[1].Keep = &admin.Filter{Score: math.Inf(-1)} },
			`stage "read": keep: score: -Inf, expected a finite number`},
		{"filter without each", func(d *Definition) { d.Stages[0].Keep = &admin.Filter{Most: 1} },
			`stage "detect": keep, margin and boxes are for the elements of each`},
		{"margin", func(d *Definition) { d.Stages[1].Margin = -1 }, `stage "read": margin: -1`},
		{"unit", func(d *Definition) { d.Stages[1].Boxes = "mm" }, `stage "read": boxes: "mm", expected "pixels" or "parts"`},
		{"rows of another stage", func(d *Definition) {
			d.Stages = append(d.Stages,
				admin.Stage{Name: "other", Model: "m", Each: "detect.boxes",
					Inputs: map[string]string{"x": "read.text", "y": "detect.boxes"}})
		}, `stage "other": input "x" reads "read.text", which has a value for each row of stage "read", and not for each row of the request, as "detect.boxes" has`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := plates()
			tt.change(&d)
			_, err := New(d)
			switch {
			case tt.want == "" && err != nil:
				t.Fatal(err)
			case tt.want == "":
			case err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, scheduler.ErrInvalidInput):
				t.Errorf("got %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestOneFaultForOneMistake: a reference that names nothing is not also one to the wrong thing.
func TestOneFaultForOneMistake(t *testing.T) {
	for mistake, change := range map[string]func(*Definition){
		"each":   func(d *Definition) { d.Stages[1].Each = "detct.boxes" },
		"output": func(d *Definition) { d.Outputs = map[string]string{"t": "raed.text"} },
	} {
		d := plates()
		if change(&d); len(Faults(d)) != 1 {
			t.Errorf("%s: %v", mistake, Faults(d))
		}
	}
}

// TestDefinitionsAreStored: what is read from the store is what was written.
func TestDefinitionsAreStored(t *testing.T) {
	d := plates()
	d.Stages[1].Keep, d.Stages[1].Required = &admin.Filter{Classes: []string{"plate"}, Score: 0.5, Most: 16}, new(true)
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var read Definition
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	p, err := New(read)
	if err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(p.Definition)
	if err != nil || string(again) != string(text) {
		t.Errorf("%v\ngot  %s\nwant %s", err, again, text)
	}
}

// TestOrderOfStages: stages may be defined in any order, and those that read others come later.
func TestOrderOfStages(t *testing.T) {
	d := plates()
	d.Stages[0], d.Stages[1] = d.Stages[1], d.Stages[0]
	p, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	if p.stages[0].Name != "detect" || p.stages[1].each.stage != 0 || p.stages[1].scope != 1 ||
		p.stages[0].scope != request {
		t.Errorf("%+v", p.stages)
	}
	if !p.stages[0].needed || p.stages[1].needed {
		t.Error("the stage with the rows of the request is not required, or the other one is")
	}
}
