package apps

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/tensor"
)

// Feedback with both the id of a request and its input means the same at a server that knows the id
// and at one that does not: with a verdict the tensors are the input. A server that knew the id
// used to take them for the right outputs.
func TestFeedbackMeansTheSameEverywhere(t *testing.T) {
	h := newHouse(t)
	h.model("a", "1", 1, time.Microsecond)
	h.model("b", "1", 2, time.Microsecond)
	h.app(Definition{Name: "app", Models: []string{"a", "b"}, Policy: "exp4"})
	for _, id := range []string{`"known"`, `"unknown"`} {
		p := gate.Request{Values: parameter.Values{User: id}, ID: []byte(id), Parameters: []byte(`{"label":1}`)}
		if id == `"known"` {
			h.ask("app", gate.Request{Values: parameter.Values{User: p.User}, ID: p.ID})
		}
		h.expect(h.ask("app/update", p), `"learned":true,"rounds":1`)
		h.expect(h.ask("app/update", p), `"learned":false,"rounds":1`)
	}
	right, err := tensor.FromSlice(tensor.Shape{}, []int64{1})
	if err != nil {
		t.Fatal(err)
	}
	h.expect(h.ask("app/update", gate.Request{ID: []byte(`"never"`)}, right), `error not found: feedback for application "app": this server knows no request with id "never"`)
	h.expect(h.ask("app/update", gate.Request{}, right), `expected one of "label", "loss", "reward", "losses" for that input, or the "id" of a request whose right outputs the tensors are`)
}

// Feedback that was opened before the policy of its application was changed teaches the current
// policy.
func TestFeedbackAfterThePolicyChanged(t *testing.T) {
	h := newHouse(t)
	h.model("a", "1", 1, time.Microsecond)
	h.model("b", "1", 2, time.Microsecond)
	d := Definition{Name: "app", Models: []string{"a", "b"}, Policy: "exp4"}
	h.app(d)
	h.ask("app/update", gate.Request{Parameters: []byte(`{"label":1}`)})
	h.ask("app", gate.Request{ID: []byte(`1`)})
	f, err := h.OpenFeedback(&gate.Request{Model: "app", Arrived: time.Now(), ID: []byte(`1`), Parameters: []byte(`{"label":1}`)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d.Policy = "ensemble"
	h.app(d)
	reply, err := gate.Learn(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	h.expect(string(reply.JSON()), `"rounds":1`)
	learned, _, err := h.reg.Learned(h.reg.Find("app"), 10)
	if err != nil || len(learned) != 1 || learned[0].State.Policy != "ensemble" || learned[0].State.Rounds != 1 ||
		len(learned[0].State.Others) != 1 {
		t.Errorf("learned %+v, %v", learned, err)
	}
}

// texts adds a model that answers with a text.
func (h *house) texts(name string) {
	h.t.Helper()
	spec := scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{{Name: "word", DType: tensor.Bytes, Shape: tensor.Shape{-1}}},
	}
	w := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		words := make([]string, b.Rows)
		out, err := tensor.FromStrings(tensor.Shape{b.Rows}, words)
		if err == nil {
			b.Complete([]tensor.Tensor{out}, nil)
		}
		return err
	})
	if _, err := h.sched.AddReplica(scheduler.ModelID{Name: name, Version: "1"}, spec, w,
		scheduler.ReplicaOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

// A mean over texts used to be accepted, and was answered by a vote. Now the model is refused when
// it is linked, and is not asked if it registers later.
func TestPolicyDoesNotTakeEveryModel(t *testing.T) {
	h := newHouse(t)
	h.texts("words")
	mean := Definition{Name: "app", Models: []string{"words"}, Policy: "exp4", Params: map[string]any{"combination": "mean"}}
	if _, err := h.reg.Create(t.Context(), mean); err == nil || !strings.Contains(err.Error(), `model words/1: policy exp4: parameter combination is "mean", and the model has no output of a float dtype`) {
		t.Errorf("linked to texts: %v", err)
	}
	mean.Models = []string{"later"}
	h.app(mean)
	h.expect(h.ask("app", gate.Request{}), "no container of these has registered yet")
	h.texts("later")
	h.expect(h.ask("app", gate.Request{}), `error invalid input: application "app" can use none of its models: model later/1: policy exp4`)
	if _, err := h.reg.Change(t.Context(), "app", func(d *Definition) error { d.SLO = "1s"; return nil }); err == nil {
		t.Error("changed beside a model that does not fit")
	}
	h.app(Definition{Name: "votes", Models: []string{"words", "later"}, Policy: "exp4"})
	if votes := h.reg.linking.Load().apps["votes"]; len(votes.models) != 2 || votes.fault != nil {
		t.Errorf("a vote over texts: %+v", votes)
	}
}

// An application whose models have never connected answers with its default output, as it does when
// they have disconnected.
func TestDefaultWithoutModels(t *testing.T) {
	h := newHouse(t)
	h.app(Definition{Name: "app", Models: []string{"never"}, Default: json.RawMessage(`{"label":-1,"scores":[0.5,0],"word":"?"}`)})
	pair, err := tensor.FromSlice(tensor.Shape{2, 3}, make([]float32, 6))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in      tensor.Tensor
		rows    int
		squeeze bool
	}{{row(), 1, true}, {pair, 2, false}} {
		call := &asker{done: make(chan struct{})}
		if err := h.Open(&call.Call,
			&gate.Request{Model: "app", Inputs: []tensor.Tensor{c.in}, Arrived: time.Now()}); err != nil {
			t.Fatal(err)
		}
		call.Owner = call
		h.Submit(&call.Call)
		<-call.done
		got := ""
		for i, o := range call.Outputs {
			got += call.Target.Spec.Outputs[i].Name + " " + o.DType.String() + o.Shape.String() + " "
		}
		want := "label int64[1] scores float64[1, 2] word bytes[1] "
		if c.rows == 2 {
			want = "label int64[2] scores float64[2, 2] word bytes[2] "
		}
		if call.Err != nil || got != want || call.Squeeze != c.squeeze || !call.Choice.Default ||
			!strings.Contains(call.Choice.Explanation, "no container of these has registered yet") {
			t.Errorf("got %s (squeeze %t, %+v), error %v", got, call.Squeeze, call.Choice, call.Err)
		}
		h.Cancel(&call.Call)
		call.Close()
	}
	if h.pool.InUse() != 0 {
		t.Errorf("%d bytes are still out", h.pool.InUse())
	}
	h.expect(h.ask("app/update", gate.Request{Parameters: []byte(`{"label":1}`)}), "no container of these has registered yet")
	if _, err := h.Target("app", ""); err == nil {
		t.Error("the application has metadata that nobody has declared")
	}
	h.model("never", "1", 7, time.Microsecond)
	h.expect(h.ask("app", gate.Request{}), "7 by never/1")
}

// A model is told the user of each request if it asks for that, and only then.
func TestUserReachesTheModel(t *testing.T) {
	h := newHouse(t)
	for _, asks := range []bool{true, false} {
		name := map[bool]string{true: "asks", false: "silent"}[asks]
		spec := scheduler.Spec{
			User:    asks,
			Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}},
			Outputs: []tensor.Spec{{Name: "label", DType: tensor.Int64, Shape: tensor.Shape{-1}}},
		}
		told := make(chan string, 1)
		w := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			told <- string(b.Parts[0].Parameters)
			out, err := tensor.FromSlice(tensor.Shape{b.Rows}, make([]int64, b.Rows))
			b.Complete([]tensor.Tensor{out}, nil)
			return err
		})
		if _, err := h.sched.AddReplica(scheduler.ModelID{Name: name, Version: "1"}, spec, w,
			scheduler.ReplicaOptions{}); err != nil {
			t.Fatal(err)
		}
		h.app(Definition{Name: "app-" + name, Models: []string{name}})
		for forward, want := range map[string]string{``: `{"user":"an\"na"}`, `{"k":1}`: `{"user":"an\"na","k":1}`} {
			if !asks {
				want = forward
			}
			for _, route := range []string{name, "app-" + name} {
				h.ask(route,
					gate.Request{Values: parameter.Values{User: `an"na`},
						Parameters: []byte(forward)[:len(forward):len(forward)]})
				if got := <-told; got != want {
					t.Errorf("%s with %q is told %s, expected %s", route, forward, got, want)
				}
			}
		}
	}
}
