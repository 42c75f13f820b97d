package grpc

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
)

// An application's choice is in the answer's parameters.
func TestChoice(t *testing.T) {
	r := reply{answer: &predict.Answer{Model: "app", Version: "m/1", Choice: &gate.Choice{
		Application: "app", Confidence: 0.75, Missing: []gate.Missing{{Model: "a/1", Why: "late"}, {Model: "b/2", Why: "gone"}},
		Default: true, Explanation: "late",
	}}}
	var b []byte
	for _, part := range r.marshal() {
		b = append(b, part.ReadOnlyData()...)
	}
	var got pb.ModelInferResponse
	if err := proto.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	p := got.GetParameters()
	if len(p) != 4 || p["confidence"].GetDoubleParam() != 0.75 || p["missing"].GetStringParam() != `{"a/1":"late","b/2":"gone"}` ||
		!p["default"].GetBoolParam() || p["default_explanation"].GetStringParam() != "late" || got.GetModelVersion() != "m/1" {
		t.Errorf("got %v", &got)
	}
}
