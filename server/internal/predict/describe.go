package predict

import (
	"cmp"
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/nested"
	"github.com/shivad/shivad/shiva/tensor"
)

// Extensions are the extensions that both doors have. Each door adds its own.
var Extensions = []string{
	"classification", "model_configuration", "model_repository", "parameters", "schedule_policy", "statistics",
}

// ServerMetadata describes the server.
type ServerMetadata struct {
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Extensions []string `json:"extensions"`
}

// Server describes the server to clients of the door at that address, with that door's extensions
// in addition to [Extensions]. model_repository is left out where clients may not load and unload
// models.
func (s *Service) Server(door net.Addr, extensions ...string) ServerMetadata {
	all := s.extensions(slices.Concat(Extensions, extensions))
	if !s.view.Who().MayAny(access.Load) || s.permit(Caller{Listener: door}) != nil {
		all = slices.DeleteFunc(all, func(name string) bool { return name == "model_repository" })
	}
	return ServerMetadata{"shivad", s.cfg.Version, all}
}

// ModelMetadata describes a model.
type ModelMetadata struct {
	Name     string           `json:"name"`
	Versions []string         `json:"versions"`
	Platform string           `json:"platform"`
	Batched  *bool            `json:"batched,omitempty"` // false: no dimension counts rows
	Inputs   []TensorMetadata `json:"inputs"`
	Outputs  []TensorMetadata `json:"outputs"`
	// Pipeline says how the answer of a pipeline becomes objects; nil for all others.
	Pipeline *nested.Pipeline `json:"pipeline,omitempty"`
	// Properties are the parameters that the model was registered with, as strings.
	Properties map[string]string `json:"properties,omitempty"`
}

// TensorMetadata describes an input or output. A dimension of -1 may have any size. The first one
// of a batched model counts rows, except in a ragged output.
type TensorMetadata struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Shape    []int  `json:"shape"`
	Optional bool   `json:"optional,omitempty"` // an input that may be left out
	Ragged   string `json:"ragged,omitempty"`   // the output with the number of its values per row
	Image    string `json:"image,omitempty"`    // to what the input decodes files of pictures
}

// Model describes a version of a model; "" is the default.
func (s *Service) Model(name, version string) (ModelMetadata, error) {
	t, err := s.view.Behind(name, version)
	if err != nil {
		return ModelMetadata{}, err
	}
	m := ModelMetadata{
		Name:       name,
		Versions:   append([]string{}, s.view.Versions(name)...), // [] for an application
		Platform:   t.Platform(),
		Batched:    t.Unbatched(),
		Inputs:     metadata(s.inputs(name, t)),
		Outputs:    metadata(t.Spec.Outputs),
		Pipeline:   t.Nested,
		Properties: properties(t.Spec.Parameters),
	}
	if d := s.view.Redirect(name); d != nil {
		m.Properties = maps.Clone(m.Properties)
		if m.Properties == nil {
			m.Properties = make(map[string]string, 1)
		}
		m.Properties["route"] = d.To
	}
	return m, nil
}

// inputs returns what a request for that name, which leads to t, brings.
func (s *Service) inputs(name string, t *gate.Target) []tensor.Spec {
	if s.view.AsksNewest(name) {
		return nil
	}
	return t.Spec.Inputs
}

// Sole returns the input that a body of a single tensor is for: the only one, or the only one that
// is not optional. nil: there is none.
func (m *ModelMetadata) Sole() *TensorMetadata {
	var sole *TensorMetadata
	for i := range m.Inputs {
		in := &m.Inputs[i]
		switch {
		case len(m.Inputs) > 1 && in.Optional:
		case sole != nil:
			return nil
		default:
			sole = in
		}
	}
	return sole
}

func metadata(specs []tensor.Spec) []TensorMetadata {
	out := make([]TensorMetadata, len(specs))
	for i, s := range specs {
		out[i] = TensorMetadata{Name: s.Name, Datatype: s.DType.V2(), Shape: append([]int{}, s.Shape...),
			Optional: s.Optional, Ragged: s.Ragged}
		if s.Image != nil {
			out[i].Image = s.Image.String()
		}
	}
	return out
}

// properties returns the members of a JSON object as strings; for a value that is not a string, its
// JSON text.
func properties(object []byte) map[string]string {
	var members map[string]json.RawMessage
	if len(object) == 0 || json.Unmarshal(object, &members) != nil {
		return nil
	}
	out := make(map[string]string, len(members))
	for key, value := range members {
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		out[key] = text
	}
	return out
}

// ModelConfig is a model's configuration, in the form of Triton's.
type ModelConfig struct {
	Name          string           `json:"name"`
	Platform      string           `json:"platform"`
	Backend       string           `json:"backend"`
	VersionPolicy VersionPolicy    `json:"version_policy"`
	MaxBatchSize  int              `json:"max_batch_size"` // rows; 0: without a batch dimension
	Input         []TensorConfig   `json:"input"`
	Output        []TensorConfig   `json:"output"`
	Batching      *DynamicBatching `json:"dynamic_batching,omitempty"` // nil unless batched
	InstanceGroup []InstanceGroup  `json:"instance_group"`
	// Parameters are the settings that apply to requests, the labels, what inputs of pictures
	// become, and what the model was registered with.
	Parameters  map[string]Parameter `json:"parameters"`
	Transaction TransactionPolicy    `json:"model_transaction_policy"`
}

// VersionPolicy tells which versions are served.
type VersionPolicy struct {
	Specific struct {
		Versions []int64 `json:"versions"` // versions that are numbers
	} `json:"specific"`
}

// TensorConfig is an input or output, without the batch dimension.
type TensorConfig struct {
	Name     string `json:"name"`
	DataType string `json:"data_type"` // TYPE_FP32 and so on
	Dims     []int  `json:"dims"`
	// Format is the order of an image's dimensions, FORMAT_NHWC or FORMAT_NCHW, or FORMAT_NONE.
	// Outputs have none. Every input has one, since Triton's example clients read it for every
	// model.
	Format   string `json:"format,omitempty"`
	Optional bool   `json:"optional,omitempty"` // an input that may be left out
}

// DynamicBatching says how rows are batched.
type DynamicBatching struct {
	MaxQueueDelayMicroseconds int64 `json:"max_queue_delay_microseconds"`
	PriorityLevels            int   `json:"priority_levels"`
	DefaultPriorityLevel      int   `json:"default_priority_level"`
}

// InstanceGroup counts the replicas.
type InstanceGroup struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Count int    `json:"count"`
}

// Parameter is a value of a configuration's parameters.
type Parameter struct {
	StringValue string `json:"string_value"`
}

// TransactionPolicy: every request has one answer.
type TransactionPolicy struct {
	Decoupled bool `json:"decoupled"`
}

// ModelConfig returns the configuration of a version of a model; "" is the default.
func (s *Service) ModelConfig(name, version string) (ModelConfig, error) {
	t, err := s.view.Behind(name, version)
	if err != nil {
		return ModelConfig{}, err
	}
	set := s.cfg.Settings(t.ID.Name)
	inputs := s.inputs(name, t)
	c := ModelConfig{
		Name:     name,
		Platform: t.Platform(),
		Backend:  "shivad",
		Input:    tensorConfigs(inputs, t.Spec.Batched()),
		Output:   tensorConfigs(t.Spec.Outputs, t.Spec.Batched()),
		Parameters: map[string]Parameter{
			"version":           {t.ID.Version},
			"strategy":          {set.Strategy},
			"objective":         {set.Objective.String()},
			"deadline":          {t.Deadline.String()},
			"execution_timeout": {set.ExecutionTimeout.String()},
		},
		InstanceGroup: []InstanceGroup{{Name: t.ID.Name, Kind: "KIND_AUTO", Count: t.Live}},
	}
	if t.Composite != nil {
		s := t.Composite.Status()
		c.Parameters = map[string]Parameter{"models": {strings.Join(s.Links, ", ")}, "deadline": {t.Deadline.String()}}
		if s.Policy != "" {
			c.Parameters["policy"] = Parameter{s.Policy}
		}
	}
	for i := range c.Input {
		in := &inputs[i]
		c.Input[i].Format = cmp.Or(in.Format, formatNone)
		if in.Image != nil {
			c.Parameters["image."+in.Name] = Parameter{in.Image.String()}
		}
	}
	for _, o := range t.Spec.Outputs {
		if len(o.Labels) > 0 {
			c.Parameters["labels."+o.Name] = Parameter{list(o.Labels)}
		}
	}
	c.VersionPolicy.Specific.Versions = []int64{}
	for _, v := range s.view.Versions(name) {
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			c.VersionPolicy.Specific.Versions = append(c.VersionPolicy.Specific.Versions, n)
		}
	}
	if t.Spec.Batched() {
		c.MaxBatchSize = maxBatch(t)
		c.Batching = &DynamicBatching{
			MaxQueueDelayMicroseconds: int64(set.Delay / time.Microsecond),
			PriorityLevels:            parameter.Priorities,
			DefaultPriorityLevel:      parameter.DefaultPriority,
		}
	}
	if d := s.view.Redirect(name); d != nil {
		c.Parameters["route"] = Parameter{d.To}
	}
	for key, value := range properties(t.Spec.Parameters) {
		if _, taken := c.Parameters[key]; !taken {
			c.Parameters[key] = Parameter{value}
		}
	}
	return c, nil
}

// list returns labels as a JSON list. Triton's configuration has the name of a file there, which is
// of no use to a client.
func list(labels []string) string {
	b := []byte{'['}
	for i, label := range labels {
		if i > 0 {
			b = append(b, ',')
		}
		b = jsonscan.AppendString(b, label)
	}
	return string(append(b, ']'))
}

// maxBatch returns the largest batch, in rows, that a replica takes. Without a replica it is what
// the model declared, or 1.
func maxBatch(t *gate.Target) int {
	rows := 0
	for _, r := range t.Model.Stats().Replicas {
		rows = max(rows, r.MaxBatch)
	}
	return cmp.Or(rows, max(t.Spec.MaxBatch, 1))
}

func tensorConfigs(specs []tensor.Spec, batched bool) []TensorConfig {
	out := make([]TensorConfig, len(specs))
	for i, s := range specs {
		dims := append([]int{}, s.Shape...)
		if batched && s.Ragged == "" && len(dims) > 0 {
			dims = dims[1:] // the dimensions of a ragged output are those of one row
		}
		out[i] = TensorConfig{Name: s.Name, DataType: configType(s.DType), Dims: dims, Optional: s.Optional}
	}
	return out
}

// formatNone is the format of an input that does not declare one.
const formatNone = "FORMAT_NONE"

// configType returns a dtype's name in a model configuration.
func configType(d tensor.DType) string {
	switch {
	case d == tensor.Bytes:
		return "TYPE_STRING"
	case d.Extension(): // the enumeration lacks it
		return "TYPE_INVALID"
	}
	return "TYPE_" + d.V2()
}
