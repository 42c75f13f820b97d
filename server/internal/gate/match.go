package gate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// arrange makes the inputs of the request, from tensors, from texts in the metadata, or from the
// fields of a bridge.
func (c *Call) arrange(r *Request, pool *tensor.Pool) (err error) {
	tensors, adapter := r.Inputs, c.Target.Spec.Adapter
	// Without tensors, fields may hold the whole request.
	silent := len(tensors) == 0 && r.Texts == nil && (r.Legacy == nil || adapter == nil) && !r.Plain
	if r.Bridge || silent && (r.Parameters != nil || r.Legacy != nil) {
		var named []tensor.Tensor
		if named, c.Bridge, err = c.cross(r, pool); err != nil {
			return err
		}
		if c.Bridge {
			tensors = named
		}
	}
	// Alongside tensors or texts, the key is the client's own.
	if r.Legacy != nil && adapter == nil && !c.Bridge && len(tensors) == 0 && r.Texts == nil {
		if len(c.Target.Spec.Inputs) == 0 {
			return fault.Invalid("metadata \"inputs\": model %q takes no inputs", c.Target.ID.Name)
		}
		return fault.Invalid("metadata \"inputs\" is only for containers of RPC v0 to v3; model %q takes texts by name in %q, an object that gives each input a text or nested lists of texts; its inputs are %s",
			c.Target.ID.Name, shiva.TextsKey, list(c.Target.Spec.Inputs))
	}
	var texts []tensor.Tensor
	if r.Texts != nil {
		if texts, err = c.texts(r, pool); err != nil {
			return err
		}
	}
	if adapter != nil {
		if len(texts) > 0 && len(tensors) > 0 {
			return fault.Invalid("input %q is given twice: in metadata %q and as a tensor", texts[0].Name,
				shiva.TextsKey)
		}
		spec := &c.Target.Spec
		made, err := adapter.Inputs(spec, append(texts, tensors...), r.Legacy, r.Batch, pool)
		if err != nil {
			return inputError(&spec.Inputs[0], err)
		}
		c.owned = append(c.owned, made...)
		return c.match(made, nil, pool)
	}
	if err = checkParameters(r.Parameters); err != nil {
		return err
	}
	if c.Target.pictures && r.Parameters != nil && !c.Bridge && !r.Plain {
		regions, err := c.listed(r, pool)
		if err != nil {
			return err
		}
		texts = append(texts, regions...)
	}
	return c.match(tensors, texts, pool)
}

// match fits tensors, and texts by name, to the declared inputs in their declared order, and counts
// the rows.
func (c *Call) match(tensors, texts []tensor.Tensor, pool *tensor.Pool) error {
	specs := c.Target.Spec.Inputs
	named := len(tensors) > 0 && tensors[0].Name != ""
	used, present, squeezed := 0, 0, 0
	for i := range specs {
		spec := &specs[i]
		from, j := texts, indexByName(texts, spec.Name)
		if j < 0 {
			if from, j = tensors, used; named {
				j = indexByName(tensors, spec.Name)
			}
			if 0 <= j && j < len(tensors) {
				used++
			}
		}
		switch {
		case 0 <= j && j < len(from):
		case spec.Optional:
			// A placeholder for an optional input that was not sent.
			c.Inputs = append(c.Inputs, tensor.Tensor{Name: spec.Name, DType: spec.DType})
			continue
		case named:
			return fault.Invalid("input %q is missing; model %q takes %s, got %s",
				spec.Name, c.Target.ID.Name, list(specs), names(tensors))
		default:
			return c.wrongCount(len(tensors))
		}
		t, one, err := c.fit(from[j], spec, pool)
		if err != nil {
			return err
		}
		if present++; one {
			squeezed++
		}
		c.Inputs = append(c.Inputs, t)
	}
	if used < len(tensors) {
		if named {
			for _, t := range tensors {
				if !slices.ContainsFunc(specs, func(s tensor.Spec) bool { return s.Name == t.Name }) {
					if c.isOfPictures(t.Name) {
						return c.noRegions(t.Name)
					}
					return fault.Invalid("no input %q; model %q takes %s", t.Name, c.Target.ID.Name, list(specs))
				}
			}
			return fault.Invalid("an input is given twice: %s", names(tensors))
		}
		return c.wrongCount(len(tensors))
	}
	if !c.Target.Spec.Batched() {
		c.Rows, c.Squeeze = 1, true // even if all inputs were omitted
		return nil
	}
	var err error
	if c.Rows, err = c.countRows(); err != nil {
		return err
	}
	c.Squeeze = squeezed == present
	if c.Target.regions {
		return c.checkCuts()
	}
	return nil
}

// countRows returns the number of rows, in which all inputs must agree: those that are present, but
// for the one picture of which the rows are regions.
func (c *Call) countRows() (int, error) {
	specs, first := c.Target.Spec.Inputs, -1
	for i := range c.Inputs {
		t := &c.Inputs[i]
		if len(t.Shape) == 0 {
			continue // an optional input that was not sent
		}
		if c.Target.regions && c.regionsOf(i) != nil {
			if t.Shape[0] != 1 {
				return 0, fault.Invalid("input %q has %d pictures, but regions are of one: got %s %s with %q",
					t.Name, t.Shape[0], t.DType, t.Shape, t.Name+tensor.RegionsSuffix)
			}
			continue
		}
		if first < 0 {
			first = i
		} else if n := c.Inputs[first].Shape[0]; t.Shape[0] != n {
			return 0, fault.Invalid("input %q has %s, but input %q has %d", specs[i].Name, plural.Of(t.Shape[0], "row"),
				specs[first].Name, n)
		}
	}
	if first < 0 {
		return 1, nil // nothing else counts them
	}
	return c.Inputs[first].Shape[0], nil
}

// fit checks one tensor against its declaration. It returns the tensor with its batch dimension,
// and whether that dimension was added.
func (c *Call) fit(t tensor.Tensor, spec *tensor.Spec,
	pool *tensor.Pool) (fitted tensor.Tensor, added bool, err error) {
	switch {
	case spec.Image != nil && holdsFiles(&t):
		return c.files(t, spec, pool)
	case spec.Regions != "":
		return c.corners(t, spec, pool)
	}
	got, shape := t, spec.Shape
	if c.Target.Spec.Batched() {
		shape = shape[1:] // shape of one row
	}
	if t.DType != spec.DType {
		switch {
		case spec.DType == tensor.Bytes && t.DType == tensor.Uint8:
			t, err = tensor.FromElems(slices.Repeat(tensor.Shape{1}, len(shape)), [][]byte{t.Data}, pool)
		case c.Target.Cast == setting.CastNearest, c.Target.Cast == setting.CastExact && isDouble(t.DType, spec.DType):
			t, err = tensor.CastNearest(t, spec.DType, pool)
		case c.Target.Cast == setting.CastExact:
			if t, err = tensor.Cast(t, spec.DType, pool); err != nil && tensor.Rounds(got.DType, spec.DType) &&
				!errors.Is(err, tensor.ErrBudget) {
				err = fmt.Errorf("%w; the setting cast = \"nearest\" of the model takes the nearest one", err)
			}
		default:
			return t, false, c.misfit(spec, got)
		}
		if err != nil {
			return t, false, inputError(spec, err)
		}
		t.Name = spec.Name
		c.owned = append(c.owned, t)
	}
	switch {
	case len(shape) < len(spec.Shape) && len(t.Shape) == len(spec.Shape) && t.Shape[1:].Fits(shape):
		return t, false, nil
	case !t.Shape.Fits(shape):
		return t, false, c.misfit(spec, got)
	}
	t.Shape = c.leadingOne(t.Shape)
	return t, true, nil
}

// misfit returns the error for a tensor that does not match its declaration.
func (c *Call) misfit(spec *tensor.Spec, got tensor.Tensor) error {
	return fault.Invalid("input %q: expected %s, got %s %s%s", spec.Name, c.expected(spec), got.DType, got.Shape,
		cure(got.DType, spec.DType))
}

// isDouble reports whether an input is of float64 where the model takes float32. numpy makes
// float64 of every quotient, so cast = true rounds it, too: a picture divided by 255 has no exact
// cast.
func isDouble(from, to tensor.DType) bool { return from == tensor.Float64 && to == tensor.Float32 }

// cure tells the sender of an input how to make it of the dtype that the model takes, if that is a
// type of numbers, too.
func cure(from, to tensor.DType) string {
	switch {
	case from == to || !tensor.Casts(from, to):
		return ""
	case tensor.Rounds(from, to) && !isDouble(from, to):
		return fmt.Sprintf("; convert it before it is sent (numpy: .astype(%q)), or have cast = \"nearest\" set for the model", to)
	}
	return fmt.Sprintf("; convert it before it is sent (numpy: .astype(%q)), or have cast = true set for the model", to)
}

// inputError returns the error for an input that could not be made: the request is invalid, or
// memory ran out.
func inputError(spec *tensor.Spec, err error) error {
	condition := scheduler.ErrInvalidInput
	if errors.Is(err, tensor.ErrBudget) {
		condition = scheduler.ErrOverloaded
	}
	return fmt.Errorf("%w: input %q: %w", condition, spec.Name, err)
}

// ClientShape returns the shape of output i for the client: without the batch dimension if the
// request had none. A ragged output never has one.
func (c *Call) ClientShape(i int) tensor.Shape {
	shape := c.Outputs[i].Shape
	if c.Squeeze && c.Target.Spec.Outputs[i].Ragged == "" {
		shape = shape[1:]
	}
	return shape
}

// leadingOne returns shape with a 1 before it, in the call's own memory if it fits.
func (c *Call) leadingOne(shape tensor.Shape) tensor.Shape {
	used := 0
	for i := range c.Inputs {
		used += len(c.Inputs[i].Shape)
	}
	if used+len(shape)+1 > len(c.dims) {
		return append(tensor.Shape{1}, shape...)
	}
	dims := c.dims[used : used : used+len(shape)+1]
	return append(append(dims, 1), shape...)
}

func indexByName(tensors []tensor.Tensor, name string) int {
	return slices.IndexFunc(tensors, func(t tensor.Tensor) bool { return t.Name == name })
}

func (c *Call) wrongCount(got int) error {
	specs := c.Target.Spec.Inputs
	if len(specs) == 0 {
		return fault.Invalid("model %q takes no tensors, got %d", c.Target.ID.Name, got)
	}
	least := len(specs) // without names, only those at the end can be left out
	for least > 0 && specs[least-1].Optional {
		least--
	}
	count := plural.Of(len(specs), "tensor")
	switch {
	case least == len(specs)-1:
		count = fmt.Sprintf("%d or %s", least, count)
	case least < len(specs):
		count = fmt.Sprintf("%d to %s", least, count)
	}
	return fault.Invalid("expected %s (%s), got %d", count, list(specs), got)
}

// expected describes a declaration for an error message.
func (c *Call) expected(spec *tensor.Spec) string {
	s := fmt.Sprintf("%s %s", spec.DType, spec.Shape)
	if c.Target.Spec.Batched() {
		s += fmt.Sprintf(" (-1: any size) or one row %s", spec.Shape[1:])
	}
	if spec.Image != nil {
		s += " of pixels, or JPEG or PNG files: uint8 [bytes] or bytes [pictures]"
	}
	return s
}

func list(specs []tensor.Spec) string {
	if len(specs) == 0 {
		return "no inputs"
	}
	return Join(specs, func(s tensor.Spec) string { return fmt.Sprintf("%q %s %s", s.Name, s.DType, s.Shape) }, ", ")
}

func names(tensors []tensor.Tensor) string {
	return Join(tensors, func(t tensor.Tensor) string { return strconv.Quote(t.Name) }, ", ")
}

// Join joins the texts of a list.
func Join[T any](list []T, text func(T) string, separator string) string {
	texts := make([]string, len(list))
	for i, one := range list {
		texts[i] = text(one)
	}
	return strings.Join(texts, separator)
}
