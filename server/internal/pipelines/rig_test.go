package pipelines

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/tensor"
)

// A rig is a gate with a scheduler, applications and pipelines in memory, on virtual time.
type rig struct {
	*gate.Gate
	t     testing.TB
	reg   *Registry
	apps  *apps.Registry
	store state.Store
	pool  *tensor.Pool
	sched *scheduler.Scheduler
}

// onRig runs f with a rig, in a bubble of virtual time, and checks that no memory is left.
func onRig(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, inMemory(t))
		f(r)
		r.close()
	})
}

func inMemory(t testing.TB) state.Store {
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func newRig(t testing.TB, store state.Store) *rig {
	r := &rig{t: t, pool: tensor.NewPool(64 << 20), store: store}
	counts := metrics.New("test")
	r.Gate = gate.New(gate.Config{Pool: r.pool, Latest: 1 << 20, Metrics: counts,
		Options: func(string) gate.ModelOptions {
			return gate.ModelOptions{Deadline: 10 * time.Second, Pixels: 1 << 20}
		}})
	hooks := counts.Hooks()
	hooks.ModelChanged = r.ModelChanged
	s, err := scheduler.New(scheduler.Config{Hooks: hooks, Pool: r.pool,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	r.sched = s
	r.Attach(s, gate.Server{Ready: func() (bool, string) { return true, "" }})
	r.apps = apps.Open(apps.Config{Store: r.store, Changed: r.Changed})
	r.reg = Open(Config{Store: r.store, Changed: r.Changed})
	r.AttachComposites(r.apps, r.reg)
	return r
}

// close checks that nothing is left of any request.
func (r *rig) close() {
	r.t.Helper()
	synctest.Wait()
	if n := len(r.reg.lines.open); n != 0 {
		r.t.Errorf("%d lines of streams are left", n)
	}
	if n := r.reg.order.Streams(); n != 0 {
		r.t.Errorf("%d streams have unanswered frames", n)
	}
	if r.reg.under != 0 {
		r.t.Errorf("%d requests are under way", r.reg.under)
	}
	r.sched.Close()
	r.Gate.Close()
	r.reg.Close()
	r.apps.Close()
	r.store.Close()
	synctest.Wait()
	time.Sleep(time.Minute) // batches that were given up are answered
	synctest.Wait()
	if n := r.pool.InUse(); n != 0 {
		r.t.Errorf("%d bytes are not back: %s", n, strings.Join(tensor.Outstanding(r.pool), "\n"))
	}
}

// define makes pipelines.
func (r *rig) define(list ...Definition) {
	r.t.Helper()
	for _, d := range list {
		if _, err := r.reg.Put(r.t.Context(), d); err != nil {
			r.t.Fatal(err)
		}
	}
}

// A kind is what a model of the tests does. Every row of it carries an id, so that an answer shows
// whose it is.
type kind struct {
	spec scheduler.Spec
	// rows answers one request's rows of a batch: values by output.
	rows func(p *scheduler.Part, row int) (out [][]byte, fault string)
}

func spec(name string, d tensor.DType, ragged string, shape ...int) tensor.Spec {
	return tensor.Spec{Name: name, DType: d, Shape: append(tensor.Shape{-1}, shape...), Ragged: ragged}
}

// found is how many things a finder says that there are below a thing.
func found(id int64) int64 { return (id*7 + id>>7) % 5 }

// child is the id of thing k of a thing.
func child(id, k int64) int64 { return id*131 + k + 1 }

// bad says that a maker fails a thing.
func bad(id int64) bool { return id%23 == 4 }

func ints(values ...int64) []byte {
	t, _ := tensor.FromSlice(tensor.Shape{len(values)}, values)
	return t.Data
}

func int32sOf(values ...int32) []byte {
	t, _ := tensor.FromSlice(tensor.Shape{len(values)}, values)
	return t.Data
}

func floatsOf(values ...float32) []byte {
	t, _ := tensor.FromSlice(tensor.Shape{len(values)}, values)
	return t.Data
}

// rowOfInts returns a row of an input of INT64.
func rowOfInts(p *scheduler.Part, input, row int) []int64 {
	t, err := p.Inputs[input].RowSlice(row, row+1)
	if err != nil {
		panic(err)
	}
	values, err := tensor.Values[int64](t)
	if err != nil {
		panic(err)
	}
	return values
}

// things are the outputs of a finder for a thing of that id with n below it.
func things(id, n int64) (out [][]byte, fault string) {
	var list, labels []byte
	var scores []float32
	for k := range n {
		list = append(list, ints(child(id, k), found(child(id, k)))...)
		labels = tensor.AppendElem(labels, []string{"even", "odd"}[k%2])
		scores = append(scores, 1-float32(k)/64)
	}
	return [][]byte{list, floatsOf(scores...), labels, int32sOf(int32(n))}, ""
}

var finderOutputs = []tensor.Spec{
	spec("things", tensor.Int64, "count", 2), spec("scores", tensor.Float32, "count"), spec("labels", tensor.Bytes, "count"),
	spec("count", tensor.Int32, ""),
}

// finder finds the things below a thing.
var finder = kind{
	scheduler.Spec{Batching: scheduler.BatchingRows, Inputs: []tensor.Spec{spec("x", tensor.Int64, "", 2)},
		Outputs: finderOutputs},
	func(p *scheduler.Part, row int) ([][]byte, string) {
		v := rowOfInts(p, 0, row)
		return things(v[0], v[1])
	},
}

// crowd finds as many things as it is asked for, which are all alike.
var crowd = kind{finder.spec, func(p *scheduler.Part, row int) ([][]byte, string) {
	n := int(rowOfInts(p, 0, row)[1])
	return [][]byte{make([]byte, 16*n), make([]byte, 4*n), make([]byte, 4*n), int32sOf(int32(n))}, ""
}}

// maker makes a value of a thing, and fails bad ones.
var maker = kind{
	scheduler.Spec{Batching: scheduler.BatchingRows, Inputs: []tensor.Spec{spec("x", tensor.Int64, "", 2)},
		Outputs: []tensor.Spec{spec("y", tensor.Int64, "", 2), spec("text", tensor.Bytes, "")}},
	func(p *scheduler.Part, row int) ([][]byte, string) {
		v := rowOfInts(p, 0, row)
		if bad(v[0]) {
			return nil, fmt.Sprint("bad thing ", v[0])
		}
		return [][]byte{ints(v[0]+1, v[1]), tensor.AppendElem(nil, fmt.Sprint(v[0]))}, ""
	},
}

// lister takes all things of a row at once, and is not batched.
var lister = kind{
	scheduler.Spec{Batching: scheduler.BatchingNone,
		Inputs:  []tensor.Spec{{Name: "list", DType: tensor.Int64, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{{Name: "ids", DType: tensor.Int64, Shape: tensor.Shape{-1}}}},
	func(p *scheduler.Part, row int) ([][]byte, string) {
		values, err := tensor.Values[int64](p.Inputs[0])
		if err != nil {
			panic(err)
		}
		var ids []int64
		for i := 0; i < len(values); i += 2 {
			ids = append(ids, values[i])
		}
		return [][]byte{ints(ids...)}, ""
	},
}

const pictureSide = 64 // pixels: as many boxes beside one another fit

// frame is a picture that carries an id, and how many boxes there are in it.
func frame(id, boxes int) []byte {
	data := make([]byte, pictureSide*pictureSide*3)
	data[0], data[1], data[2] = byte(id), byte(id>>8), byte(boxes)
	return data
}

func photo(regions bool) tensor.Spec {
	return tensor.Spec{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 3},
		Format: tensor.FormatNHWC,
		Image: &tensor.Image{Channels: tensor.ChannelsRGB, Resize: tensor.ResizeStretch, Height: 8, Width: 8,
			Regions: regions}}
}

// spotter finds the boxes in a picture, in its pixels.
var spotter = kind{
	scheduler.Spec{Batching: scheduler.BatchingRows, Inputs: []tensor.Spec{photo(false)},
		Outputs: []tensor.Spec{spec("boxes", tensor.Float32, "count", 4), spec("scores", tensor.Float32, "count"),
			spec("count", tensor.Int32, "")}},
	func(p *scheduler.Part, row int) ([][]byte, string) {
		t, _ := p.Inputs[0].RowSlice(row, row+1)
		var boxes, scores []float32
		for k := range int(t.Data[2]) {
			boxes = append(boxes, float32(k), 8, float32(k+1), 16)
			scores = append(scores, 1-float32(k)/64)
		}
		return [][]byte{floatsOf(boxes...), floatsOf(scores...), int32sOf(int32(t.Data[2]))}, ""
	},
}

// inParts is a spotter that also answers the boxes in parts of the picture.
var inParts = func() kind {
	k := spotter
	k.spec.Outputs = append(slices.Clone(k.spec.Outputs), spec("parts", tensor.Float32, "count", 4))
	k.rows = func(p *scheduler.Part, row int) ([][]byte, string) {
		out, fault := spotter.rows(p, row)
		parts, _ := floats(tensor.Tensor{Data: out[0]}, nil)
		for i := range parts {
			parts[i] /= pictureSide
		}
		return append(out, floatsOf(parts...)), fault
	}
	return k
}()

// cutter says which picture it got, and which box of it.
var cutter = kind{
	scheduler.Spec{Batching: scheduler.BatchingRows,
		Inputs: []tensor.Spec{photo(true),
			{Name: "image_regions", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}, Optional: true, Regions: "image"}},
		Outputs: []tensor.Spec{spec("y", tensor.Int64, "", 2)}},
	func(p *scheduler.Part, row int) ([][]byte, string) {
		id := int64(p.Inputs[0].Data[0]) + int64(p.Inputs[0].Data[1])<<8
		if len(p.Inputs[1].Shape) == 0 { // of a whole picture
			return [][]byte{ints(id, -1)}, ""
		}
		v, err := floats(p.Inputs[1].RowSlice(row, row+1))
		if err != nil {
			panic(err)
		}
		return [][]byte{ints(id, int64(v[0]*pictureSide+0.5))}, ""
	},
}

// seen returns a part as a container sees it, which gets each picture once and keeps it by its
// number.
func seen(known map[uint64][]byte, b *scheduler.Batch, i int) *scheduler.Part {
	p := b.Parts[i]
	if len(b.Pictures) == 0 {
		return &p
	}
	number := b.Pictures[p.Picture]
	if known[number] == nil {
		known[number] = slices.Clone(p.Inputs[0].Data)
	}
	p.Inputs = slices.Clone(p.Inputs)
	p.Inputs[0].Data = known[number]
	return &p
}

// answer is the Model of a worker.
func (k *kind) answer(pool *tensor.Pool) schedtest.Model {
	known := make(map[uint64][]byte)
	return func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
		outputs := k.spec.Outputs
		data := make([][]byte, len(outputs))
		lengths := make([]int, len(outputs))
		var faults []scheduler.RowError
		at := 0
		for i := range b.Parts {
			part := seen(known, b, i)
			for row := range part.Rows {
				out, fault := k.rows(part, row)
				if fault != "" {
					faults = append(faults, scheduler.RowError{Row: at, Message: fault})
					out, _ = k.empty()
				}
				for o := range out {
					data[o] = append(data[o], out[o]...)
					lengths[o] += elements(&outputs[o], out[o])
				}
				at++
			}
		}
		list := make([]tensor.Tensor, len(outputs))
		for o := range outputs {
			buf, err := pool.Get(len(data[o]))
			if err != nil {
				for _, t := range list[:o] {
					t.Release()
				}
				return nil, nil, err
			}
			copy(buf.Bytes(), data[o])
			shape := slices.Clone(outputs[o].Shape)
			shape[0] = lengths[o]
			if k.spec.Batching == scheduler.BatchingNone {
				shape = append(tensor.Shape{1}, shape...)
			}
			list[o] = tensor.Tensor{DType: outputs[o].DType, Shape: shape, Data: buf.Bytes(), Buf: buf}
		}
		return list, faults, nil
	}
}

// empty is the answer to a row that fails.
func (k *kind) empty() (out [][]byte, fault string) {
	for _, o := range k.spec.Outputs {
		n, _ := o.Shape[1:].Elements()
		switch {
		case o.Ragged != "":
			out = append(out, nil)
		case o.DType == tensor.Bytes:
			out = append(out, make([]byte, 4))
		default:
			out = append(out, make([]byte, n*o.DType.Size()))
		}
	}
	return out, ""
}

// elements counts the values along the first dimension.
func elements(s *tensor.Spec, data []byte) int {
	if s.DType == tensor.Bytes {
		n := 0
		for len(data) > 0 {
			data = data[4+int(data[0])+int(data[1])<<8:]
			n++
		}
		return n
	}
	n, _ := s.Shape[1:].Elements()
	return len(data) / (n * s.DType.Size())
}

// serve adds a replica of a model.
func (r *rig) serve(name string, k kind, w *schedtest.Worker) *scheduler.Replica {
	r.t.Helper()
	if w.Model == nil {
		w.Model = k.answer(r.pool)
	}
	replica, err := r.sched.AddReplica(scheduler.ModelID{Name: name, Version: "1"}, k.spec, w,
		scheduler.ReplicaOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return replica
}

// takes is a worker that needs so long for a batch.
func takes(d time.Duration) *schedtest.Worker {
	return &schedtest.Worker{Exec: func(int) time.Duration { return d }}
}

// An asker is a call and its one answer.
type asker struct {
	gate.Call
	answers atomic.Int32
	done    chan struct{}
	at      time.Time
	inputs  []tensor.Tensor // that the caller releases after Close
}

func (a *asker) Complete(*gate.Call) {
	a.at = time.Now()
	if a.answers.Add(1) == 1 {
		close(a.done)
	}
}

// begin sends a request; the error is that of Open.
func (r *rig) begin(q *gate.Request) (*asker, error) {
	a := &asker{done: make(chan struct{})}
	q.Arrived = time.Now()
	if err := r.Open(&a.Call, q); err != nil {
		return nil, err
	}
	a.Owner = a
	r.Submit(&a.Call)
	return a, nil
}

// ask sends a request and waits. The caller closes it.
func (r *rig) ask(q *gate.Request) *asker {
	r.t.Helper()
	a, err := r.begin(q)
	if err != nil {
		a = &asker{}
		a.Err = err
		return a
	}
	<-a.done
	return a
}

// thing is a row of an input x.
func thing(values ...int64) tensor.Tensor {
	t, _ := tensor.FromSlice(tensor.Shape{len(values) / 2, 2}, values)
	t.Name = "x"
	return t
}

// text shows an answer by name: what the tests compare.
func (a *asker) text() string {
	if a.Err != nil {
		return a.Err.Error()
	}
	var b strings.Builder
	for i, t := range a.Outputs {
		fmt.Fprintf(&b, "%s=%s ", a.Target.Spec.Outputs[i].Name, shown(t))
	}
	return strings.TrimSpace(b.String())
}

// output returns a tensor of the answer.
func (a *asker) output(name string) tensor.Tensor {
	i := byName(a.Target.Spec.Outputs, name)
	if i < 0 {
		panic("no output " + name)
	}
	return a.Outputs[i]
}

func shown(t tensor.Tensor) string {
	switch t.DType {
	case tensor.Int64:
		v, err := tensor.Values[int64](t)
		return fmt.Sprint(v, orNil(err))
	case tensor.Int32:
		v, err := tensor.Values[int32](t)
		return fmt.Sprint(v, orNil(err))
	case tensor.Float32:
		v, err := floats(t, nil)
		return fmt.Sprint(v, orNil(err))
	case tensor.Bytes:
		v, err := tensor.Strings(t)
		return fmt.Sprintf("%q%s", v, orNil(err))
	}
	return t.Shape.String()
}

func orNil(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
