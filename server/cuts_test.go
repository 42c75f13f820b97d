package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/config"
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
	{{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 1}, Format: tensor.FormatNHWC, Image: &tensor.Image{Channels: tensor.ChannelsGray, Regions: true}}},
	{{Name: "number", DType: tensor.Uint32, Shape: tensor.Shape{-1}}, {Name: "corners", DType: tensor.Float32, Shape: tensor.Shape{-1, 4, 2}}},
}

// join connects a container of model "cut".
func (c *cutter) join(ctx context.Context, s *Server) (*containertest.Container, error) {
	c.mu.Lock()
	c.known = make(map[int]uint32)
	c.mu.Unlock()
	return containertest.Dial(ctx, s.Addrs().Containers[0].String(), containertest.Model{Name: "cut", Version: "1", MaxBatch: 5,
		Inputs: cutSpecs[0], Outputs: cutSpecs[1], Answer: c.answer})
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

func (c *cutter) fault(format string, args ...any) containertest.Reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
	return containertest.Reply{Error: "fault"}
}

// aligned copies a tensor to memory of its own.
func aligned(t tensor.Tensor) tensor.Tensor {
	t, _ = tensor.Concat([]tensor.Tensor{t}, nil) // it has been checked
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
	if len(n) != rows || slices.ContainsFunc(n, func(n uint32) bool { return n != q.number }) || !slices.Equal(c, q.corners) {
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
