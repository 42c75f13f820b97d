package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	pixel "image"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// jpegFile and the functions after it return files of a picture of 40 x 30 pixels.
func jpegFile(t *testing.T) []byte {
	var b bytes.Buffer
	if err := jpeg.Encode(&b, pixel.NewRGBA(pixel.Rect(0, 0, 40, 30)), nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func pngFile(t *testing.T, m pixel.Image) []byte {
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// resized returns a PNG with a changed size, in which nothing but the checksum of the header is
// right.
func resized(file []byte, width, height uint32) []byte {
	file = bytes.Clone(file)
	binary.BigEndian.PutUint32(file[16:], width)
	binary.BigEndian.PutUint32(file[20:], height)
	binary.BigEndian.PutUint32(file[29:], crc32.ChecksumIEEE(file[12:29]))
	return file
}

func between(file []byte, at int, part string) []byte {
	return append(append(bytes.Clone(file[:at]), part...), file[at:]...)
}

const turned = "\xff\xe1\x00\x22Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"

func one(data []byte, shape ...int) []tensor.Tensor {
	return []tensor.Tensor{{DType: tensor.Uint8, Shape: shape, Data: data}}
}

func elements(t *testing.T, shape tensor.Shape, files ...[]byte) []tensor.Tensor {
	made, err := tensor.FromElems(shape, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return []tensor.Tensor{made}
}

// Picture files become Bytes with one element for each row, whatever form they arrive in; pixels
// stay as they are. A file that a container could not decode to its declared input is refused here.
func TestPictures(t *testing.T) {
	rgb := &tensor.Image{Channels: tensor.ChannelsRGB}
	boxed := &tensor.Image{Channels: tensor.ChannelsRGB, Resize: tensor.ResizeLetterbox, Height: 64, Width: 64}
	input := func(i *tensor.Image, format string, shape ...int) scheduler.Spec {
		return scheduler.Spec{
			Inputs: []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: shape, Format: format, Image: i}}}
	}
	rows := input(rgb, tensor.FormatNHWC, -1, 30, 40, 3)
	planes := input(rgb, tensor.FormatNCHW, -1, 3, 30, 40)
	any := input(boxed, tensor.FormatNHWC, -1, -1, -1, 3)
	alone := input(rgb, tensor.FormatNHWC, 30, -1, 3)
	alone.Batching = scheduler.BatchingNone

	photo, drawing := jpegFile(t), pngFile(t, pixel.NewRGBA(pixel.Rect(0, 0, 40, 30)))
	small := pngFile(t, pixel.NewGray(pixel.Rect(0, 0, 30, 40)))
	deep := pngFile(t, pixel.NewGray16(pixel.Rect(0, 0, 40, 30)))
	animated := between(drawing, 33, "\x00\x00\x00\x00acTL\x00\x00\x00\x00")
	cmyk := []byte("\xff\xd8\xff\xc0\x00\x14\x08\x00\x1e\x00\x28\x04" + strings.Repeat("\x00", 12))
	two := []byte("\xff\xd8\xff\xc0\x00\x0e\x08\x00\x1e\x00\x28\x02" + strings.Repeat("\x00", 6))
	many := make([][]byte, 64)
	for i := range many {
		many[i] = photo
	}
	corrupt := append([][]byte{}, many...)
	corrupt[17] = []byte("no picture")
	raster := make([]byte, 30*40*3)

	for _, tc := range []struct {
		name    string
		spec    scheduler.Spec
		tensors []tensor.Tensor
		want    string // rows squeeze dtype shape, or the error
	}{
		{"a JPEG", rows, one(photo, len(photo)), "1 true bytes [1]"},
		{"a PNG", rows, one(drawing, len(drawing)), "1 true bytes [1]"},
		{"a file as a row", rows, one(photo, 1, len(photo)), "1 false bytes [1]"},
		{"a file as an element", rows, elements(t, tensor.Shape{1}, photo), "1 false bytes [1]"},
		{"a file as a scalar", rows, elements(t, tensor.Shape{}, photo), "1 true bytes [1]"},
		{"files", rows, elements(t, tensor.Shape{64}, many...), "64 false bytes [64]"},
		{"files in a column", rows, elements(t, tensor.Shape{64, 1}, many...), "64 false bytes [64]"},
		{"no files", rows, elements(t, tensor.Shape{0}), "0 false bytes [0]"},
		{"pixels", rows, one(raster, 1, 30, 40, 3), "1 false uint8 [1, 30, 40, 3]"},
		{"pixels of one row", rows, one(raster, 30, 40, 3), "1 true uint8 [1, 30, 40, 3]"},
		{"planes", planes, one(photo, len(photo)), "1 true bytes [1]"},
		{"upright", rows, one(between(small, 0, ""), len(small)), "PNG of 30 x 40 pixels, expected 40 x 30: the model declares no resize"},
		{"any size", any, one(small, len(small)), "1 true bytes [1]"},
		{"pixels of any size", any, one(raster, 40, 30, 3), "1 true uint8 [1, 40, 30, 3]"},
		{"not batched", alone, one(photo, len(photo)), "1 true bytes [1]"},
		{"not batched, an element", alone, elements(t, tensor.Shape{1}, photo), "1 true bytes [1]"},
		{"not batched, two", alone, elements(t, tensor.Shape{2}, photo, photo), "expected uint8 [30, -1, 3] of pixels, or JPEG or PNG files"},
		{"not batched, of another height", alone, one(small, len(small)), "expected any x 30"},
		{"turned", rows, one(between(photo, 2, turned), len(photo)+len(turned)), "JPEG of 30 x 40 pixels, expected 40 x 30"},

		{"of no format", rows, one([]byte("GIF89a"), 6), `input "x": picture 0: expected a JPEG or PNG file, got a GIF`},
		{"one corrupt", rows, elements(t, tensor.Shape{64}, corrupt...), "picture 17: expected a JPEG"},
		{"cut", rows, one(photo[:50], 50), "it ends after 50 bytes"},
		{"animated", any, one(animated, len(animated)), "an animated PNG: send one of its pictures"},
		{"16 bits", any, one(deep, len(deep)), "PNG of 16 bits per channel, expected 8"},
		{"CMYK", any, one(cmyk, len(cmyk)), "JPEG in CMYK"},
		{"two channels", any, one(two, len(two)), "JPEG of 2 channels"},
		{"rows of bytes", rows, one(photo[:50], 2, 25), "expected uint8 [-1, 30, 40, 3] (-1: any size) or one row [30, 40, 3] of pixels, or JPEG or PNG files"},
		{"elements in a table", rows, elements(t, tensor.Shape{1, 2}, photo, photo), "of pixels, or JPEG or PNG files"},
		{"pixels of another size", rows, one(raster, 40, 30, 3), "got uint8 [40, 30, 3]"},
		{"floats", rows, []tensor.Tensor{zeros("", tensor.Float32, 30, 40, 3)}, "got float32"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool := tensor.NewPool(1 << 20)
			c := &Call{Target: &Target{Spec: tc.spec, Pixels: 1200}}
			c.Inputs = c.inputs[:0]
			err := c.arrange(&Request{Inputs: tc.tensors}, pool)
			if err != nil {
				if !errors.Is(err, scheduler.ErrInvalidInput) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("expected %q, got %v", tc.want, err)
				}
				return
			}
			in := c.Inputs[0]
			if got := fmt.Sprint(c.Rows, c.Squeeze, in.DType, in.Shape); got != tc.want {
				t.Errorf("expected %s, got %s", tc.want, got)
			}
			if err := in.Check(); err != nil {
				t.Error(err)
			}
			if c.Close(); pool.InUse() != 0 {
				t.Errorf("%d bytes are still out", pool.InUse())
			}
		})
	}
}

// A few bytes that decode to gigabytes are refused because of their header.
func TestHugePictures(t *testing.T) {
	spec := scheduler.Spec{
		Inputs: []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 3},
			Format: tensor.FormatNHWC,
			Image:  &tensor.Image{Channels: tensor.ChannelsRGB, Resize: tensor.ResizeStretch, Height: 64, Width: 64}}}}
	small := pngFile(t, pixel.NewGray(pixel.Rect(0, 0, 1, 1)))
	for _, tc := range []struct {
		width, height uint32
		refused       bool
	}{{8192, 8192, false}, {8193, 8192, true}, {30000, 30000, true}, {1<<31 - 1, 1<<31 - 1, true}} {
		c := &Call{Target: &Target{Spec: spec, Pixels: 8192 * 8192}}
		c.Inputs = c.inputs[:0]
		file := resized(small, tc.width, tc.height)
		err := c.match(one(file, len(file)), nil, nil)
		if refused := fault.Of(err).Type == shiva.TooLarge; refused != tc.refused || !refused && err != nil {
			t.Errorf("%d x %d: %v", tc.width, tc.height, err)
		} else if refused && !strings.Contains(err.Error(), "limits.image_pixels is 67108864") {
			t.Error(err)
		}
	}
}

// Over Shiva, which has no bytes, several files are texts.
func TestPicturesAsTexts(t *testing.T) {
	photo := jpegFile(t)
	files := elements(t, tensor.Shape{2}, photo, photo)[0]
	files.Name = "x"
	texts, err := shiva.AppendTexts(nil, files)
	if err != nil {
		t.Fatal(err)
	}
	spec := scheduler.Spec{
		Inputs: []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 30, 40, 3},
			Format: tensor.FormatNHWC,
			Image:  &tensor.Image{Channels: tensor.ChannelsRGB}}}}
	for text, want := range map[string]string{string(texts): "", `{"x":"no file"}`: "expected a JPEG or PNG file"} {
		c := &Call{Target: &Target{Spec: spec, Pixels: 1200}}
		err := c.arrange(&Request{Texts: []byte(text)}, nil)
		if want == "" && (err != nil || c.Rows != 2 || c.Inputs[0].DType != tensor.Bytes) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.60s: %d rows, %v", text, c.Rows, err)
		}
		Released(c.owned)
	}
}
