package admin

import "github.com/shivad/shivad/scheduler/setting"

// A Pipeline is a name for several models, of which some take what others answer: one finds plates
// in a picture, the next reads each of them. A request to it is answered by all of its stages, with
// one deadline.
type Pipeline struct {
	Name string `json:"name" toml:"-"`
	// Inputs are the names of what a request brings, in order. Their types are those of the
	// models' inputs that take them.
	Inputs []string `json:"inputs" toml:"inputs"`
	// Outputs are what the answer has, each "STAGE.OUTPUT", by its name in the answer; none given:
	// every output of every stage, as STAGE.OUTPUT.
	Outputs map[string]string `json:"outputs,omitempty" toml:"outputs"`
	// SLO is the deadline of requests without one, such as "200ms"; "" = that of the first stage's
	// model.
	SLO string `json:"slo,omitempty" toml:"slo"`
	// Keep is how many frames of a stream may wait before each stage, if the request does not say;
	// 0 = as the first stage's model is configured.
	Keep setting.Keep `json:"keep,omitzero" toml:"keep"`
	// Stages are in any order: each begins as soon as what it reads is there.
	Stages []Stage `json:"stages" toml:"stage"`
}

// A Stage is a step of a pipeline: a model, and what it is asked about.
type Stage struct {
	Name  string `json:"name" toml:"name"`
	Model string `json:"model" toml:"model"` // "m", "m/2", an application or another pipeline
	// Inputs are what the model gets, by the name of the model's input: an input of the pipeline,
	// or "STAGE.OUTPUT" of another stage.
	Inputs map[string]string `json:"inputs,omitempty" toml:"inputs"`
	// Each names an output, "STAGE.OUTPUT", each of whose elements becomes a row of this stage: the
	// values of a ragged output, or else those along the first dimension of one row. If Inputs name
	// it too, the elements are that input. If they do not, they are boxes, [4] or [4, 2] for each,
	// and the stage is asked about the regions of its picture inside of them. "": the stage has
	// the rows of what it reads.
	Each string `json:"each,omitempty" toml:"each"`
	// Boxes is the unit of such boxes: "pixels" of the upright picture (also ""), as detectors
	// answer them, or "parts" of its sides, from 0 to 1.
	Boxes string `json:"boxes,omitempty" toml:"boxes"`
	// Keep says which elements of Each become rows; nil: all of them.
	Keep *Filter `json:"keep,omitempty" toml:"keep"`
	// Margin widens each box on every side by that part of its width or height, up to the edges of
	// the picture.
	Margin float64 `json:"margin,omitempty" toml:"margin"`
	// Required: a row that fails makes the whole request fail. If it is not required, the row has
	// no value, and STAGE.status says why. nil: true for a stage with the rows of the request,
	// false for one with Each or that reads such a stage.
	Required *bool `json:"required,omitempty" toml:"required"`
	// Timeout is how long the stage may take, such as "50ms"; "": until the deadline of the
	// request.
	Timeout string `json:"timeout,omitempty" toml:"timeout"`
}

// A Filter says which elements become rows of a stage. Each condition reads another output of the
// stage that makes the elements, with a value for each of them.
type Filter struct {
	// Classes are the classes that count: of the output "labels" by name, or else of "classes" by
	// number; none: all do.
	Classes []string `json:"classes,omitempty" toml:"classes"`
	Score   float64  `json:"score,omitempty" toml:"score"` // least of the output "scores"
	// Most is how many elements a parent row may have: those with the highest "scores", if there
	// are any, or else the first; 0: any number.
	Most int `json:"most,omitempty" toml:"most"`
	// Smallest is the least shorter side of a box, as a part of that side of the picture.
	Smallest float64 `json:"smallest,omitempty" toml:"smallest"`
}

// Units of boxes.
const (
	BoxPixels = "pixels"
	BoxParts  = "parts"
)
