package pipelines

import (
	"bytes"
	"fmt"
	pixels "image"
	"image/jpeg"
	"image/png"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/picture"
	"github.com/shivad/shivad/shiva/tensor"
)

// onItsSide is the part of a JPEG that says that the picture is to be turned by a quarter.
const onItsSide = "\xff\xe1\x00\x22Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"

// files are pictures of id x 64 pixels, when they are upright, as files: the size tells whose an
// answer is.
func pngFile(id int) []byte { return encoded(id, pictureSide, png.Encode) }

func jpegFile(id int) []byte { return encoded(id, pictureSide, asJPEG) }

func turnedFile(id int) []byte {
	file := encoded(pictureSide, id, asJPEG)
	return slices.Insert(file, 2, []byte(onItsSide)...)
}

func asJPEG(w io.Writer, m pixels.Image) error { return jpeg.Encode(w, m, nil) }

func encoded(width, height int, encode func(w io.Writer, m pixels.Image) error) []byte {
	var b bytes.Buffer
	if err := encode(&b, pixels.NewGray(pixels.Rect(0, 0, width, height))); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// fileOf returns the header of the picture of a part.
func fileOf(p *scheduler.Part, row int) picture.Header {
	files, err := tensor.BytesElems(p.Inputs[0])
	if err != nil {
		panic(err)
	}
	h, err := picture.Read(files[min(row, len(files)-1)])
	if err != nil {
		panic(err)
	}
	return h
}

// boxesIn is how many boxes there are in the file of that id.
func boxesIn(id int) int { return id % 4 }

// fileSpotter is spotter for files.
var fileSpotter = kind{spotter.spec, func(p *scheduler.Part, row int) ([][]byte, string) {
	width, _ := fileOf(p, row).Upright()
	var boxes, scores []float32
	for k := range boxesIn(width) {
		boxes = append(boxes, float32(k), 8, float32(k+1), 16)
		scores = append(scores, 1-float32(k)/64)
	}
	return [][]byte{floatsOf(boxes...), floatsOf(scores...), int32sOf(int32(boxesIn(width)))}, ""
}}

// fileCutter is cutter for files: it says which file it got, and which box of it.
var fileCutter = kind{cutter.spec, func(p *scheduler.Part, row int) ([][]byte, string) {
	width, height := fileOf(p, 0).Upright()
	v, err := floats(p.Inputs[1].RowSlice(row, row+1))
	if err != nil {
		panic(err)
	}
	if v[1]*float32(height) != 8 {
		return nil, fmt.Sprint("the box begins at ", v[1], " of ", height)
	}
	return [][]byte{ints(int64(width), int64(v[0]*float32(width)+0.5))}, ""
}}

func filesIn(files ...[]byte) tensor.Tensor {
	t, err := tensor.FromElems(tensor.Shape{len(files)}, files, nil)
	if err != nil {
		panic(err)
	}
	t.Name = "photo"
	return t
}

func fileAsBytes(file []byte, shape ...int) tensor.Tensor {
	return tensor.Tensor{Name: "photo", DType: tensor.Uint8, Shape: append(shape, len(file)), Data: file}
}

// TestPictureFiles: boxes are in pixels of the upright picture in the file, each row is cut out of
// the file that its box was found in, and a file that is none costs its sender an error.
func TestPictureFiles(t *testing.T) {
	for _, tt := range []struct {
		name   string
		define func(d *Definition)
		in     tensor.Tensor
		want   string
	}{
		{"PNG", nil, fileAsBytes(pngFile(51)), `y=[51 0 51 1 51 2] cut.rows=[3] cut.of=[0 1 2] cut.status=[0 0 0]`},
		{"JPEG with a dimension for rows", nil, fileAsBytes(jpegFile(51), 1),
			`y=[51 0 51 1 51 2] cut.rows=[3] cut.of=[0 1 2] cut.status=[0 0 0]`},
		{"JPEG on its side", nil, fileAsBytes(turnedFile(51)),
			`y=[51 0 51 1 51 2] cut.rows=[3] cut.of=[0 1 2] cut.status=[0 0 0]`},
		{"several", nil, filesIn(pngFile(41), jpegFile(40), turnedFile(42), jpegFile(43)),
			`y=[41 0 42 0 42 1 43 0 43 1 43 2] cut.rows=[1 0 2 3] cut.of=[0 1 2 3 4 5] cut.status=[0 0 0 0 0 0]`},
		{"no picture", nil, filesIn(pngFile(41), []byte("GIF89a")), `input "photo": picture 1: expected a JPEG or PNG file, got`},
		{"cut in a pipeline", func(d *Definition) {
			d.Outputs = map[string]string{"y": "inner.y"}
			d.Stages = []admin.Stage{{Name: "inner", Model: "inner", Inputs: map[string]string{"photo": "photo"}}}
		}, filesIn(pngFile(41), turnedFile(42)), `y=[41 0 42 0 42 1] inner.cut.rows=[1 2]`},
		{"cut by an application", func(d *Definition) { d.Stages[1].Model = "app" },
			filesIn(pngFile(41), turnedFile(42)),
			`y=[41 0 42 0 42 1] cut.rows=[1 2] cut.of=[0 1 2] cut.status=[0 0 0]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onRig(t, func(r *rig) {
				r.serve("spotter", fileSpotter, takes(5*time.Millisecond))
				r.serve("cutter", fileCutter, takes(5*time.Millisecond))
				app := apps.Definition{Name: "app", Models: []string{"cutter"}}
				if _, err := r.apps.Put(r.t.Context(), app); err != nil {
					t.Fatal(err)
				}
				inner, d := photos(), photos()
				inner.Name = "inner"
				if tt.define != nil {
					tt.define(&d)
				}
				r.define(inner, d)
				a := r.ask(&gate.Request{Model: "p", Inputs: []tensor.Tensor{tt.in}})
				defer a.Close()
				if got := a.text(); !strings.Contains(got, tt.want) {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

// TestRegionsOfAnotherPicture: regions that a stage gets as an input are of its own picture, also
// after rows that were cut out of another one.
func TestRegionsOfAnotherPicture(t *testing.T) {
	onRig(t, func(r *rig) {
		both := spotter // answers a box of the left half, also in parts
		both.spec.Outputs = append(slices.Clone(both.spec.Outputs), spec("parts", tensor.Float32, "count", 4))
		both.rows = func(*scheduler.Part, int) ([][]byte, string) {
			return [][]byte{floatsOf(0, 0, pictureSide/2, pictureSide), floatsOf(1), int32sOf(1),
				floatsOf(0, 0, 0.5, 1)}, ""
		}
		r.serve("spotter", both, takes(time.Millisecond))
		r.serve("cutter", cutter, takes(time.Millisecond))
		d := photos()
		d.Inputs = append(d.Inputs, "other")
		d.Stages = append(d.Stages, admin.Stage{Name: "cut2", Model: "cutter", Each: "spot.boxes",
			Inputs: map[string]string{"image": "other", "image_regions": "spot.parts"}})
		d.Outputs["z"] = "cut2.y"
		r.define(d)
		other := picturesOf(9, 0)
		other.Name = "other"
		a := r.ask(&gate.Request{Model: "p", Inputs: []tensor.Tensor{picturesOf(7, 1), other}})
		defer a.Close()
		const want = `y=[7 0] cut.rows=[1] cut.of=[0] cut.status=[0] z=[9 0] cut2.rows=[1] cut2.of=[0] cut2.status=[0]`
		if got := a.text(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// TestPictureOnce: each batch of regions of a picture has it once, and it is the client's memory,
// whether they are boxes of elements or come as an input.
func TestPictureOnce(t *testing.T) {
	for what, inputs := range map[string]map[string]string{
		"boxes":    {"image": "photo"},
		"an input": {"image": "photo", "image_regions": "spot.parts"},
	} {
		t.Run(what, func(t *testing.T) {
			onRig(t, func(r *rig) {
				r.serve("spotter", inParts, takes(time.Millisecond))
				in := picturesOf(7, 5)
				w := takes(time.Millisecond)
				copies := 0
				w.Seen = func(b *scheduler.Batch) {
					for i := range b.Parts {
						if &b.Parts[i].Inputs[0].Data[0] != &in.Data[0] {
							copies++
						}
					}
					if len(b.Pictures) != 1 {
						t.Errorf("%d rows of %d pictures", b.Rows, len(b.Pictures))
					}
				}
				r.serve("cutter", cutter, w)
				d := photos()
				d.Stages[1].Inputs = inputs
				r.define(d)
				a := r.ask(&gate.Request{Model: "p", Inputs: []tensor.Tensor{in}})
				defer a.Close()
				const want = `y=[7 0 7 1 7 2 7 3 7 4] cut.rows=[5] cut.of=[0 1 2 3 4] cut.status=[0 0 0 0 0]`
				if got := a.text(); got != want || copies > 0 {
					t.Errorf("got  %s, %d copies\nwant %s", got, copies, want)
				}
			})
		})
	}
}

// TestRegionsInParameters: lists of regions in the parameters are refused for a picture of the
// pipeline, and are no regions, nor any other input, of its stages.
func TestRegionsInParameters(t *testing.T) {
	const lists = `_regions":[[0,0,0.5,1],[0.5,0,1,1]]}`
	whole := photos() // whose stage takes regions, and is asked about whole pictures
	whole.Stages = []admin.Stage{{Name: "cut", Model: "app", Inputs: map[string]string{"image": "photo"}}}
	bare := photos() // whose last stage reads nothing
	bare.Stages = append(bare.Stages, admin.Stage{Name: "note", Model: "noter"})
	bare.Outputs["n"] = "note.n"
	const refused = `scheduler: invalid input: "photo_regions": pipeline "p" takes whole pictures only: ` +
		`its definition says which of its stages get regions of them`
	for _, tt := range []struct {
		what       string
		pipeline   Definition
		parameters string
		want       string
	}{
		{"of the pipeline's picture", photos(), `{"photo` + lists, refused},
		{"of a stage's picture", photos(), `{"image` + lists,
			`y=[7 0 7 1] cut.rows=[2] cut.of=[0 1] cut.status=[0 0]`},
		{"of a stage about whole pictures", whole, `{"image` + lists, `y=[7 -1]`},
		{"an input of a stage", bare, `{"note":[4]}`, `y=[7 0 7 1] cut.rows=[2] cut.of=[0 1] cut.status=[0 0] n.rows=[1] n=[0]`},
	} {
		t.Run(tt.what, func(t *testing.T) {
			onRig(t, func(r *rig) {
				for name, k := range map[string]kind{"spotter": spotter, "cutter": cutter, "noter": noter} {
					r.serve(name, k, takes(time.Millisecond))
				}
				app := apps.Definition{Name: "app", Models: []string{"cutter"}}
				if _, err := r.apps.Put(r.t.Context(), app); err != nil {
					t.Fatal(err)
				}
				r.define(tt.pipeline)
				a := r.ask(&gate.Request{Model: "p", Inputs: []tensor.Tensor{picturesOf(7, 2)},
					Parameters: []byte(tt.parameters)})
				defer a.Close()
				if got := a.text(); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

// noter counts the elements of an input that requests may omit.
var noter = kind{
	scheduler.Spec{Batching: scheduler.BatchingNone,
		Inputs:  []tensor.Spec{{Name: "note", DType: tensor.Int64, Shape: tensor.Shape{-1}, Optional: true}},
		Outputs: []tensor.Spec{{Name: "n", DType: tensor.Int64, Shape: tensor.Shape{-1}}}},
	func(p *scheduler.Part, row int) ([][]byte, string) {
		return [][]byte{ints(int64(len(p.Inputs[0].Data) / 8))}, ""
	},
}

// TestTooManyElements: what a request with too many elements costs is bounded by the bytes of their
// tensor, and not by the calls that they would be.
func TestTooManyElements(t *testing.T) {
	for n, want := range map[int64]string{
		200_000:   "200000 rows, and a stage takes at most 4096 of a request",
		1_100_000: `"find.things" has over 1048576 elements in a request`,
	} {
		onRig(t, func(r *rig) {
			r.serve("finder", crowd, takes(time.Millisecond))
			r.serve("maker", maker, takes(time.Millisecond))
			r.define(twoStages())
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			a, err := r.begin(&gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(1, n)}})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			<-a.done
			runtime.ReadMemStats(&after)
			if got := a.text(); !strings.Contains(got, want) {
				t.Errorf("%d elements: %s\nwant %s", n, got, want)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 100<<20 {
				t.Errorf("%d elements: %d MiB were allocated", n, used>>20)
			}
		})
	}
}
