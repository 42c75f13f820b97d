package main

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"
	"os"

	"golang.org/x/image/font"
	"golang.org/x/image/font/basicfont"
	"golang.org/x/image/math/fixed"

	headers "github.com/shivad/shivad/server/picture"
)

// drawResult draws what a detector found in the picture file that it got.
func drawResult(path string, m model, asked item, r result) error {
	file := asked.inputs[0]
	if !holdsFile(file, m.inputs[0]) {
		return unfit("", "--draw: %s is no picture file", asked.name)
	}
	rows, err := objects(m, r)
	if err != nil {
		return err
	}
	if err := drawFile(path, file.Data, rows[0]); err != nil {
		return unfit("", "--draw: %v", err)
	}
	return nil
}

// drawFile writes a PNG file: the picture in a file, upright, with what a detector found in it.
func drawFile(path string, file []byte, found []object) error {
	img, err := upright(file)
	if err != nil {
		return err
	}
	if err := drawObjects(img, found); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := png.Encode(&out, img); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// upright decodes a picture and turns it as its EXIF says, as containers do before they answer.
func upright(file []byte) (*image.RGBA, error) {
	stored, _, err := image.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	header, err := headers.Read(file)
	if err != nil {
		return nil, err
	}
	b := stored.Bounds()
	width, height := b.Dx(), b.Dy()
	if header.Turned >= 5 {
		width, height = height, width
	}
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	if header.Turned <= 1 {
		draw.Draw(img, img.Bounds(), stored, b.Min, draw.Src)
		return img, nil
	}
	for y := range height {
		for x := range width {
			u, v := x, y // in the stored picture
			if header.Turned >= 5 {
				u, v = y, x
			}
			switch header.Turned {
			case 2, 3, 7, 8:
				u = b.Dx() - 1 - u
			}
			switch header.Turned {
			case 3, 4, 6, 7:
				v = b.Dy() - 1 - v
			}
			img.Set(x, y, stored.At(b.Min.X+u, b.Min.Y+v))
		}
	}
	return img, nil
}

// inks are the colours of objects, by their classes.
var inks = []color.RGBA{
	{198, 40, 40, 255}, {46, 125, 50, 255}, {47, 85, 212, 255}, {166, 83, 0, 255},
	{142, 36, 170, 255}, {0, 112, 122, 255}, {176, 39, 111, 255}, {95, 96, 32, 255},
}

func (o object) ink() color.RGBA { return inks[uint(o.class)%uint(len(inks))] }

// drawObjects draws the mask, box, points and name of each object. Lines and letters grow with the
// picture.
func drawObjects(img *image.RGBA, found []object) error {
	size := max(img.Rect.Dx(), img.Rect.Dy())
	thick, scale := max(2, size/400), max(1, size/700)
	for _, f := range found {
		ink := f.ink()
		err := f.mask.each(img.Rect.Size(), func(x, y int) {
			p := img.RGBAAt(x, y)
			blend := func(a, b uint8) uint8 { return uint8((int(a) + int(b)) / 2) }
			img.SetRGBA(x, y, color.RGBA{blend(p.R, ink.R), blend(p.G, ink.G), blend(p.B, ink.B), 255})
		})
		if err != nil {
			return err
		}
		corners := f.corners
		if corners == nil {
			corners = []float64{f.box[0], f.box[1], f.box[2], f.box[1], f.box[2], f.box[3], f.box[0], f.box[3]}
		}
		for i := 0; i < len(corners); i += 2 {
			j := (i + 2) % len(corners)
			line(img, position{corners[i], corners[i+1]}, position{corners[j], corners[j+1]}, thick, ink)
		}
		for _, p := range f.points {
			if p.seen >= 0.5 {
				at := position{p.x, p.y}
				line(img, at, at, 2*thick, ink)
			}
		}
	}
	for _, f := range found { // names lie above all boxes
		plate(img, fmt.Sprintf("%s %.2f", f.label, f.score), int(f.box[0]), int(f.box[1]), scale, f.ink())
	}
	return nil
}

// A position is a place in a picture, in pixels.
type position struct{ x, y float64 }

// line draws a line of square dots. What is beyond the picture costs nothing.
func line(img *image.RGBA, from, to position, thick int, ink color.RGBA) {
	steps := math.Max(math.Abs(to.x-from.x), math.Abs(to.y-from.y))
	if !(steps < 1<<20) {
		return // a container may say anything, and NaN
	}
	for i := 0.0; i <= math.Max(steps, 1); i++ {
		at := i / math.Max(steps, 1)
		x, y := int(from.x+(to.x-from.x)*at)-thick/2, int(from.y+(to.y-from.y)*at)-thick/2
		draw.Draw(img, image.Rect(x, y, x+thick, y+thick), image.NewUniform(ink), image.Point{}, draw.Src)
	}
}

// plate writes a text in white on a plate whose lower left corner is at x and y, or the upper left
// one where there is no room above.
func plate(img *image.RGBA, text string, x, y, scale int, ink color.RGBA) {
	face := basicfont.Face7x13
	small := image.NewAlpha(image.Rect(0, 0, font.MeasureString(face, text).Ceil()+4, face.Height))
	d := font.Drawer{Dst: small, Src: image.Opaque, Face: face, Dot: fixed.P(2, face.Ascent)}
	d.DrawString(text)
	if y -= small.Rect.Dy() * scale; y < 0 {
		y = max(0, y+small.Rect.Dy()*scale)
	}
	x = max(0, min(x, img.Rect.Dx()-small.Rect.Dx()*scale))
	covered := image.Rect(x, y, x+small.Rect.Dx()*scale, y+small.Rect.Dy()*scale).Intersect(img.Rect)
	for v := covered.Min.Y; v < covered.Max.Y; v++ {
		for u := covered.Min.X; u < covered.Max.X; u++ {
			if small.AlphaAt((u-x)/scale, (v-y)/scale).A > 0 {
				img.SetRGBA(u, v, color.RGBA{255, 255, 255, 255})
			} else {
				img.SetRGBA(u, v, ink)
			}
		}
	}
}
