// Package nested makes objects of the answer of a pipeline, which is flat tensors: each object has
// what its stage answered, the objects that were found in it, and what later stages say of them.
//
// A stage has one object for each of its rows. Outputs that have the same number of values, such as
// boxes, scores and labels, become a list of objects; the row that a later stage had for one of
// them is in it, under the name of that stage:
//
//	{"detect": {"objects": [
//	    {"boxes": [9, 4, 30, 12], "labels": "plate", "read": {"text": "B 42"}},
//	    {"boxes": [50, 8, 71, 16], "labels": "plate", "read": {"status": 504}}]}}
//
// A stage has no object in those elements that its keep left out. The outputs of a row that failed
// have no values: it has its status, which is the code of the error.
package nested

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/shivad/shivad/shiva/tensor"
)

// A Pipeline is what the metadata of a model says of it ("pipeline"), if it is one.
type Pipeline struct {
	// Stages come after those that they read.
	Stages []Stage `json:"stages"`
	// Outputs has "STAGE.OUTPUT" for the tensors of the answer that are outputs of models, by their
	// names in the answer.
	Outputs map[string]string `json:"outputs"`
}

// A Stage is a step of a pipeline.
type Stage struct {
	Name  string `json:"name"`
	Model string `json:"model"`
	Each  string `json:"each,omitempty"` // "STAGE.OUTPUT", each of whose elements is a row of it
}

// An Object is a row of the request or of a stage, or what a stage has found in one.
type Object struct{ Fields []Field }

// A Field is a value, an object or a list of objects.
type Field struct {
	Name   string
	Output string        // of a value: what the stage's model calls it
	Labels []string      // of a value: the names of its classes, if they are declared
	Value  tensor.Tensor // of one row or element, in the memory of the answer; of neither of these:
	Object *Object
	List   []*Object // not nil, even if it is empty
}

// Field returns the field of that name; nil if there is none.
func (o *Object) Field(name string) *Field {
	if i := slices.IndexFunc(o.Fields, func(f Field) bool { return f.Name == name }); i >= 0 {
		return &o.Fields[i]
	}
	return nil
}

// Suffixes of what an answer says of a stage besides the outputs of its model.
const (
	ofSuffix     = ".of"
	statusSuffix = ".status"
	rowsSuffix   = ".rows"
)

// Objects is the name of a list of what a stage has found, if it has only one such list.
const Objects = "objects"

// Of returns one object for each row of the request. declared are the outputs of the pipeline as
// its metadata has them; tensors, which keep their memory, those that the answer has. Outputs that
// were not asked for are left out, and so are the objects that cannot be placed without them.
func (p *Pipeline) Of(declared []tensor.Spec, tensors []tensor.Tensor, rows int) ([]*Object, error) {
	b := &builder{
		Pipeline: p, specs: map[string]*tensor.Spec{}, tensors: map[string]*tensor.Tensor{},
		rows:     map[string][]*Object{"": make([]*Object, rows)},
		elements: map[string][]*Object{},
	}
	for i := range declared {
		b.specs[declared[i].Name] = &declared[i]
	}
	for i := range tensors {
		b.tensors[tensors[i].Name] = &tensors[i]
	}
	for i := range rows {
		b.rows[""][i] = &Object{}
	}
	for i := range p.Stages {
		if err := b.stage(&p.Stages[i], declared); err != nil {
			return nil, err
		}
	}
	return b.rows[""], nil
}

// A builder places the rows of one stage after the other.
type builder struct {
	*Pipeline
	specs    map[string]*tensor.Spec
	tensors  map[string]*tensor.Tensor
	rows     map[string][]*Object // by the stage whose Each made them; "": those of the request
	elements map[string][]*Object // of an output, "STAGE.OUTPUT"
}

// scope returns the stage whose rows a tensor belongs to, "" for the rows of the request, and the
// name of the tensor that says how many values each row has; "": one.
func (b *builder) scope(spec *tensor.Spec) (scope, counts string) {
	for by := spec.Ragged; by != ""; by = spec.Ragged {
		if name, ok := strings.CutSuffix(by, rowsSuffix); ok && b.each(name) != "" {
			return name, counts
		}
		if counts = cmp.Or(counts, by); b.specs[by] == nil {
			break
		}
		spec = b.specs[by]
	}
	return "", counts
}

// each is what the rows of a stage are made of; "" if they are those of what it reads.
func (b *builder) each(stage string) string {
	if i := slices.IndexFunc(b.Stages, func(s Stage) bool { return s.Name == stage }); i >= 0 {
		return b.Stages[i].Each
	}
	return ""
}

// stage adds the objects of a stage.
func (b *builder) stage(s *Stage, declared []tensor.Spec) error {
	var flat, found []*tensor.Spec // a value for each row, and several
	scope := s.Name
	if s.Each == "" {
		scope = ""
	}
	for i := range declared {
		spec := &declared[i]
		if maker, _, _ := strings.Cut(b.Outputs[spec.Name], "."); maker != s.Name {
			continue
		}
		of, counts := b.scope(spec)
		scope = cmp.Or(scope, of)
		switch {
		case b.tensors[spec.Name] == nil || b.counts(spec.Name):
		case counts == "":
			flat = append(flat, spec)
		case b.tensors[counts] != nil:
			found = append(found, spec)
		}
	}
	if s.Each == "" && flat == nil && found == nil {
		return nil
	}
	objects, err := b.objects(s, scope)
	if err != nil {
		return err
	}
	failed, err := b.failed(s, objects)
	if err != nil {
		return err
	}
	for _, spec := range flat {
		err := b.slice(spec, len(objects), func(i int, value tensor.Tensor) {
			if !failed[i] {
				objects[i].add(b.field(spec, value))
			}
		})
		if err != nil {
			return err
		}
	}
	return b.found(found, objects, failed)
}

func (o *Object) add(f Field) { o.Fields = append(o.Fields, f) }

// counts reports whether a tensor says how many values another one has, which the objects show.
func (b *builder) counts(name string) bool {
	for _, spec := range b.specs {
		if spec.Ragged == name {
			return true
		}
	}
	return false
}

// short is the name of an output in the object of its stage: without the stage, or as the pipeline
// names it.
func (b *builder) short(name string) string {
	if from := b.Outputs[name]; from == name {
		_, name, _ = strings.Cut(from, ".")
	}
	return name
}

func (b *builder) field(spec *tensor.Spec, value tensor.Tensor) Field {
	_, output, _ := strings.Cut(b.Outputs[spec.Name], ".")
	return Field{Name: b.short(spec.Name), Output: output, Labels: spec.Labels, Value: value}
}

// objects returns the objects of the rows of a stage, in the rows or elements that they belong to.
func (b *builder) objects(s *Stage, scope string) ([]*Object, error) {
	if s.Each == "" {
		objects := make([]*Object, len(b.rows[scope]))
		for i, row := range b.rows[scope] {
			objects[i] = &Object{}
			row.add(Field{Name: s.Name, Object: objects[i]})
		}
		return objects, nil
	}
	of, known, err := b.integers(s.Name + ofSuffix)
	if err != nil || !known || b.specs[s.Name+ofSuffix] == nil {
		return nil, err
	}
	objects := make([]*Object, len(of))
	elements, placed := b.elements[s.Each]
	for i, at := range of {
		objects[i] = &Object{}
		switch {
		case !placed: // the elements are not in the answer
		case at < 0 || at >= len(elements):
			return nil, fmt.Errorf("%s%s: row %d is of element %d, and %s has %d", s.Name, ofSuffix, i, at, s.Each,
				len(elements))
		default:
			elements[at].add(Field{Name: s.Name, Object: objects[i]})
		}
	}
	b.rows[s.Name] = objects
	if !placed {
		return objects, b.list(s, of, objects)
	}
	return objects, nil
}

// list puts the objects of a stage, whose elements are not in the answer, into the rows around
// them, each with the index of its element.
func (b *builder) list(s *Stage, of []int, objects []*Object) error {
	per, known, err := b.integers(s.Name + rowsSuffix)
	if err != nil || !known || b.specs[s.Name+rowsSuffix] == nil {
		return err
	}
	around, _ := b.scope(b.specs[s.Name+rowsSuffix])
	parents := b.rows[around]
	if len(per) != len(parents) {
		return fmt.Errorf("%s%s: %d rows, expected %d", s.Name, rowsSuffix, len(per), len(parents))
	}
	at := 0
	for i, n := range per {
		if n < 0 || n > len(objects)-at {
			return fmt.Errorf("%s%s: more rows than the %d of %s%s", s.Name, rowsSuffix, len(of), s.Name, ofSuffix)
		}
		parents[i].add(Field{Name: s.Name, List: objects[at : at+n : at+n]})
		at += n
	}
	return b.slice(b.specs[s.Name+ofSuffix], len(objects), func(i int, value tensor.Tensor) {
		objects[i].add(Field{Name: "of", Value: value})
	})
}

// failed returns which rows of a stage have no values, and gives these their status.
func (b *builder) failed(s *Stage, objects []*Object) ([]bool, error) {
	failed := make([]bool, len(objects))
	spec := b.specs[s.Name+statusSuffix]
	codes, known, err := b.integers(s.Name + statusSuffix)
	if err != nil || !known || spec == nil {
		return failed, err
	}
	if len(codes) != len(objects) {
		return nil, fmt.Errorf("%s%s: %d codes, expected %d", s.Name, statusSuffix, len(codes), len(objects))
	}
	return failed, b.slice(spec, len(objects), func(i int, value tensor.Tensor) {
		if failed[i] = codes[i] != 0; failed[i] {
			objects[i].add(Field{Name: "status", Value: value})
		}
	})
}

// found adds the lists of what a stage has found in its rows.
func (b *builder) found(specs []*tensor.Spec, objects []*Object, failed []bool) error {
	var groups [][]*tensor.Spec
	for _, spec := range specs {
		i := slices.IndexFunc(groups, func(g []*tensor.Spec) bool { return g[0].Ragged == spec.Ragged })
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], spec)
	}
	for _, group := range groups {
		name := Objects
		if len(groups) > 1 {
			name = b.short(group[0].Name)
		}
		if err := b.group(name, group, objects, failed); err != nil {
			return err
		}
	}
	return nil
}

// group adds one list, of what outputs with the same counts say of each element. A single output of
// whose elements no stage asks is no list of objects, but a value.
func (b *builder) group(name string, group []*tensor.Spec, objects []*Object, failed []bool) error {
	counts, _, err := b.integers(group[0].Ragged)
	if err != nil {
		return err
	}
	total, most := 0, b.tensors[group[0].Name].Rows()
	for _, n := range counts {
		if n < 0 || n > most-total {
			return fmt.Errorf("%s: counts of more than the %d values of %s", group[0].Ragged, most, group[0].Name)
		}
		total += n
	}
	if len(counts) != len(objects) {
		return fmt.Errorf("%s: %d counts, expected %d", group[0].Ragged, len(counts), len(objects))
	}
	asked := func(spec *tensor.Spec) bool {
		return slices.ContainsFunc(b.Stages, func(s Stage) bool { return s.Each == b.Outputs[spec.Name] })
	}
	if len(group) == 1 && !asked(group[0]) {
		return b.values(group[0], counts, objects, failed)
	}
	elements := make([]*Object, total)
	for i := range elements {
		elements[i] = &Object{}
	}
	at := 0
	for i, n := range counts {
		if !failed[i] {
			objects[i].add(Field{Name: name, List: elements[at : at+n : at+n]})
		}
		at += n
	}
	for _, spec := range group {
		b.elements[b.Outputs[spec.Name]] = elements
		err := b.slice(spec, total, func(i int, value tensor.Tensor) {
			elements[i].add(b.field(spec, value))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// values adds the part of a ragged output that belongs to each row.
func (b *builder) values(spec *tensor.Spec, counts []int, objects []*Object, failed []bool) error {
	rest := *b.tensors[spec.Name]
	for i, n := range counts {
		var part tensor.Tensor
		var err error
		if part, rest, err = rest.Cut(n); err != nil {
			return fmt.Errorf("%s: %w", spec.Name, err)
		}
		if !failed[i] {
			objects[i].add(b.field(spec, part))
		}
	}
	return nil
}

// slice calls what with the value of each of n rows, or elements, of an output. The only row of a
// request may be without its dimension.
func (b *builder) slice(spec *tensor.Spec, n int, what func(i int, value tensor.Tensor)) error {
	rest := *b.tensors[spec.Name]
	if len(rest.Shape) < len(spec.Shape) && n == 1 {
		what(0, rest)
		return nil
	}
	if len(rest.Shape) == 0 || rest.Shape[0] != n {
		return fmt.Errorf("%s: shape %v, expected %d rows", spec.Name, rest.Shape, n)
	}
	for i := range n {
		var part tensor.Tensor
		var err error
		if part, rest, err = rest.Cut(1); err != nil {
			return fmt.Errorf("%s: %w", spec.Name, err)
		}
		part.Shape = part.Shape[1:]
		what(i, part)
	}
	return nil
}

// integers returns the values of a tensor of the answer; known is false if it is not in it.
func (b *builder) integers(name string) (list []int, known bool, err error) {
	t := b.tensors[name]
	if t == nil {
		return nil, false, nil
	}
	wide, err := tensor.Cast(*t, tensor.Int64, nil)
	if err != nil {
		return nil, true, fmt.Errorf("%s: %w", name, err)
	}
	values, err := tensor.Values[int64](wide)
	for _, v := range values {
		list = append(list, int(v))
	}
	return list, true, err
}
