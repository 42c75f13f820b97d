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

// ask submits a request on a virtual clock and returns it once it is answered.
func ask(t testing.TB, s *scheduler.Scheduler, clock *schedtest.Clock, r *scheduler.Request) *scheduler.Request {
	t.Helper()
	done := false
	r.Owner = ownerFunc(func(*scheduler.Request) { done = true })
	s.Submit(r)
	for !done && clock.Step() {
	}
	if !done {
		t.Fatal("the request is not answered, and no timer is left")
	}
	return r
}

func newVirtual(t testing.TB, cfg scheduler.Config) (*scheduler.Scheduler, *schedtest.Clock) {
	t.Helper()
	clock := schedtest.NewClock()
	cfg.Clock = clock
	s, err := scheduler.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, clock
}

func addTo(t testing.TB, s *scheduler.Scheduler, id scheduler.ModelID, spec scheduler.Spec,
	w scheduler.Worker) *scheduler.Replica {
	t.Helper()
	rep, err := s.AddReplica(id, spec, w, scheduler.ReplicaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// TestRefusals: invalid requests and the texts of their errors.
func TestRefusals(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{QueueRows: 128, QueueBytes: 10_000}})
	model := addTo(t, s, benchID, rowsSpec,
		&schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0)}).Model()
	single := scheduler.Spec{Inputs: []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{4}}}}
	one := addTo(t, s, scheduler.ModelID{Name: "one", Version: "1"}, single, &schedtest.Worker{}).Model()
	short := rowOf(t, 1)
	short[0].Data = short[0].Data[:3]
	for name, c := range map[string]struct {
		r    scheduler.Request
		want error
		text string
	}{
		"no model":   {scheduler.Request{Rows: 1}, scheduler.ErrNotFound, "names no model"},
		"no rows":    {scheduler.Request{Model: model, Inputs: rowOf(t, 1)}, scheduler.ErrInvalidInput, "got 0"},
		"no inputs":  {scheduler.Request{Model: model, Rows: 1}, scheduler.ErrInvalidInput, "no inputs"},
		"other rows": {scheduler.Request{Model: model, Inputs: rowOf(t, 2), Rows: 3}, scheduler.ErrInvalidInput, "[2, 4]"},
		"short data": {scheduler.Request{Model: model, Inputs: short, Rows: 1}, scheduler.ErrInvalidInput, "got 3"},
		"priority": {scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1, Priority: 10},
			scheduler.ErrInvalidInput, "got 10"},
		"too many rows": {scheduler.Request{Model: model, Inputs: rowOf(t, 129), Rows: 129}, scheduler.ErrTooLarge, "queue_rows is 128"},
		"past": {scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1, Deadline: clock.Now()},
			scheduler.ErrDeadlineExceeded, "had passed"},
		"rows unbatched": {scheduler.Request{Model: one, Inputs: rowOf(t, 2), Rows: 2}, scheduler.ErrInvalidInput, "one row per request, got 2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := ask(t, s, clock, &c.r)
			if !errors.Is(r.Err, c.want) || !strings.Contains(r.Err.Error(), c.text) {
				t.Errorf("got %v, want %v with %q", r.Err, c.want, c.text)
			}
		})
	}
}

// TestAnswersAreChecked: outputs that do not fit the declaration fail the batch, and are released.
func TestAnswersAreChecked(t *testing.T) {
	pool := tensor.NewPool(0)
	out := func(d tensor.DType, shape ...int) tensor.Tensor {
		n, _ := tensor.Shape(shape).Elements()
		buf, err := pool.Get(n * d.Size())
		if err != nil {
			t.Fatal(err)
		}
		return tensor.Tensor{DType: d, Shape: shape, Data: buf.Bytes(), Buf: buf}
	}
	short := func() tensor.Tensor { o := out(tensor.Uint8, 2, 4); o.Data = o.Data[:7]; return o }
	for name, c := range map[string]struct {
		outputs func() []tensor.Tensor
		errs    []scheduler.RowError
		text    string // "": it fits
	}{
		"fits":  {func() []tensor.Tensor { return []tensor.Tensor{out(tensor.Uint8, 2, 4)} }, nil, ""},
		"none":  {func() []tensor.Tensor { return nil }, nil, "answered with 0"},
		"rows":  {func() []tensor.Tensor { return []tensor.Tensor{out(tensor.Uint8, 1, 4)} }, nil, "[1, 4] for a batch of 2"},
		"dtype": {func() []tensor.Tensor { return []tensor.Tensor{out(tensor.Int8, 2, 4)} }, nil, "got int8"},
		"shape": {func() []tensor.Tensor { return []tensor.Tensor{out(tensor.Uint8, 2, 5)} }, nil, "got [2, 5]"},
		"data":  {func() []tensor.Tensor { return []tensor.Tensor{short()} }, nil, "got 7"},
		"row error": {func() []tensor.Tensor { return []tensor.Tensor{out(tensor.Uint8, 2, 4)} },
			[]scheduler.RowError{{Row: 2}}, "row 2 in a batch of 2 rows"},
	} {
		t.Run(name, func(t *testing.T) {
			s, clock := newVirtual(t, scheduler.Config{})
			w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0),
				Model: func(*scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
					return c.outputs(), c.errs, nil
				}}
			s.Configure("m", scheduler.ModelConfig{Strategy: "static", Retry: new(bool)})
			r := ask(t, s, clock,
				&scheduler.Request{Model: addTo(t, s, benchID, rowsSpec, w).Model(), Inputs: rowOf(t, 2), Rows: 2})
			if (r.Err == nil) != (c.text == "") || r.Err != nil &&
				(!errors.Is(r.Err, scheduler.ErrContainerFailed) || !strings.Contains(r.Err.Error(), c.text)) {
				t.Errorf("got %v, want %q", r.Err, c.text)
			}
			for _, o := range r.Outputs {
				o.Release()
			}
			if n := pool.InUse(); n != 0 {
				t.Errorf("%d bytes were not released", n)
			}
		})
	}
}

// A row that was wrong itself is its request's fault, and not the container's.
func TestInvalidRow(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{})
	w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0),
		Model: func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
			outputs, _, err := schedtest.Echo(b)
			return outputs, []scheduler.RowError{{Message: "no picture", Invalid: true}}, err
		}}
	model := addTo(t, s, benchID, rowsSpec, w).Model()
	r := ask(t, s, clock, &scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1})
	if !errors.Is(r.Err, scheduler.ErrInvalidInput) || errors.Is(r.Err, scheduler.ErrContainerFailed) ||
		!strings.HasSuffix(r.Err.Error(), "row 0: no picture") {
		t.Error(r.Err)
	}
	if n := model.Stats().Outcomes[scheduler.OutcomeInvalidInput]; n != 1 {
		t.Errorf("%d requests are counted as invalid", n)
	}
}

// An image declaration is part of the contract with clients, so all replicas declare the same.
func TestReplicasAgreeOnImages(t *testing.T) {
	s, _ := newVirtual(t, scheduler.Config{})
	spec := func(i *tensor.Image) scheduler.Spec {
		return scheduler.Spec{Outputs: rowSpec,
			Inputs: []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 2, 2, 3},
				Format: tensor.FormatNHWC, Image: i}}}
	}
	addTo(t, s, benchID, spec(&tensor.Image{Channels: tensor.ChannelsRGB}), &schedtest.Worker{})
	addTo(t, s, benchID, spec(&tensor.Image{Channels: tensor.ChannelsRGB}), &schedtest.Worker{})
	for _, other := range []*tensor.Image{nil, {Channels: tensor.ChannelsBGR}} {
		if _, err := s.AddReplica(benchID, spec(other), &schedtest.Worker{}, scheduler.ReplicaOptions{}); err == nil ||
			!strings.Contains(err.Error(), "rgb pictures") {
			t.Errorf("%v: %v", other, err)
		}
	}
}

// TestReplicasAgreeOnLabels: all replicas of a model must declare the same labels, so that the
// names of classes do not depend on the replica.
func TestReplicasAgreeOnLabels(t *testing.T) {
	s, _ := newVirtual(t, scheduler.Config{})
	spec := func(labels ...string) scheduler.Spec {
		y := rowSpec[0]
		y.Labels = labels
		return scheduler.Spec{Inputs: rowSpec, Outputs: []tensor.Spec{y}}
	}
	first := addTo(t, s, benchID, spec("cat", "dog"), &schedtest.Worker{})
	addTo(t, s, benchID, spec("cat", "dog"), &schedtest.Worker{})
	for _, tt := range []struct {
		declared scheduler.Spec
		want     string
	}{
		{spec("cat", "cow"), `labels (2), but label 1 of output "x" is "cow" in this declaration and "dog" in that of the live replicas`},
		{spec("cat"), "labels (1)"},
		{spec(), "outputs x uint8 [-1, 4]"},
	} {
		_, err := s.AddReplica(benchID, tt.declared, &schedtest.Worker{}, scheduler.ReplicaOptions{})
		if err == nil || !strings.Contains(err.Error(), "[-1, 4], labels (2); this replica declares") ||
			!strings.HasSuffix(err.Error(), tt.want+"; register it as another version, or stop the 2 that serve this one") {
			t.Errorf("other labels: %v, want %q and the cure in the end", err, tt.want)
		}
	}
	if n := first.Model().Replicas(); n != 2 {
		t.Errorf("%d replicas, want 2", n)
	}
}

// TestRegistration: replicas of one model have the same contract, and a new contract makes a new
// model.
func TestRegistration(t *testing.T) {
	changes := 0
	s, _ := newVirtual(t, scheduler.Config{Hooks: scheduler.Hooks{ModelChanged: func(*scheduler.Model) { changes++ }}})
	other := scheduler.Spec{Inputs: []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}}}
	a := addTo(t, s, benchID, rowsSpec, &schedtest.Worker{})
	smaller := rowsSpec
	smaller.MaxBatch, smaller.Platform = 8, "cpu"
	b := addTo(t, s, benchID, smaller, &schedtest.Worker{})
	if _, err := s.AddReplica(benchID, other, &schedtest.Worker{}, scheduler.ReplicaOptions{}); err == nil ||
		!strings.Contains(err.Error(), "uint8 [-1, 4]") || !strings.Contains(err.Error(), "float32 [-1, 4]") {
		t.Errorf("another contract: %v, want both in the message", err)
	}
	if m := a.Model(); m != b.Model() || m.Replicas() != 2 || s.Forget(benchID) {
		t.Errorf("%d replicas, want two of one model, which cannot be forgotten", m.Replicas())
	}
	if n := a.Model().Incarnation(); n != 1 {
		t.Errorf("incarnation %d after a replica joined another", n)
	}
	a.Remove(errors.New("gone"))
	b.Remove(errors.New("gone"))
	b.Remove(errors.New("gone twice"))
	again := addTo(t, s, benchID, rowsSpec, &schedtest.Worker{})
	if n := a.Model().Incarnation(); again.Model() != a.Model() || n != 2 {
		t.Errorf("incarnation %d after all had gone and one came back", n)
	}
	again.Remove(errors.New("gone"))
	c := addTo(t, s, benchID, other, &schedtest.Worker{})
	if m, _ := s.Model(benchID); m != c.Model() || m == a.Model() || a.Model().Replicas() != 0 {
		t.Error("the new contract is not a new model")
	}
	if changes != 7 {
		t.Errorf("%d calls of ModelChanged, want 7", changes)
	}
	c.Remove(errors.New("gone"))
	if !s.Forget(benchID) || len(s.Models()) != 0 {
		t.Error("a model without replicas was not forgotten")
	}
	for name, spec := range map[string]scheduler.Spec{
		"nothing":   {},
		"dtype":     {Inputs: []tensor.Spec{{Name: "x", DType: 99, Shape: tensor.Shape{-1}}}},
		"dimension": {Inputs: []tensor.Spec{{Name: "x", DType: tensor.Int8, Shape: tensor.Shape{-1, -2}}}},
		"mixture":   {Inputs: rowSpec, Outputs: []tensor.Spec{{Name: "y", DType: tensor.Int8, Shape: tensor.Shape{3}}}},
		"maximum":   {Inputs: rowSpec, MaxBatch: -1},
	} {
		if _, err := s.AddReplica(benchID, spec, &schedtest.Worker{}, scheduler.ReplicaOptions{}); !errors.Is(err,
			scheduler.ErrInvalidInput) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNamesComeAndGo: a container chooses its model's name, and may choose another each time.
// Models without replicas do not accumulate: those that have been absent for longest are
// forgotten, with a call of ModelChanged.
func TestNamesComeAndGo(t *testing.T) {
	changed := make(map[*scheduler.Model]int)
	s, clock := newVirtual(t,
		scheduler.Config{Hooks: scheduler.Hooks{ModelChanged: func(m *scheduler.Model) { changed[m]++ }}})
	id := func(i int) scheduler.ModelID { return scheduler.ModelID{Name: fmt.Sprint("m", i), Version: "1"} }
	served := addTo(t, s, benchID, rowsSpec, &schedtest.Worker{}).Model()
	var first *scheduler.Model
	for i := range 3 * scheduler.MaxAbsent {
		rep := addTo(t, s, id(i), rowsSpec, &schedtest.Worker{})
		clock.Advance(time.Second)
		rep.Remove(errors.New("gone"))
		if i == 0 {
			first = rep.Model()
		}
		if n := len(s.Models()); n > scheduler.MaxAbsent+1 {
			t.Fatalf("%d models are known after %d names, and one is served", n, i+1)
		}
	}
	if m, ok := s.Model(benchID); !ok || m != served {
		t.Error("a model with a replica was forgotten")
	}
	for i, want := range map[int]bool{0: false, 2*scheduler.MaxAbsent - 1: false, 2 * scheduler.MaxAbsent: true,
		3*scheduler.MaxAbsent - 1: true} {
		if _, ok := s.Model(id(i)); ok != want {
			t.Errorf("model %d of %d is known: %v, want %v", i, 3*scheduler.MaxAbsent, ok, want)
		}
	}
	if changed[first] != 3 {
		t.Errorf("%d calls of ModelChanged for a model that was added, lost its replica and was forgotten, want 3",
			changed[first])
	}
	if r := ask(t, s, clock, &scheduler.Request{Model: first, Inputs: rowOf(t, 1), Rows: 1}); !errors.Is(r.Err,
		scheduler.ErrUnavailable) {
		t.Errorf("a request to a forgotten model: %v", r.Err)
	}
}

// TestConfigIsChecked: one error names every fault, and both values of settings that contradict
// each other.
func TestConfigIsChecked(t *testing.T) {
	no := false
	for name, c := range map[string]struct {
		cfg  scheduler.ModelConfig
		want []string
	}{
		"zero": {scheduler.ModelConfig{}, nil},
		"negative": {scheduler.ModelConfig{MaxBatch: -1, Delay: -time.Second},
			[]string{"max_batch: expected 0 to 16777216, got -1", "delay: expected 0s to 24h, got -1s"}},
		"strategy":          {scheduler.ModelConfig{Strategy: "fastest"}, []string{`"fastest"`, "deadline, aimd, quantile, static"}},
		"unreachable":       {scheduler.ModelConfig{MaxBatch: 100, QueueRows: 50}, []string{"100", "50"}},
		"bytes":             {scheduler.ModelConfig{BatchBytes: 100, QueueBytes: 50}, []string{"100", "50"}},
		"small queue":       {scheduler.ModelConfig{QueueRows: 10, QueueBytes: 50}, nil},
		"delay":             {scheduler.ModelConfig{Delay: time.Second}, []string{"1s", "100ms"}},
		"execution_timeout": {scheduler.ModelConfig{ExecTimeout: time.Millisecond}, []string{"1ms", "100ms"}},
		"forever":           {scheduler.ModelConfig{ExecTimeout: 1 << 62}, []string{"24h"}},
		"slots":             {scheduler.ModelConfig{Slots: 65}, []string{"65", "64"}},
		"shed":              {scheduler.ModelConfig{Shed: &no}, []string{"shed"}},
		"shed aimd":         {scheduler.ModelConfig{Shed: &no, Strategy: "aimd"}, nil},
		"pad":               {scheduler.ModelConfig{Pad: true}, []string{`pad: true has no meaning with strategy "deadline"`}},
	} {
		err := scheduler.Config{Models: map[string]scheduler.ModelConfig{"digits": c.cfg}}.Validate()
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) || !strings.Contains(err.Error(), "digits") {
				t.Errorf("%s: %v, want %q in it", name, err, w)
			}
		}
	}
	// Models in the map do not inherit, since a setting may be invalid with another strategy.
	cfg := scheduler.Config{Default: scheduler.ModelConfig{Strategy: "static", Pad: true, Shed: &no},
		Models: map[string]scheduler.ModelConfig{"m": {Strategy: "deadline"}}}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

// TestConfigureWhileRunning: a new maximum applies to rows that wait already.
func TestConfigureWhileRunning(t *testing.T) {
	s, _ := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{Strategy: "static", Slots: 1}})
	w := &schedtest.Worker{}
	model := addTo(t, s, benchID, rowsSpec, w).Model()
	for range 9 {
		s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1,
			Owner: ownerFunc(func(*scheduler.Request) {})})
	}
	if err := s.Configure("m", scheduler.ModelConfig{Strategy: "static", MaxBatch: 3, Slots: 1}); err != nil {
		t.Fatal(err)
	}
	if err := s.Configure("m", scheduler.ModelConfig{MaxBatch: -3}); err == nil {
		t.Error("a negative maximum was accepted")
	}
	if err := w.Answer(); err != nil {
		t.Fatal(err)
	}
	if got := w.Pending(); len(got) != 1 || got[0] != 3 {
		t.Errorf("batches of %v after the maximum was set to 3", got)
	}
	if st := model.Stats(); st.Config.MaxBatch != 3 || st.Replicas[0].MaxBatch != 3 || s.ModelConfig("m").Strategy != "static" {
		t.Errorf("in force: %+v", st.Config)
	} else if st.Replicas[0].Limit != 3 {
		t.Errorf("a batch may have up to %d rows, want 3", st.Replicas[0].Limit)
	}
	// Another strategy starts from scratch: aimd with batches of one.
	if err := s.Configure("m", scheduler.ModelConfig{Strategy: "aimd", MaxBatch: 3, Slots: 1}); err != nil {
		t.Fatal(err)
	}
	if st := model.Stats(); st.Config.Strategy != "aimd" || st.Replicas[0].Limit != 1 {
		t.Errorf("with the strategy %s a batch may have up to %d rows, want 1 with aimd", st.Config.Strategy,
			st.Replicas[0].Limit)
	}
}

// TestMixedModels: one Submit for several models, and for none.
func TestMixedModels(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{})
	told := map[string]int{}
	var rs []*scheduler.Request
	for i, name := range []string{"a", "b", "a", "b", ""} {
		r := &scheduler.Request{Inputs: rowOf(t, 1), Rows: 1, Owner: ownerFunc(func(r *scheduler.Request) {
			if (r.Err != nil) != (name == "") {
				t.Errorf("%q: %v", name, r.Err)
			}
			told[name]++
		})}
		if name != "" {
			id := scheduler.ModelID{Name: name, Version: "1"}
			if m, ok := s.Model(id); ok {
				r.Model = m
			} else {
				r.Model = addTo(t, s, id, rowsSpec,
					&schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Duration(i+1)*time.Millisecond, 0)}).
					Model()
			}
		}
		rs = append(rs, r)
	}
	s.Submit(rs...)
	s.Submit()
	clock.Advance(time.Second)
	if told["a"] != 2 || told["b"] != 2 || told[""] != 1 {
		t.Errorf("answered: %v", told)
	}
}

// TestExecutionOfPipelinedBatches: the execution of a batch that was queued in the container
// counts from the answer before it.
func TestExecutionOfPipelinedBatches(t *testing.T) {
	const exec = 100 * time.Microsecond
	wrong, most := 0, 0
	s, clock := newVirtual(t, scheduler.Config{
		Default: scheduler.ModelConfig{Strategy: "static", MaxBatch: 1, Slots: 4},
		Hooks: scheduler.Hooks{BatchDone: func(_ scheduler.ModelID, _ int, took, _ time.Duration, _ error) {
			if took != exec {
				wrong++
			}
		}},
	})
	w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(exec, 0)}
	model := addTo(t, s, benchID, rowsSpec, w).Model()
	for range 200 {
		s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1,
			Owner: ownerFunc(func(*scheduler.Request) {})})
		most = max(most, len(w.Pending()))
	}
	for model.Stats().Requests > 0 {
		clock.Step()
		most = max(most, len(w.Pending()))
	}
	st := model.Stats().Replicas[0]
	if most != 4 {
		t.Fatalf("at most %d batches were in flight, want 4", most)
	}
	if got := st.Profile[0].Typical; wrong > 0 || got < exec*3/4 || got > exec {
		t.Errorf("%d of 200 batches were not measured to take %v; the profile says %v", wrong, exec, got)
	}
}

// TestDelivering: the hook is called before the owners of a batch of several requests, and over
// after them; not for a batch of one request.
func TestDelivering(t *testing.T) {
	var order []string
	note := func(what string) { order = append(order, what) }
	s, clock := newVirtual(t, scheduler.Config{
		Default: scheduler.ModelConfig{Strategy: "static", MaxBatch: 3, Slots: 1},
		Hooks:   scheduler.Hooks{Delivering: func() func() { note("begins"); return func() { note("over") } }},
	})
	model := addTo(t, s, benchID, rowsSpec,
		&schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0)}).Model()
	for range 4 { // one goes out at once, the others wait for it
		s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1,
			Owner: ownerFunc(func(*scheduler.Request) { note("answer") })})
	}
	for model.Stats().Requests > 0 {
		clock.Step()
	}
	if want := []string{"answer", "begins", "answer", "answer", "answer", "over"}; !slices.Equal(order, want) {
		t.Errorf("called: %q, expected %q", order, want)
	}
}

// TestSlowReplica: of two replicas, one four times as slow, each has its own profile and serves
// its share.
func TestSlowReplica(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{})
	fast := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(2*time.Millisecond, 250*time.Microsecond)}
	slow := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(8*time.Millisecond, time.Millisecond)}
	model := addTo(t, s, benchID, rowsSpec, fast).Model()
	addTo(t, s, benchID, rowsSpec, slow)
	good := 0
	const n = 20000
	for range n {
		s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1,
			Deadline: clock.Now().Add(40 * time.Millisecond), Owner: ownerFunc(func(r *scheduler.Request) {
				if r.Err == nil {
					good++
				}
			})})
		// 3,333 a second; the fast one alone does 3,500 at best.
		clock.Advance(300 * time.Microsecond)
	}
	clock.Advance(time.Second)
	_, f := fast.Sent()
	_, l := slow.Sent()
	t.Logf("%d of %d in time; %d rows by the fast replica, %d by the slow one: %+v", good, n, f, l,
		model.Stats().Replicas)
	if good < n*99/100 || l < n/50 {
		t.Errorf("%d of %d in time, %d rows by the slow replica", good, n, l)
	}
}

// TestLabels: every outcome and close reason has a name of its own.
func TestLabels(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range scheduler.Outcomes() {
		seen[o.String()] = true
	}
	for _, c := range scheduler.CloseReasons() {
		seen["close "+c.String()] = true
	}
	if n := len(scheduler.Outcomes()) + len(scheduler.CloseReasons()); len(seen) != n || seen["unknown"] || seen[""] {
		t.Errorf("%d names for %d labels: %v", len(seen), n, seen)
	}
}
