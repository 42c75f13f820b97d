package apps

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/tensor"
)

// A model with replicas that ask for feedback is told the outcome of its answers: once, after it
// was learned, with the request and the answer; for feedback with the id of the request, and for
// feedback with the input.
func TestFeedbackReachesTheModel(t *testing.T) {
	h := newHouse(t)
	told := make(chan *scheduler.Feedback, 10)
	h.model("asks", "1", 3, time.Microsecond) // of two replicas one asks
	h.model("silent", "1", 4, time.Microsecond)
	spec := scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{{Name: "label", DType: tensor.Int64, Shape: tensor.Shape{-1}}},
	}
	if _, err := h.sched.AddReplica(scheduler.ModelID{Name: "asks", Version: "1"}, spec, h.labels(3, time.Microsecond),
		scheduler.ReplicaOptions{Feedback: func(f *scheduler.Feedback) { told <- f }}); err != nil {
		t.Fatal(err)
	}
	h.app(Definition{Name: "app", Models: []string{"asks", "silent"}, Policy: "exp4"})
	asked := row()
	right, err := tensor.FromSlice(tensor.Shape{1}, []int64{3})
	if err != nil {
		t.Fatal(err)
	}
	h.ask("app", gate.Request{Values: parameter.Values{User: "anna"}, ID: []byte(`"a"`)})
	h.ask("app", gate.Request{Values: parameter.Values{User: "anna"}, ID: []byte(`"b"`)})
	for _, tt := range []struct {
		p     gate.Request
		truth []tensor.Tensor
		check func(f *scheduler.Feedback) bool
	}{
		{gate.Request{Values: parameter.Values{User: "anna"}, ID: []byte(`"a"`), Parameters: []byte(`{"label":3}`)},
			nil, func(f *scheduler.Feedback) bool { return string(f.Label) == "3" && f.User == "anna" }},
		{gate.Request{Values: parameter.Values{User: "anna"}, ID: []byte(`"b"`)}, []tensor.Tensor{right},
			func(f *scheduler.Feedback) bool {
				return len(f.Truth) == 1 && string(f.Truth[0].Data) == string(right.Data)
			}},
		{gate.Request{Parameters: []byte(`{"losses":{"asks/1":0.25,"silent/1":1}}`)}, []tensor.Tensor{row()},
			func(f *scheduler.Feedback) bool { return f.Loss != nil && *f.Loss == 0.25 && f.User == "" }},
	} {
		h.expect(h.feedback("app", tt.p, tt.truth...), `"learned":true`)
		select {
		case f := <-told:
			if f.Application != "app" || f.Rows != 1 || len(f.Inputs) != 1 || f.Inputs[0].Name != "x" ||
				string(f.Inputs[0].Data) != string(asked.Data) ||
				len(f.Outputs) != 1 || f.Outputs[0].Data[0] != 3 || !tt.check(f) {
				t.Errorf("told %+v", f)
			}
		default:
			t.Errorf("%s: told nothing", tt.p.Parameters)
		}
	}
	h.expect(
		h.ask("app/update", gate.Request{Values: parameter.Values{User: "anna"}, ID: []byte(`"a"`), Parameters: []byte(`{"label":3}`)}),
		`"learned":false`)
	if len(told) > 0 {
		t.Error("told twice")
	}
}
