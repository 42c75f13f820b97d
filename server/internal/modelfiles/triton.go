package modelfiles

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/server/config"
)

// tritonFile is the configuration of a model in a repository of Triton.
const tritonFile = "config.pbtxt"

// A declaration is how the package is told to declare a network.
type declaration struct {
	MaxBatch int              `json:"max_batch"` // 0: the first dimension does not count rows
	Inputs   []declaredTensor `json:"inputs"`
	Outputs  []declaredTensor `json:"outputs"`
}

// A declaredTensor is a tensor as clients see it; without the rows if these are counted.
type declaredTensor struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Dims     []int  `json:"dims"`
	Reshape  []int  `json:"reshape,omitempty"` // what the network has instead of Dims
	Scalar   bool   `json:"scalar,omitempty"`  // the network has no dimension instead of Dims
	Labels   string `json:"labels,omitempty"`  // a file with the name of a class in each line
}

// A tritonModel is what a config.pbtxt says about a model, as far as it has a meaning here.
type tritonModel struct {
	file     string // name of the model file; "" = see choose
	batch    config.Batching
	replicas int      // 0: it does not say
	devices  []string // nil: it does not say
	versions versions
	declared *declaration // nil: as the network is
	labels   []string     // files of names
	ignored  []string     // keys without a meaning here
}

// tritonReaders are the platforms and backends of Triton whose files are read here.
var tritonReaders = []string{"", "onnxruntime_onnx", "onnxruntime", "openvino", "fil", "armnn_tflite"}

// readTriton reads the config.pbtxt of a directory that is a model.
func readTriton(dir string) (t tritonModel, err error) {
	path := filepath.Join(dir, tritonFile)
	text, err := readSettings(path)
	if err != nil {
		return t, err
	}
	m, err := parseText(string(text))
	if err == nil {
		t, err = tritonOf(m, dir)
	}
	if err != nil {
		return t, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func tritonOf(m message, dir string) (t tritonModel, err error) {
	if name := m.text("name"); name != "" && name != filepath.Base(dir) {
		return t, fmt.Errorf("its name is %q: expected that of the directory, %q", name, filepath.Base(dir))
	}
	if err := refuseTriton(m); err != nil {
		return t, err
	}
	t.file = m.text("default_model_filename")
	if t.file != "" && t.file != filepath.Base(t.file) {
		return t, fmt.Errorf("default_model_filename: %q is not the name of a file in the directory of a version", t.file)
	}
	most, err := m.number("max_batch_size", 0)
	if err != nil || most < 0 {
		return t, errors.Join(err, fmt.Errorf("max_batch_size: expected 0 or more rows"))
	}
	declares := m.last("input") != nil || m.last("output") != nil
	switch {
	case most > 0:
		t.batch = config.Batching(strconv.Itoa(most))
	case declares || m.last("max_batch_size") != nil:
		t.batch = "off"
	}
	if declares {
		t.declared = &declaration{MaxBatch: most}
		for _, one := range []struct {
			key  string
			into *[]declaredTensor
		}{{"input", &t.declared.Inputs}, {"output", &t.declared.Outputs}} {
			if *one.into, err = tritonTensors(m.messages(one.key), dir); err != nil {
				return t, fmt.Errorf("%s: %w", one.key, err)
			}
		}
		for _, one := range t.declared.Outputs {
			if one.Labels != "" {
				t.labels = append(t.labels, one.Labels)
			}
		}
	}
	if err := t.addInstances(m.messages("instance_group")); err != nil {
		return t, fmt.Errorf("instance_group: %w", err)
	}
	if t.versions, err = tritonVersions(m); err != nil {
		return t, fmt.Errorf("version_policy: %w", err)
	}
	t.ignored = ignored(m)
	return t, nil
}

// refuseTriton says why a model of Triton cannot be served from its file.
func refuseTriton(m message) error {
	platform, backend := m.text("platform"), m.text("backend")
	transactions, _ := m.last("model_transaction_policy").(message)
	switch {
	case platform == "ensemble" || m.last("ensemble_scheduling") != nil:
		return errors.New("it is an ensemble, which is no file: each of its steps is served by its own name, and a client or a Python program (model.py of the package shiva-container) asks one after the other")
	case backend == "python":
		return errors.New("its model.py is for Triton's Python backend, which passes requests by pb_utils: write a function with @model of the package shiva-container")
	case m.last("sequence_batching") != nil:
		return errors.New("sequence_batching: the network keeps a state for each sequence between requests, and a network in a file is executed without one")
	case transactions.text("decoupled") == "true":
		return errors.New("model_transaction_policy: a request has exactly one answer here, and a decoupled model may have several")
	}
	for _, one := range m.messages("parameters") {
		value, _ := one.last("value").(message)
		if key := one.text("key"); backend == "fil" && key == "output_class" && value.text("string_value") == "true" {
			return errors.New("parameters: output_class is true: expected false, since the trees' own numbers are served, and no classes")
		}
	}
	for _, one := range []string{platform, backend} {
		if !slices.Contains(tritonReaders, one) {
			return fmt.Errorf("%q has no reader here: expected a network as %s, for example exported to ONNX", one,
				strings.Join(tritonReaders[1:], ", "))
		}
	}
	return nil
}

func tritonTensors(list []message, dir string) ([]declaredTensor, error) {
	out := []declaredTensor{}
	for _, m := range list {
		one := declaredTensor{Name: m.text("name")}
		if one.Name == "" {
			return nil, errors.New("a tensor has no name")
		}
		kind, ok := strings.CutPrefix(m.text("data_type"), "TYPE_")
		if !ok {
			return nil, fmt.Errorf("%s: data_type: expected a type as TYPE_FP32, got %q", one.Name, m.text("data_type"))
		}
		if one.Datatype = kind; kind == "STRING" {
			one.Datatype = "BYTES"
		}
		var err error
		if one.Dims, err = m.numbers("dims"); err != nil {
			return nil, fmt.Errorf("%s: %w", one.Name, err)
		}
		if shape, ok := m.last("reshape").(message); ok {
			if one.Reshape, err = shape.numbers("shape"); err != nil {
				return nil, fmt.Errorf("%s: reshape: %w", one.Name, err)
			}
			one.Scalar = len(one.Reshape) == 0
		}
		if labels := m.text("label_filename"); labels != "" {
			if !filepath.IsLocal(labels) {
				return nil, fmt.Errorf("%s: label_filename: %q is outside of the model's directory", one.Name, labels)
			}
			one.Labels = filepath.Join(dir, labels)
		}
		out = append(out, one)
	}
	return out, nil
}

// addInstances adds the processes of instance groups, and the device of each.
func (t *tritonModel) addInstances(groups []message) error {
	for _, g := range groups {
		count, err := g.number("count", 1)
		if err != nil || count < 1 {
			return errors.Join(err, errors.New("count: expected 1 or more"))
		}
		gpus, err := g.numbers("gpus")
		if err != nil {
			return err
		}
		devices := []string{"auto"}
		switch kind := g.text("kind"); {
		case kind == "KIND_CPU":
			devices = []string{"cpu"}
		case kind == "KIND_GPU" && len(gpus) == 0:
			devices = []string{"cuda:0"}
		case len(gpus) > 0:
			devices = nil
			for _, n := range gpus {
				devices = append(devices, fmt.Sprintf("cuda:%d", n))
			}
		case kind != "" && kind != "KIND_AUTO" && kind != "KIND_MODEL":
			return fmt.Errorf("kind: %q is none of KIND_AUTO, KIND_CPU, KIND_GPU and KIND_MODEL", kind)
		}
		for _, one := range devices {
			t.devices = append(t.devices, slices.Repeat([]string{one}, min(count, mostInstances))...)
		}
	}
	if t.replicas = len(t.devices); t.replicas > mostInstances {
		return fmt.Errorf("%d instances, limit %d", t.replicas, mostInstances)
	}
	if len(slices.Compact(slices.Clone(t.devices))) == 1 {
		t.devices = t.devices[:1]
	}
	return nil
}

// mostInstances is the most processes of one model.
const mostInstances = 1024

func tritonVersions(m message) (v versions, err error) {
	policy, ok := m.last("version_policy").(message)
	if !ok {
		return versions{newest: 1}, nil
	}
	if specific, ok := policy.last("specific").(message); ok {
		for _, one := range specific.all("versions") {
			v.named = append(v.named, textOf(one))
		}
		return v, nil
	}
	if policy.last("all") != nil {
		return versions{all: true}, nil
	}
	latest, _ := policy.last("latest").(message)
	v.newest, err = latest.number("num_versions", 1)
	if err == nil && v.newest < 1 {
		err = errors.New("num_versions: expected 1 or more")
	}
	return v, err
}

// tritonKeys are the keys of a config.pbtxt that have a meaning here. Batches grow while processes
// are busy, as dynamic_batching asks, whether it does or not.
var tritonKeys = map[string][]string{
	"": {"name", "platform", "backend", "max_batch_size", "input", "output", "instance_group", "default_model_filename",
		"version_policy", "dynamic_batching", "model_transaction_policy"},
	"input":          {"name", "data_type", "dims", "reshape", "format"},
	"output":         {"name", "data_type", "dims", "reshape", "label_filename"},
	"instance_group": {"name", "count", "kind", "gpus"},
}

// ignored lists the keys that have no meaning here, each once.
func ignored(m message) (list []string) {
	add := func(key string) {
		if !slices.Contains(list, key) {
			list = append(list, key)
		}
	}
	for _, f := range m {
		if !slices.Contains(tritonKeys[""], f.name) {
			add(f.name)
		}
		inner, _ := f.value.(message)
		if known, ok := tritonKeys[f.name]; ok || f.name == "dynamic_batching" {
			for _, g := range inner {
				if !slices.Contains(known, g.name) {
					add(f.name + "." + g.name)
				}
			}
		}
	}
	return list
}
