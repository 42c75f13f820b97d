package containers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/naming"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	maxDeclaredBatch = 1 << 20
	maxServers       = 1 << 20 // among which a container may choose
)

// readHello parses and validates a v4 registration. Every error is a *refusal, worded for the
// container's author.
func readHello(b []byte, limits Limits) (registration, error) {
	if len(b) > wire.MaxHello {
		return registration{}, refuse("hello has %d bytes, limit %d", len(b), wire.MaxHello)
	}
	if !utf8.Valid(b) {
		return registration{}, refuse("hello is not UTF-8")
	}
	var h wire.HelloMessage
	if err := json.Unmarshal(b, &h); err != nil {
		return registration{}, refuse("hello is not the JSON expected: %v", err)
	}
	if h.Protocol != wire.Version {
		return registration{}, refuse("hello has protocol %d, this server speaks %d", h.Protocol, wire.Version)
	}
	if err := checkModel(h.Model, h.Version); err != nil {
		return registration{}, err
	}
	r := registration{
		model: scheduler.ModelID{Name: h.Model, Version: h.Version},
		label: h.Instance, concurrency: h.Concurrency, slots: h.Slots, announce: h.Announce, feedback: h.Feedback,
		pauses: h.Pauses, arena: h.Arena, opens: h.Opens, grants: h.Grants, waits: h.Waits, again: h.Again,
		token: h.Token,
		spec:  scheduler.Spec{MaxBatch: h.MaxBatch, Platform: h.Platform, User: h.User, Metadata: h.Metadata},
	}
	switch {
	case h.MaxBatch < 0 || h.MaxBatch > maxDeclaredBatch:
		return r, refuse("max_batch is %d, expected 0 (unspecified) to %d", h.MaxBatch, maxDeclaredBatch)
	case h.Concurrency < 0 || h.Concurrency > scheduler.MaxSlots:
		return r, refuse("concurrency is %d, expected 0 (unspecified) to %d", h.Concurrency, scheduler.MaxSlots)
	case h.Slots < 0 || h.Slots > scheduler.MaxSlots:
		return r, refuse("slots is %d, expected 0 (unspecified) to %d", h.Slots, scheduler.MaxSlots)
	}
	if s := h.Subset; s != nil {
		if s.Size < 1 || s.Servers < s.Size || s.Servers > maxServers {
			return r, refuse("subset has size %d of %d servers, expected at least 1 and no more than the servers, of which there are at most %d",
				s.Size, s.Servers, maxServers)
		}
		r.subset = Subset(*s)
	}
	if err := checkText("platform", h.Platform, wire.MaxPlatform); err != nil {
		return r, err
	}
	if err := checkText("instance", h.Instance, wire.MaxInstance); err != nil {
		return r, err
	}
	switch p := bytes.TrimSpace(h.Parameters); {
	case len(p) == 0 || string(p) == "null":
	case len(p) > wire.MaxParameters:
		return r, refuse("parameters have %d bytes, limit %d", len(p), wire.MaxParameters)
	case p[0] != '{':
		return r, refuse("parameters are %.32q, expected a JSON object", p)
	default:
		r.spec.Parameters = p
	}
	if h.Batched != nil {
		if r.spec.Batching = scheduler.BatchingNone; *h.Batched {
			r.spec.Batching = scheduler.BatchingRows
		}
	}
	var err error
	if h.Inputs == nil {
		return r, refuse("no inputs declared; an empty list declares a model without any")
	}
	if r.spec.Inputs, err = readTensors("input", h.Inputs, limits); err != nil {
		return r, err
	}
	if r.spec.Inputs, err = withRegions(r.spec.Inputs); err != nil {
		return r, err
	}
	if len(h.Outputs) == 0 {
		return r, refuse("0 outputs declared, expected 1 to %d", wire.MaxTensors)
	}
	if r.spec.Outputs, err = readTensors("output", h.Outputs, limits); err != nil {
		return r, err
	}
	return r, nil
}

// checkModel validates the name and the version of a model with package naming.
func checkModel(name, version string) error {
	if err := naming.CheckModel(name); err != nil {
		return refuse("model %v", err)
	}
	if err := naming.CheckVersion(version); err != nil {
		return refuse("version %v", err)
	}
	return nil
}

// checkText validates text that is shown to operators.
func checkText(what, s string, limit int) error {
	if len(s) > limit {
		return refuse("%s has %d bytes, limit %d", what, len(s), limit)
	}
	if !utf8.ValidString(s) {
		return refuse("%s is not UTF-8: %q", what, s)
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		return refuse("%s %q has an unprintable character at byte %d", what, s, i)
	}
	return nil
}

// raggedHints returns hints for the author of a batched model: about declarations that fail only
// when two rows of a batch have answers of different sizes.
func raggedHints(spec scheduler.Spec) (list []string) {
	if !spec.Batched() {
		return nil
	}
	for _, t := range spec.Outputs {
		if t.Ragged == "" && slices.Contains(t.Shape[1:], -1) {
			list = append(list,
				fmt.Sprintf("output %s: the rows of one batch, and of one request, must agree in the sizes that are "+
					"declared as -1. If they do not, declare it ragged, or pad it and give the counts as another output, "+
					"or say batched = false", t))
		}
	}
	return list
}

// hasImages reports whether some input accepts image files.
func hasImages(spec scheduler.Spec) bool {
	return slices.ContainsFunc(spec.Inputs, func(t tensor.Spec) bool { return t.Image != nil })
}

// hasRegions reports whether some input takes regions of pictures.
func hasRegions(spec scheduler.Spec) bool {
	return slices.ContainsFunc(spec.Inputs, func(t tensor.Spec) bool { return t.Regions != "" })
}

// withRegions adds an input to the end of a declaration for the regions of each input of pictures
// that has some: at the end, so that the inputs that clients send by position stay where they are.
func withRegions(inputs []tensor.Spec) ([]tensor.Spec, error) {
	for _, t := range slices.Clone(inputs) {
		if t.Image == nil || !t.Image.Regions {
			continue
		}
		added := tensor.RegionsOf(t.Name)
		if slices.ContainsFunc(inputs, func(o tensor.Spec) bool { return o.Name == added.Name }) {
			return nil, refuse("input %q is declared, but the server adds it for the regions of input %q: "+
				"call it otherwise", added.Name, t.Name)
		}
		inputs = append(inputs, added)
	}
	if len(inputs) > wire.MaxTensors {
		return nil, refuse("%d inputs, with those that the server adds for regions, expected at most %d",
			len(inputs), wire.MaxTensors)
	}
	return inputs, nil
}

// checkLabels validates the names of classes. They are text in any script, including the joiners
// of some scripts, which are unprintable by themselves, so the rules are laxer than for names.
func checkLabels(where string, labels []string) error {
	for i, s := range labels {
		if len(s) > wire.MaxLabel {
			return refuse("label %d of %s has %d bytes, limit %d", i, where, len(s), wire.MaxLabel)
		}
		if k := strings.IndexFunc(s, unicode.IsControl); k >= 0 {
			return refuse("label %d of %s, %q, has a control character at byte %d", i, where, s, k)
		}
	}
	return nil
}

func readTensors(what string, list []wire.TensorMessage, limits Limits) ([]tensor.Spec, error) {
	specs := make([]tensor.Spec, len(list))
	names := make(map[string]bool, len(list))
	for i, t := range list {
		where := what + " " + strconv.Itoa(i)
		if t.Name == "" {
			return nil, refuse("%s has no name", where)
		}
		if err := checkText("name of "+where, t.Name, wire.MaxName); err != nil {
			return nil, err
		}
		where = what + " " + strconv.Quote(t.Name)
		if names[t.Name] {
			return nil, refuse("%s is declared twice", where)
		}
		names[t.Name] = true
		d, ok := tensor.FromV2(t.Datatype)
		if !ok {
			return nil, refuse("%s has datatype %.32q, expected one of the Predict Protocol V2 (FP32, UINT8, BYTES, …)",
				where, t.Datatype)
		}
		if t.Shape == nil {
			return nil, refuse("%s has no shape", where)
		}
		row := tensor.Shape{int(max(1, d.Size()))}
		for _, n := range t.Shape {
			if n < -1 || n == 0 {
				return nil, refuse("%s has shape %v: a dimension is its size, or -1 for any", where, t.Shape)
			}
			if n > 0 {
				row = append(row, n)
			}
		}
		if n, ok := row.Elements(); !ok || int64(n) > limits.MessageBytes {
			return nil, refuse("%s has shape %v of %s: one row is larger than the limit of %d bytes for a message",
				where, t.Shape, t.Datatype, limits.MessageBytes)
		}
		if t.Format != "" && t.Format != tensor.FormatNHWC && t.Format != tensor.FormatNCHW {
			return nil, refuse("%s has format %.32q, expected %s or %s",
				where, t.Format, tensor.FormatNHWC, tensor.FormatNCHW)
		}
		if err := checkLabels(where, t.Labels); err != nil {
			return nil, err
		}
		specs[i] = tensor.Spec{Name: t.Name, DType: d, Shape: tensor.Shape(t.Shape), Optional: t.Optional,
			Ragged: t.Ragged,
			Format: t.Format, Image: (*tensor.Image)(t.Image), Labels: t.Labels}
	}
	return specs, nil
}
