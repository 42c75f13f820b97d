package apps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// shaped serves a model that takes one input of a width and answers these outputs, one row each
// time.
func (h *house) shaped(name, input string, width int, outputs ...string) *scheduler.Replica {
	h.t.Helper()
	spec := scheduler.Spec{Inputs: []tensor.Spec{{Name: input, DType: tensor.Float32, Shape: tensor.Shape{-1, width}}}}
	for _, o := range outputs {
		spec.Outputs = append(spec.Outputs, tensor.Spec{Name: o, DType: tensor.Int64, Shape: tensor.Shape{-1}})
	}
	w := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		var out []tensor.Tensor
		for i := range outputs {
			values := make([]int64, b.Rows)
			for r := range values {
				values[r] = int64(width + i)
			}
			t, err := tensor.FromSlice(tensor.Shape{b.Rows}, values)
			if err != nil {
				return err
			}
			out = append(out, t)
		}
		b.Complete(out, nil)
		return nil
	})
	r, err := h.sched.AddReplica(scheduler.ModelID{Name: name, Version: "1"}, spec, w, scheduler.ReplicaOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// pooled returns a row in memory of the pool; the caller owns the reference.
func (h *house) pooled() tensor.Tensor {
	h.t.Helper()
	buf, err := h.pool.Get(8)
	if err != nil {
		h.t.Fatal(err)
	}
	return tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{2}, Data: buf.Bytes(), Buf: buf}
}

// Calls that were opened before the last application was deleted are still answered, and feedback
// teaches nothing.
func TestApplicationGoesWhileACallIsOpen(t *testing.T) {
	h := newHouse(t)
	h.model("a", "1", 1, time.Microsecond)
	h.app(Definition{Name: "app", Models: []string{"a"}})
	if got := h.ask("app", gate.Request{ID: []byte(`1`)}); !strings.HasPrefix(got, "1 by a/1") {
		t.Fatal(got)
	}
	c := &asker{done: make(chan struct{})}
	if err := h.Open(&c.Call,
		&gate.Request{Model: "app", Inputs: []tensor.Tensor{row()}, Arrived: time.Now(),
			Parameters: []byte(`{"label":1}`)}); err != nil {
		t.Fatal(err)
	}
	byInput, err := h.OpenFeedback(&gate.Request{Model: "app", Inputs: []tensor.Tensor{row()}, Arrived: time.Now(),
		Parameters: []byte(`{"label":1}`)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	byID, err := h.OpenFeedback(&gate.Request{Model: "app", Arrived: time.Now(), ID: []byte(`1`), Parameters: []byte(`{"label":1}`)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.reg.Delete(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	if len(h.reg.linking.Load().apps) > 0 {
		t.Fatal("the application is still there")
	}
	c.Owner = c
	h.Submit(&c.Call)
	if <-c.done; c.Err != nil {
		t.Error(c.Err)
	}
	c.Close()
	for _, f := range []gate.Feedback{byInput, byID} {
		if _, err := gate.Learn(t.Context(), f); !errors.Is(err, scheduler.ErrNotFound) {
			t.Error(err)
		}
		f.Close()
	}
}

// A client that disconnects between opening and submitting leaves nothing behind: neither its
// shadows' inputs nor the tensors of its feedback.
func TestCallsThatAreNeverSubmitted(t *testing.T) {
	h := newHouse(t)
	h.model("a", "1", 1, time.Microsecond)
	h.model("b", "1", 1, time.Microsecond)
	h.app(Definition{Name: "app", Models: []string{"a", "b"}, Policy: "shadow", Params: map[string]any{"model": "a"}})
	h.ask("app", gate.Request{ID: []byte(`1`)})
	for range 3 {
		for _, p := range []gate.Request{{}, {ID: []byte(`1`), Parameters: nil}} {
			x := h.pooled()
			p.Arrived = time.Now()
			if p.ID != nil {
				p.Model, p.Inputs = "app", []tensor.Tensor{x}
				f, err := h.OpenFeedback(&p, nil)
				if err != nil {
					t.Fatal(err)
				}
				f.Cancel()
				f.Close()
			} else {
				c := &asker{}
				p.Model, p.Inputs = "app", []tensor.Tensor{x}
				if err := h.Open(&c.Call, &p); err != nil {
					t.Fatal(err)
				}
				h.Cancel(&c.Call)
				c.Close()
			}
			x.Release()
		}
	}
}

// Models of one application may take different inputs. Those that do not accept the request are
// named, with the reason, and the other models answer.
func TestModelsOfDifferentForms(t *testing.T) {
	h := newHouse(t)
	h.shaped("a", "x", 2, "label")
	h.shaped("b", "y", 3, "label")
	h.app(Definition{Name: "app", Models: []string{"a", "b"}, Policy: "ensemble"})
	three, err := tensor.FromSlice(tensor.Shape{3}, []float32{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	h.expect(h.ask("app", gate.Request{}), "2 by a/1 for app, confidence 0.5, missing [b/1]")
	h.expect(h.ask("app", gate.Request{}, three), "3 by b/1 for app, confidence 0.5, missing [a/1]")
	h.expect(h.ask("app", gate.Request{}, row(), row()), `error invalid input: expected 1 tensor ("x" float32 [-1, 2]), got 2`)

	c := &asker{done: make(chan struct{})}
	if err := h.Open(&c.Call, &gate.Request{Model: "app", Inputs: []tensor.Tensor{row()}, Arrived: time.Now()}); err !=
		nil {
		t.Fatal(err)
	}
	c.Owner = c
	h.Submit(&c.Call)
	<-c.done
	h.expect(c.Choice.Missing[0].Model+": "+c.Choice.Missing[0].Why, `b/1: invalid input: input "y": expected float32 [-1, 3] (-1: any size) or one row [3], got float32 [2]`)
	c.Close()
}

// The default output stands in for models that could not answer, also when the policy cannot choose
// without the models that are unreachable; and never for an invalid request.
func TestWhatTheDefaultStandsInFor(t *testing.T) {
	for err, want := range map[error]bool{
		scheduler.ErrDeadlineExceeded: true, scheduler.ErrOverloaded: true, scheduler.ErrUnavailable: true,
		scheduler.ErrContainerFailed: true, scheduler.ErrContainerLost: true,
		scheduler.ErrInvalidInput: false, scheduler.ErrTooLarge: false, scheduler.ErrNotFound: false,
		scheduler.ErrCanceled: false,
		scheduler.ErrDraining: false, fault.ErrInternal: false, errors.New("odd"): false,
	} {
		if replaceable(err) != want {
			t.Errorf("%v: expected %t", err, want)
		}
	}
	h := newHouse(t)
	a := h.shaped("a", "x", 2, "label")
	h.shaped("b", "x", 2, "label")
	fallback := json.RawMessage(`{"label":-1}`)
	h.app(Definition{Name: "named", Models: []string{"a", "b"}, Params: map[string]any{"model": "a"},
		Default: fallback})
	h.app(Definition{Name: "strict", Models: []string{"a", "b"}, Params: map[string]any{"model": "a"}})
	h.app(Definition{Name: "alone", Models: []string{"a"}, Default: fallback})
	h.app(Definition{Name: "both", Models: []string{"a", "b"}, Policy: "ensemble", Default: fallback})
	h.expect(h.ask("named", gate.Request{}), "2 by a/1")
	h.expect(h.ask("named", gate.Request{}, row(), row()), "error invalid input")
	a.Remove(errors.New("gone"))
	for _, app := range []string{"named", "alone"} {
		h.expect(h.ask(app, gate.Request{}), "-1 by a/1 for "+app+", confidence 0, missing [a/1], default: no live replica of a/1")
	}
	h.expect(h.ask("strict", gate.Request{}), "error")
	h.expect(h.ask("both", gate.Request{}), "2 by b/1 for both, confidence 1")
}

// The error says where the time was spent, as far as it is known.
func TestStage(t *testing.T) {
	ms := time.Millisecond
	for want, got := range map[string]string{
		"2ms in the queue, 30ms in the container":        stage(scheduler.Timing{Queue: 2 * ms, Exec: 30 * ms}, 33*ms),
		"2ms in the queue, 48ms in the container so far": stage(scheduler.Timing{Queue: 2 * ms}, 50*ms),
		"after 50ms": stage(scheduler.Timing{}, 50*ms),
	} {
		if got != want {
			t.Errorf("got %q, expected %q", got, want)
		}
	}
}

// Without an SLO, and without a deadline of the request, all asked models have the deadline of the
// first one.
func TestOneDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.model("brief", "1", 1, time.Hour)
		h.model("a", "1", 1, time.Microsecond)
		h.app(Definition{Name: "app", Models: []string{"brief", "a"}, Policy: "ensemble",
			Params: map[string]any{"weights": map[string]any{"brief": 3, "a": 1}}})
		begin := time.Now()
		h.expect(h.ask("app", gate.Request{}), "1 by a/1 for app, confidence 0.25, missing [brief/1]")
		if took := time.Since(begin); took != time.Second {
			t.Errorf("answered after %v, expected the 1s of the model asked first", took)
		}
		time.Sleep(2 * time.Hour)
	})
}

// A panic during the combination of answers, or during feedback, fails only that request.
func TestPanicsCostOneRequest(t *testing.T) {
	h := newHouse(t)
	h.model("a", "1", 1, time.Microsecond)
	h.app(Definition{Name: "app", Models: []string{"a"}, Default: json.RawMessage(`{"label":0}`)})
	broken := &App{Definition: Definition{Name: "app"}, Selection: new(selection.Policy)}
	c := &asker{done: make(chan struct{})}
	if err := h.Open(&c.Call, &gate.Request{Model: "app", Inputs: []tensor.Tensor{row()}, Arrived: time.Now()}); err !=
		nil {
		t.Fatal(err)
	}
	f := c.Fanout.(*fanout)
	app := *f.app
	app.App = broken
	f.app = &app
	c.Owner = c
	h.Submit(&c.Call)
	<-c.done
	if !errors.Is(c.Err, fault.ErrInternal) || len(c.Outputs) > 0 {
		t.Errorf("got %v, %d outputs", c.Err, len(c.Outputs))
	}
	c.Close()
	loss := 0.5
	v := &feedback{verdict: verdict{Verdict: gate.Verdict{Loss: &loss}}, app: &app}
	over := h.reg.Still() // the watcher's notice of Put would link the application again
	apps := h.reg.linking.Load().apps
	whole := apps["app"]
	apps["app"] = &app
	if reply, err := v.apply(nil, nil); reply != (gate.Learned{}) || fault.Of(err).Err != fault.ErrInternal ||
		!strings.Contains(err.Error(), "panic") {
		t.Errorf("feedback: %+v, %v", reply, err)
	}
	apps["app"] = whole
	over()
	// The store answers again.
	h.expect(h.ask("app/update", gate.Request{Parameters: []byte(`{"label":1}`)}), `"rounds":1`)
	h.expect(h.ask("app", gate.Request{}), "1 by a/1")
}

// Feedback on predictions made before a model joined is learned, and what is known about that model
// stays.
func TestFeedbackAfterAModelJoined(t *testing.T) {
	h := newHouse(t)
	h.model("a", "1", 1, time.Microsecond)
	h.model("b", "1", 2, time.Microsecond)
	d := Definition{Name: "app", Models: []string{"a"}, Policy: "exp4"}
	h.app(d)
	h.ask("app", gate.Request{ID: []byte(`"early"`)})
	d.Models = append(d.Models, "b")
	h.app(d)
	h.ask("app", gate.Request{ID: []byte(`"late"`)})
	h.expect(h.feedback("app", gate.Request{ID: []byte(`"late"`), Parameters: []byte(`{"label":1}`)}), `"rounds":1`)
	h.expect(h.feedback("app", gate.Request{ID: []byte(`"e\u0061rly"`), Parameters: []byte(`{"label":1}`)}), `"rounds":2`)
	learned, _, err := h.reg.Learned(h.reg.Find("app"), 10)
	if err != nil || len(learned) != 1 || len(learned[0].State.Models) != 2 || learned[0].State.Models[1].Count != 1 {
		t.Errorf("learned %+v, %v", learned, err)
	}
}

// Requests to an application are counted once, by its name.
func TestApplicationsAreCountedByTheirName(t *testing.T) {
	h := newHouse(t)
	h.model("a", "1", 1, time.Microsecond)
	h.app(Definition{Name: "app", Models: []string{"a"}})
	for _, tc := range []struct {
		route string
		want  *metrics.Model
	}{{"app", h.metrics.Model("app", "")}, {"a", h.metrics.Model("a", "1")}} {
		var c gate.Call
		if c.Counted() != nil {
			t.Error("a call that is not open is counted")
		}
		if err := h.Open(&c,
			&gate.Request{Model: tc.route, Inputs: []tensor.Tensor{row()}, Arrived: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if c.Counted() != tc.want {
			t.Errorf("%s is counted with %p, expected %p", tc.route, c.Counted(), tc.want)
		}
		c.Close()
	}
}

// Lists of models include the applications.
func TestApplicationsAreShown(t *testing.T) {
	h := newHouse(t)
	h.model("digits", "1", 1, time.Microsecond)
	h.model("other", "1", 1, time.Microsecond)
	h.app(Definition{Name: "letters", Models: []string{"digits", "other/1"}, Policy: "exp3"})
	h.app(Definition{Name: "digits", Models: []string{"digits/1"}})
	h.app(Definition{Name: "empty", Models: []string{"absent"}})

	show := func(route string) string {
		answer, ok, err := h.Control(route)
		if err != nil || !ok {
			return fmt.Sprint(ok, " ", err)
		}
		return string(answer)
	}
	h.expect(show("!models"), `"applications":[{"name":"digits","policy":"single","ready":true,"models":["digits/1"]},`+
		`{"name":"empty","policy":"single","ready":false,"models":[]},{"name":"letters","policy":"exp3","ready":true,"models":["digits/1","other/1"]}]`)

	h.expect(h.ask("lettres", gate.Request{}), `no model, application or pipeline "lettres"; nearest: "letters"`)
	h.expect(h.ask("zzzzzz", gate.Request{}), `registered: digits, empty, letters, other`)
	h.expect(h.ask("letters/1", gate.Request{}), `"letters" is an application, which has no versions, but the request names version "1"`)
	h.expect(h.ask("v2/models/letters/versions/1/infer", gate.Request{}), `under application "letters" there are infer, latest, ready, config and stats`)
	// An application may have the name of its model; the model's versions stay reachable.
	h.expect(h.ask("digits", gate.Request{}), "1 by digits/1 for digits")
	h.expect(h.ask("digits", gate.Request{Version: "1"}), "1 by digits/1")
	if got := h.ask("digits", gate.Request{Version: "1"}); strings.Contains(got, "for digits") {
		t.Errorf("version 1 of the model was asked for: %s", got)
	}
	h.expect(h.ask("digits/1", gate.Request{}), "1 by digits/1")
}

// Another server does not know this server's models, and may give an application the name of one:
// then the name means the application, and the log says so once.
func TestNameTakenAtAnotherServer(t *testing.T) {
	var log bytes.Buffer
	h := newHouse(t)
	over := h.reg.Still()
	h.reg.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	over()
	h.model("a", "1", 1, time.Microsecond)
	h.model("b", "1", 2, time.Microsecond)
	another := Open(Config{Store: h.store, Changed: func() {}})
	defer another.Close()
	if _, err := another.Create(t.Context(), Definition{Name: "a", Models: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "a is linked", func() bool { return h.reg.linking.Load().apps["a"] != nil })
	h.Changed()
	h.expect(h.ask("a", gate.Request{}), "2 by b/1 for a")
	h.expect(h.ask("a/1", gate.Request{}), "1 by a/1")
	defer h.reg.Still()()
	if n := strings.Count(log.String(), "has the name of a model"); n != 1 {
		t.Errorf("said %d times: %s", n, &log)
	}
}

// While the store has not been read, an unknown name may be that of an application: the client
// should retry.
func TestApplicationsThatAreNotKnownYet(t *testing.T) {
	h := newHouse(t)
	h.store.Close()
	deaf := Open(Config{Store: h.store, Changed: func() {}})
	defer deaf.Close()
	h.AttachComposites(deaf)
	h.model("a", "1", 1, time.Microsecond)
	h.expect(h.ask("a", gate.Request{}), "1 by a/1")
	err := h.Open(new(gate.Call), &gate.Request{Model: "app"})
	if !errors.Is(err, scheduler.ErrUnavailable) || !strings.Contains(err.Error(), "applications and pipelines are not known yet") {
		t.Errorf("got %v", err)
	}
}
