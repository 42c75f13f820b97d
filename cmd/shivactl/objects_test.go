package main

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

// detector is a model in the form of those that the Python SDK makes of detectors.
func detector(more ...string) model {
	m := model{route: "yolo", inputs: []spec{{files: true}}}
	for _, name := range append([]string{"boxes", "scores", "classes", "labels"}, more...) {
		m.outputs = append(m.outputs, spec{Spec: tensor.Spec{Name: name, Ragged: "count"}})
	}
	m.outputs = append(m.outputs, spec{Spec: tensor.Spec{Name: "count"}})
	return m
}

func output(name string, t tensor.Tensor) tensor.Tensor {
	t.Name = name
	return t
}

func textsOf(name string, texts ...string) tensor.Tensor {
	t, err := tensor.FromStrings(tensor.Shape{len(texts)}, texts)
	if err != nil {
		panic(err)
	}
	return output(name, t)
}

// detections is an answer of two rows: a cat and a dog in the first, nothing in the second.
func detections(more ...tensor.Tensor) []tensor.Tensor {
	return append([]tensor.Tensor{
		output("boxes", of(tensor.Shape{2, 4}, []float32{10, 20, 60, 70, 30.25, 0, 99.96, 50})),
		output("scores", of(tensor.Shape{2}, []float32{0.91, 0.5})),
		output("classes", of(tensor.Shape{2}, []int32{0, 1})),
		textsOf("labels", "cat", "dog"),
		output("count", of(tensor.Shape{2}, []int32{2, 0})),
	}, more...)
}

func TestObjectsHaveLines(t *testing.T) {
	var out, errs bytes.Buffer
	c := &cli{stdout: &out, stderr: &errs}
	results := []result{
		{name: "a.jpg", rows: 2, outputs: detections()},
		{name: "b.jpg", rows: 1,
			outputs: []tensor.Tensor{output("boxes", of(tensor.Shape{1, 4}, []float32{1, 2, 3, 4})), textsOf("labels"),
				output("count", of(tensor.Shape{1}, []int32{1}))}},
		{name: "c.jpg", rows: 2, outputs: detections()[1:]},
	}
	if err := c.printResults(detector(), results, &inferOptions{}); err == nil {
		t.Error("labels are missing, and nothing is said")
	}
	want := `FILE      LABEL  SCORE  BOX
a.jpg[0]  cat    0.910  [10, 20, 60, 70]
a.jpg[0]  dog    0.500  [30.2, 0, 100, 50]
a.jpg[1]  -
`
	if got := strings.ReplaceAll(out.String(), "-             \n", "-\n"); got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
	want = "shivactl: b.jpg: output \"labels\": 0 elements for 1 object, expected 1\n  -> the log of the model's container may say more\n" +
		"shivactl: c.jpg: the answer has no boxes of 2 objects\n  -> the log of the model's container may say more\n"
	if errs.String() != want {
		t.Errorf("\n%s\nwant\n%s", errs.String(), want)
	}
	if detects(
		model{outputs: []spec{{Spec: tensor.Spec{Name: "boxes"}}, {Spec: tensor.Spec{Name: "scores"}},
			{Spec: tensor.Spec{Name: "labels"}}}}) {
		t.Error("boxes that are not ragged are those of no detector")
	}
}

func TestMasks(t *testing.T) {
	// pycocotools.mask.encode of these runs.
	m := mask{Size: []int{2, 64319}, Counts: "3T3Xl4nLiSKT2oah3PN"}
	var got []int
	if err := m.each(image.Pt(64319, 2), func(x, y int) { got = append(got, 2*x+y) }); err != nil {
		t.Fatal(err)
	}
	var want []int
	at := 0
	for i, run := range []int{3, 100, 5000, 2, 1, 70, 123456, 6} {
		for ; run > 0; run-- {
			if i%2 == 1 {
				want = append(want, at)
			}
			at++
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d pixels, want %d", len(got), len(want))
	}
	for _, c := range []struct {
		size   []int
		counts string
		err    string
	}{
		{[]int{4, 4}, "PP1", "a mask is of the size [4 4], and the picture [4 8] (height and width)"},
		{nil, "PP1", "a mask is of the size [], and the picture [4 8] (height and width)"},
		{[]int{4, 8}, "0Q1", "a mask of [4 8] has a run of 33 at 0"},
		{[]int{4, 8}, "O", "a mask of [4 8] has a run of -1 at 0"},
		{[]int{4, 8}, "oooooooooooo", "a mask has 'o' among its counts"},
		{[]int{4, 8}, "0 1", "a mask has ' ' among its counts"},
	} {
		if err := (mask{c.size, c.counts}).each(image.Pt(8, 4), func(int, int) {}); err == nil || err.Error() != c.err {
			t.Errorf("%v %q: %v, want %s", c.size, c.counts, err, c.err)
		}
	}
}

// oriented returns a JPEG whose EXIF says how it is turned.
func oriented(t *testing.T, img image.Image, turned uint16) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := jpeg.Encode(&file, img, &jpeg.Options{Quality: 100}); err != nil {
		t.Fatal(err)
	}
	exif := []byte("Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01")
	exif = append(binary.BigEndian.AppendUint16(exif, turned), 0, 0, 0, 0, 0, 0)
	part := binary.BigEndian.AppendUint16([]byte{0xff, 0xe1}, uint16(len(exif)+2))
	return slices.Concat(file.Bytes()[:2], part, exif, file.Bytes()[2:])
}

// TestUpright: however a camera was held, the bright corner is where viewers show it.
func TestUpright(t *testing.T) {
	img := image.NewGray(image.Rect(0, 0, 32, 16))
	for i := range 8 * 8 {
		img.SetGray(i%8, i/8, color.Gray{255}) // the upper left of the stored pixels
	}
	for turned, want := range map[uint16]image.Point{
		1: {4, 4}, 2: {28, 4}, 3: {28, 12}, 4: {4, 12}, // as stored, and upside down
		5: {4, 4}, 6: {12, 4}, 7: {12, 28}, 8: {4, 28}, // on its side
	} {
		got, err := upright(oriented(t, img, turned))
		if err != nil {
			t.Fatal(err)
		}
		size := image.Pt(32, 16)
		if turned >= 5 {
			size = image.Pt(16, 32)
		}
		if got.Rect.Size() != size || got.RGBAAt(want.X, want.Y).R < 200 {
			t.Errorf("orientation %d: %v, and %v at %v", turned, got.Rect, got.RGBAAt(want.X, want.Y), want)
		}
	}
}

func TestDraw(t *testing.T) {
	file := oriented(t, image.NewGray(image.Rect(0, 0, 100, 120)), 6) // 120 x 100 when it is upright
	path := filepath.Join(t.TempDir(), "out.png")
	more := []tensor.Tensor{
		output("corners",
			of(tensor.Shape{2, 4, 2}, []float32{10, 20, 60, 20, 60, 70, 10, 70, 80, 20, 100, 40, 80, 60, 60, 40})),
		output("keypoints", of(tensor.Shape{2, 1, 3}, []float32{20, 50, 0.9, 90, 90, 0.1})),
		textsOf("masks", `{"size": [100, 120], "counts": "dh0T3\\^2"}`, ""),
	}
	// Outputs of that name which are not points in a picture.
	depths := []tensor.Tensor{output("keypoints", of(tensor.Shape{2, 2, 1}, []float32{20, 50, 20, 50})),
		textsOf("masks", "", "")}
	nothing := []tensor.Tensor{output("keypoints", of(tensor.Shape{2, 2, 0}, []float32{})), textsOf("masks", "", "")}
	for _, c := range []struct {
		more  []tensor.Tensor
		drawn map[image.Point]bool
	}{
		{nil, map[image.Point]bool{{10, 45}: true, {35, 70}: true, {60, 45}: true, {30, 25}: true, {35, 45}: false}},
		{more,
			map[image.Point]bool{{10, 45}: true, {20, 50}: true, {90, 90}: false, {90, 30}: true, {30, 25}: false,
				{99, 30}: false}},
		{depths, map[image.Point]bool{{10, 45}: true, {20, 50}: false}},
		{nothing, map[image.Point]bool{{10, 45}: true, {20, 50}: false}},
	} {
		m := detector("corners", "keypoints", "masks")
		outputs := detections(c.more...)
		if c.more != nil {
			outputs[len(outputs)-1] = textsOf("masks", "{}", "{}")
		}
		found, err := objects(m, result{rows: 2, outputs: outputs})
		if err != nil {
			t.Fatal(err)
		}
		if err := drawFile(path, file, found[0]); err != nil {
			t.Fatal(err)
		}
		written, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(bytes.NewReader(written))
		if err != nil {
			t.Fatal(err)
		}
		if one, other := img.At(10, 45), img.At(99, 25); c.more == nil && one == other {
			t.Errorf("a cat and a dog have one colour, %v", one)
		}
		for at, drawn := range c.drawn {
			r, g, b, _ := img.At(at.X, at.Y).RGBA()
			if (r|g|b != 0) != drawn {
				t.Errorf("%d outputs: %v is %v, expected something drawn: %v", len(outputs), at, img.At(at.X, at.Y),
					drawn)
			}
		}
	}
}

// TestDrawMask: a mask tints its pixels, and nothing that a container says breaks the drawing.
func TestDrawMask(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 64, 64))
	far := []float64{-1e300, -50, 1e300, 5000}
	found := []object{{label: "cat", box: []float64{40, 40, 60, 60}, mask: mask{[]int{64, 64}, "P2PP1"}},
		{box: far, label: "no\x00name"}}
	if err := drawObjects(img, found); err != nil {
		t.Fatal(err)
	}
	if on, off := img.RGBAAt(1, 8), img.RGBAAt(3, 40); on == off {
		t.Errorf("a pixel of the mask is %v, another one %v", on, off)
	}
	if err := drawObjects(img, []object{{box: far, mask: mask{[]int{1 << 40, 1 << 40}, "0"}}}); err == nil {
		t.Error("a mask of another size is drawn")
	}
}
