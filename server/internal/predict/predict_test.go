package predict_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A rig is a service, and a pool that must be empty at the end.
type rig struct {
	*predict.Service
	behind *doortest.Rig
	door   *predict.Door
	repo   *repository
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{behind: doortest.New(t, tensor.NewPool(1<<20)), repo: &repository{}}
	r.behind.Deadline = time.Second
	r.Service = r.behind.Predict(r.repo)
	r.door = r.Service.Door(r.behind.Metrics.Door("test"))
	t.Cleanup(func() {
		r.behind.Sched.Close()
		// A worker releases its batch a moment after the answer.
		budgettest.Until(t, "all memory comes back", func() bool { return r.behind.Pool.InUse() == 0 })
	})
	return r
}

func (r *rig) serve(t *testing.T, name, version string, spec scheduler.Spec, w *schedtest.Worker) {
	t.Helper()
	if _, err := r.behind.Sched.AddReplica(scheduler.ModelID{Name: name, Version: version}, spec, w,
		scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
}

type repository struct {
	managed []string
	found   []string // by the next look
	state   predict.State
	done    []string
}

func (r *repository) Models() []string { return r.managed }
func (r *repository) State(string, string) predict.Condition {
	return predict.Condition{State: r.state, Reason: "said so"}
}
func (r *repository) Look(context.Context) error {
	r.managed = append(r.managed, r.found...)
	return nil
}
func (r *repository) Load(_ context.Context, model string) error {
	r.done = append(r.done, "load "+model)
	return nil
}
func (r *repository) Unload(model string) error { r.done = append(r.done, "unload "+model); return nil }
func instant(int) time.Duration                 { return time.Microsecond }
func floats(name string, shape tensor.Shape, v ...float32) tensor.Tensor {
	t, err := tensor.FromSlice(shape, v)
	if err != nil {
		panic(err)
	}
	t.Name = name
	return t
}

// twoOutputs returns a float32 [-1, 3] as y, and the first element of each row as z.
var twoOutputs = scheduler.Spec{
	Inputs: []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 3}}},
	Outputs: []tensor.Spec{
		{Name: "y", DType: tensor.Float32, Shape: tensor.Shape{-1, 3}},
		{Name: "z", DType: tensor.Float32, Shape: tensor.Shape{-1}},
	},
	Platform: "test", Parameters: []byte(`{"threshold":0.5,"note":"text"}`),
}

func firsts(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
	inputs := make([]tensor.Tensor, len(b.Parts))
	for i, p := range b.Parts {
		inputs[i] = p.Inputs[0]
	}
	all, err := tensor.Concat(inputs, nil)
	if err != nil {
		return nil, nil, err
	}
	values, err := tensor.Values[float32](all)
	if err != nil {
		return nil, nil, err
	}
	z := make([]float32, b.Rows)
	for i := range z {
		z[i] = values[3*i]
	}
	first, err := tensor.FromSlice(tensor.Shape{b.Rows}, z)
	return []tensor.Tensor{all, first}, nil, err
}

func TestInfer(t *testing.T) {
	r := newRig(t)
	r.serve(t, "m", "1", twoOutputs, &schedtest.Worker{Exec: instant, Model: firsts})
	rows := func() []tensor.Tensor {
		return []tensor.Tensor{floats("x", tensor.Shape{2, 3}, 1, 5, 3, 7, 2, 7)}
	}
	one := func() []tensor.Tensor { return []tensor.Tensor{floats("x", tensor.Shape{3}, 1, 5, 3)} }
	for _, tc := range []struct {
		name string
		q    gate.Request
		want string // outputs, or the error
	}{
		{"all outputs", gate.Request{Model: "m", Inputs: rows()}, "y [2, 3] 1 5 3 7 2 7; z [2] 1 7"},
		{"one row without its dimension", gate.Request{Model: "m", Version: "1", Inputs: one()}, "y [3] 1 5 3; z [] 1"},
		{"in the order asked", gate.Request{Model: "m", Inputs: rows(), Outputs: []gate.Output{{Name: "z"}, {Name: "y"}}},
			"z [2] 1 7; y [2, 3] 1 5 3 7 2 7"},
		{"one output", gate.Request{Model: "m", Inputs: rows(), Outputs: []gate.Output{{Name: "z"}}}, "z [2] 1 7"},
		{"classes", gate.Request{Model: "m", Inputs: rows(), Outputs: []gate.Output{{Name: "y", Classes: 2}}}, "y [2, 2] 5.000000:1 3.000000:2 7.000000:0 7.000000:2"},
		{"classes of one row", gate.Request{Model: "m", Inputs: one(), Outputs: []gate.Output{{Name: "y", Classes: 9}}},
			"y [3] 5.000000:1 3.000000:2 1.000000:0"},
		{"no such output", gate.Request{Model: "m", Inputs: one(), Outputs: []gate.Output{{Name: "w"}}}, `invalid input: no output "w"; model "m" has "y", "z"`},
		{"an output twice", gate.Request{Model: "m", Inputs: one(), Outputs: []gate.Output{{Name: "y"}, {Name: "y"}}}, "requested twice"},
		{"no such model", gate.Request{Model: "n", Inputs: one()}, `no model, application or pipeline "n"`},
		{"no such version", gate.Request{Model: "m", Version: "2", Inputs: one()}, `has no version "2"`},
		{"a route for a model", gate.Request{Model: "m/1", Inputs: one()}, `no model "m/1"`},
		{"wrong input", gate.Request{Model: "m", Inputs: []tensor.Tensor{floats("x", tensor.Shape{1}, 1)}}, `input "x": expected float32 [-1, 3]`},
	} {
		tc.q.Arrived = time.Now()
		a, err := r.door.Infer(t.Context(), &tc.q, nil)
		if err != nil {
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got error %v, expected %s", tc.name, err, tc.want)
			}
			continue
		}
		if a.Model != "m" || a.Version != "1" {
			t.Errorf("%s: answered by %s/%s", tc.name, a.Model, a.Version)
		}
		var got []string
		for _, o := range a.Outputs {
			got = append(got, text(t, o))
		}
		if s := strings.Join(got, "; "); s != tc.want {
			t.Errorf("%s: got %s, expected %s", tc.name, s, tc.want)
		}
		a.Release()
	}
}

func text(t *testing.T, o tensor.Tensor) string {
	t.Helper()
	s := fmt.Sprintf("%s %s", o.Name, o.Shape)
	if o.DType == tensor.Bytes {
		labels, err := tensor.Strings(o)
		if err != nil {
			t.Fatal(err)
		}
		return s + " " + strings.Join(labels, " ")
	}
	values, err := tensor.Values[float32](o)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		s += fmt.Sprintf(" %g", v)
	}
	return s
}

// TestInputsAreInfers: whatever the outcome of a request, the memory of its inputs is released.
func TestInputsAreInfers(t *testing.T) {
	r := newRig(t)
	r.serve(t, "m", "1", twoOutputs, &schedtest.Worker{Exec: instant, Model: firsts})
	for _, model := range []string{"m", "absent"} {
		buf, err := r.behind.Pool.Get(12)
		if err != nil {
			t.Fatal(err)
		}
		clear(buf.Bytes())
		in := tensor.Tensor{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{3}, Data: buf.Bytes(), Buf: buf}
		a, err := r.door.Infer(t.Context(),
			&gate.Request{Model: model, Inputs: []tensor.Tensor{in}, Arrived: time.Now()}, nil)
		if (err == nil) != (model == "m") {
			t.Errorf("model %s: error %v", model, err)
		}
		if err == nil {
			a.Release()
		}
	}
}

// TestEnds: the ways in which a request ends without a result while its model is busy.
func TestEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		ask  func(ctx context.Context, q *gate.Request) (context.Context, context.CancelFunc)
		want error
		at   time.Duration
	}{
		{"the model's deadline", func(ctx context.Context, q *gate.Request) (context.Context, context.CancelFunc) {
			return ctx, func() {}
		}, scheduler.ErrDeadlineExceeded, time.Second},
		{"timeout", func(ctx context.Context, q *gate.Request) (context.Context, context.CancelFunc) {
			q.Timeout = 30 * time.Millisecond
			return context.WithTimeout(ctx, time.Minute)
		}, scheduler.ErrDeadlineExceeded, 30 * time.Millisecond},
		{"the context's deadline", func(ctx context.Context, q *gate.Request) (context.Context, context.CancelFunc) {
			q.Timeout = time.Second
			return context.WithTimeout(ctx, 20*time.Millisecond)
		}, scheduler.ErrDeadlineExceeded, 20 * time.Millisecond},
		{"the client goes", func(ctx context.Context, q *gate.Request) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(10*time.Millisecond, cancel)
			return ctx, cancel
		}, scheduler.ErrCanceled, 10 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.serve(t, "m", "1", twoOutputs, &schedtest.Worker{}) // never answers
				q := &gate.Request{Model: "m", Inputs: []tensor.Tensor{floats("x", tensor.Shape{3}, 1, 2, 3)},
					Arrived: time.Now()}
				ctx, cancel := tc.ask(t.Context(), q)
				defer cancel()
				begin := time.Now()
				_, err := r.door.Infer(ctx, q, nil)
				if !errors.Is(err, tc.want) {
					t.Errorf("got %v, expected %v", err, tc.want)
				}
				if took := time.Since(begin); took != tc.at {
					t.Errorf("ended after %v, expected %v", took, tc.at)
				}
				m, _ := r.behind.Sched.Model(scheduler.ModelID{Name: "m", Version: "1"})
				if rows := m.Stats().QueueRows; rows != 0 {
					t.Errorf("%d rows still wait", rows)
				}
			})
		})
	}
}

func TestPriority(t *testing.T) {
	for v2, want := range map[uint64]int{0: 5, 1: 0, 2: 1, 10: 9, 1 << 40: 9} {
		r := newRig(t)
		var got int
		r.serve(t, "m", "1", twoOutputs,
			&schedtest.Worker{Exec: instant, Model: firsts,
				Seen: func(b *scheduler.Batch) { got = b.Parts[0].Priority }})
		q := gate.Request{Model: "m", Arrived: time.Now(),
			Inputs: []tensor.Tensor{floats("x", tensor.Shape{3}, 1, 2, 3)}}
		q.SetPriority(v2)
		a, err := r.door.Infer(t.Context(), &q, nil)
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
		if got != want {
			t.Errorf("priority %d became %d, expected %d", v2, got, want)
		}
	}
}

// TestFlat: a legacy model's rows are those of a matrix, or one vector.
func TestFlat(t *testing.T) {
	flat := containertest.OldSpec(tensor.Float32, tensor.Bytes)
	r := newRig(t)
	r.serve(t, "m", "1", flat,
		&schedtest.Worker{Exec: instant,
			Model: func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
				var out []string
				for _, p := range b.Parts {
					values, err := tensor.Values[float32](p.Inputs[0])
					if err != nil {
						return nil, nil, err
					}
					each := len(values) / p.Rows
					for r := range p.Rows {
						out = append(out, fmt.Sprint(values[r*each:][:each]))
					}
				}
				o, err := tensor.FromStrings(tensor.Shape{b.Rows}, out)
				return []tensor.Tensor{o}, nil, err
			}})
	for _, tc := range []struct {
		in   tensor.Tensor
		want string
	}{
		{floats("input", tensor.Shape{2, 2}, 1, 2, 3, 4), "output [2] [1 2] [3 4]"},
		{floats("input", tensor.Shape{4}, 1, 2, 3, 4), "output [] [1 2 3 4]"},
	} {
		a, err := r.door.Infer(t.Context(),
			&gate.Request{Model: "m", Inputs: []tensor.Tensor{tc.in}, Arrived: time.Now()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := text(t, a.Outputs[0]); got != tc.want {
			t.Errorf("got %s, expected %s", got, tc.want)
		}
		a.Release()
	}
}

func TestStatistics(t *testing.T) {
	r := newRig(t)
	r.serve(t, "m", "1", twoOutputs,
		&schedtest.Worker{Exec: func(int) time.Duration { return time.Millisecond }, Model: firsts})
	for _, shape := range []tensor.Shape{{2, 3}, {2, 3}, {1, 3}} {
		values := make([]float32, shape[0]*3)
		a, err := r.door.Infer(t.Context(),
			&gate.Request{Model: "m", Inputs: []tensor.Tensor{floats("x", shape, values...)}, Arrived: time.Now()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
	}
	if _, err := r.door.Infer(t.Context(), &gate.Request{Model: "m", Arrived: time.Now()}, nil); err == nil {
		t.Error("a question without inputs was answered")
	}
	list, err := r.Statistics("", "")
	if err != nil || len(list.Models) != 1 {
		t.Fatalf("got %+v, %v", list, err)
	}
	s := list.Models[0]
	var rows, batches uint64
	for _, b := range s.BatchStats {
		rows += uint64(b.BatchSize) * b.ComputeInfer.Count
		batches += b.ComputeInfer.Count
	}
	if s.InferenceCount != 5 || rows != 5 || s.ExecutionCount != batches || batches < 3 {
		t.Errorf("%d rows in %d batches, expected 5 in 3 or more: %+v", s.InferenceCount, s.ExecutionCount,
			s.BatchStats)
	}
	i := s.InferenceStats
	if i.Success.Count != 3 || i.Fail.Count != 1 || i.Queue.Count != 3 || i.ComputeInfer.Count != 3 {
		t.Errorf("counts %+v, expected 3 that succeeded, waited and were computed, and 1 that failed", i)
	}
	if least := uint64(3 * time.Millisecond); i.ComputeInfer.Nanos < least || i.Success.Nanos < i.ComputeInfer.Nanos {
		t.Errorf("computing took %d ns of %d, expected at least %d", i.ComputeInfer.Nanos, i.Success.Nanos, least)
	}
	if age := time.Since(time.UnixMilli(s.LastInference)); age < 0 || age > time.Minute {
		t.Errorf("last inference %v ago", age)
	}
	if _, err := r.Statistics("n", ""); !errors.Is(err, scheduler.ErrNotFound) {
		t.Errorf("statistics of an unknown model: %v", err)
	}
}

func TestDescriptions(t *testing.T) {
	r := newRig(t)
	r.serve(t, "m", "1", twoOutputs, &schedtest.Worker{})
	r.serve(t, "m", "12", twoOutputs, &schedtest.Worker{})
	meta, err := r.Model("m", "")
	if err != nil {
		t.Fatal(err)
	}
	got, want := fmt.Sprint(meta),
		"{m [12 1] test <nil> [{x FP32 [-1 3] false  }] [{y FP32 [-1 3] false  } {z FP32 [-1] false  }] <nil> map[note:text threshold:0.5]}"
	if got != want {
		t.Errorf("metadata %s, expected %s", got, want)
	}
	c, err := r.ModelConfig("m", "1")
	if err != nil {
		t.Fatal(err)
	}
	got = fmt.Sprint(c.Input, c.Output, c.VersionPolicy.Specific.Versions, c.InstanceGroup)
	want =
		"[{x TYPE_FP32 [3] FORMAT_NONE false}] [{y TYPE_FP32 [3]  false} {z TYPE_FP32 []  false}] [12 1] [{m KIND_AUTO 1}]"
	if got != want {
		t.Errorf("configuration %s, expected %s", got, want)
	}
	if c.MaxBatchSize != 128 || c.Batching == nil || c.Batching.PriorityLevels != 10 {
		t.Errorf("batching: %d rows, %+v", c.MaxBatchSize, c.Batching)
	}
	if c.Parameters["strategy"].StringValue != "deadline" || c.Parameters["note"].StringValue != "text" ||
		c.Parameters["version"].StringValue != "1" {
		t.Errorf("parameters %v", c.Parameters)
	}
}

func TestRepository(t *testing.T) {
	r := newRig(t)
	r.serve(t, "alone", "1", twoOutputs, &schedtest.Worker{})
	r.repo.managed, r.repo.state = []string{"mine"}, predict.Loading
	if got, want := fmt.Sprint(r.Index(false)), "[{alone 1 READY } {mine  LOADING said so}]"; got != want {
		t.Errorf("index %s, expected %s", got, want)
	}
	if got, want := fmt.Sprint(r.Index(true)), "[{alone 1 READY }]"; got != want {
		t.Errorf("index of those ready %s, expected %s", got, want)
	}
	for _, tc := range []struct{ what, want string }{
		{"load mine", ""},
		{"unload mine", ""},
		{"load alone", ""}, // it is served, no matter what started it
		{"unload alone", "connect by themselves"},
		{"load none", `no model "none"; those that can be loaded: ["mine"]`},
		{"unload none", `no model "none"; those that can be unloaded: ["mine"]`},
	} {
		verb, model, _ := strings.Cut(tc.what, " ")
		err := error(nil)
		if verb == "load" {
			err = r.Load(t.Context(), predict.Caller{}, model, nil)
		} else {
			err = r.Unload(predict.Caller{}, model)
		}
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, expected %q", tc.what, err, tc.want)
		}
	}
	if err := r.Load(t.Context(), predict.Caller{}, "mine", []string{"config"}); !errors.Is(err,
		scheduler.ErrInvalidInput) {
		t.Errorf("a load with parameters: %v", err)
	}
	r.repo.found = []string{"new"}
	if err := r.Load(t.Context(), predict.Caller{}, "new", nil); err != nil {
		t.Errorf("load of what has just come: %v", err)
	}
	if got := fmt.Sprint(r.repo.done); got != "[load mine unload mine load new]" {
		t.Errorf("the repository was told %s", got)
	}
}
