package apps

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A house is a gate with a scheduler and applications in memory.
type house struct {
	*gate.Gate
	t       testing.TB
	reg     *Registry
	store   state.Store
	pool    *tensor.Pool
	sched   *scheduler.Scheduler
	metrics *metrics.Metrics
	options func(name string) gate.ModelOptions
}

func newHouse(t testing.TB) *house {
	t.Helper()
	h := &house{t: t, pool: tensor.NewPool(1 << 20), metrics: metrics.New("test")}
	h.options = func(name string) gate.ModelOptions {
		if name == "brief" {
			return gate.ModelOptions{Deadline: time.Second}
		}
		return gate.ModelOptions{Deadline: 10 * time.Second}
	}
	h.Gate = gate.New(gate.Config{
		Pool: h.pool, Metrics: h.metrics,
		Options: func(name string) gate.ModelOptions { return h.options(name) },
	})
	hooks := h.metrics.Hooks()
	hooks.ModelChanged = h.ModelChanged
	s, err := scheduler.New(scheduler.Config{Hooks: hooks, Pool: h.pool})
	if err != nil {
		t.Fatal(err)
	}
	h.sched = s
	h.Attach(s, gate.Server{Ready: func() (bool, string) { return true, "" }})
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.store = store
	h.reg = Open(Config{Store: store, Changed: h.Changed})
	h.AttachComposites(h.reg)
	t.Cleanup(func() {
		s.Close()
		h.Close()
		h.reg.Close()
		store.Close()
		// A worker releases the memory of a batch after its answers.
		budgettest.Until(t, "all memory comes back", func() bool { return h.pool.InUse() == 0 })
	})
	return h
}

// model serves a version that answers the same label for every row, in memory of the pool, after
// the time exec.
func (h *house) model(name, version string, label int64, exec time.Duration) *schedtest.Worker {
	h.t.Helper()
	w := h.labels(label, exec)
	h.serve(name, version, w)
	return w
}

// replica is model for a replica that will be removed.
func (h *house) replica(name, version string, label int64, exec time.Duration) *scheduler.Replica {
	h.t.Helper()
	return h.serve(name, version, h.labels(label, exec))
}

func (h *house) labels(label int64, exec time.Duration) *schedtest.Worker {
	return &schedtest.Worker{Exec: func(int) time.Duration { return exec },
		Model: func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
			buf, err := h.pool.Get(8 * b.Rows)
			if err != nil {
				return nil, nil, err
			}
			out := tensor.Tensor{DType: tensor.Int64, Shape: tensor.Shape{b.Rows}, Data: buf.Bytes(), Buf: buf}
			values, err := tensor.Values[int64](out)
			for i := range values {
				values[i] = label
			}
			return []tensor.Tensor{out}, nil, err
		}}
}

// serve adds a replica of a model with one input of two numbers and a label.
func (h *house) serve(name, version string, w scheduler.Worker) *scheduler.Replica {
	h.t.Helper()
	spec := scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{{Name: "label", DType: tensor.Int64, Shape: tensor.Shape{-1}}},
	}
	r, err := h.sched.AddReplica(scheduler.ModelID{Name: name, Version: version}, spec, w, scheduler.ReplicaOptions{})
	if err != nil {
		h.t.Error(err)
	}
	return r
}

func (h *house) app(d Definition) {
	h.t.Helper()
	if _, err := h.reg.Put(h.t.Context(), d); err != nil {
		h.t.Fatal(err)
	}
	budgettest.Until(h.t, d.Name+" is linked", func() bool {
		app, linked := h.reg.Find(d.Name), h.reg.linking.Load().apps[d.Name]
		return app != nil && linked != nil && linked.App == app
	})
}

// An asker waits for its call.
type asker struct {
	gate.Call
	done chan struct{}
}

func (c *asker) Complete(*gate.Call) { close(c.done) }

// ask sends one row, and returns the answer's label and metadata as text.
func (h *house) ask(route string, p gate.Request, tensors ...tensor.Tensor) string {
	h.t.Helper()
	if tensors == nil {
		tensors = []tensor.Tensor{row()}
	}
	if app, ok := strings.CutSuffix(route, "/update"); ok {
		return h.feedback(app, p, tensors...)
	}
	c := &asker{done: make(chan struct{})}
	p.Arrived = time.Now()
	p.Model, p.Inputs = route, tensors
	if err := h.Open(&c.Call, &p); err != nil {
		return "error " + fault.Text(err)
	}
	defer c.Close()
	c.Owner = c
	h.Submit(&c.Call)
	<-c.done
	if c.Err != nil {
		return "error " + fault.Text(c.Err)
	}
	values, err := tensor.Values[int64](c.Outputs[0])
	if err != nil {
		h.t.Fatal(err)
	}
	s := fmt.Sprintf("%d by %s", values[0], c.Target.ID)
	if c.Choice != nil {
		s += fmt.Sprintf(" for %s, confidence %.2g", c.Choice.Application, c.Choice.Confidence)
		if c.Choice.Missing != nil {
			s += ", missing [" + gate.Join(c.Choice.Missing, func(m gate.Missing) string { return m.Model }, ", ") + "]"
		}
		if c.Choice.Default {
			s += ", default: " + c.Choice.Explanation
		}
	}
	return s
}

func row() tensor.Tensor {
	t, err := tensor.FromSlice(tensor.Shape{2}, []float32{1, 2})
	if err != nil {
		panic(err)
	}
	return t
}

func (h *house) expect(got, want string) {
	h.t.Helper()
	if !strings.Contains(got, want) {
		h.t.Errorf("got %s\nexpected %s", got, want)
	}
}

func TestApplications(t *testing.T) {
	h := newHouse(t)
	h.model("a", "1", 1, time.Microsecond)
	h.model("b", "1", 2, time.Microsecond)
	h.model("c", "1", 2, time.Microsecond)

	h.app(Definition{Name: "one", Models: []string{"a"}})
	h.expect(h.ask("one", gate.Request{}), "1 by a/1 for one, confidence 1")
	h.expect(h.ask("v2/models/one/infer", gate.Request{}), "1 by a/1 for one, confidence 1")
	h.expect(h.ask("one", gate.Request{Version: "1"}), `"one" is an application, which has no versions`)
	h.expect(h.ask("a", gate.Request{}), "1 by a/1")

	h.app(Definition{Name: "three", Models: []string{"a", "b/1", "c/*"}, Policy: "ensemble"})
	h.expect(h.ask("three", gate.Request{}), "2 by b/1 for three, confidence 0.67")

	h.model("a", "2", 7, time.Microsecond)
	// The link follows the default version.
	h.expect(h.ask("one", gate.Request{}), "7 by a/2 for one")

	h.app(Definition{Name: "none", Models: []string{"absent"}})
	h.expect(h.ask("none", gate.Request{}), `application "none" links to ["absent"], but no container of these has registered yet`)

	if err := h.reg.Delete(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "one has gone", func() bool { return h.reg.linking.Load().apps["one"] == nil })
	h.expect(h.ask("one", gate.Request{}), `no model, application or pipeline "one"`)
}

// TestCombinedAtTheDeadline: a late model is named, and the other models' answers are combined at
// the deadline and no later.
func TestCombinedAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.model("a", "1", 1, time.Millisecond)
		h.model("b", "1", 2, 3*time.Second)
		h.app(Definition{Name: "app", Models: []string{"a", "b"}, Policy: "ensemble", SLO: "100ms"})
		begin := time.Now()
		h.expect(h.ask("app", gate.Request{}), "1 by a/1 for app, confidence 0.5, missing [b/1]")
		if took := time.Since(begin); took != 100*time.Millisecond {
			t.Errorf("answered after %v, expected the SLO", took)
		}
		begin = time.Now()
		h.expect(h.ask("app", gate.Request{Values: parameter.Values{Timeout: 20 * time.Millisecond}}), "missing [b/1]")
		if took := time.Since(begin); took != 20*time.Millisecond {
			t.Errorf("answered after %v, expected the request's own time", took)
		}
		time.Sleep(10 * time.Second)
	})
}

func TestDefaultStandsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.model("slow", "1", 1, 3*time.Second)
		slo := "50ms"
		h.app(Definition{Name: "strict", Models: []string{"slow"}, SLO: slo})
		h.expect(h.ask("strict", gate.Request{}), "error deadline exceeded")
		time.Sleep(10 * time.Second)
		h.app(Definition{Name: "lenient", Models: []string{"slow"}, SLO: slo, Default: json.RawMessage(`{"label": -1}`)})
		h.expect(h.ask("lenient", gate.Request{}), "-1 by slow/1 for lenient, confidence 0, missing [slow/1], default: deadline exceeded")
		time.Sleep(10 * time.Second)
		// A default that is none of the model's outputs is refused; if the model registers later,
		// requests say so.
		for value, words := range map[string]string{
			`{"label": [1, 2]}`: `"label" has shape [2] for a row, but the model declares []`, `{"label": 1.5}`: "expected a whole number",
			`{"label": "cat"}`: "expected a whole number", `{"other": 1}`: `has no "label"`, `{"label": [1, [2]]}`: "not alike in length",
		} {
			if _, err := h.reg.Create(t.Context(),
				Definition{Name: "odd", Models: []string{"slow"}, Default: json.RawMessage(value)}); err == nil ||
				!strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v, expected %q", value, err, words)
			}
		}
		h.app(Definition{Name: "early", Models: []string{"late"}, SLO: slo, Default: json.RawMessage(`{"label": [1, 2]}`)})
		h.model("late", "1", 1, 3*time.Second)
		h.expect(h.ask("early", gate.Request{}), `"label" has shape [2] for a row, but the model declares []`)
		time.Sleep(10 * time.Second)
	})
}

// A default output may be of any dtype that JSON has, and is rounded to it once.
func TestDefaultOfAnyDType(t *testing.T) {
	for _, c := range []struct {
		dtype tensor.DType
		value string
		want  []byte
	}{
		{tensor.BFloat16, "0.1", []byte{0xcd, 0x3d}}, {tensor.Float16, "0.1", []byte{0x66, 0x2e}},
		{tensor.Float32, "0.1", []byte{0xcd, 0xcc, 0xcc, 0x3d}},
		{tensor.Bool, "true", []byte{1}}, {tensor.Int8, "-1", []byte{0xff}}, {tensor.Int16, "3e2", []byte{0x2c, 1}},
		{tensor.Uint64, "18446744073709551615", bytes.Repeat([]byte{255}, 8)},
		{tensor.Bytes, `"cat"`, []byte("\x03\x00\x00\x00cat")},
	} {
		a, err := New(Definition{Name: "app", Models: []string{"m"}, Default: json.RawMessage(`{"y": ` + c.value + `}`)})
		if err != nil {
			t.Fatal(err)
		}
		spec := scheduler.Spec{
			Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1}}},
			Outputs: []tensor.Spec{{Name: "y", DType: c.dtype, Shape: tensor.Shape{-1}}},
		}
		if got, err := a.DefaultOutput(&spec, 2, nil); err != nil ||
			!bytes.Equal(got[0].Data, slices.Concat(c.want, c.want)) {
			t.Errorf("%s as %s: %v, %v", c.value, c.dtype, got, err)
		}
	}
}

// TestShadow: the answer does not wait for a shadow, whose input outlives the client's memory, and
// feedback knows its prediction.
func TestShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.model("a", "1", 1, time.Millisecond)
		h.model("b", "1", 2, 5*time.Second)
		h.app(Definition{Name: "app", Models: []string{"a", "b"}, Policy: "shadow", Params: map[string]any{"model": "a"}})
		begin := time.Now()
		h.expect(h.ask("app", gate.Request{ID: []byte(`"r1"`)}), "1 by a/1 for app, confidence 1")
		if took := time.Since(begin); took > 10*time.Millisecond {
			t.Errorf("answered after %v: it waited for the shadow", took)
		}
		time.Sleep(6 * time.Second)
		c := h.feedback("app", gate.Request{ID: []byte(`"r1"`), Parameters: []byte(`{"label": 2}`)})
		h.expect(c, `{"application":"app","learned":true,"rounds":1}`)
		learned, _, err := h.reg.Learned(h.reg.Find("app"), 10)
		if err != nil || len(learned) != 1 {
			t.Fatal(learned, err)
		}
		if s := learned[0].State; s.Models[0].Loss != 1 || s.Models[1].Loss != 0 {
			t.Errorf("losses %+v, expected 1 for the one that answered and 0 for its shadow", s.Models)
		}
		time.Sleep(10 * time.Second)
	})
}

// feedback sends a verdict, and returns the answer as text.
func (h *house) feedback(app string, p gate.Request, tensors ...tensor.Tensor) string {
	h.t.Helper()
	p.Arrived = time.Now()
	p.Model, p.Inputs = app, tensors
	f, err := h.OpenFeedback(&p, nil)
	if err != nil {
		return "error " + fault.Text(err)
	}
	defer f.Close()
	reply, err := gate.Learn(h.t.Context(), f)
	if err != nil {
		return "error " + fault.Text(err)
	}
	return string(reply.JSON())
}

func TestFeedback(t *testing.T) {
	h := newHouse(t)
	h.model("a", "1", 1, time.Microsecond)
	h.model("b", "1", 2, time.Microsecond)
	h.app(Definition{Name: "app", Models: []string{"a", "b"}, Policy: "exp4"})
	id := gate.Request{Values: parameter.Values{User: "u"}, ID: []byte(`"r1"`)}
	h.ask("app", id)

	verdict := func(forward string) gate.Request { p := id; p.Parameters = []byte(forward); return p }
	h.expect(h.feedback("app", verdict(`{}`)), `error invalid input: feedback: expected one of "label", "loss"`)
	h.expect(h.feedback("app", verdict(`{"label":1,"loss":0}`)), "got 2 of them")
	h.expect(h.feedback("app", verdict(`{"losses":{"a/1":2}}`)), "want 0 to 1")
	h.expect(h.feedback("app", verdict(`{"loss":"1"}`)), "error invalid input: feedback: loss: expected a number of 64 bits, got a string")
	h.expect(h.feedback("app", verdict(`{"label":[1,2,3]}`)), "error")
	h.expect(h.feedback("app", verdict(`{"label":1}`)), `{"application":"app","learned":true,"rounds":1}`)
	h.expect(h.feedback("app", verdict(`{"label":1}`)), `{"application":"app","learned":false,"rounds":1}`)
	h.expect(h.feedback("app", gate.Request{Values: parameter.Values{User: "u"}, ID: []byte(`"r2"`), Parameters: []byte(`{"label":1}`)}),
		`this server knows no request with id "r2" of user "u"`)
	h.expect(h.feedback("app", gate.Request{Parameters: []byte(`{"label":1}`)}), `expected the "id" of a request, or its input as tensors`)
	h.expect(h.feedback("absent", verdict(`{"label":1}`)), "error")

	// By input: the models are asked again.
	h.expect(h.ask("app/update", gate.Request{Values: parameter.Values{User: "u"}, Parameters: []byte(`{"label":1}`)}), `{"application":"app","learned":true,"rounds":2}`)
	// The truth as a tensor.
	h.ask("app", gate.Request{Values: parameter.Values{User: "u"}, ID: []byte(`3`)})
	right, err := tensor.FromSlice(tensor.Shape{}, []int64{1})
	if err != nil {
		t.Fatal(err)
	}
	h.expect(h.ask("app/update", gate.Request{Values: parameter.Values{User: "u"}, ID: []byte(`3`)}, right), `"rounds":3`)

	for range 20 {
		h.ask("app/update", gate.Request{Values: parameter.Values{User: "u"}, Parameters: []byte(`{"label":1}`)})
	}
	// State learned for a user applies only to that user.
	h.expect(h.ask("app", gate.Request{Values: parameter.Values{User: "u"}}), "1 by a/1")
	learned, _, err := h.reg.Learned(h.reg.Find("app"), 10)
	if err != nil || len(learned) != 1 || learned[0].User != "u" || learned[0].Shares[0] < 0.9 {
		t.Errorf("learned %+v, %v", learned, err)
	}
}

// TestCancelledApplication: a client that disconnects cancels all of its calls.
func TestCancelledApplication(t *testing.T) {
	h := newHouse(t)
	workers := []*schedtest.Worker{h.model("a", "1", 1, time.Hour), h.model("b", "1", 2, time.Hour)}
	h.app(Definition{Name: "app", Models: []string{"a", "b"}, Policy: "ensemble", Default: json.RawMessage(`{"label":0}`)})
	c := &asker{done: make(chan struct{})}
	if err := h.Open(&c.Call, &gate.Request{Model: "app", Inputs: []tensor.Tensor{row()}, Arrived: time.Now()}); err !=
		nil {
		t.Fatal(err)
	}
	c.Owner = c
	h.Submit(&c.Call)
	h.Cancel(&c.Call)
	<-c.done
	if !errors.Is(c.Err, scheduler.ErrCanceled) {
		t.Errorf("got %v", c.Err)
	}
	c.Close()
	for _, w := range workers {
		w.Drop()
	}
}

// TestWantedAgain: a model without replicas needs one if the policy would choose it, although
// others of the application answer. Those that it would not choose need none.
func TestWantedAgain(t *testing.T) {
	for policy, want := range map[string]int{"ensemble": 1, "exp3": 1, "single": 0} {
		t.Run(policy, func(t *testing.T) {
			h := newHouse(t)
			gone := h.replica("a", "1", 1, 0)
			h.model("b", "1", 2, 0)
			d := Definition{Name: "app", Models: []string{"a", "b"}, Policy: policy}
			if policy == "single" {
				d.Params = map[string]any{"model": "b"}
			}
			h.app(d)
			gone.Remove(errors.New("nobody asks"))
			if n := gone.Model().Need().Replicas; n != 0 {
				t.Fatalf("nobody has asked, and %d are needed", n)
			}
			for range 50 {
				if got := h.ask("app", gate.Request{}); !strings.HasPrefix(got, "2 by b/1") {
					t.Fatal(got)
				}
			}
			if n := gone.Model().Need().Replicas; n != want {
				t.Errorf("%d replicas are needed, expected %d", n, want)
			}
		})
	}
}

func TestNamesOfApplications(t *testing.T) {
	h := newHouse(t)
	h.model("a", "1", 1, time.Microsecond)
	h.model("b", "1", 1, time.Microsecond)
	for _, tc := range []struct {
		d    Definition
		want string
	}{
		{Definition{Name: "a", Models: []string{"b"}}, "there is a model of that name"},
		{Definition{Name: "a", Models: []string{"a", "b"}}, "there is a model of that name"},
		{Definition{Name: "a", Models: []string{"a/*"}}, ""},
		{Definition{Name: "!x", SLO: "-1ns", Policy: "best"}, `"!x" begins with '!', which is reserved for the server; models: none`},
		{Definition{Name: "x", Models: []string{"a/", "b", "b"}, Default: json.RawMessage(`3`)}, `models[2]: "b" is linked twice; default:`},
	} {
		_, err := h.reg.Create(context.Background(), tc.d)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: got %v, expected %q", tc.d, err, tc.want)
		}
	}
	if _, err := h.reg.Create(t.Context(), Definition{Name: "a", Models: []string{"a"}}); !errors.Is(err,
		composite.ErrExists) {
		t.Errorf("made twice: %v", err)
	}
}
