package pipelines

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/picture"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// A pictureKey says which picture of a run it is.
type pictureKey struct{ from, output, row int }

// A pictured is what a run knows of a picture whose regions it asks about.
type pictured struct {
	number        uint64  // by which batches recognise it
	width, height float32 // upright
}

// elements makes a row of each element of Each that is kept.
func (r *run) elements(i int) error {
	w, s := &r.stages[i], &r.p.plan.stages[i]
	maker := s.stage.each.stage
	of, made := 0, 0
	var places []origin
	for parent := range r.stages[maker].rows {
		t, err := r.made(maker, s.each, parent)
		if err != nil {
			continue // nothing was found there, and the status of that row says why
		}
		n := t.Shape[0]
		if n > mostElements-of {
			return fault.TooLarge("%q has over %d elements in a request", s.Each, mostElements)
		}
		kept, err := r.keep(i, parent, n)
		if err != nil {
			return err
		}
		if all := len(places) + len(kept); all > mostRows {
			return tooMany(all, "set keep = { most = … } of the stage")
		}
		for _, k := range kept {
			places = append(places, origin{int32(parent), int32(k), int32(of + k)})
		}
		w.leftOut += n - len(kept)
		of += n
		made++
	}
	r.p.yields[i].learn(made, len(places))
	w.rows = rowsFor(w.rows, len(places))
	for k, at := range places {
		w.rows[k].origin = at
	}
	return nil
}

// keep returns which of the n elements of a parent row become rows, in their order.
func (r *run) keep(i, parent, n int) ([]int, error) {
	s := &r.p.plan.stages[i]
	kept := make([]int, n)
	for k := range kept {
		kept[k] = k
	}
	f := s.Keep
	if f == nil {
		return kept, nil
	}
	maker := s.stage.each.stage
	is, err := r.classes(maker, s.filter, parent, n, f.Classes)
	if err != nil {
		return nil, err
	}
	var scores []float32
	if s.filter.scores >= 0 {
		if scores, err = floats(r.made(maker, s.filter.scores, parent)); err == nil {
			err = r.paired(maker, s.filter.scores, len(scores), n)
		}
		if err != nil {
			return nil, err
		}
	}
	kept = slices.DeleteFunc(kept, func(k int) bool {
		return is != nil && !is(k) || scores != nil && f.Score != 0 && !(float64(scores[k]) >= f.Score)
	})
	if f.Smallest > 0 {
		kept = slices.DeleteFunc(kept, func(k int) bool {
			region, err := r.box(i, parent, k)
			return err == nil && shorter(&region) < f.Smallest
		})
	}
	if f.Most > 0 && len(kept) > f.Most {
		if scores != nil {
			slices.SortStableFunc(kept, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
		}
		kept = kept[:f.Most]
		slices.Sort(kept)
	}
	return kept, nil
}

// classes returns what tells whether an element is of a class that counts; nil: all do.
func (r *run) classes(maker int, f siblings, parent, n int, names []string) (is func(k int) bool, err error) {
	switch {
	case f.labels >= 0:
		t, err := r.made(maker, f.labels, parent)
		if err != nil {
			return nil, err
		}
		labels, err := tensor.BytesElems(t)
		if err == nil {
			err = r.paired(maker, f.labels, len(labels), n)
		}
		return func(k int) bool { return slices.Contains(names, string(labels[k])) }, err
	case f.classes >= 0:
		t, err := r.made(maker, f.classes, parent)
		if err != nil {
			return nil, err
		}
		return func(k int) bool { return slices.Contains(names, strconv.FormatInt(whole(&t, k), 10)) },
			r.paired(maker, f.classes, t.Rows(), n)
	}
	return nil, nil
}

// paired returns an error unless an output has as many values as there are elements. The scheduler
// ensures it where both have one count.
func (r *run) paired(maker, output, values, elements int) error {
	if values == elements {
		return nil
	}
	s := &r.p.plan.stages[maker]
	return fmt.Errorf("%w: stage %q made %s of %q for %s",
		scheduler.ErrContainerFailed, s.Name, plural.Of(values, "value"), s.target.Spec.Outputs[output].Name,
		plural.Of(elements, "element"))
}

// whole returns an element of INT32 or INT64.
func whole(t *tensor.Tensor, k int) int64 {
	if t.DType == tensor.Int32 {
		return int64(int32(binary.NativeEndian.Uint32(t.Data[4*k:])))
	}
	return int64(binary.NativeEndian.Uint64(t.Data[8*k:]))
}

// floats returns the elements of FP32, which need not be aligned.
func floats(t tensor.Tensor, err error) ([]float32, error) {
	if err != nil {
		return nil, err
	}
	values := make([]float32, len(t.Data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.NativeEndian.Uint32(t.Data[4*i:]))
	}
	return values, nil
}

// shorter is the shorter side of a box, in parts of the picture's sides.
func shorter(g *picture.Region) float64 {
	width, height := 0.0, 0.0
	for i := range g {
		for k := range i {
			width = max(width, math.Abs(float64(g[i][0]-g[k][0])))
			height = max(height, math.Abs(float64(g[i][1]-g[k][1])))
		}
	}
	return min(width, height)
}

// box returns an element of Each as a region of the picture, in parts of its sides, as it is: not
// widened, not clipped.
func (r *run) box(i, parent, k int) (region picture.Region, err error) {
	s := &r.p.plan.stages[i]
	t, err := r.made(s.stage.each.stage, s.each, parent)
	if err != nil {
		return region, err
	}
	if t, err = t.RowSlice(k, k+1); err != nil {
		return region, err
	}
	v, _ := floats(t, nil)
	if len(v) == 4 {
		region = picture.Box(v[0], v[1], v[2], v[3])
	} else {
		for n := range region {
			region[n] = [2]float32(v[2*n:])
		}
	}
	if s.Boxes == admin.BoxParts {
		return region, nil
	}
	of := &s.feeds[s.boxes]
	p, err := r.picture(i, of, r.above(r.p.parent(i), parent, r.scopeOf(of.from)))
	if err != nil {
		return region, err
	}
	for n := range region {
		region[n][0] /= p.width
		region[n][1] /= p.height
	}
	return region, nil
}

// region makes the input with the region that a row asks about.
func (r *run) region(i, k int) (t tensor.Tensor, err error) {
	s, o := &r.p.plan.stages[i], &r.stages[i].rows[k]
	region, err := r.box(i, int(o.parent), int(o.element))
	if err != nil {
		return t, err
	}
	if region, err = widened(region, float32(s.Margin)).Clip(); err != nil {
		return t, fault.Invalid("%q: box %d: %w", s.Each, o.of, err)
	}
	values := make([]float32, 0, 8)
	for _, corner := range region {
		values = append(values, corner[:]...)
	}
	t, err = tensor.FromSlice(tensor.Shape{1, 4, 2}, values)
	t.Name = s.feeds[s.boxes].regions
	return t, err
}

// widened moves each corner away from the middle by that part of a side.
func widened(g picture.Region, margin float32) picture.Region {
	if margin == 0 {
		return g
	}
	from := g
	for i := range g {
		for k := range g[i] {
			next, last := from[(i+1)%4][k], from[(i+3)%4][k]
			g[i][k] += margin * (from[i][k] - next + from[i][k] - last)
		}
	}
	return g
}

// picture returns what is known of a picture whose regions a stage asks about; row is that of its
// scope.
func (r *run) picture(i int, fed *feed, row int) (pictured, error) {
	key := pictureKey{fed.from, fed.output, row}
	if p, ok := r.pictures[key]; ok {
		return p, nil
	}
	t, err := r.given(fed, row)
	if err != nil {
		return pictured{}, err
	}
	width, height, err := sides(&t, r.p.plan.stages[i].target.Spec.Inputs[fed.input].Format)
	if err != nil {
		return pictured{}, err
	}
	p := pictured{scheduler.NewPicture(), float32(width), float32(height)}
	if r.pictures == nil {
		r.pictures = make(map[pictureKey]pictured)
	}
	r.pictures[key] = p
	return p, nil
}

// given returns what a feed gives for one row of its scope, with a dimension for the row.
func (r *run) given(fed *feed, row int) (t tensor.Tensor, err error) {
	if fed.from == request {
		return r.asked(fed.output, row)
	}
	if t, err = r.made(fed.from, fed.output, row); err == nil {
		t.Shape = append(tensor.Shape{1}, t.Shape...)
	}
	return t, err
}

// sides returns the width and height of an upright picture: a file, or pixels in that format.
func sides(t *tensor.Tensor, format string) (width, height int, err error) {
	if t.DType == tensor.Bytes {
		files, err := tensor.BytesElems(*t)
		if err != nil {
			return 0, 0, err
		}
		if len(files) != 1 {
			return 0, 0, fault.Invalid("expected one picture to cut regions out of, got %s %s", t.DType, t.Shape)
		}
		h, err := picture.Read(files[0])
		if err != nil {
			return 0, 0, fault.Invalid("%w", err)
		}
		width, height = h.Upright()
		return width, height, nil
	}
	height, width = tensor.Sides(t.Shape[1:], format)
	if width < 1 || height < 1 {
		return 0, 0, fmt.Errorf("%w: a picture of %d x %d pixels has no regions", scheduler.ErrInvalidInput, width,
			height)
	}
	return width, height, nil
}
