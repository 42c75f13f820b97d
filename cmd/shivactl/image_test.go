package main

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

// Pictures of 2 rows and 3 columns.
func gray() image.Image {
	p := image.NewGray(image.Rect(0, 0, 3, 2))
	copy(p.Pix, []byte{0, 1, 2, 3, 4, 255})
	return p
}

func deepGray() image.Image {
	p := image.NewGray16(image.Rect(0, 0, 3, 2))
	for i := range 6 {
		p.SetGray16(i%3, i/3, color.Gray16{uint16(i * 1000)})
	}
	return p
}

func coloured(alpha uint8) image.Image {
	p := image.NewNRGBA(image.Rect(0, 0, 3, 2))
	for i := range 6 {
		p.SetNRGBA(i%3, i/3, color.NRGBA{uint8(10 * i), uint8(10*i + 1), uint8(10*i + 2), alpha})
	}
	return p
}

// grayAsColour is gray as many tools save it: equal channels, or a palette.
func grayAsColour() image.Image {
	p := image.NewPaletted(image.Rect(0, 0, 3, 2), color.Palette{color.Gray{0}, color.Gray{7}})
	p.Pix[4] = 1
	return p
}

func TestPictures(t *testing.T) {
	u8 := func(shape ...int) spec {
		return spec{Spec: tensor.Spec{Name: "image", DType: tensor.Uint8, Shape: shape}}
	}
	of := func(d tensor.DType, shape ...int) spec {
		return spec{Spec: tensor.Spec{Name: "image", DType: d, Shape: shape}}
	}
	six := []any{uint64(0), uint64(1), uint64(2), uint64(3), uint64(4), uint64(255)}
	hwc := []any{}
	chw := make([]any, 18)
	for i := range 6 {
		for k := range 3 {
			hwc = append(hwc, uint64(10*i+k))
			chw[k*6+i] = uint64(10*i + k)
		}
	}
	triple := []any{}
	for _, v := range six {
		triple = append(triple, v, v, v)
	}
	for _, c := range []struct {
		name  string
		img   image.Image
		spec  spec
		lossy bool
		scale float64
		shape tensor.Shape
		want  []any
		err   string
	}{
		{"gray", gray(), u8(-1, 2, 3), false, 0, tensor.Shape{2, 3}, six, ""},
		{"gray, no rows", gray(), u8(2, 3), false, 0, tensor.Shape{2, 3}, six, ""},
		{"gray, a fixed batch of one", gray(), u8(1, 1, 2, 3), false, 0, tensor.Shape{1, 1, 2, 3}, six, ""},
		{"gray HWC", gray(), u8(-1, 2, 3, 1), false, 0, tensor.Shape{2, 3, 1}, six, ""},
		{"gray CHW", gray(), u8(-1, 1, 2, 3), false, 0, tensor.Shape{1, 2, 3}, six, ""},
		{"gray flat", gray(), u8(-1, 6), false, 0, tensor.Shape{6}, six, ""},
		{"gray, any length", gray(), u8(-1, -1), false, 0, tensor.Shape{6}, six, ""},
		{"gray for colour", gray(), u8(-1, 2, 3, 3), false, 0, tensor.Shape{2, 3, 3}, triple, ""},
		{"gray, any size", gray(), u8(-1, -1, -1), false, 0, tensor.Shape{2, 3}, six, ""},
		{"gray to INT32", gray(), of(tensor.Int32, -1, 2, 3), false, 0, tensor.Shape{2, 3},
			[]any{int64(0), int64(1), int64(2), int64(3), int64(4), int64(255)}, ""},
		{"gray to FP32", gray(), of(tensor.Float32, -1, 2, 3), false, 0, tensor.Shape{2, 3},
			[]any{0.0, 1.0, 2.0, 3.0, 4.0, 255.0}, ""},
		{"gray to FP32, scaled", gray(), of(tensor.Float32, -1, 2, 3), false, 0.5, tensor.Shape{2, 3},
			[]any{0.0, 0.5, 1.0, 1.5, 2.0, 127.5}, ""},
		{"gray to BF16, which travels as FP32", gray(), of(tensor.BFloat16, -1, 2, 3), false, 0, tensor.Shape{2, 3},
			[]any{0.0, 1.0, 2.0, 3.0, 4.0, 255.0}, ""},
		{"colour HWC", coloured(255), u8(-1, 2, 3, 3), false, 0, tensor.Shape{2, 3, 3}, hwc, ""},
		{"colour CHW", coloured(255), u8(-1, 3, 2, 3), false, 0, tensor.Shape{3, 2, 3}, chw, ""},
		{"colour, any size CHW", coloured(255), u8(-1, 3, -1, -1), false, 0, tensor.Shape{3, 2, 3}, chw, ""},
		{"colour, any size and channels", coloured(255), u8(-1, -1, -1, -1), false, 0, tensor.Shape{2, 3, 3}, hwc, ""},
		{"colour flat", coloured(255), u8(-1, 18), false, 0, tensor.Shape{18}, hwc, ""},
		{"palette of grays", grayAsColour(), u8(-1, 2, 3), false, 0, tensor.Shape{2, 3},
			[]any{uint64(0), uint64(0), uint64(0), uint64(0), uint64(7), uint64(0)}, ""},
		{"16 bits", deepGray(), of(tensor.Uint16, -1, 2, 3), false, 0, tensor.Shape{2, 3},
			[]any{uint64(0), uint64(1000), uint64(2000), uint64(3000), uint64(4000), uint64(5000)}, ""},
		{"16 bits to 8", deepGray(), u8(-1, 2, 3), true, 0, tensor.Shape{2, 3},
			[]any{uint64(0), uint64(3), uint64(7), uint64(11), uint64(15), uint64(19)}, ""},
		{"transparency dropped", coloured(0), u8(-1, 2, 3, 3), true, 0, tensor.Shape{2, 3, 3}, hwc, ""},

		{"colour for gray", coloured(255), u8(-1, 2, 3), false, 0, nil, nil, `it is 3x2 in colour; input "image" takes UINT8 [-1, 2, 3] (-1 is any size), or one row [2, 3]: it would lose its colour`},
		{"transparent for colour", coloured(9), u8(-1, 2, 3, 3), false, 0, nil, nil, `it is 3x2 in colour with transparency; input "image" takes UINT8 [-1, 2, 3, 3] (-1 is any size), or one row [2, 3, 3]: it would lose its transparency`},
		{"16 bits for 8", deepGray(), u8(-1, 2, 3), false, 0, nil, nil, `it is 3x2 gray, 16 bits deep; input "image" takes UINT8 [-1, 2, 3] (-1 is any size), or one row [2, 3]: it would lose its lower 8 bits`},
		{"another size", gray(), u8(-1, 8, 8), false, 0, nil, nil, `it is 3x2 gray; input "image" takes UINT8 [-1, 8, 8] (-1 is any size), or one row [8, 8]`},
		{"no image at all", gray(), u8(-1, 4), false, 0, nil, nil, `it is 3x2 gray; input "image" takes UINT8 [-1, 4] (-1 is any size), or one row [4]`},
		{"out of range", gray(), of(tensor.Int8, -1, 2, 3), false, 0, nil, nil, `element 5 is the uint16 255, which no int8 is equal to; input "image" takes INT8 [-1, 2, 3] (-1 is any size), or one row [2, 3]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Through a file, as in practice.
			var file bytes.Buffer
			if err := png.Encode(&file, c.img); err != nil {
				t.Fatal(err)
			}
			img, _, err := image.Decode(&file)
			if err != nil {
				t.Fatal(err)
			}
			a, err := newPicture(img).tensorFor(c.spec, c.lossy, c.scale)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("\n got %v\nwant %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := elements(t, a); !slices.Equal(got, c.want) || !a.Shape.Equal(c.shape) || a.DType != wire(c.spec) {
				t.Errorf("%v %v %v\nwant %v %v", a.DType, a.Shape, got, c.shape, c.want)
			}
		})
	}
}

// Colour becomes gray by luma, not by one channel.
func TestLuma(t *testing.T) {
	p := image.NewNRGBA(image.Rect(0, 0, 3, 1))
	p.SetNRGBA(0, 0, color.NRGBA{255, 0, 0, 255})
	p.SetNRGBA(1, 0, color.NRGBA{0, 255, 0, 255})
	p.SetNRGBA(2, 0, color.NRGBA{0, 0, 255, 255})
	a, err := newPicture(p).
		tensorFor(spec{Spec: tensor.Spec{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1, 3}}}, true, 0)
	if err != nil || !slices.Equal(a.Data, []byte{76, 150, 29}) {
		t.Errorf("%v %v", a.Data, err)
	}
}

func TestJPEG(t *testing.T) {
	var file bytes.Buffer
	flat := image.NewGray(image.Rect(0, 0, 16, 8))
	for i := range flat.Pix {
		flat.Pix[i] = 128
	}
	if err := jpeg.Encode(&file, flat, nil); err != nil {
		t.Fatal(err)
	}
	if !isImage(file.Bytes()) {
		t.Error("not known as an image")
	}
	l := loader{}
	a, err := l.convert(file.Bytes(),
		spec{Spec: tensor.Spec{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 8, 16}}})
	if err != nil || !a.Shape.Equal(tensor.Shape{8, 16}) || a.Data[5] < 126 || a.Data[5] > 130 {
		t.Errorf("%v %v", a, err)
	}
	if _, err := l.convert(file.Bytes()[:100],
		spec{Spec: tensor.Spec{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 8, 16}}}); err == nil {
		t.Error("a file that is cut off was read")
	}
}

// A JPEG in colour or in CMYK has 8 bits, whatever the conversion of the standard library makes of
// it, and the values of its decoder; an input of pictures gets the file as it is.
func TestColourJPEG(t *testing.T) {
	random := image.NewNRGBA(image.Rect(0, 0, 8, 8))
	r := rand.New(rand.NewPCG(1, 2))
	for i := range random.Pix {
		random.Pix[i] = uint8(r.Uint32()) | uint8(i%4/3*255) // opaque
	}
	var colour bytes.Buffer
	if err := jpeg.Encode(&colour, random, nil); err != nil {
		t.Fatal(err)
	}
	cmyk, err := os.ReadFile("testdata/cmyk.jpg")
	if err != nil {
		t.Fatal(err)
	}
	pixels := spec{Spec: tensor.Spec{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 8, 8, 3}}}
	files := spec{Spec: tensor.Spec{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 3}}, files: true}
	for name, file := range map[string][]byte{"colour": colour.Bytes(), "CMYK": cmyk} {
		l := loader{}
		a, err := l.convert(file, pixels)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		img, _, err := image.Decode(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 64 {
			r, g, b, _ := img.At(i%8, i/8).RGBA()
			if want := []byte{byte(r >> 8), byte(g >> 8), byte(b >> 8)}; !bytes.Equal(a.Data[3*i:3*i+3], want) {
				t.Fatalf("%s: pixel %d is %v, expected %v", name, i, a.Data[3*i:3*i+3], want)
			}
		}
		a, err = l.convert(file, files)
		if err == nil {
			a, err = fit(a, files)
		}
		if err != nil || !bytes.Equal(a.Data, file) || a.Rows() != 1 || a.DType != tensor.Uint8 {
			t.Errorf("%s as a file: %v %v, %v", name, a.DType, a.Shape, err)
		}
	}
}

func TestResizeHint(t *testing.T) {
	for want, row := range map[string]tensor.Shape{
		"'8x6!'": {6, 8}, "'28x29!'": {29, 28, 1}, "'30x31!'": {3, 31, 30},
	} {
		if got := resizeHint(row); !strings.Contains(got, want) {
			t.Errorf("%v: %s", row, got)
		}
	}
	if got := resizeHint(tensor.Shape{-1, -1}); got != "" {
		t.Errorf("any size, but %s", got)
	}
}
