package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/nested"
	"github.com/shivad/shivad/shiva/tensor"
)

// model is a server's description of a model that it serves.
type model struct {
	route   string // as given
	inputs  []spec
	outputs []spec
	whole   bool // it takes a request as it is: no dimension counts rows

	pipeline *nested.Pipeline // nil: it is none
}

// spec is a declared input or output.
type spec struct {
	tensor.Spec
	whole bool // the model takes a request as it is: no dimension counts rows
	files bool // it takes files of pictures, which the model decodes
	// The input of files whose regions it takes: each region is a row of one picture. "": none.
	regions string
}

// declaration is the server's answer: the model metadata of the Predict Protocol V2.
type declaration struct {
	Name    string           `json:"name"`
	Batched *bool            `json:"batched"` // nil: deduced from the shapes
	Inputs  []declaredTensor `json:"inputs"`
	Outputs []declaredTensor `json:"outputs"`

	Pipeline *nested.Pipeline `json:"pipeline"`
}

type declaredTensor struct {
	Name     string       `json:"name"`
	Datatype string       `json:"datatype"`
	Shape    tensor.Shape `json:"shape"`
	Optional bool         `json:"optional"`
	Ragged   string       `json:"ragged"`
	Image    string       `json:"image"` // to what it decodes files of pictures; "": none
}

// describe asks the server for the inputs and outputs of the model behind a route.
func (c *cli) describe(client *shiva.Client, route string) (model, error) {
	m := model{route: route}
	answer, err := client.Do(c.ctx, &shiva.Message{Namespace: metadataRoute(route)})
	if err != nil {
		return m, explain(err, "--addr", c.addr)
	}
	defer answer.Release()
	var d declaration
	if err := json.Unmarshal(answer.Metadata, &d); err != nil || d.Name == "" {
		return m, &failure{"protocol",
			fmt.Sprintf("%s says nothing usable of %s: %.200s", c.addr, route, answer.Metadata),
			"is that the TCP endpoint of a shivad? check --addr " + c.addr, exitUnreachable}
	}
	return d.model(route)
}

// nameClasses adds the names of classes to outputs. They are in the model's configuration, and not
// in its metadata, which is asked for more often; without them there are the numbers.
func (c *cli) nameClasses(client *shiva.Client, m *model) {
	if !slices.ContainsFunc(m.outputs, func(s spec) bool { return s.DType.IsFloat() && len(s.Shape) > 0 }) {
		return
	}
	answer, err := client.Do(c.ctx, &shiva.Message{Namespace: metadataRoute(m.route) + "/config"})
	if err != nil {
		return
	}
	defer answer.Release()
	var config struct {
		Parameters map[string]struct {
			Value string `json:"string_value"`
		} `json:"parameters"`
	}
	_ = json.Unmarshal(answer.Metadata, &config) // of another server
	for i := range m.outputs {
		o := &m.outputs[i]
		_ = json.Unmarshal([]byte(config.Parameters["labels."+o.Name].Value), &o.Labels)
	}
}

// labelsOf returns the names of an output's classes, if it has such.
func (m model) labelsOf(output string) []string {
	if i := outputIndex(m, output); i < len(m.outputs) {
		return m.outputs[i].Labels
	}
	return nil
}

// model converts the declaration to this program's datatypes.
func (d *declaration) model(route string) (model, error) {
	if len(d.Inputs)+len(d.Outputs) == 0 {
		return model{}, &failure{"undeclared", route + " declares neither inputs nor outputs, so shivactl cannot know what to send",
			"a client that knows sends it: see the model's own documentation", exitRefused}
	}
	m := model{route: route, whole: d.Batched != nil && !*d.Batched, pipeline: d.Pipeline}
	for list, specs := range map[*[]declaredTensor]*[]spec{&d.Inputs: &m.inputs, &d.Outputs: &m.outputs} {
		for _, t := range *list {
			dtype, ok := tensor.FromV2(t.Datatype)
			if !ok {
				return m, &failure{"protocol",
					fmt.Sprintf("%s declares the datatype %q, which this shivactl does not know", route, t.Datatype),
					"is this shivactl as new as the server? shivactl version", exitRefused}
			}
			*specs = append(*specs,
				spec{Spec: tensor.Spec{Name: t.Name, DType: dtype, Shape: t.Shape, Optional: t.Optional,
					Ragged: t.Ragged}, whole: m.whole, files: t.Image != ""})
		}
	}
	for i := range m.inputs {
		s := &m.inputs[i]
		image, named := strings.CutSuffix(s.Name, tensor.RegionsSuffix)
		if named && s.Optional && slices.ContainsFunc(m.inputs, func(o spec) bool {
			return o.Name == image && o.files
		}) {
			s.regions = image
		}
	}
	return m, nil
}

// sole returns the index of the input that a file without a name is for; -1: it needs one.
func (m model) sole() int {
	specs := make([]tensor.Spec, len(m.inputs))
	for i, s := range m.inputs {
		specs[i] = s.Spec
	}
	return tensor.Sole(specs)
}

// silent returns the only request that a model without inputs takes.
func (m model) silent() item { return item{name: m.route, rows: 1} }

// metadataRoute turns the route of a model, in any of its forms, into that of its metadata.
func metadataRoute(route string) string {
	if strings.HasPrefix(route, "v2/") {
		return strings.TrimSuffix(route, "/infer")
	}
	name, version, versioned := strings.Cut(route, "/")
	if versioned {
		return "v2/models/" + name + "/versions/" + version
	}
	return "v2/models/" + name
}

// batched reports whether the first dimension of a declared tensor counts rows.
func batched(s spec) bool { return !s.whole && len(s.Shape) > 0 && s.Shape[0] == -1 }

// row is the declared shape of one row.
func row(s spec) tensor.Shape {
	if batched(s) {
		return s.Shape[1:]
	}
	return s.Shape
}

// wire is the dtype of an input on the wire.
func wire(s spec) tensor.DType {
	d, _ := s.DType.WireType()
	return d
}

// wants describes the values that an input takes, for messages.
func wants(s spec) string {
	text := fmt.Sprintf("input %q takes %s %v", s.Name, s.DType.V2(), s.Shape)
	if batched(s) {
		text += fmt.Sprintf(" (-1 is any size), or one row %v", row(s))
	}
	return text
}

// pictureFile makes the tensor of a file for an input that takes files: one row.
func pictureFile(file []byte) (tensor.Tensor, error) {
	return tensor.New(tensor.Uint8, tensor.Shape{1, len(file)}, file)
}

// holdsFile reports whether t is a file of a picture instead of pixels.
func holdsFile(t tensor.Tensor, s spec) bool {
	return s.files && t.DType == tensor.Uint8 && len(t.Shape) == 2 && isImage(t.Data)
}

// fit gives t the full declared rank, or returns an error if the shape does not fit.
func fit(t tensor.Tensor, s spec) (tensor.Tensor, error) {
	switch {
	case t.Shape.Fits(s.Shape), holdsFile(t, s), s.regions != "" && t.Shape.Fits(tensor.Shape{-1, 4, 2}):
		return t, nil
	case batched(s) && t.Shape.Fits(row(s)):
		t.Shape = append(tensor.Shape{1}, t.Shape...)
		return t, nil
	}
	return t, unfit("", "it is %s %v; %s", t.DType.V2(), t.Shape, wants(s))
}
