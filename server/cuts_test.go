package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// numbered returns a picture of 4 x 2 whose first pixels are a number, as pixels and as a file.
func numbered(t *testing.T, number uint32) (pixels, file []byte) {
	t.Helper()
	m := image.NewGray(image.Rect(0, 0, 4, 2))
	binary.LittleEndian.PutUint32(m.Pix, number)
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return m.Pix, b.Bytes()
}

// A cutter is the script of a container of "cut": for each row it answers the number of its picture
// and the corners of its region.
type cutter struct {
	mu      sync.Mutex
	known   map[int]uint32 // numbers, by the id of the picture, as in a container's cache
	faults  []string
	batches [][]int // ids of the pictures of each batch
	fail    func(b *containertest.Batch) (containertest.Reply, bool)
}

var cutSpecs = [2][]tensor.Spec{
	{{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 1}, Format: tensor.FormatNHWC,
		Image: &tensor.Image{Channels: tensor.ChannelsGray, Regions: true}}},
	{{Name: "number", DType: tensor.Uint32, Shape: tensor.Shape{-1}},
		{Name: "corners", DType: tensor.Float32, Shape: tensor.Shape{-1, 4, 2}}},
}

// join connects a container of model "cut".
func (c *cutter) join(ctx context.Context, s *Server) (*containertest.Container, error) {
	c.mu.Lock()
	c.known = make(map[int]uint32)
	c.mu.Unlock()
	return containertest.Dial(ctx, s.Addrs().Containers[0].String(), containertest.Model{
		Name: "cut", Version: "1", MaxBatch: 5, Inputs: cutSpecs[0], Outputs: cutSpecs[1], Answer: c.answer})
}

func (c *cutter) answer(b *containertest.Batch) containertest.Reply {
	if c.fail != nil {
		if r, fails := c.fail(b); fails {
			return r
		}
	}
	numbers, err := numbersOf(b.Inputs[0])
	if err != nil {
		return c.fault("%v", err)
	}
	p, cut := b.Pictures["image"]
	if !cut {
		whole := []float32{-1, -1, -1, -1, -1, -1, -1, -1}
		return cutReply(numbers, slices.Repeat(whole, b.Rows))
	}
	if len(b.Inputs) != 2 || !b.Inputs[1].Shape.Equal(tensor.Shape{b.Rows, 4, 2}) || len(numbers) != len(p.IDs) {
		return c.fault("%d rows are regions %v of %d pictures", b.Rows, b.Inputs[1:], len(numbers))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batches = append(c.batches, p.IDs)
	rows := make([]uint32, b.Rows)
	for row, of := range p.Of {
		rows[row] = numbers[of]
		if known, is := c.known[p.IDs[of]]; is && known != numbers[of] {
			c.faults = append(c.faults, fmt.Sprintf("picture %d was %d and is %d", p.IDs[of], known, numbers[of]))
		}
		c.known[p.IDs[of]] = numbers[of]
	}
	corners, err := tensor.Values[float32](aligned(b.Inputs[1]))
	if err != nil {
		return containertest.Reply{Error: err.Error()}
	}
	return cutReply(rows, corners)
}

// seen returns the ids of the pictures of each batch.
func (c *cutter) seen() [][]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.batches)
}

func (c *cutter) fault(format string, args ...any) containertest.Reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
	return containertest.Reply{Error: "fault"}
}

// aligned copies a tensor to memory of its own.
func aligned(t tensor.Tensor) tensor.Tensor {
	buf, _ := (*tensor.Pool)(nil).Get(len(t.Data)) // without a budget
	copy(buf.Bytes(), t.Data)
	t.Data, t.Buf = buf.Bytes(), nil
	return t
}

func cutReply(numbers []uint32, corners []float32) containertest.Reply {
	a, errA := tensor.FromSlice(tensor.Shape{len(numbers)}, numbers)
	b, errB := tensor.FromSlice(tensor.Shape{len(numbers), 4, 2}, corners)
	if err := errors.Join(errA, errB); err != nil {
		return containertest.Reply{Error: err.Error()}
	}
	return containertest.Reply{Outputs: []tensor.Tensor{a, b}}
}

// numbersOf returns the numbers of pictures.
func numbersOf(t tensor.Tensor) (numbers []uint32, err error) {
	if t.DType == tensor.Uint8 {
		for each := len(t.Data) / t.Shape[0]; len(t.Data) > 0; t.Data = t.Data[each:] {
			numbers = append(numbers, binary.LittleEndian.Uint32(t.Data))
		}
		return numbers, nil
	}
	files, err := tensor.BytesElems(t)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		m, _, err := image.Decode(bytes.NewReader(file))
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, binary.LittleEndian.Uint32(m.(*image.Gray).Pix))
	}
	return numbers, nil
}

// A cutRequest is a request of some regions of a numbered picture.
type cutRequest struct {
	number  uint32
	corners []float32 // of all regions
	inputs  []tensor.Tensor
}

func newCutRequest(t *testing.T, number uint32, rows int, file, quads bool) *cutRequest {
	t.Helper()
	q := &cutRequest{number: number}
	var boxes []float32
	for row := range rows {
		x, y := float32(row%4)/8, float32(number%7)/16
		box := []float32{x, y, x + 0.25, y + 0.5}
		boxes = append(boxes, box...)
		q.corners = append(q.corners, box[0], box[1], box[2], box[1], box[2], box[3], box[0], box[3])
	}
	pixels, data := numbered(t, number)
	picture := tensor.Tensor{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{1, 2, 4, 1}, Data: pixels}
	if file {
		picture.Shape, picture.Data = tensor.Shape{len(data)}, data
	}
	regions, err := tensor.FromSlice(tensor.Shape{rows, 4}, boxes)
	if quads {
		regions, err = tensor.FromSlice(tensor.Shape{rows, 4, 2}, q.corners)
	}
	if err != nil {
		t.Fatal(err)
	}
	regions.Name = "image_regions"
	q.inputs = []tensor.Tensor{picture, regions}
	return q
}

// check compares an answer with what its regions must have.
func (q *cutRequest) check(a *shiva.Message) error {
	number, err := a.Output("number")
	if err != nil {
		return err
	}
	corners, err := a.Output("corners")
	if err != nil {
		return err
	}
	rows := len(q.corners) / 8
	n, err := tensor.Values[uint32](number)
	if err != nil {
		return err
	}
	c, err := tensor.Values[float32](corners)
	if err != nil {
		return err
	}
	if len(n) != rows || slices.ContainsFunc(n, func(n uint32) bool { return n != q.number }) ||
		!slices.Equal(c, q.corners) {
		return fmt.Errorf("%d regions of picture %d have the answer %v, %v", rows, q.number, n, c)
	}
	return nil
}

// Many clients ask for regions of pictures, some of which are divided over several batches, while
// containers fail rows and batches, and die, and clients give up. Each answer is of the right
// picture and regions; a batch names a picture once; equal ids mean equal pictures; and no memory
// is left. A cache in front of the model changes nothing.
func TestRegionsOfPictures(t *testing.T) {
	for _, cache := range []bool{false, true} {
		t.Run(fmt.Sprint("cache ", cache), func(t *testing.T) {
			s := start(t, func(c *config.Config) {
				if cache {
					c.Models = map[string]config.Model{"cut": {Policy: c.Defaults, Cache: 1 << 20}}
				}
			})
			playCuts(t, s)
			stopEmpty(t, s)
		})
	}
}

func playCuts(t *testing.T, s *Server) {
	ctx, over := context.WithCancel(t.Context())
	var containers, clients sync.WaitGroup
	cutters := []*cutter{{}, {}, {}}
	for i, c := range cutters {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		c.fail = func(b *containertest.Batch) (containertest.Reply, bool) {
			switch k := random.IntN(40); {
			case i == 0: // one never fails
				return containertest.Reply{}, false
			case k < 2:
				return containertest.Reply{Error: "no"}, true
			case k == 2:
				return containertest.Reply{Die: true}, true
			}
			return containertest.Reply{}, false
		}
		containers.Go(func() {
			for ctx.Err() == nil {
				if host, err := c.join(ctx, s); err == nil {
					select {
					case <-ctx.Done():
					case <-host.Gone():
					}
					host.Close()
				}
			}
		})
	}
	budgettest.Until(t, "the containers to serve", func() bool { return serves(s, "cut", "1") })
	var mu sync.Mutex
	right, failed := 0, 0
	for i := range 4 {
		random := rand.New(rand.NewPCG(2, uint64(i)))
		client := dial(t, s)
		clients.Go(func() {
			for n := range 100 {
				q := newCutRequest(t, uint32(i<<16+n/2), random.IntN(13), random.IntN(2) == 0, random.IntN(2) == 0)
				if random.IntN(8) == 0 { // whole pictures in between
					q.inputs, q.corners = q.inputs[:1], slices.Repeat([]float32{-1}, 8)
				}
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if random.IntN(6) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(2000))*time.Microsecond)
				}
				a, err := client.Infer(ctx, "cut", q.inputs...)
				cancel()
				if err == nil {
					err = q.check(a)
					a.Release()
					if err != nil {
						t.Error(err)
					}
				}
				mu.Lock()
				if right++; err != nil {
					right, failed = right-1, failed+1
				}
				mu.Unlock()
				if err != nil && !expectedCut(err) {
					t.Errorf("%d rows: %v", len(q.corners)/8, err)
				}
			}
		})
	}
	clients.Wait()
	over()
	containers.Wait()
	if right < 200 {
		t.Errorf("%d requests were answered, %d failed", right, failed)
	}
	checkCutters(t, cutters)
}

// expectedCut reports whether containers that fail, and clients that give up, explain an error.
func expectedCut(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	e, ok := errors.AsType[*shiva.RemoteError](err)
	return ok && slices.Contains([]string{shiva.ContainerFailed, shiva.ContainerLost, shiva.DeadlineExceeded}, e.Type)
}

// checkCutters checks that batches had several pictures, each once, and pictures several batches.
func checkCutters(t *testing.T, cutters []*cutter) {
	t.Helper()
	several, again := 0, 0
	for i, c := range cutters {
		for _, fault := range c.faults {
			t.Errorf("container %d: %s", i, fault)
		}
		seen := make(map[int]int)
		for _, ids := range c.batches {
			if len(ids) > 1 {
				several++
			}
			for k, id := range ids {
				if slices.Contains(ids[:k], id) {
					t.Errorf("container %d: a batch has the pictures %v", i, ids)
				}
				if seen[id]++; seen[id] == 2 {
					again++
				}
			}
		}
	}
	if several == 0 || again == 0 {
		t.Errorf("%d batches had several pictures, %d pictures several batches", several, again)
	}
}

// cutAnswer returns an answer in words: the number of each row's picture, and the box around its
// corners.
func cutAnswer(number, corners tensor.Tensor, err error) string {
	if err != nil {
		return err.Error()
	}
	n, errN := tensor.Values[uint32](aligned(number))
	c, errC := tensor.Values[float32](aligned(corners))
	if err := errors.Join(errN, errC); err != nil || len(c) != 8*len(n) {
		return fmt.Sprintf("%d numbers and %d coordinates, %v", len(n), len(c), err)
	}
	text := fmt.Sprint(len(number.Shape) > 0, " ")
	for row, n := range n {
		text += fmt.Sprintf("%d%v", n, [4]float32{c[8*row], c[8*row+1], c[8*row+4], c[8*row+5]})
	}
	return text
}

// TestRegionsAtTheDoors: regions are rows at every door, as a tensor of boxes or corners of any
// type of numbers or as lists in metadata or parameters, with files and pixels; nothing of a
// request is executed of which a region cannot be cut, and the error says which; no region is no
// row.
func TestRegionsAtTheDoors(t *testing.T) {
	s := start(t, func(c *config.Config) { c.SharedMemory.Directory, c.Limits.ImagePixels = "/dev/shm", 200_000 })
	host := new(cutter)
	c, err := host.join(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	specs := slices.Clone(cutSpecs[0])
	specs[0].Image = &tensor.Image{Channels: tensor.ChannelsGray}
	plain, err := containertest.Dial(t.Context(), s.Addrs().Containers[0].String(), containertest.Model{
		Name: "plain", Version: "1", Inputs: specs, Outputs: cutSpecs[1], Answer: host.answer})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	budgettest.Until(t, "the containers to serve", func() bool { return serves(s, "cut", "1") && serves(s, "plain", "1") })
	client := dial(t, s)
	pixels, file := numbered(t, 7)
	picture := tensor.Tensor{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{len(file)}, Data: file}
	raw := tensor.Tensor{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{1, 2, 4, 1}, Data: pixels}
	two := raw
	two.Shape, two.Data = tensor.Shape{2, 2, 4, 1}, slices.Concat(pixels, pixels)
	shiva := func(model, metadata string, inputs ...tensor.Tensor) string {
		m, err := shiva.NewRequest(model, []byte(metadata), inputs...)
		if err != nil {
			t.Fatal(err)
		}
		a, err := client.Do(t.Context(), m)
		if err != nil {
			return err.Error()
		}
		defer a.Release()
		return cutAnswer(a.Tensors[0], a.Tensors[1], nil)
	}
	boxes := func(shape tensor.Shape, values ...float32) tensor.Tensor { return regionsOf(t, shape, values) }
	doubles := regionsOf(t, tensor.Shape{1, 4}, []float64{0, 0, 0.5, 0.5})
	whole := regionsOf(t, tensor.Shape{1, 4}, []int64{0, 0, 1, 1})
	empty := regionsOf(t, tensor.Shape{0}, []float64{})
	const both = "true 7[0 0 0.5 0.5]7[0.25 0 1 1]"
	first := []float32{0, 0, 0.5, 0.5, 0.25, 0, 1, 1}
	nan := float32(math.NaN())
	for _, tc := range []struct{ what, got, want string }{
		{"boxes", shiva("cut", "", picture, boxes(tensor.Shape{2, 4}, first...)), both},
		{"of pixels", shiva("cut", "", raw, boxes(tensor.Shape{2, 4}, first...)), both},
		{"corners", shiva("cut", "", picture, boxes(tensor.Shape{1, 4, 2}, 0.5, 0, 1, 0.5, 0.5, 1, 0, 0.5)), "true 7[0.5 0 0.5 1]"},
		{"one box", shiva("cut", "", picture, boxes(tensor.Shape{4}, 0, 0, 1, 1)), "false 7[0 0 1 1]"},
		{"one box of a picture among rows", shiva("cut", "", raw, boxes(tensor.Shape{4}, 0, 0, 1, 1)), "true 7[0 0 1 1]"},
		{"doubles", shiva("cut", "", picture, doubles), "true 7[0 0 0.5 0.5]"},
		{"integers", shiva("cut", "", picture, whole), "true 7[0 0 1 1]"},
		{"by position", shiva("cut", "", unnamed(picture), unnamed(boxes(tensor.Shape{2, 4}, first...))), both},
		{"lists", shiva("cut", `{"image_regions":[[0,0,0.5,0.5],[0.25,0,1,1]],"k":1}`, picture), both},
		{"lists of corners", shiva("cut", `{"image_regions":[[[0,0],[1,0],[1,1],[0,1]]]}`, picture), "true 7[0 0 1 1]"},
		{"none", shiva("cut", "", picture, boxes(tensor.Shape{0, 4})), "true "},
		{"an empty list of Python", shiva("cut", "", picture, empty), "true "},
		{"an empty list", shiva("cut", `{"image_regions":[]}`, picture), "true "},
		{"no regions", shiva("cut", "", picture), "false 7[-1 -1 -1 -1]"},
		{"outside", shiva("cut", "", picture, boxes(tensor.Shape{1, 4}, -3, 0.5, 0.25, 7)), "true 7[0 0.5 0.25 1]"},
		{"REST", cutREST(t, s, `"data":[[0,0,0.5,0.5],[0.25,0,1,1]]`, ""), both},
		{"REST, a parameter", cutREST(t, s, "", `"parameters":{"image_regions":[[0,0,0.5,0.5],[0.25,0,1,1]]},`), both},
		{"gRPC", cutGRPC(t, s, raw, boxes(tensor.Shape{2, 4}, first...)), both},
		{"shared memory", cutShared(t, s, boxes(tensor.Shape{2, 4}, first...)), "true 1[0 0 0.5 0.5]1[0.25 0 1 1]"},

		{"one of several is not a number", shiva("cut", "", picture,
			boxes(tensor.Shape{3, 4}, 0, 0, 1, 1, 0, nan, 1, 1, 1, 0, 0, 1)), `invalid input: input "image_regions": row 1: a coordinate is not a number, or infinite (and 1 more row cannot be cut)`},
		{"mirrored both ways", shiva("cut", "", picture, boxes(tensor.Shape{1, 4}, 1, 1, 0, 0)), `row 0: [1, 1, 0, 0] is empty or turned inside out`},
		{"turned inside out", shiva("cut", "", picture, boxes(tensor.Shape{1, 4, 2}, 0, 0, 0, 1, 1, 1, 1, 0)), `row 0: [[0, 0], [0, 1], [1, 1], [1, 0]] is empty or turned inside out`},
		{"empty", shiva("cut", "", picture, boxes(tensor.Shape{1, 4}, 0.5, 0, 0.5, 1)), `row 0: [0.5, 0, 0.5, 1] is empty or turned inside out`},
		{"nothing inside", shiva("cut", "", picture, boxes(tensor.Shape{1, 4}, 1, 0, 2, 1)), `row 0: [1, 0, 2, 1] is outside the picture`},
		{"another shape", shiva("cut", "", picture, boxes(tensor.Shape{2, 3}, 0, 0, 1, 1, 0, 0)), `input "image_regions": expected FP32 [n, 4]`},
		{"two pictures", shiva("cut", "", two, boxes(tensor.Shape{2, 4}, first...)), `input "image" has 2 pictures, but regions are of one`},
		{"no picture", shiva("cut", "", boxes(tensor.Shape{2, 4}, first...)), `input "image" is missing`},
		{"twice", shiva("cut", `{"image_regions":[[0,0,1,1]]}`, picture, boxes(tensor.Shape{2, 4}, first...)), `an input is given twice: "image", "image_regions"`},
		{"two lists", shiva("cut", `{"image_regions":[[0,0,1,1]],"image_regions":[[0,0,1,1]]}`, picture), `input "image_regions" is given twice`},
		{"texts", shiva("cut", `{"image_regions":"all"}`, picture), `input "image_regions"`},
		{"too many pixels", shiva("cut", "", raw,
			boxes(tensor.Shape{30_000, 4}, slices.Repeat([]float32{0, 0, 1, 1}, 30_000)...)), `too large: input "image_regions": rows 0 to 25000 cut 200008 pixels out of a picture of 4 x 2, limits.image_pixels is 200000`},
		{"a container that cannot", shiva("plain", "", picture, boxes(tensor.Shape{2, 4}, first...)), `model "plain" takes whole pictures only`},
		{"a container that cannot, lists", shiva("plain", `{"image_regions":[[0,0,1,1]]}`, picture), `model "plain" takes whole pictures only`},
	} {
		refused := !strings.HasPrefix(tc.want, "true ") && !strings.HasPrefix(tc.want, "false ")
		if tc.got != tc.want && (!refused || !strings.Contains(tc.got, tc.want)) {
			t.Errorf("%s:\n got %s\nwant %s", tc.what, tc.got, tc.want)
		}
	}
	for _, b := range c.Batches() {
		if strings.Contains(strings.Join(b.Parameters, ""), "regions") || host.faults != nil {
			t.Errorf("the container got the parameters %q; %q", b.Parameters, host.faults)
		}
	}
	if m, err := s.predict.Model("cut", ""); err != nil || len(m.Inputs) != 2 || m.Inputs[1].Name != "image_regions" ||
		!m.Inputs[1].Optional || m.Inputs[1].Datatype != "FP32" || !slices.Equal(m.Inputs[1].Shape, []int{-1, 4}) {
		t.Errorf("the metadata is %+v, %v", m, err)
	}
}

// TestRegionsInSharedMemory: a picture and its regions may both be in a region of memory that the
// client has registered.
func TestRegionsInSharedMemory(t *testing.T) {
	s := start(t, func(c *config.Config) { c.SharedMemory.Directory = "/dev/shm" })
	c, err := new(cutter).join(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	budgettest.Until(t, "the container to serve", func() bool { return serves(s, "cut", "1") })
	pixels, _ := numbered(t, 7)
	raw := tensor.Tensor{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{1, 2, 4, 1}, Data: pixels}
	for want, right := range map[string]float32{
		"true 7[0 0 0.5 0.5]7[0.25 0 1 1]":                           1,
		`input "image_regions": row 1: a coordinate is not a number`: float32(math.NaN()),
	} {
		regions := regionsOf(t, tensor.Shape{2, 4}, []float32{0, 0, 0.5, 0.5, 0.25, 0, right, 1})
		rest, rpc := cutPlaced(t, s, raw, regions)
		if !strings.Contains(rest, want) || !strings.Contains(rpc, want) {
			t.Errorf("got %s over REST, %s over gRPC\nwant %s", rest, rpc, want)
		}
	}
}

func unnamed(t tensor.Tensor) tensor.Tensor {
	t.Name = ""
	return t
}

func regionsOf[T float32 | float64 | int64](t *testing.T, shape tensor.Shape, values []T) tensor.Tensor {
	t.Helper()
	r, err := tensor.FromSlice(shape, values)
	if err != nil {
		t.Fatal(err)
	}
	r.Name = "image_regions"
	return r
}

// cutREST asks for regions of the pixels of picture 7, in JSON; regions has the data of their
// tensor, "": it is left out.
func cutREST(t *testing.T, s *Server, regions, parameters string) string {
	t.Helper()
	if regions != "" {
		regions = `,{"name":"image_regions","datatype":"FP32","shape":[2,4],` + regions + "}"
	}
	return answerREST(t, s, `{`+parameters+
		`"inputs":[{"name":"image","datatype":"UINT8","shape":[1,2,4,1],"data":[7,0,0,0,0,0,0,0]}`+regions+`]}`)
}

func answerREST(t *testing.T, s *Server, body string) string {
	t.Helper()
	var a struct {
		Outputs []struct {
			Shape tensor.Shape
			Data  []float64
		}
	}
	err := newHTTP(t, s.Addrs().REST[0]).call("POST", "/v2/models/cut/infer", body, &a)
	if err != nil || len(a.Outputs) != 2 {
		return fmt.Sprint(err, a)
	}
	numbers := make([]uint32, len(a.Outputs[0].Data))
	for i, n := range a.Outputs[0].Data {
		numbers[i] = uint32(n)
	}
	corners := make([]float32, len(a.Outputs[1].Data))
	for i, v := range a.Outputs[1].Data {
		corners[i] = float32(v)
	}
	r := cutReply(numbers, corners)
	return cutAnswer(r.Outputs[0], r.Outputs[1], nil)
}

func cutGRPC(t *testing.T, s *Server, inputs ...tensor.Tensor) string {
	t.Helper()
	q := &pb.ModelInferRequest{ModelName: "cut"}
	for _, in := range inputs {
		p := &pb.ModelInferRequest_InferInputTensor{Name: in.Name, Datatype: in.DType.V2()}
		for _, n := range in.Shape {
			p.Shape = append(p.Shape, int64(n))
		}
		q.Inputs, q.RawInputContents = append(q.Inputs, p), append(q.RawInputContents, in.Data)
	}
	return answerGRPC(t, s, q)
}

func answerGRPC(t *testing.T, s *Server, q *pb.ModelInferRequest) string {
	t.Helper()
	a, err := newGRPC(t, s.Addrs().GRPC[0]).client.ModelInfer(t.Context(), q)
	if err != nil {
		return err.Error()
	}
	number := tensor.Tensor{DType: tensor.Uint32, Shape: tensor.Shape{int(a.Outputs[0].Shape[0])},
		Data: a.RawOutputContents[0]}
	corners := tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{number.Shape[0], 4, 2},
		Data: a.RawOutputContents[1]}
	return cutAnswer(number, corners, nil)
}

// cutPlaced asks for regions of pixels, of which both are in a region of shared memory that the
// client has registered: over REST and over gRPC.
func cutPlaced(t *testing.T, s *Server, inputs ...tensor.Tensor) (rest, rpc string) {
	t.Helper()
	file, err := os.CreateTemp("/dev/shm", "shivad-cuts-*")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(file.Name()) }()
	var data []byte
	var list []string
	q := &pb.ModelInferRequest{ModelName: "cut"}
	for _, in := range inputs {
		at := span{"cuts", len(data), len(in.Data)}
		data = append(data, in.Data...)
		p := &pb.ModelInferRequest_InferInputTensor{Name: in.Name, Datatype: in.DType.V2(), Parameters: at.parameters()}
		for _, n := range in.Shape {
			p.Shape = append(p.Shape, int64(n))
		}
		q.Inputs = append(q.Inputs, p)
		list = append(list, fmt.Sprintf(`{"name":%q,"datatype":%q,"shape":[%s],%s}`, in.Name, in.DType.V2(),
			strings.Trim(strings.Join(strings.Fields(fmt.Sprint([]int(in.Shape))), ","), "[]"), at.json()))
	}
	if _, err := file.Write(data); err != nil {
		t.Fatal(err)
	}
	web := newHTTP(t, s.Addrs().REST[0])
	if err := web.call("POST", "/v2/systemsharedmemory/region/cuts/register",
		fmt.Sprintf(`{"key":%q,"byte_size":%d}`, filepath.Base(file.Name()), len(data)), nil); err != nil {
		t.Fatal(err)
	}
	rest, rpc = answerREST(t, s, `{"inputs":[`+strings.Join(list, ",")+`]}`), answerGRPC(t, s, q)
	if err := web.call("POST", "/v2/systemsharedmemory/region/cuts/unregister", "", nil); err != nil {
		t.Fatal(err)
	}
	return rest, rpc
}

// cutShared asks for regions of a picture that is in shared memory.
func cutShared(t *testing.T, s *Server, regions tensor.Tensor) string {
	t.Helper()
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String(), shiva.WithSharedMemory(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Shared(); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 400*400)
	data[0] = 1
	a, err := client.Infer(t.Context(), "cut", tensor.Tensor{Name: "image", DType: tensor.Uint8,
		Shape: tensor.Shape{1, 400, 400, 1}, Data: data}, regions)
	if err != nil {
		return err.Error()
	}
	defer a.Release()
	return cutAnswer(a.Tensors[0], a.Tensors[1], nil)
}

// TestHolesOfACaller: who asks in place of a client gets the rows that a container fails by name,
// from the cache of the model, too, which keeps no answer with such rows; and its calls with one
// number for their pictures are of one picture.
func TestHolesOfACaller(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Models = map[string]config.Model{"cut": {Policy: c.Defaults, Cache: 1 << 20}}
	})
	host := new(cutter)
	var fails atomic.Bool
	host.fail = func(b *containertest.Batch) (containertest.Reply, bool) {
		if !fails.Load() {
			return containertest.Reply{}, false
		}
		host.mu.Lock()
		host.batches = append(host.batches, b.Pictures["image"].IDs)
		host.mu.Unlock()
		r := cutReply(make([]uint32, b.Rows), make([]float32, 8*b.Rows))
		r.Rows = map[int]string{b.Rows - 1: "too dark"}
		return r, true
	}
	c, err := host.join(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	budgettest.Until(t, "the container to serve", func() bool { return serves(s, "cut", "1") })
	picture := scheduler.NewPicture()
	ask := func(number uint32, asker *gate.Asker) (failed int, err error) {
		q := newCutRequest(t, number, 3, true, false)
		var call gate.Call
		done := make(chan struct{})
		call.Owner = whenDone(func(*gate.Call) { close(done) })
		g := &gate.Request{Model: "cut", Inputs: q.inputs, Arrived: time.Now(), Asker: asker}
		if err := s.gate.Open(&call, g); err != nil {
			t.Fatal(err)
		}
		s.gate.Submit(&call)
		<-done
		failed, err = len(call.Failed()), call.Err
		call.Close()
		return failed, err
	}
	asker := &gate.Asker{Target: &gate.Target{}, Holes: true, Picture: picture}
	fails.Store(true)
	for range 2 { // the answer is not kept
		if failed, err := ask(1, asker); err != nil || failed == 0 {
			t.Errorf("%d rows failed, %v", failed, err)
		}
	}
	for i, ids := range host.seen() {
		if !slices.Equal(ids, []int{int(picture)}) {
			t.Errorf("batch %d is of the pictures %v, expected %d", i, ids, picture)
		}
	}
	if _, err := ask(1, nil); !errors.Is(err, scheduler.ErrContainerFailed) {
		t.Errorf("without holes: %v", err)
	}
	fails.Store(false)
	for range 2 {
		if failed, err := ask(1, asker); err != nil || failed != 0 {
			t.Errorf("%d rows failed, %v", failed, err)
		}
	}
	if s.pool.InUse() == 0 {
		t.Error("the whole answer was not kept")
	}
	stopEmpty(t, s)
}

type whenDone func(*gate.Call)

func (f whenDone) Complete(c *gate.Call) { f(c) }
