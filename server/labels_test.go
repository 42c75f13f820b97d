package server

import (
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestLabels: a container's labels and formats reach the clients of both doors with the
// classification and model_configuration extensions, batched or not; classes without a label keep
// their number.
func TestLabels(t *testing.T) {
	s := start(t, nil)
	web, rpc := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0]).client
	x := tensor.Spec{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{1, 5, 1}, Format: tensor.FormatNCHW}
	y := tensor.Spec{Name: "y", DType: tensor.Float32, Shape: x.Shape, Labels: []string{"cat", "a: dog", "", "grün & <blau>"}}
	connect(t, s,
		containertest.Model{Name: "single", Batched: new(false), Inputs: []tensor.Spec{x}, Outputs: []tensor.Spec{y}})
	x.Shape, x.Format = append(tensor.Shape{-1}, x.Shape...), tensor.FormatNHWC
	y.Shape = x.Shape
	connect(t, s, containertest.Model{Name: "batched", Inputs: []tensor.Spec{x}, Outputs: []tensor.Spec{y}})

	const body = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,5,1],"data":[0.5,2,1,4,3]}],"outputs":[{"name":"y","parameters":{"classification":5}}]}`
	best := strings.Split("4.000000:3:grün & <blau>|3.000000:4|2.000000:1:a: dog|1.000000:2|0.500000:0:cat", "|")
	row, err := tensor.FromSlice(tensor.Shape{1, 5, 1}, []float32{0.5, 2, 1, 4, 3})
	if err != nil {
		t.Fatal(err)
	}
	for model, format := range map[string]string{"single": tensor.FormatNCHW, "batched": tensor.FormatNHWC} {
		var reply struct{ Outputs []struct{ Data []string } }
		if err := web.call("POST", "/v2/models/"+model+"/infer", body, &reply); err != nil ||
			!slices.Equal(reply.Outputs[0].Data, best) {
			t.Errorf("%s over REST: %q, %v, expected %q", model, reply, err, best)
		}
		q := grpcQuestion(model, row, 0)
		q.RawInputContents = [][]byte{row.Data}
		q.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{
			{Name: "y", Parameters: map[string]*pb.InferParameter{
				"classification": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 5}}}}}
		a, err := rpc.ModelInfer(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		classes := tensor.Tensor{DType: tensor.Bytes, Shape: tensor.Shape{5}, Data: a.RawOutputContents[0]}
		if got, err := tensor.Strings(classes); err != nil || !slices.Equal(got, best) {
			t.Errorf("%s over gRPC: %q, %v, expected %q", model, got, err, best)
		}

		const list = `["cat","a: dog","","grün & <blau>"]`
		var config struct {
			Input, Output []struct{ Format string }
			Parameters    map[string]struct {
				Text string `json:"string_value"`
			}
		}
		err = web.call("GET", "/v2/models/"+model+"/config", "", &config)
		if err != nil || config.Input[0].Format != format || config.Output[0].Format != "" ||
			config.Parameters["labels.y"].Text != list {
			t.Errorf("%s over REST: %+v, %v", model, config, err)
		}
		c, err := rpc.ModelConfig(t.Context(), &pb.ModelConfigRequest{Name: model})
		if err != nil || c.Config.Input[0].Format.String() != format ||
			c.Config.Parameters["labels.y"].GetStringValue() != list {
			t.Errorf("%s over gRPC: %v, %v", model, c, err)
		}
	}
}
