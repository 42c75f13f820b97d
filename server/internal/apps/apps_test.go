package apps

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

func registry(t *testing.T, store state.Store) *Registry {
	t.Helper()
	r := Open(Config{Store: store, Changed: func() {}})
	t.Cleanup(r.Close)
	return r
}

func memory(t *testing.T) state.Store {
	t.Helper()
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// TestShared: a change at one server reaches the other, and is still there after a restart.
func TestShared(t *testing.T) {
	store := memory(t)
	one, two := registry(t, store), registry(t, store)
	d := Definition{Name: "app", Models: []string{"a", "b/2"}, Policy: "exp3", Params: map[string]any{"gamma": 0.2},
		SLO: "50ms", Default: json.RawMessage(`{"label":-1}`)}
	if _, err := one.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the application at the other", func() bool { return two.Find("app") != nil })
	if got, want := fmt.Sprint(two.Find("app").Definition), fmt.Sprint(d); got != want {
		t.Errorf("got %s, expected %s", got, want)
	}
	for _, slo := range []time.Duration{-1, time.Microsecond, 25 * time.Hour, math.MaxInt64} {
		_, err := two.Change(t.Context(), "app", func(d *Definition) error { d.SLO = slo.String(); return nil })
		if !errors.Is(err, scheduler.ErrInvalidInput) || !strings.Contains(err.Error(), "expected 1ms to 24h") {
			t.Errorf("an slo of %v: %v", slo, err)
		}
	}
	if _, err := two.Change(t.Context(), "app", func(d *Definition) error {
		d.Models = append(d.Models, "c")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the change", func() bool { a := one.Find("app"); return a != nil && len(a.Models) == 3 })
	third := registry(t, store)
	budgettest.Until(t, "the application after a restart", func() bool { return third.Find("app") != nil })

	for _, change := range []func(*Definition) error{
		func(d *Definition) error { d.Name = "other"; return nil },
		func(d *Definition) error { d.Models = nil; return nil },
		func(d *Definition) error { return scheduler.ErrInvalidInput },
	} {
		if _, err := one.Change(t.Context(), "app", change); !errors.Is(err, scheduler.ErrInvalidInput) {
			t.Errorf("a wrong change: %v", err)
		}
	}
	if _, err := one.Change(t.Context(), "ap", func(*Definition) error {
		return nil
	}); !errors.Is(err, scheduler.ErrNotFound) || !strings.Contains(err.Error(), `nearest: "app"`) {
		t.Errorf("a change of an unknown application: %v", err)
	}
	if err := one.Delete(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the end", func() bool { return one.Find("app") == nil && two.Find("app") == nil })
	if err := one.Delete(t.Context(), "app"); !errors.Is(err, scheduler.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
}

// TestNoUpdateIsLost: eight writers at two servers teach one policy, each feedback twice. Each
// counts once.
func TestNoUpdateIsLost(t *testing.T) {
	store := memory(t)
	servers := []*Registry{registry(t, store), registry(t, store)}
	models := []selection.Model{{Name: "a", Version: "1"}, {Name: "b", Version: "1"}}
	a, err := New(Definition{Name: "app", Models: []string{"a", "b"}, Policy: "exp4"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := servers[0].Create(t.Context(), a.Definition); err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 50
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				for try, r := range servers {
					reply := []selection.Prediction{{Ask: selection.Ask{Model: models[0], Probability: 1}}}
					outcome := selection.ByLosses(map[selection.Model]float64{models[0]: 0, models[1]: 1})
					_, applied, err := r.Learn(t.Context(), a, models,
						Judged{"u", fmt.Sprintf("%d.%d", w, i), reply, outcome})
					if err != nil || applied != (try == 0) {
						t.Errorf("applied %t at try %d, error %v", applied, try, err)
					}
				}
			}
		})
	}
	wg.Wait()
	for i, r := range servers {
		s, err := r.State(a, "u", models)
		if err != nil || s.Rounds != writers*each {
			t.Errorf("server %d: %d rounds, expected %d; error %v", i, s.Rounds, writers*each, err)
		}
	}
	list, more, err := servers[0].Learned(a, 10)
	if err != nil || more || len(list) != 1 || list[0].User != "u" || list[0].Shares[0] < 0.9 {
		t.Errorf("learned %+v, more %t, error %v", list, more, err)
	}
	if err := servers[1].Reset(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	if s, err := servers[0].State(a, "u", models); err != nil || s.Rounds != 0 {
		t.Errorf("%d rounds after a reset, error %v", s.Rounds, err)
	}
}

// TestCandidatesChange: a state is adapted to the current models whenever it is read, and a new
// version inherits.
func TestCandidatesChange(t *testing.T) {
	r := registry(t, memory(t))
	a, err := New(Definition{Name: "app", Models: []string{"a", "b"}, Policy: "exp4"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(t.Context(), a.Definition); err != nil {
		t.Fatal(err)
	}
	m := func(names ...string) (list []selection.Model) {
		for _, n := range names {
			name, version, _ := strings.Cut(n, "/")
			list = append(list, selection.Model{Name: name, Version: version})
		}
		return list
	}
	for i := range 20 {
		reply := []selection.Prediction{{Ask: selection.Ask{Model: m("a/1")[0], Probability: 1}}}
		if _, _, err := r.Learn(t.Context(), a, m("a/1", "b/1"),
			Judged{"", fmt.Sprint(i), reply,
				selection.ByLosses(map[selection.Model]float64{m("a/1")[0]: 0, m("b/1")[0]: 1})}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := r.State(a, "", m("a/2", "b/1", "c/1"))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Models) != 3 || s.Models[0].Model.Version != "2" || s.Models[0].LogWeight <= s.Models[1].LogWeight {
		t.Errorf("after a new version and a new model: %+v", s.Models)
	}
}

// TestUsersAreBounded: clients name users, in texts of any length, and not all of them stay in
// memory.
func TestUsersAreBounded(t *testing.T) {
	r := registry(t, memory(t))
	a, err := New(Definition{Name: "app", Models: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if _, err := r.State(a, strings.Repeat("u", 1<<(i%20))+fmt.Sprint(i),
			[]selection.Model{{Name: "a", Version: "1"}}); err != nil {
			t.Fatal(err)
		}
	}
	for k := range r.states.known {
		if len(k.user) > state.MaxKeyBytes {
			t.Fatalf("the state of a user of %d bytes is kept", len(k.user))
		}
	}
	if len(r.states.known) == 0 {
		t.Error("no state is kept")
	}
}

func TestPredictionsAreBounded(t *testing.T) {
	var p Predictions
	now := time.Now()
	out, err := tensor.FromSlice(tensor.Shape{1 << 20}, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	reply := []selection.Prediction{{Ask: selection.Ask{Model: selection.Model{Name: "a", Version: "1"}},
		Outputs: []tensor.Tensor{out}}, {}}
	for i := range 200 {
		p.Keep("app", "u", fmt.Sprint(i), now.Add(time.Duration(i)), reply, nil)
	}
	if p.bytes > maxPredictionBytes || p.queue.Len() != len(p.byID) {
		t.Errorf("%d bytes in %d, queue of %d", p.bytes, len(p.byID), p.queue.Len())
	}
	if p.Find("app", "u", "0", now) != nil {
		t.Error("the oldest is still there")
	}
	newest := p.Find("app", "u", "199", now.Add(Lifetime-time.Second))
	if newest == nil || len(newest.Predictions) != 2 || len(newest.Predictions[0].Outputs[0].Data) != 1<<20 ||
		newest.Predictions[1].Outputs != nil {
		t.Fatalf("the newest is %+v", newest)
	}
	if p.Find("app", "u", "199", now.Add(Lifetime+time.Second)) != nil || p.Find("app", "v", "199", now) != nil {
		t.Error("found what is too old, or another user's")
	}
	p.Keep("app", "u", "199", now, nil, nil)
	if p.Find("app", "u", "199", now) != newest {
		t.Error("what came late for an earlier request has taken the place of a newer one's")
	}
	p.Keep("app", "u", "199", now.Add(200), nil, nil)
	if again := p.Find("app", "u", "199", now); again == nil || again == newest || again.Predictions == nil ||
		len(again.Predictions) != 0 {
		t.Error("an id used again does not name the newer request")
	}
	p.Keep("other", "u", "1", now, nil, nil)
	p.forget("app")
	if len(p.byID) != 1 {
		t.Errorf("%d left after an application has gone, expected that of the other", len(p.byID))
	}
	p.Keep("other", "u", "2", now.Add(2*Lifetime), nil, nil)
	if len(p.byID) != 1 || p.queue.Len() != 1 {
		t.Errorf("%d left, queue of %d, expected the one that is not too old", len(p.byID), p.queue.Len())
	}
}

// TestPredictionsOfOneID: a client that uses the same id for all of its requests takes one entry,
// no matter which entries exist.
func TestPredictionsOfOneID(t *testing.T) {
	var p Predictions
	now := time.Now()
	p.Keep("app", "", "first", now, nil, nil)
	for i := range 1000 {
		p.Keep("app", "", "same", now.Add(time.Duration(i)), nil, nil)
	}
	if p.queue.Len() != 2 || len(p.byID) != 2 {
		t.Errorf("%d in the queue for %d ids, expected 2", p.queue.Len(), len(p.byID))
	}
}

// TestPredictionThatIsTooLarge: predictions that cannot be kept do not evict everything else first.
func TestPredictionThatIsTooLarge(t *testing.T) {
	var p Predictions
	now := time.Now()
	p.Keep("app", "", "other", now, nil, nil)
	p.Keep("app", "", "large", now, nil, nil)
	out, err := tensor.FromSlice(tensor.Shape{maxPredictionBytes}, make([]byte, maxPredictionBytes))
	if err != nil {
		t.Fatal(err)
	}
	p.Keep("app", "", "large", now.Add(1), []selection.Prediction{{Outputs: []tensor.Tensor{out}}}, nil)
	if p.Find("app", "", "other", now) == nil {
		t.Error("another request's is gone")
	}
	if p.Find("app", "", "large", now) != nil {
		t.Error("its id names what was said to an earlier request")
	}
}

// TestLateModelsKeepWhatWasLearned: feedback that arrives while a server knows only some of the
// models does not forget the other models, nor one that is no longer linked, nor a replaced
// version.
func TestLateModelsKeepWhatWasLearned(t *testing.T) {
	r := registry(t, memory(t))
	d := Definition{Name: "app", Models: []string{"a", "b/1", "c/*"}, Policy: "exp4"}
	app, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	a, a2, b, c := selection.Model{Name: "a", Version: "1"}, selection.Model{Name: "a", Version: "2"},
		selection.Model{Name: "b", Version: "1"}, selection.Model{Name: "c", Version: "1"}
	teach := func(app *App, id string, models ...selection.Model) selection.State {
		t.Helper()
		reply := []selection.Prediction{{Ask: selection.Ask{Model: a2, Probability: 1}}}
		s, applied, err := r.Learn(t.Context(), app, models,
			Judged{"", id, reply, selection.ByLosses(map[selection.Model]float64{a: 0, a2: 0, b: 0.5, c: 1})})
		if err != nil || !applied {
			t.Fatal(applied, err)
		}
		return s
	}
	if _, err := r.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	full := teach(app, "1", a, b, c)
	if s := teach(app, "2", a); len(s.Models) != 1 || len(s.Aside) != 2 || s.Aside[0] != full.Models[1] ||
		s.Aside[1] != full.Models[2] {
		t.Errorf("with only a known, the state is %+v", s)
	}
	if s := teach(app, "3", a2, b, c); len(s.Models) != 3 || s.Models[0].Model != a2 {
		t.Errorf("with a new version of a, the state is %+v", s.Models)
	}
	d.Models = []string{"a", "c/*"}
	if app, err = New(d); err != nil {
		t.Fatal(err)
	}
	s := teach(app, "4", a2, c)
	if len(s.Models) != 2 || s.Models[1].Model != c {
		t.Errorf("without the link to b, the state is %+v", s.Models)
	}
	if s := teach(app, "5"); len(s.Models) != 2 || s.Rounds != 5 || s.Models[1].Count != 4 {
		t.Errorf("with none known, the state is %+v", s)
	}
	if s, err = r.State(app, "", []selection.Model{a2, b, c}); err != nil || len(s.Models) != 3 ||
		s.Models[1].Count != 2 {
		t.Errorf("with the link again, the state is %+v (%v)", s.Models, err)
	}
}

// TestOpenKnows: a registry has its applications as soon as it is opened.
func TestOpenKnows(t *testing.T) {
	store := memory(t)
	if _, err := registry(t, store).Create(t.Context(), Definition{Name: "app", Models: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if again := registry(t, store); !known(again) || again.Find("app") == nil {
		t.Errorf("known %t, application %v", known(again), again.Find("app"))
	}
}

func TestDefaultOutput(t *testing.T) {
	outputs := []tensor.Spec{
		{Name: "label", DType: tensor.Int32, Shape: tensor.Shape{-1}},
		{Name: "scores", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}},
	}
	a, err := New(Definition{Name: "app", Models: []string{"m"}, Default: json.RawMessage(`{"label":-1,"scores":[0.5,0]}`)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.DefaultOutput(&scheduler.Spec{Outputs: outputs}, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	labels, err := tensor.Values[int32](got[0])
	if err != nil || fmt.Sprint(got[0].Shape, labels) != "[2] [-1 -1]" {
		t.Errorf("labels %s %v, %v", got[0].Shape, labels, err)
	}
	scores, err := tensor.Values[float32](got[1])
	if err != nil || fmt.Sprint(got[1].Shape, scores) != "[2, 2] [0.5 0 0.5 0]" {
		t.Errorf("scores %s %v, %v", got[1].Shape, scores, err)
	}
	legacy, err := New(Definition{Name: "app", Models: []string{"m"}, Default: json.RawMessage(`{"output":-1}`)})
	if err != nil {
		t.Fatal(err)
	}
	old := containertest.OldSpec(tensor.Float64, tensor.Bytes)
	got, err = legacy.DefaultOutput(&old, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if texts, err := tensor.Strings(got[0]); err != nil || fmt.Sprintf("%s %q", got[0].Shape, texts) != `[2] ["-1" "-1"]` {
		t.Errorf("a legacy model's is %s %q, %v", got[0].Shape, texts, err)
	}
	for _, spec := range []tensor.Spec{
		{Name: "label", DType: tensor.Uint8, Shape: tensor.Shape{-1}}, // -1 is not a uint8
		{Name: "label", DType: tensor.Int32, Shape: tensor.Shape{-1, 1}},
		{Name: "other", DType: tensor.Int32, Shape: tensor.Shape{-1}},
	} {
		if _, err := a.DefaultOutput(&scheduler.Spec{Outputs: []tensor.Spec{spec}}, 1, nil); err == nil {
			t.Errorf("a default for %v", spec)
		}
	}
}

// TestDefaultOutputIsPayload: all rows that a client asks for count against the memory for
// payloads, and a default output that gets no memory leaves nothing behind.
func TestDefaultOutputIsPayload(t *testing.T) {
	outputs := []tensor.Spec{
		{Name: "label", DType: tensor.Int32, Shape: tensor.Shape{-1}},
		{Name: "scores", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}},
	}
	a, err := New(Definition{Name: "app", Models: []string{"m"}, Default: json.RawMessage(`{"label":-1,"scores":[0.5,0]}`)})
	if err != nil {
		t.Fatal(err)
	}
	const rows = 1 << 12
	pool := tensor.NewPool(rows * 20)
	got, err := a.DefaultOutput(&scheduler.Spec{Outputs: outputs}, rows, pool)
	if err != nil || pool.InUse() < rows*12 {
		t.Fatalf("%d bytes are counted, error %v", pool.InUse(), err)
	}
	if _, err := a.DefaultOutput(&scheduler.Spec{Outputs: outputs}, rows, pool); !errors.Is(err, tensor.ErrBudget) {
		t.Errorf("beyond the budget: %v", err)
	}
	for _, t := range got {
		t.Release()
	}
	if pool.InUse() != 0 {
		t.Errorf("%d bytes are still out", pool.InUse())
	}
}

// TestDefaultOutputOfAnySize: a default may have zero elements, and a ragged one is counted by its
// actual size.
func TestDefaultOutputOfAnySize(t *testing.T) {
	boxes := tensor.Spec{Name: "boxes", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}
	whole := &scheduler.Spec{Batching: scheduler.BatchingNone, Outputs: []tensor.Spec{boxes}}
	boxes.Ragged = "count"
	ragged := &scheduler.Spec{Outputs: []tensor.Spec{boxes,
		{Name: "count", DType: tensor.Int64, Shape: tensor.Shape{-1}}}}
	for _, c := range []struct {
		spec   *scheduler.Spec
		rows   int
		output string
		want   string
	}{
		{whole, 1, `{"boxes":[]}`, "[1, 0, 4]"},
		{whole, 1, `{"boxes":[[1,2,3,4],[5,6,7,8]]}`, "[1, 2, 4]"},
		{ragged, 3, `{"boxes":[],"count":0}`, "[0, 4] [3]"},
		{ragged, 3, `{"boxes":[[1,2,3,4]],"count":1}`, "[3, 4] [3]"},
		{ragged, 3, `{"boxes":[[1,2,3,4]],"count":2}`, `"count" gives 2 elements for a row, but "boxes" has 1`},
	} {
		a, err := New(Definition{Name: "app", Models: []string{"m"}, Default: json.RawMessage(c.output)})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		list, err := a.DefaultOutput(c.spec, c.rows, nil)
		for _, o := range list {
			got += " " + o.Shape.String()
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, expected %s", c.output, got, c.want)
		}
	}
}

// A shadow's predictions for a request are kept alongside those of the other models, in either
// order of arrival.
func TestPredictionsAreGathered(t *testing.T) {
	now := time.Now()
	reply := func(model string) []selection.Prediction {
		return []selection.Prediction{{Ask: selection.Ask{Model: selection.Model{Name: model, Version: "1"}}}}
	}
	var p Predictions
	p.Keep("app", "", "1", now, reply("shadow"), nil)
	p.Keep("app", "", "1", now, reply("first"), []Inputs{{Rows: 1, Tensors: []tensor.Tensor{{Data: make([]byte, 8)}}}})
	p.Keep("app", "", "1", now, reply("late"), nil)
	p.Keep("app", "", "1", now.Add(-time.Second), reply("of an earlier request"), nil)
	n := p.Find("app", "", "1", now)
	if n == nil || len(n.Predictions) != 3 || len(n.Inputs()) != 1 || len(p.byID) != 1 || p.bytes != n.bytes ||
		p.inputBytes != n.inputBytes {
		t.Fatalf("kept %+v", n)
	}
	p.Keep("app", "", "1", now.Add(time.Second), reply("of a later request"), nil)
	if n := p.Find("app", "", "1", now); len(n.Predictions) != 1 || len(n.Inputs()) != 0 || p.inputBytes != 0 {
		t.Errorf("kept %+v", n)
	}
}

// known reports whether the registry has read its store.
func known(r *Registry) bool {
	_, known := r.Names()
	return known
}
