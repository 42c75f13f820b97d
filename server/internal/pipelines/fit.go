package pipelines

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Plan is a pipeline that fits its models as they are declared now. It is immutable.
type Plan struct {
	of     *Pipeline
	Spec   scheduler.Spec // as clients see the pipeline
	stages []step         // parallel to those of the pipeline
	answer []member       // parallel to Spec.Outputs
	asked  int            // stages that read the request
}

// A step is a stage with its model.
type step struct {
	*stage
	target *gate.Target
	feeds  []feed
	each   int // index of the output of Each, of the model of that stage; -1: none
	boxes  int // index into feeds of the picture whose regions the elements are; -1: they are rows
	cuts   int // index into feeds of the one picture that regions are of; -1: each row has its own
	filter siblings

	first   bool   // it reads nothing but the request
	makers  []int  // the stages that it reads, each once
	uses    []use  // what it reads of them, each once
	readers []int  // by output of the model: how many stages read it
	asks    bool   // it reads the request, too
	shown   []bool // by output of the model: it is in the answer
}

// siblings are the outputs that a filter reads, by index into those of the model; -1: not read.
type siblings struct{ labels, classes, scores int }

// A use is an output of a stage that another one reads.
type use struct{ stage, output int }

// A feed is where an input of a stage's model comes from.
type feed struct {
	input   int    // index into the inputs of the model
	from    int    // the stage that makes it, or request
	output  int    // index into the outputs of that stage's model, or into the pipeline's inputs
	element bool   // the row gets its element of the output, not all that its parent row has
	regions string // the input of the model that takes regions of this picture; "": none does
}

// Suffixes of what the answer says of a stage besides the outputs of its model.
const (
	ofMember     = ".of"     // INT32 for each row: the index of its element among all of Each
	statusMember = ".status" // INT32 for each row: 0, or the code of its error
	rowsMember   = ".rows"   // INT32 for each parent row: how many rows the stage has of it
)

// A member is one tensor of the answer.
type member struct {
	kind   memberKind
	stage  int
	output int  // index into the outputs of the stage's model; of value and lengths
	flat   bool // a value of a model that is not batched, with a size of its own for each row
}

type memberKind uint8

const (
	value   memberKind = iota // an output of a stage's model
	lengths                   // how many values of such an output belong to each row
	parents                   // ofMember
	status                    // statusMember
	rows                      // rowsMember
)

// Fit compares a pipeline with the declarations of its models, along all edges. find returns the
// target of a stage's model, as "m" or "m/2". The error is that of find for the first model that
// is not there; else it wraps scheduler.ErrInvalidInput and lists all faults.
func (p *Pipeline) Fit(find func(model string) (*gate.Target, error)) (*Plan, error) {
	f := &fitter{Plan: &Plan{of: p, stages: make([]step, len(p.stages))}}
	for i := range p.stages {
		s := &p.stages[i]
		target, err := find(s.Model)
		if err != nil {
			return nil, p.in(s.Name, err)
		}
		f.stages[i] = step{stage: s, target: target, each: -1, boxes: -1, cuts: -1, filter: siblings{-1, -1, -1}}
	}
	for i := range f.stages {
		f.feed(&f.stages[i])
		f.elements(&f.stages[i])
		f.stages[i].findCuts()
	}
	if f.faults == nil {
		f.inputs()
	}
	if f.faults == nil {
		f.outputs()
	}
	if f.faults != nil {
		return nil, fault.Invalid("pipeline %q: %s", p.Name, strings.Join(f.faults, "; "))
	}
	f.edges()
	return f.Plan, nil
}

// edges notes who reads what, so that it is given up after the last one.
func (f *fitter) edges() {
	for i := range f.stages {
		n := len(f.stages[i].target.Spec.Outputs)
		f.stages[i].shown, f.stages[i].readers = make([]bool, n), make([]int, n)
	}
	for i := range f.stages {
		s := &f.stages[i]
		for _, from := range s.sources() {
			s.asks = s.asks || from.stage == request
			if from.stage != request && !slices.Contains(s.makers, from.stage) {
				s.makers = append(s.makers, from.stage)
			}
		}
		if s.first = len(s.makers) == 0; s.asks {
			f.asked++
		}
		for _, fed := range s.feeds {
			f.uses(s, fed.from, fed.output)
		}
		if s.Each != "" {
			for _, output := range []int{s.each, s.filter.labels, s.filter.classes, s.filter.scores} {
				f.uses(s, s.stage.each.stage, output)
			}
		}
	}
	for _, m := range f.answer {
		if m.kind == value || m.kind == lengths {
			f.stages[m.stage].shown[m.output] = true
		}
	}
}

// uses notes that a stage reads an output of another one.
func (f *fitter) uses(s *step, stage, output int) {
	one := use{stage, output}
	if stage == request || output < 0 || slices.Contains(s.uses, one) {
		return
	}
	s.uses = append(s.uses, one)
	f.stages[stage].readers[output]++
}

// A fitter collects what does not fit.
type fitter struct {
	*Plan
	faults []string
}

func (f *fitter) add(s *step, format string, args ...any) {
	f.faults = append(f.faults, fmt.Sprintf("stage %q: %s", s.Name, fmt.Sprintf(format, args...)))
}

// rowOf is the shape of what an output has for one row of a request.
func rowOf(spec *scheduler.Spec, t *tensor.Spec) tensor.Shape {
	switch {
	case t.Ragged != "":
		return append(tensor.Shape{-1}, t.Shape[1:]...)
	case spec.Batched():
		return t.Shape[1:]
	}
	return t.Shape
}

func byName(specs []tensor.Spec, name string) int {
	return slices.IndexFunc(specs, func(s tensor.Spec) bool { return s.Name == name })
}

func list(specs []tensor.Spec) string {
	if len(specs) == 0 {
		return "none"
	}
	return gate.Join(specs, func(s tensor.Spec) string { return fmt.Sprintf("%q %s %s", s.Name, s.DType, s.Shape) }, ", ")
}

// output finds an output of a stage's model. ok is false if the model declares none of that name,
// which is a fault of the stage that reads it.
func (f *fitter) output(reader *step, where string, from source) (output int, ok bool) {
	maker := &f.stages[from.stage]
	output = byName(maker.target.Spec.Outputs, from.output)
	if output < 0 {
		f.add(reader, "%s: stage %q makes no %q: model %q has the outputs %s",
			where, maker.Name, from.output, maker.Model, list(maker.target.Spec.Outputs))
	}
	return output, output >= 0
}

// feed finds where the inputs of a stage's model come from.
func (f *fitter) feed(s *step) {
	spec := &s.target.Spec
	for _, from := range s.reads {
		where := "input " + strconv.Quote(from.input)
		in := byName(spec.Inputs, from.input)
		if in < 0 {
			f.add(s, "model %q has no %s; it takes %s", s.Model, where, list(spec.Inputs))
			continue
		}
		fed := feed{input: in, from: from.stage}
		if from.stage == request {
			fed.output = slices.Index(f.of.Inputs, from.output)
		} else {
			output, ok := f.output(s, where, from)
			if !ok {
				continue
			}
			fed.output = output
			fed.element = s.Each != "" && from.stage == s.stage.each.stage && f.sibling(s, output)
			f.compare(s, &fed)
		}
		s.feeds = append(s.feeds, fed)
	}
	for i := range spec.Inputs {
		in := &spec.Inputs[i]
		if !in.Optional && !slices.ContainsFunc(s.feeds, func(o feed) bool { return o.input == i }) {
			if _, named := s.Inputs[in.Name]; !named {
				f.add(s, "input %q of model %q is missing: expected %s %s", in.Name, s.Model, in.DType, in.Shape)
			}
		}
	}
}

// sibling reports whether an output of the stage that makes the elements has a value for each.
func (f *fitter) sibling(s *step, output int) bool {
	spec := &f.stages[s.stage.each.stage].target.Spec
	each := byName(spec.Outputs, s.stage.each.output)
	if each < 0 {
		return false
	}
	a, b := &spec.Outputs[each], &spec.Outputs[output]
	if output == each {
		return true
	}
	x, y := rowOf(spec, a), rowOf(spec, b)
	return a.Ragged == b.Ragged && len(x) > 0 && len(y) > 0 && x[0] == y[0]
}

// compare checks that what a stage makes can be an input of another one's model.
func (f *fitter) compare(s *step, fed *feed) {
	maker, spec := &f.stages[fed.from], &s.target.Spec
	out, in := &maker.target.Spec.Outputs[fed.output], &spec.Inputs[fed.input]
	got, want := rowOf(&maker.target.Spec, out), in.Shape
	if spec.Batched() {
		want = want[1:]
	}
	of := "row"
	if fed.element {
		got, of = got[1:], "element"
	}
	if _, ok := meet(got, want); ok &&
		(in.DType == out.DType || in.Takes(out.DType) || casts(s.target, out.DType, in.DType)) {
		return
	}
	hint := ""
	if !fed.element && len(got) > len(want) && s.Each == "" {
		hint = fmt.Sprintf(" (each = %q would make a row of each)", maker.Name+"."+out.Name)
	}
	f.add(s, "input %q of model %q: expected %s %s for a row, got %s %s for each %s of %q%s",
		in.Name, s.Model, in.DType, want, out.DType, got, of, maker.Name+"."+out.Name, hint)
}

// casts reports whether the gate casts tensors of one type to another for the model.
func casts(t *gate.Target, from, to tensor.DType) bool {
	return t.Cast != setting.CastNever && tensor.Casts(from, to)
}

// meet returns the shape of tensors that fit both; ok is false if there are none.
func meet(a, b tensor.Shape) (both tensor.Shape, ok bool) {
	if len(a) != len(b) {
		return nil, false
	}
	both = slices.Clone(a)
	for i := range a {
		switch {
		case a[i] == -1:
			both[i] = b[i]
		case b[i] != -1 && a[i] != b[i]:
			return nil, false
		}
	}
	return both, true
}

// elements checks what Each and Keep name.
func (f *fitter) elements(s *step) {
	if s.Each == "" {
		return
	}
	output, ok := f.output(s, "each", s.stage.each)
	if !ok {
		return
	}
	s.each = output
	maker := &f.stages[s.stage.each.stage]
	spec := &maker.target.Spec
	out := &spec.Outputs[output]
	row := rowOf(spec, out)
	if len(row) == 0 {
		f.add(s, "each: %q has no elements: it is one %s for each row, %s", s.Each, out.DType, out.Shape)
		return
	}
	if !slices.ContainsFunc(s.feeds, func(o feed) bool { return o.element }) {
		if err := f.regions(s, out, row[1:]); err != nil {
			f.add(s, "each: %v", err)
			return
		}
	}
	f.keep(s, maker)
}

// regions makes the elements regions of the picture that the stage reads.
func (f *fitter) regions(s *step, out *tensor.Spec, element tensor.Shape) error {
	if out.DType != tensor.Float32 || !element.Equal(tensor.Shape{4}) && !element.Equal(tensor.Shape{4, 2}) {
		return fmt.Errorf("%q has elements of %s %s: expected boxes, FP32 [4] or [4, 2], or an input that gets them",
			s.Each, out.DType, element)
	}
	specs := s.target.Spec.Inputs
	for i := range s.feeds {
		picture := specs[s.feeds[i].input].Name
		at := slices.IndexFunc(specs, func(in tensor.Spec) bool { return in.Regions == picture })
		if at < 0 {
			continue
		}
		name := specs[at].Name
		if _, given := s.Inputs[name]; given {
			continue
		}
		if s.boxes >= 0 {
			return fmt.Errorf("%q are boxes, and two inputs of model %q take regions: %q and %q; expected one",
				s.Each, s.Model, specs[s.feeds[s.boxes].input].Name, specs[s.feeds[i].input].Name)
		}
		s.boxes, s.feeds[i].regions = i, name
	}
	if s.boxes < 0 {
		return fmt.Errorf("%q are boxes, and no input of this stage takes regions of a picture: model %q takes %s; its container must declare regions for its image (Image(…, regions=True)), or an input must name %q",
			s.Each, s.Model, list(specs), s.Each)
	}
	return nil
}

// findCuts finds the picture whose regions the rows are, by boxes or by an input of regions. The
// number of a picture is that of all pictures of a row, so it is new for each row if there are
// several, or if each row gets a picture of its own.
func (s *step) findCuts() {
	specs, found := s.target.Spec.Inputs, 0
	for i, fed := range s.feeds {
		if fed.regions != "" || slices.ContainsFunc(s.feeds, func(o feed) bool {
			return specs[o.input].Regions == specs[fed.input].Name
		}) {
			s.cuts = i
			found++
		}
	}
	if found > 1 || found == 1 && s.feeds[s.cuts].element {
		s.cuts = -1
	}
}

// keep finds what the filter of a stage reads.
func (f *fitter) keep(s *step, maker *step) {
	if s.Keep == nil {
		return
	}
	find := func(name string, ok func(tensor.DType) bool) int {
		i := byName(maker.target.Spec.Outputs, name)
		if i < 0 || !f.sibling(s, i) || !ok(maker.target.Spec.Outputs[i].DType) {
			return -1
		}
		if row := rowOf(&maker.target.Spec, &maker.target.Spec.Outputs[i]); len(row) != 1 {
			return -1
		}
		return i
	}
	is := func(types ...tensor.DType) func(tensor.DType) bool {
		return func(d tensor.DType) bool { return slices.Contains(types, d) }
	}
	if len(s.Keep.Classes) > 0 {
		s.filter.labels = find("labels", is(tensor.Bytes))
		if s.filter.labels < 0 {
			s.filter.classes = find("classes", is(tensor.Int32, tensor.Int64))
		}
		if s.filter.labels < 0 && s.filter.classes < 0 {
			f.add(s, "keep: classes: stage %q has neither \"labels\" BYTES nor \"classes\" INT32 or INT64 with one value for each element of %q: its outputs are %s",
				maker.Name, s.Each, list(maker.target.Spec.Outputs))
		}
	}
	if s.Keep.Score != 0 || s.Keep.Most > 0 {
		s.filter.scores = find("scores", is(tensor.Float32))
		if s.filter.scores < 0 && s.Keep.Score != 0 {
			f.add(s, "keep: score: stage %q has no \"scores\" FP32 with one value for each element of %q: its outputs are %s",
				maker.Name, s.Each, list(maker.target.Spec.Outputs))
		}
	}
	if s.Keep.Smallest > 0 && s.boxes < 0 {
		f.add(s, "keep: smallest is for boxes that become regions of a picture, and the elements of %q become rows", s.Each)
	}
}

// inputs declares what a request to the pipeline brings: what all that read an input take.
func (f *fitter) inputs() {
	f.Spec.Batching = scheduler.BatchingRows
	f.Spec.Inputs = make([]tensor.Spec, len(f.of.Inputs))
	first := make([]*step, len(f.of.Inputs))
	for i := range f.stages {
		s := &f.stages[i]
		for _, fed := range s.feeds {
			if fed.from != request {
				continue
			}
			in := s.target.Spec.Inputs[fed.input]
			if !s.target.Spec.Batched() {
				in.Shape = append(tensor.Shape{-1}, in.Shape...)
			}
			in.Name, in.Optional = f.of.Inputs[fed.output], false
			if in.Image != nil && in.Image.Regions {
				whole := *in.Image // requests bring whole pictures, of which stages read regions
				whole.Regions = false
				in.Image = &whole
			}
			into := &f.Spec.Inputs[fed.output]
			if first[fed.output] == nil {
				first[fed.output], *into = s, in
			} else if err := both(into, &in); err != nil {
				f.add(s, "input %q: stage %q takes %s, this one %s: %v", in.Name, first[fed.output].Name, *into, in,
					err)
			}
		}
	}
}

// both narrows an input to what also fits another reader of it.
func both(into, in *tensor.Spec) error {
	shape, ok := meet(into.Shape, in.Shape)
	switch {
	case into.DType != in.DType:
		return errors.New("the types differ")
	case into.Image != nil && in.Image != nil && into.Image.Channels != in.Image.Channels:
		return errors.New("the channels of the pictures differ")
	case into.Format != in.Format && into.Format != "" && in.Format != "":
		return errors.New("the formats differ")
	case !ok:
		return errors.New("the shapes differ")
	}
	if into.Shape = shape; into.Image != nil && in.Image != nil && *into.Image != *in.Image {
		into.Image = &tensor.Image{Channels: in.Image.Channels} // each model resizes for itself
	} else if into.Image == nil || in.Image == nil {
		into.Image = nil // a reader of pixels takes no files
	}
	if into.Format == "" {
		into.Format = in.Format
	}
	return nil
}

// outputs declares the answer: the outputs in the order of the stages and of their models'
// declarations, the counts that they need, and for each stage what is said of its rows.
func (f *fitter) outputs() {
	for i := range f.stages {
		s := &f.stages[i]
		wanted := f.wanted(s)
		for output, name := range wanted {
			if name != "" {
				f.declare(i, output, name, wanted)
			}
		}
		int32s := func(kind memberKind, suffix string, scope int) {
			f.member(member{kind: kind, stage: i}, tensor.Spec{
				Name: s.Name + suffix, DType: tensor.Int32, Shape: tensor.Shape{-1}, Ragged: f.countOf(scope),
			})
		}
		if s.Each != "" {
			int32s(rows, rowsMember, f.of.parent(i))
			int32s(parents, ofMember, i)
		}
		if s.Each != "" || !s.needed {
			int32s(status, statusMember, s.scope)
		}
	}
	for i := range f.Spec.Outputs {
		name := f.Spec.Outputs[i].Name
		if byName(f.Spec.Outputs, name) < i {
			f.add(&f.stages[f.answer[i].stage], "two tensors of the answer have the name %q: name the outputs, and one of them otherwise", name)
		}
	}
}

// wanted returns the names of the outputs of a stage's model in the answer, "" for those that are
// not in it. Counts of ragged outputs that are in it are, too.
func (f *fitter) wanted(s *step) []string {
	specs := s.target.Spec.Outputs
	names := make([]string, len(specs))
	for i := range specs {
		if f.of.Outputs == nil {
			names[i] = s.Name + "." + specs[i].Name
		}
	}
	for name, text := range f.of.Outputs {
		stage, output, _ := strings.Cut(text, ".")
		if stage != s.Name {
			continue
		}
		i := byName(specs, output)
		if i < 0 {
			f.add(s, "output %q of the pipeline: model %q makes no %q: its outputs are %s", name, s.Model, output,
				list(specs))
			continue
		}
		if names[i] != "" {
			f.add(s, "output %q of the pipeline: %q is in the answer twice, also as %q", name, text, names[i])
		}
		names[i] = name
	}
	for i := range specs {
		if by := byName(specs, specs[i].Ragged); names[i] != "" && specs[i].Ragged != "" && names[by] == "" {
			names[by] = s.Name + "." + specs[by].Name
		}
	}
	return names
}

// declare adds an output of a stage's model to the answer.
func (f *fitter) declare(i, output int, name string, wanted []string) {
	s := &f.stages[i]
	spec := s.target.Spec.Outputs[output]
	row := rowOf(&s.target.Spec, &spec)
	declared := tensor.Spec{Name: name, DType: spec.DType, Labels: spec.Labels, Ragged: f.countOf(s.scope)}
	flat := false
	switch {
	case spec.Ragged != "":
		declared.Shape = row
		declared.Ragged = wanted[byName(s.target.Spec.Outputs, spec.Ragged)]
	case !s.target.Spec.Batched() && len(row) > 0 && row[0] == -1:
		// Each execution may return another number of values.
		declared.Shape, declared.Ragged = row, name+rowsMember
		flat = true
		f.member(member{kind: lengths, stage: i, output: output}, tensor.Spec{
			Name: declared.Ragged, DType: tensor.Int32, Shape: tensor.Shape{-1}, Ragged: f.countOf(s.scope),
		})
	default:
		declared.Shape = append(tensor.Shape{-1}, row...)
	}
	f.member(member{value, i, output, flat}, declared)
}

// countOf names the tensor that says how many rows of a scope each parent row has; "": the rows are
// those of the request.
func (f *fitter) countOf(scope int) string {
	if scope == request {
		return ""
	}
	return f.of.stages[scope].Name + rowsMember
}

func (f *fitter) member(m member, spec tensor.Spec) {
	f.answer, f.Spec.Outputs = append(f.answer, m), append(f.Spec.Outputs, spec)
}
