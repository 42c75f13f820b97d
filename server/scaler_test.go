package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestScalerOfTheServer: the scaler at the gRPC door returns the number in the status. An unknown
// model needs a replica, one without requests none.
func TestScalerOfTheServer(t *testing.T) {
	s := start(t, nil)
	c := pb.NewExternalScalerClient(newGRPC(t, s.Addrs().GRPC[0]).conn)
	needed := func(want int64) {
		t.Helper()
		ref := &pb.ScaledObjectRef{ScalerMetadata: map[string]string{"model": "m"}}
		a, err := c.GetMetrics(t.Context(), &pb.GetMetricsRequest{ScaledObjectRef: ref, MetricName: "replicas-needed"})
		if err != nil || a.MetricValues[0].MetricValue != want {
			t.Errorf("%v %v, expected %d", a, err, want)
		}
	}
	needed(1)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 1}}}
	r, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "m", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	needed(0)
	in := []tensor.Tensor{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{1, 1}, Data: make([]byte, 4)}}
	if err := s.Scheduler().Infer(t.Context(), &scheduler.Request{Model: r.Model(), Inputs: in, Rows: 1}); err != nil {
		t.Fatal(err)
	}
	needed(1)
	if code, text := requestAdmin(t, s, http.MethodGet, "/v1/status", "", ""); code != http.StatusOK ||
		!strings.Contains(text, `"needed": 1,`) {
		t.Errorf("the status: %d %s", code, text)
	}
}
