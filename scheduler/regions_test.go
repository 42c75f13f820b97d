package scheduler_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// cutSpec declares a model of pictures with regions.
func cutSpec() scheduler.Spec {
	image := tensor.Spec{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 1},
		Format: tensor.FormatNHWC,
		Image:  &tensor.Image{Channels: tensor.ChannelsGray, Regions: true}}
	return scheduler.Spec{Inputs: []tensor.Spec{image, tensor.RegionsOf("image")},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Int32, Shape: tensor.Shape{-1}}}, MaxBatch: 4}
}

// pictureBytes is the size of a picture of cutRequest.
const pictureBytes = 100

// cutRequest makes a request for regions of a picture, which is filled with its value; rows have
// the numbers first, first + 1 … in their corners. 0 regions: two whole pictures.
func cutRequest(t *testing.T, pool *tensor.Pool, value byte, number uint64, first, regions int) *scheduler.Request {
	t.Helper()
	take := func(shape tensor.Shape, d tensor.DType, name string) tensor.Tensor {
		n, _ := shape.Elements()
		buf, err := pool.Get(n * d.Size())
		if err != nil {
			t.Fatal(err)
		}
		return tensor.Tensor{Name: name, DType: d, Shape: shape, Data: buf.Bytes(), Buf: buf}
	}
	rows, pictures := regions, 1
	corners := tensor.Tensor{Name: "image_regions", DType: tensor.Float32}
	r := &scheduler.Request{Rare: &scheduler.Rare{Picture: number}}
	if regions == 0 {
		rows, pictures, r.Rare = 2, 2, nil
	} else {
		corners = take(tensor.Shape{regions, 4, 2}, tensor.Float32, corners.Name)
		values, err := tensor.Values[float32](corners)
		if err != nil {
			t.Fatal(err)
		}
		for i := range values {
			values[i] = float32(first + i/8)
		}
	}
	image := take(tensor.Shape{pictures, 10, 10, 1}, tensor.Uint8, "image")
	for i := range image.Data {
		image.Data[i] = value
	}
	r.Inputs, r.Rows = []tensor.Tensor{image, corners}, rows
	return r
}

// cutModel answers each row with the value of its picture and the number in its corners, and checks
// that a batch has each picture once.
func cutModel(t *testing.T, b *scheduler.Batch) ([]tensor.Tensor, error) {
	t.Helper()
	cut := len(b.Pictures) > 0
	if b.Whole(0) != cut || b.Whole(1) {
		t.Errorf("a batch of pictures %v has whole inputs: %v, %v", b.Pictures, b.Whole(0), b.Whole(1))
	}
	var pictures []*tensor.Tensor
	for p := range b.Pieces(0) {
		pictures = append(pictures, p)
	}
	if cut && len(pictures) != len(b.Pictures) || !cut && len(pictures) != len(b.Parts) {
		t.Errorf("%d pieces for pictures %v of %d parts", len(pictures), b.Pictures, len(b.Parts))
	}
	if sorted := slices.Compact(slices.Sorted(slices.Values(b.Pictures))); len(sorted) != len(b.Pictures) {
		t.Errorf("a batch has the pictures %v", b.Pictures)
	}
	var rows []int32
	for _, p := range b.Parts {
		if !cut {
			for row := range p.Rows {
				rows = append(rows, 1000*int32(p.Inputs[0].Data[row*pictureBytes]))
			}
			continue
		}
		corners, err := tensor.Values[float32](p.Inputs[1])
		if err != nil {
			return nil, err
		}
		if !p.Inputs[0].Shape.Equal(tensor.Shape{1, 10, 10, 1}) || len(corners) != 8*p.Rows ||
			pictures[p.Picture].Data[0] != p.Inputs[0].Data[0] {
			t.Errorf("a part of %d rows has %v and %v, and is of picture %d", p.Rows, p.Inputs[0].Shape,
				p.Inputs[1].Shape, p.Picture)
		}
		for row := range p.Rows {
			rows = append(rows, 1000*int32(p.Inputs[0].Data[0])+int32(corners[8*row]))
		}
	}
	y, err := tensor.FromSlice(tensor.Shape{b.Rows}, rows)
	return []tensor.Tensor{y}, err
}

// TestRegions: regions of one picture are rows. A batch has a picture once, also if several of its
// requests have it; a request is divided over batches, and tried again in parts, with its picture
// whole; its bytes count once; whole pictures are in other batches; nothing of it is left.
func TestRegions(t *testing.T) {
	for name, fails := range map[string]func(b *scheduler.Batch) error{
		"answered": func(*scheduler.Batch) error { return nil },
		"a value that fails": func(b *scheduler.Batch) error {
			for _, p := range b.Parts {
				if p.Inputs[0].Data[0] == 9 {
					return errors.New("nine")
				}
			}
			return nil
		},
		"large batches fail": func(b *scheduler.Batch) error {
			if b.Rows > 2 {
				return errors.New("too large")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{Strategy: "static"}})
			pool := tensor.NewPool(1 << 20)
			several := 0
			w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0)}
			w.Model = func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
				if len(b.Pictures) > 1 {
					several++
				}
				if err := fails(b); err != nil {
					return nil, nil, err
				}
				out, err := cutModel(t, b)
				return out, nil, err
			}
			model := addTo(t, s, benchID, cutSpec(), w).Model()
			shared, alone := scheduler.NewPicture(), scheduler.NewPicture()
			// One is alone in its batch; then a picture comes again after another one; then they
			// come in the other order.
			requests := []*scheduler.Request{cutRequest(t, pool, 1, alone, 0, 1),
				cutRequest(t, pool, 2, shared, 10, 1), cutRequest(t, pool, 1, alone, 10, 1),
				cutRequest(t, pool, 2, shared, 12, 1), cutRequest(t, pool, 1, alone, 12, 1),
				cutRequest(t, pool, 1, alone, 14, 1), cutRequest(t, pool, 2, shared, 14, 1),
				cutRequest(t, pool, 1, alone, 16, 1), cutRequest(t, pool, 1, alone, 18, 1),
				cutRequest(t, pool, 2, shared, 0, 7), cutRequest(t, pool, 2, shared, 20, 3),
				cutRequest(t, pool, 3, scheduler.NewPicture(), 40, 2), cutRequest(t, pool, 4, 0, 0, 0),
				cutRequest(t, pool, 9, scheduler.NewPicture(), 60, 5)}
			done := 0
			for _, r := range requests {
				r.Model, r.Owner = model, ownerFunc(func(*scheduler.Request) { done++ })
				s.Submit(r)
				if err := model.Check(); err != nil {
					t.Fatal(err)
				}
			}
			if got, want := model.Stats().QueueBytes, int64(pictureBytes*(8+6)+32*(8+7+3+2+5)); got != want {
				t.Errorf("%d bytes wait, expected %d", got, want)
			}
			for done < len(requests) && clock.Step() {
				if err := model.Check(); err != nil {
					t.Fatal(err)
				}
			}
			for i, r := range requests {
				poison := name == "a value that fails" && r.Inputs[0].Data[0] == 9
				if (r.Err != nil) != poison {
					t.Errorf("request %d: %v", i, r.Err)
				}
				if r.Err == nil {
					checkCut(t, i, r)
					r.Outputs[0].Release()
				}
				for _, in := range r.Inputs {
					in.Release()
				}
			}
			if several == 0 && name != "large batches fail" {
				t.Error("no batch had several pictures")
			}
			s.Close()
			if n := pool.InUse(); n != 0 {
				t.Errorf("%d bytes are out: %v", n, tensor.Outstanding(pool))
			}
		})
	}
}

// TestBatchBytesOfRegions: each batch that has a row of a picture needs all of it, so batch_bytes
// counts all of it.
func TestBatchBytesOfRegions(t *testing.T) {
	const most = 260
	s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{Strategy: "static", BatchBytes: most}})
	w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0)}
	batches := 0
	w.Model = func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
		batches++
		bytes := 0
		for i := range b.Parts[0].Inputs {
			for p := range b.Pieces(i) {
				bytes += len(p.Data)
			}
		}
		if bytes > most {
			t.Errorf("a batch of %d rows, of pictures %v, has %d bytes", b.Rows, b.Pictures, bytes)
		}
		out, err := cutModel(t, b)
		return out, nil, err
	}
	model := addTo(t, s, benchID, cutSpec(), w).Model()
	done, requests := 0,
		[]*scheduler.Request{cutRequest(t, nil, 1, 1, 0, 5), cutRequest(t, nil, 2, 2, 0, 1),
			cutRequest(t, nil, 3, 3, 0, 1)}
	for _, r := range requests {
		r.Model, r.Owner = model, ownerFunc(func(*scheduler.Request) { done++ })
		s.Submit(r)
	}
	for done < len(requests) && clock.Step() {
	}
	if done != len(requests) || batches != 4 {
		t.Errorf("%d of %d requests are answered after %d batches", done, len(requests), batches)
	}
}

func checkCut(t *testing.T, i int, r *scheduler.Request) {
	t.Helper()
	got, err := tensor.Values[int32](r.Outputs[0])
	if err != nil {
		t.Fatal(err)
	}
	for row := range r.Rows {
		want := 1000 * int32(r.Inputs[0].Data[0])
		if r.Rare != nil {
			first, _ := tensor.Values[float32](r.Inputs[1])
			want += int32(first[8*row])
		}
		if len(got) != r.Rows || got[row] != want {
			t.Errorf("request %d of %d rows got %v, expected %d in row %d", i, r.Rows, got, want, row)
		}
	}
}

// TestHoles: rows that a container fails do not fail a request that asks for holes. They are named
// in their order, once each, also if they come from several batches; other requests of the batch
// fail as ever.
func TestHoles(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{Strategy: "static"}})
	w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0)}
	w.Model = func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
		out, err := cutModel(t, b)
		if err != nil {
			return nil, nil, err
		}
		values, _ := tensor.Values[int32](out[0])
		var failed []scheduler.RowError
		for row := len(values) - 1; row >= 0; row-- {
			if values[row]%10 >= 4 {
				e := scheduler.RowError{Row: row, Message: fmt.Sprint(values[row]), Invalid: values[row]%10 == 5}
				failed = append(failed, e, e)
			}
		}
		return out, failed, nil
	}
	model := addTo(t, s, benchID, cutSpec(), w).Model()
	first, second := cutRequest(t, nil, 1, 1, 0, 7), cutRequest(t, nil, 2, 2, 2, 3)
	first.Rare.Holes = true
	first.Model, second.Model = model, model
	done := 0
	for _, r := range []*scheduler.Request{first, second} {
		r.Owner = ownerFunc(func(*scheduler.Request) { done++ })
		s.Submit(r)
	}
	for done < 2 && clock.Step() {
	}
	if got := fmt.Sprint(first.Rare.Failed); first.Err != nil || got != "[{4 1004 false} {5 1005 true} {6 1006 false}]" {
		t.Errorf("failed rows %s, %v", got, first.Err)
	}
	checkCut(t, 0, first)
	if !errors.Is(second.Err, scheduler.ErrContainerFailed) || !strings.Contains(second.Err.Error(), "row 2: 2004") {
		t.Errorf("the other request: %v", second.Err)
	}
	ask(t, s, clock, first)
	if len(first.Rare.Failed) != 3 {
		t.Errorf("asked again: failed rows %v", first.Rare.Failed)
	}
}

// TestRegionsDeclared: what a declaration and a request of regions must have.
func TestRegionsDeclared(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{})
	change := func(f func(*scheduler.Spec)) scheduler.Spec {
		spec := cutSpec()
		f(&spec)
		return spec
	}
	for want, spec := range map[string]scheduler.Spec{
		"which are rows: that needs batched = true": change(func(s *scheduler.Spec) {
			s.Batching, s.Inputs[0].Shape = scheduler.BatchingNone, tensor.Shape{-1, -1, 1}
		}),
		"has no resize and the shape [-1, 8, 8, 1]": change(func(s *scheduler.Spec) {
			s.Inputs[0].Shape = tensor.Shape{-1, 8, 8, 1}
		}),
		"no input is declared as image_regions": change(func(s *scheduler.Spec) { s.Inputs = s.Inputs[:1] }),
		`has regions of "other"`: change(func(s *scheduler.Spec) {
			s.Inputs = append(s.Inputs, tensor.RegionsOf("other"))
		}),
	} {
		if _, err := s.AddReplica(benchID, spec, &schedtest.Worker{}, scheduler.ReplicaOptions{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
	model := addTo(t, s, benchID, cutSpec(), &schedtest.Worker{Clock: clock}).Model()
	for want, r := range map[string]*scheduler.Request{
		"the picture has a number: false": cutRequest(t, nil, 1, 0, 0, 3),
		"the rows are regions of a picture: false": func() *scheduler.Request {
			r := cutRequest(t, nil, 1, 0, 0, 0)
			r.Rare = &scheduler.Rare{Picture: 1}
			return r
		}(),
		"has shape [2, 10, 10, 1], but the request has 1 row of it": func() *scheduler.Request {
			r, two := cutRequest(t, nil, 1, 1, 0, 2), cutRequest(t, nil, 1, 0, 0, 0)
			r.Inputs[0] = two.Inputs[0]
			return r
		}(),
	} {
		r.Model = model
		if ask(t, s, clock, r); !errors.Is(r.Err, scheduler.ErrInvalidInput) || !strings.Contains(r.Err.Error(), want) {
			t.Errorf("%v, expected %q", r.Err, want)
		}
	}
}
