package main

import (
	"fmt"
	"image"
	"image/color"
	_ "image/jpeg" // for image.Decode
	_ "image/png"  // for image.Decode
	"strings"

	"github.com/shivad/shivad/shiva/tensor"
)

// picture is an image as numbers: rows of pixels of 4 channels (red, green, blue, alpha, not
// premultiplied), 16 bits each.
type picture struct {
	width, height int
	pixels        []uint16
	// The file has 16 bits per channel; otherwise all values are v*257 for v in 0..255.
	deep   bool
	colour bool // red, green and blue differ somewhere
	alpha  bool // some pixels are transparent
}

func newPicture(img image.Image) picture {
	b := img.Bounds()
	p := picture{width: b.Dx(), height: b.Dy(), pixels: make([]uint16, 0, 4*b.Dx()*b.Dy())}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			c := straight(img.At(x, y))
			p.pixels = append(p.pixels, c.R, c.G, c.B, c.A)
			p.colour = p.colour || c.R != c.G || c.G != c.B
			p.alpha = p.alpha || c.A != 0xffff
			p.deep = p.deep || c.R%257 != 0 || c.G%257 != 0 || c.B%257 != 0 || c.A%257 != 0
		}
	}
	return p
}

// straight returns a colour without premultiplied alpha. The standard library's conversion goes
// through the premultiplied form, which loses bits of transparent pixels. It also gives 16 bits to
// the colours of JPEG, whose values have 8: those of a decoder that makes pixels of them.
func straight(c color.Color) color.NRGBA64 {
	switch c := c.(type) {
	case color.NRGBA64:
		return c
	case color.NRGBA:
		return color.NRGBA64{uint16(c.R) * 257, uint16(c.G) * 257, uint16(c.B) * 257, uint16(c.A) * 257}
	case color.YCbCr:
		r, g, b := color.YCbCrToRGB(c.Y, c.Cb, c.Cr)
		return straight(color.NRGBA{r, g, b, 0xff})
	case color.CMYK:
		r, g, b := color.CMYKToRGB(c.C, c.M, c.Y, c.K)
		return straight(color.NRGBA{r, g, b, 0xff})
	}
	return color.NRGBA64Model.Convert(c).(color.NRGBA64)
}

// String describes the picture, for messages.
func (p picture) String() string {
	kind := "gray"
	if p.colour {
		kind = "in colour"
	}
	if p.alpha {
		kind += " with transparency"
	}
	if p.deep {
		kind += ", 16 bits deep"
	}
	return fmt.Sprintf("%dx%d %s", p.width, p.height, kind)
}

// layout is the arrangement of pixels that an input takes.
type layout struct {
	channels int  // 1, 3, 4; 0 = those of the picture
	planes   bool // channels first
	shape    tensor.Shape
}

// layoutFor finds the layout in which this picture fits the declared shape of a row.
func (p picture) layoutFor(declared tensor.Shape) (layout, bool) {
	prefix := 0
	for prefix < len(declared)-3 && declared[prefix] == 1 {
		prefix++ // a fixed batch of one
	}
	dims := declared[prefix:]
	is := func(d, want int) bool { return d == -1 || d == want }
	channel := func(d int) bool { return d == -1 || d == 1 || d == 3 || d == 4 }
	l := layout{}
	switch {
	case len(dims) == 2 && is(dims[0], p.height) && is(dims[1], p.width):
		l = layout{channels: 1}
	case len(dims) == 3 && is(dims[0], p.height) && is(dims[1], p.width) && channel(dims[2]) &&
		!(dims[2] == -1 && channel(dims[0]) && dims[0] != -1):
		l = layout{channels: max(dims[2], 0)}
	case len(dims) == 3 && is(dims[1], p.height) && is(dims[2], p.width) && channel(dims[0]):
		l = layout{channels: max(dims[0], 0), planes: true}
	case len(dims) == 1 && dims[0] == -1:
	case len(dims) == 1 && p.width*p.height > 0 && dims[0]%(p.width*p.height) == 0 && dims[0] > 0 &&
		channel(dims[0]/(p.width*p.height)):
		l = layout{channels: dims[0] / (p.width * p.height)}
	default:
		return l, false
	}
	if l.channels == 0 {
		l.channels = p.channels()
	}
	size := tensor.Shape{p.height, p.width, l.channels}
	switch {
	case len(dims) == 1:
		size = tensor.Shape{p.height * p.width * l.channels}
	case len(dims) == 2:
		size = size[:2]
	case l.planes:
		size = tensor.Shape{l.channels, p.height, p.width}
	}
	l.shape = append(append(tensor.Shape{}, declared[:prefix]...), size...)
	return l, true
}

// channels returns the number of channels that represent the picture without loss.
func (p picture) channels() int {
	switch {
	case p.alpha:
		return 4
	case p.colour:
		return 3
	}
	return 1
}

// tensorFor returns the picture in the form that an input takes. lossy allows colour to become
// gray, transparency to be dropped and 16 bits to become 8. scale multiplies the values of float
// inputs; 0 leaves them.
func (p picture) tensorFor(s spec, lossy bool, scale float64) (tensor.Tensor, error) {
	var none tensor.Tensor
	l, ok := p.layoutFor(row(s))
	if !ok {
		return none, unfit(resizeHint(row(s)), "it is %v; %s", p, wants(s))
	}
	loss := ""
	switch {
	case p.alpha && l.channels < 4:
		loss = "transparency"
	case p.colour && l.channels == 1:
		loss = "colour"
	case p.deep && (s.DType == tensor.Uint8 || s.DType == tensor.Int8):
		loss = "lower 8 bits"
	}
	if loss != "" && !lossy {
		return none, unfit("--lossy converts it all the same", "it is %v; %s: it would lose its %s", p, wants(s), loss)
	}
	values := p.values(l)
	if scale != 0 {
		data := make([]byte, 0, len(values)*wire(s).Size())
		for _, v := range values {
			var err error
			if data, err = appendFloat(data, wire(s), p.level(v, s.DType)*scale); err != nil {
				return none, unfit("", "%v", err)
			}
		}
		return tensor.New(wire(s), l.shape, data)
	}
	levels := make([]uint16, len(values))
	for i, v := range values {
		levels[i] = uint16(p.level(v, s.DType))
	}
	t, err := tensor.FromSlice(l.shape, levels)
	if err != nil {
		return none, err
	}
	if t, err = tensor.Cast(t, wire(s), nil); err != nil {
		return none, unfit("", "%s; %s", strings.TrimPrefix(err.Error(), "tensor: "), wants(s))
	}
	return t, nil
}

// level returns the value of a channel in the file's range: 0 to 255, or 0 to 65535 if the picture
// is deep and the dtype has room.
func (p picture) level(v uint16, d tensor.DType) float64 {
	if p.deep && d != tensor.Uint8 && d != tensor.Int8 {
		return float64(v)
	}
	return float64(v >> 8)
}

// values returns the channels in the order of a layout.
func (p picture) values(l layout) []uint16 {
	out := make([]uint16, p.width*p.height*l.channels)
	n := p.width * p.height
	for i := range n {
		px := p.pixels[4*i : 4*i+4]
		if l.channels == 1 && p.colour {
			gray := color.Gray16Model.Convert(color.NRGBA64{px[0], px[1], px[2], 0xffff}).(color.Gray16).Y
			px = []uint16{gray}
		}
		for k := range l.channels {
			if l.planes {
				out[k*n+i] = px[k]
			} else {
				out[i*l.channels+k] = px[k]
			}
		}
	}
	return out
}

// resizeHint tells how to resize an image to the size of a row, if a row has the shape of an image.
func resizeHint(row tensor.Shape) string {
	h, w := 0, 0
	switch {
	case len(row) == 2:
		h, w = row[0], row[1]
	case len(row) == 3 && (row[2] == 1 || row[2] == 3 || row[2] == 4):
		h, w = row[0], row[1]
	case len(row) == 3:
		h, w = row[1], row[2]
	}
	if h <= 0 || w <= 0 {
		return ""
	}
	return fmt.Sprintf("shivactl does not resize images, since the method depends on the model; one way is: magick in.png -resize '%dx%d!' out.png", w, h)
}

// isImage reports by the first bytes whether a file is an image that can be decoded.
func isImage(file []byte) bool {
	s := string(file[:min(len(file), 8)])
	return s == "\x89PNG\r\n\x1a\n" || strings.HasPrefix(s, "\xff\xd8\xff")
}
