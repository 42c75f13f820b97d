package server

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestIntegersKeepTheirDigits: an int64 that no float64 holds passes unchanged through the doors
// whose inputs are JSON values, Clipper's and a bridge's.
func TestIntegersKeepTheirDigits(t *testing.T) {
	s := start(t, nil)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int64, Shape: tensor.Shape{-1, 3}}}
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "ints", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x},
		scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	const text = "[9007199254740993,-9223372036854775808,9223372036854775807]"
	answer, err := http.Post("http://"+s.Addrs().REST[0].String()+"/ints/predict", "application/json",
		strings.NewReader(`{"input":`+text+`}`))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(body), `"output":`+text) {
		t.Errorf("Clipper's path: %s, %v", body, err)
	}
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	m, err := client.Do(t.Context(), &shiva.Message{Namespace: "ints", Metadata: []byte(`{"x":` + text + `}`)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if got, err := tensor.Values[int64](m.Tensors[0]); err != nil ||
		!slices.Equal(got, []int64{1<<53 + 1, -1 << 63, 1<<63 - 1}) {
		t.Errorf("bridge: %v, %v", got, err)
	}
}
