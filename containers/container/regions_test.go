package container

import (
	"context"
	"fmt"
	"image"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/tensor"
)

// cutting makes a model of pictures with regions.
func cutting(predict func(context.Context, *Batch) ([]tensor.Tensor, error)) *Model {
	pictures := tensor.Spec{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 1},
		Format: tensor.FormatNHWC,
		Image:  &tensor.Image{Channels: tensor.ChannelsGray, Regions: true}}
	return &Model{Name: "cut", Version: "1", Inputs: []tensor.Spec{pictures}, Batched: new(true), Predict: predict,
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Int32, Shape: tensor.Shape{-1}}}}
}

// cutBatch reads a batch as the server sends it: of pictures of one pixel each, and of regions.
func cutBatch(m *Model, number uint64, header string, pictures []byte, corners ...float32) (*Batch, error) {
	b := &Batch{model: m, session: &session{number: number}}
	frames := []zmtp.Frame{{Data: []byte("batch")}, {Data: make([]byte, 8)}, {Data: []byte(header)}, {Data: pictures}}
	if corners != nil {
		t, err := tensor.FromSlice(tensor.Shape{len(corners)}, corners)
		if err != nil {
			return nil, err
		}
		frames = append(frames, zmtp.Frame{Data: t.Data})
	}
	b.message.Frames = frames
	return b, b.read(time.Now())
}

// cutHeader is that of a batch of rows, of pictures.
func cutHeader(rows, pictures int, of, ids string) string {
	return fmt.Sprintf(`{"rows":%d,"inputs":[{"name":"image","datatype":"UINT8","shape":[%d,1,1,1]},{"name":"image_regions","datatype":"FP32","shape":[%d,4,2]}],"pictures":{"image":{"of":%s,"ids":%s}}}`,
		rows, pictures, rows, of, ids)
}

var wholePicture = []float32{0, 0, 1, 0, 1, 1, 0, 1}

// TestRegions: a batch tells of which picture each row is a region, and where that is. Batches of
// several servers have their own pictures in one execution, though their numbers are the same.
func TestRegions(t *testing.T) {
	m := cutting(nil)
	half := []float32{0.25, 0, 0.75, 0, 0.75, 0.5, 0.25, 0.5}
	one, err := cutBatch(m, 1, cutHeader(3, 2, "[0,1,0]", "[7,8]"), []byte{10, 11},
		slices.Concat(wholePicture, half, wholePicture)...)
	if err != nil {
		t.Fatal(err)
	}
	cuts, ok := one.Regions(0)
	if !ok || !slices.Equal(cuts.Of, []int{0, 1, 0}) || !slices.Equal(cuts.IDs, []PictureID{{1, 7}, {1, 8}}) ||
		cuts.Corners(1) != [4][2]float32{{0.25, 0}, {0.75, 0}, {0.75, 0.5}, {0.25, 0.5}} {
		t.Errorf("%+v, %v", cuts, ok)
	}
	if got := cuts.Bounds(1, 400, 300); got != image.Rect(100, 0, 300, 150) {
		t.Errorf("bounds %v", got)
	}
	if got := cuts.Bounds(1, 1, 1); got != image.Rect(0, 0, 1, 1) {
		t.Errorf("bounds in a picture of one pixel: %v", got)
	}
	two, err := cutBatch(m, 2, cutHeader(2, 1, "[0,0]", "[7]"), []byte{20}, slices.Concat(half, half)...)
	if err != nil {
		t.Fatal(err)
	}
	both := &Batch{model: m}
	if err := both.gather([]*Batch{one, two}); err != nil {
		t.Fatal(err)
	}
	cuts, ok = both.Regions(0)
	if !ok || !slices.Equal(cuts.Of, []int{0, 1, 0, 2, 2}) ||
		!slices.Equal(cuts.IDs, []PictureID{{1, 7}, {1, 8}, {2, 7}}) || string(both.Inputs[0].Data) != "\n\v\x14" ||
		cuts.Corners(4)[0] != [2]float32{0.25, 0} {
		t.Errorf("joined: %+v, %v of % x", cuts, ok, both.Inputs[0].Data)
	}
	whole, err := cutBatch(m, 1, `{"rows":2,"inputs":[{"name":"image","datatype":"UINT8","shape":[2,1,1,1]}]}`,
		[]byte{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := whole.Regions(0); ok || whole.Has(1) || len(whole.Inputs) != 2 {
		t.Errorf("whole pictures: regions %v, inputs %v", ok, whole.Inputs)
	}
	if canJoin(one, whole) || !canJoin(one, two) {
		t.Error("batches of regions must join each other, and none of whole pictures")
	}
	for want, header := range map[string]string{
		"it tells of which pictures: false":         strings.Replace(cutHeader(1, 1, "[0]", "[7]"), `"pictures"`, `"other"`, 1),
		"of 1 pictures, image [2, 1, 1, 1]":         cutHeader(1, 2, "[0]", "[7]"),
		"1 rows are of pictures, in a batch of 2":   strings.Replace(cutHeader(1, 1, "[0]", "[7]"), `"rows":1`, `"rows":2`, 1),
		`has image_regions [1, 8, 1] of 1 pictures`: strings.Replace(cutHeader(1, 1, "[0]", "[7]"), `[1,4,2]`, `[1,8,1]`, 1),
	} {
		if _, err := cutBatch(m, 1, header, []byte{1, 2}[:strings.Count(header, "[2,1,1,1]")+1],
			wholePicture...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

// TestRegionsByRow: a function of one row gets the picture of its region, and Check tries regions.
func TestRegionsByRow(t *testing.T) {
	m := cutting(nil)
	var seen []string
	m.Predict = PerRow(func(_ context.Context, row []tensor.Tensor) ([]tensor.Tensor, error) {
		seen = append(seen, fmt.Sprintf("%d %v", row[0].Data[0], row[1].Shape))
		y, err := tensor.FromSlice(tensor.Shape{1}, []int32{0})
		return []tensor.Tensor{y}, err
	})
	b, err := cutBatch(m, 1, cutHeader(3, 2, "[0,1,0]", "[7,8]"), []byte{10, 11},
		slices.Concat(wholePicture, wholePicture, wholePicture)...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Predict(t.Context(), b); err != nil || !slices.Equal(seen, []string{"10 [1, 4, 2]", "11 [1, 4, 2]", "10 [1, 4, 2]"}) {
		t.Errorf("rows %q, %v", seen, err)
	}
	seen = nil
	if err := Check(t.Context(), *m, 2, 3); err != nil ||
		!slices.Equal(seen, []string{"0 []", "0 []", "9 []", "0 [1, 4, 2]", "0 [1, 4, 2]"}) {
		t.Errorf("Check tried %q, %v", seen, err)
	}
}
