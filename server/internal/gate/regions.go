package gate

import (
	"slices"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/picture"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// cornerBytes is the size of a region in the form that containers get: FP32 [4, 2].
const cornerBytes = 4 * 2 * 4

// listed makes the regions that a request brings as lists in its parameters, by name, and removes
// them from what goes to the container.
func (c *Call) listed(r *Request, pool *tensor.Pool) (lists []tensor.Tensor, err error) {
	specs := c.Target.Spec.Inputs
	for key, value := range jsonscan.Members(r.Parameters) {
		i := slices.IndexFunc(specs, func(s tensor.Spec) bool {
			return s.Image != nil && string(key) == s.Name+tensor.RegionsSuffix
		})
		if i < 0 {
			continue
		}
		switch {
		case !specs[i].Image.Regions:
			return lists, c.noRegions(string(key))
		case indexByName(lists, string(key)) >= 0:
			return lists, fault.Invalid("input %q is given twice", key)
		}
		t, err := jsontensor.Read(value, tensor.Float32, pool)
		if err != nil {
			return lists, inputError(&tensor.Spec{Name: string(key)}, err)
		}
		t.Name = specs[i].Name + tensor.RegionsSuffix
		c.Own(t)
		lists = append(lists, t)
	}
	return lists, nil
}

// withoutRegions returns the parameters without the regions in them: those are inputs.
func (t *Target) withoutRegions(object []byte) []byte {
	if object == nil || !t.regions {
		return object
	}
	isRegions := func(key []byte) bool {
		return slices.ContainsFunc(t.Spec.Inputs, func(s tensor.Spec) bool {
			return s.Regions != "" && s.Name == string(key)
		})
	}
	var rest []byte
	found := false
	for key, value := range jsonscan.Members(object) {
		if isRegions(key) {
			found = true
			continue
		}
		rest = jsonscan.AppendMember(rest, key, value)
	}
	switch {
	case !found:
		return object
	case rest == nil:
		return nil
	}
	return append(rest, '}')
}

// noRegions refuses regions for what takes whole pictures.
func (c *Call) noRegions(name string) error {
	if c.Target.Composite != nil {
		return fault.Invalid("%q: %s %q takes whole pictures only: its definition says which of its stages get regions of them",
			name, c.Target.kind(), c.Target.ID.Name)
	}
	return fault.Invalid("%q: model %q takes whole pictures only: its container does not cut regions; have it declare them (Python: Image(..., regions=True), Go: tensor.Image{Regions: true})",
		name, c.Target.ID.Name)
}

// corners makes the input of regions from boxes or corners, clipped to the picture. added reports
// whether the client sent one region without a dimension for rows.
func (c *Call) corners(t tensor.Tensor, spec *tensor.Spec,
	pool *tensor.Pool) (corners tensor.Tensor, added bool, err error) {
	rank := len(t.Shape)
	box := 1 <= rank && rank <= 2 && t.Shape[rank-1] == 4
	quad := 2 <= rank && rank <= 3 && t.Shape[rank-1] == 2 && t.Shape[rank-2] == 4
	none := rank == 1 && t.Shape[0] == 0 // what a list becomes that has no box
	if !box && !quad && !none || t.DType == tensor.Bool || !tensor.Casts(t.DType, tensor.Float32) {
		return t, false, fault.Invalid("input %q: expected %s [n, 4], each x_min, y_min, x_max, y_max in parts of the picture, or [n, 4, 2] corners, got %s %s",
			spec.Name, tensor.Float32.V2(), t.DType, t.Shape)
	}
	if t.DType != tensor.Float32 { // numpy makes float64 of lists, and integers of [0, 0, 1, 1]
		if t, err = tensor.CastNearest(t, tensor.Float32, pool); err != nil {
			return t, false, inputError(spec, err)
		}
		defer t.Release()
	}
	values, err := tensor.Values[float32](t)
	if err != nil {
		return t, false, inputError(spec, err)
	}
	each := 4
	if quad {
		each = 8
	}
	n := len(values) / each
	buf, err := pool.Get(n * cornerBytes)
	if err != nil {
		return t, false, inputError(spec, err)
	}
	made := tensor.Tensor{Name: spec.Name, DType: tensor.Float32, Shape: tensor.Shape{n, 4, 2}, Data: buf.Bytes(),
		Buf: buf}
	c.Own(made)
	into, err := tensor.Values[float32](made)
	if err != nil {
		return t, false, inputError(spec, err)
	}
	bad := badRegions{}
	for row := range n {
		v := values[row*each:][:each]
		var region picture.Region
		if quad {
			for i := range region {
				region[i] = [2]float32(v[2*i:])
			}
		} else {
			region = picture.Box(v[0], v[1], v[2], v[3])
		}
		region, err := region.Clip()
		bad.add(row, err)
		for i := range region {
			copy(into[8*row+2*i:], region[i][:])
		}
	}
	return made, quad && rank == 2 || box && rank == 1, bad.error(spec)
}

// isOfPictures reports whether a name is that of regions of an input of pictures.
func (c *Call) isOfPictures(name string) bool {
	return slices.ContainsFunc(c.Target.Spec.Inputs, func(s tensor.Spec) bool {
		return s.Image != nil && name == s.Name+tensor.RegionsSuffix
	})
}

// regionsOf returns the regions of input i; nil if there are none.
func (c *Call) regionsOf(i int) *tensor.Tensor {
	for k := range c.Inputs {
		if c.Target.Spec.Inputs[k].Regions == c.Target.Spec.Inputs[i].Name && len(c.Inputs[k].Shape) > 0 {
			return &c.Inputs[k]
		}
	}
	return nil
}

// checkCuts refuses regions that make too many pixels, and notes that the rows are regions. A row
// of a model that resizes has the declared size, whatever is cut.
func (c *Call) checkCuts() error {
	for i := range c.Inputs {
		spec := &c.Target.Spec.Inputs[i]
		if spec.Image == nil {
			continue
		}
		regions := c.regionsOf(i)
		if regions == nil {
			continue
		}
		c.cut = true
		if spec.Image.Resize != tensor.ResizeNone {
			continue
		}
		width, height := sizeOf(&c.Inputs[i], spec)
		values, err := tensor.Values[float32](*regions)
		if err != nil {
			return inputError(spec, err)
		}
		pixels := int64(0)
		for row := range c.Rows {
			var region picture.Region
			for k := range region {
				region[k] = [2]float32(values[8*row+2*k:])
			}
			w, h := region.Size(width, height)
			if pixels += int64(w) * int64(h); pixels > c.Target.Pixels {
				return fault.TooLarge("input %q: rows 0 to %d cut %d pixels out of a picture of %d x %d, limits.image_pixels is %d for all rows of a request, since the model declares no resize",
					regions.Name, row, pixels, width, height, c.Target.Pixels)
			}
		}
	}
	return nil
}

// sizeOf returns the size of the one picture of an input, upright.
func sizeOf(t *tensor.Tensor, spec *tensor.Spec) (width, height int) {
	if t.DType != tensor.Bytes {
		height, width = tensor.Sides(t.Shape[1:], spec.Format)
		return width, height
	}
	h, _ := picture.Read(t.Data[4:]) // files has seen that it can be read
	return h.Upright()
}

// badRegions are the rows of a request that cannot be cut.
type badRegions struct {
	row, more int
	err       error
}

func (b *badRegions) add(row int, err error) {
	switch {
	case err == nil:
	case b.err == nil:
		b.row, b.err = row, err
	default:
		b.more++
	}
}

func (b *badRegions) error(spec *tensor.Spec) error {
	switch {
	case b.err == nil:
		return nil
	case b.more > 0:
		return fault.Invalid("input %q: row %d: %w (and %s cannot be cut)", spec.Name, b.row, b.err,
			plural.Of(b.more, "more row"))
	}
	return fault.Invalid("input %q: row %d: %w", spec.Name, b.row, b.err)
}
