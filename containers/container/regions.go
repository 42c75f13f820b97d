package container

import (
	"encoding/binary"
	"fmt"
	"image"
	"math"
	"slices"
	"sync/atomic"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/shiva/tensor"
)

// Regions are the rows of a batch as regions of pictures: see [Batch.Regions].
type Regions struct {
	// Of has, for each row, the index of its picture: its row in the input of pictures.
	Of []int
	// IDs identify the pictures. Equal ones are of equal pictures, also in other batches, so what
	// was decoded for one batch may be used for the next. Bound what you keep, by its bytes too:
	// nothing tells when an id occurs for the last time.
	IDs []PictureID

	corners []byte // FP32 [rows, 4, 2]
}

// A PictureID identifies a picture among all that a process has received for one input.
type PictureID struct {
	session uint64 // ids are those of a session
	number  int
}

var lastSession atomic.Uint64

// Regions returns of which pictures of input i the rows are regions. false: each row is a whole
// picture. It is for an input whose Image has Regions; Predict cuts the regions out itself, after
// it has decoded each picture and applied its EXIF orientation, and calls [Batch.Refuse] for a row
// that it cannot cut.
func (b *Batch) Regions(i int) (Regions, bool) {
	at := slices.IndexFunc(b.cuts, func(c cut) bool { return c.input == i })
	if at < 0 {
		return Regions{}, false
	}
	c := &b.cuts[at]
	return Regions{Of: c.of, IDs: c.ids, corners: b.Inputs[c.regions].Data}, true
}

// Corners returns the corners of a row's region, x and y in parts (0 to 1) of its picture,
// clockwise from the one that becomes the top left. The server has made sure that they span a
// convex area within the picture.
func (r *Regions) Corners(row int) (corners [4][2]float32) {
	for i := range corners {
		for k := range corners[i] {
			at := r.corners[(row*8+i*2+k)*4:]
			corners[i][k] = math.Float32frombits(binary.LittleEndian.Uint32(at))
		}
	}
	return corners
}

// Bounds returns the smallest rectangle of whole pixels that holds a row's region of a picture of
// width x height. For a region that was sent as a box, it is what to cut out.
func (r *Regions) Bounds(row, width, height int) image.Rectangle {
	corners := r.Corners(row)
	x := func(v float32) float64 { return float64(v) * float64(width) }
	y := func(v float32) float64 { return float64(v) * float64(height) }
	const rounding = 0.005 // of FP32, in pixels, and more
	down := func(v float64) int { return int(math.Floor(v + rounding)) }
	up := func(v float64) int { return int(math.Ceil(v - rounding)) }
	box := image.Rectangle{Min: image.Pt(width, height)}
	for _, c := range corners {
		box.Min = image.Pt(min(box.Min.X, down(x(c[0]))), min(box.Min.Y, down(y(c[1]))))
		box.Max = image.Pt(max(box.Max.X, up(x(c[0]))), max(box.Max.Y, up(y(c[1]))))
	}
	// A region of less than a pixel is within one.
	box.Min = image.Pt(min(box.Min.X, width-1), min(box.Min.Y, height-1))
	box.Max = image.Pt(min(max(box.Max.X, box.Min.X+1), width), min(max(box.Max.Y, box.Min.Y+1), height))
	return box
}

// A cut is an input of a batch whose rows are regions.
type cut struct {
	input   int // its index
	regions int // that of its regions
	of      []int
	ids     []PictureID
}

// inputs are the declared inputs and, after them, those for regions, as the server adds them.
func (m *Model) inputs() []tensor.Spec {
	list := m.Inputs
	for _, t := range m.Inputs {
		if t.Image != nil && t.Image.Regions {
			list = append(list[:len(list):len(list)], tensor.RegionsOf(t.Name))
		}
	}
	return list
}

// readCuts reads of which pictures the rows are regions. The inputs are there.
func (b *Batch) readCuts() error {
	specs := b.model.inputs()
	for k := len(b.model.Inputs); k < len(specs); k++ {
		i := slices.IndexFunc(b.model.Inputs, func(s tensor.Spec) bool { return s.Name == specs[k].Regions })
		at := slices.IndexFunc(b.header.Pictures,
			func(p wire.PictureHeader) bool { return string(p.Input) == specs[k].Regions })
		if b.present[k] != (at >= 0) {
			return fmt.Errorf("container: batch %d has regions of input %q: %v; it tells of which pictures: %v",
				b.ID, specs[i].Name, b.present[k], at >= 0)
		}
		if at < 0 {
			continue
		}
		p, t := &b.header.Pictures[at], &b.Inputs[k]
		if !t.Shape.Equal(tensor.Shape{b.Rows, 4, 2}) || b.Inputs[i].Rows() != len(p.IDs) {
			return fmt.Errorf("container: batch %d of %d rows has %s %s of %d pictures, %s %s",
				b.ID, b.Rows, t.Name, t.Shape, len(p.IDs), specs[i].Name, b.Inputs[i].Shape)
		}
		c := cut{input: i, regions: k, of: p.Of}
		for _, id := range p.IDs {
			c.ids = append(c.ids, PictureID{b.sessionNumber(), id})
		}
		b.cuts = append(b.cuts, c)
	}
	return nil
}

// sessionNumber identifies the session that the batch came by; 0: none.
func (b *Batch) sessionNumber() uint64 {
	if b.session == nil {
		return 0
	}
	return b.session.number
}

// gatherCuts joins those of the parts, which agree in what is cut.
func (b *Batch) gatherCuts(parts []*Batch) {
	for n := range parts[0].cuts {
		joined := cut{input: parts[0].cuts[n].input, regions: parts[0].cuts[n].regions}
		for _, p := range parts {
			for _, of := range p.cuts[n].of {
				joined.of = append(joined.of, len(joined.ids)+of)
			}
			joined.ids = append(joined.ids, p.cuts[n].ids...)
		}
		b.cuts = append(b.cuts, joined)
	}
}

// pictureOf returns the row of input i that is the picture of which row r of the batch is a region;
// -1: the rows are no regions of that input.
func (b *Batch) pictureOf(i, r int) int {
	for k := range b.cuts {
		if b.cuts[k].input == i {
			return b.cuts[k].of[r]
		}
	}
	return -1
}
