package grpc

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

func parameterOf(v any) *pb.InferParameter {
	switch v := v.(type) {
	case bool:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: v}}
	case int:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: int64(v)}}
	case string:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_StringParam{StringParam: v}}
	}
	panic(v)
}

// Requests of one stream that name a sequence are executed in its order, as are those that ask for
// it; they do not hold back other requests.
func TestSequences(t *testing.T) {
	r := newRig(t, func(c *Config, _ *int64) { c.InFlight = 64 })
	x := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 1}}}
	var mu sync.Mutex
	executed := map[string][]int{} // by sequence
	for _, name := range []string{"m", "n"} {
		for range 4 { // replicas, each with batches that overtake each other
			r.Model(name, scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
				go func() {
					parts := make([]tensor.Tensor, len(b.Parts))
					for i, p := range b.Parts {
						parts[i] = p.Inputs[0]
						v, _ := tensor.Values[float32](p.Inputs[0])
						time.Sleep(time.Duration(int(v[0])%3) * 300 * time.Microsecond)
						mu.Lock()
						key := name + string(p.Parameters)
						executed[key] = append(executed[key], int(v[0]))
						mu.Unlock()
					}
					out, _ := tensor.Concat(parts, nil)
					b.Complete([]tensor.Tensor{out}, nil)
				}()
				return nil
			}))
		}
	}
	kinds := []map[string]*pb.InferParameter{
		{"sequence_id": parameterOf(7)}, {"sequence_id": parameterOf("7")}, {"sequence_id": parameterOf("b")},
		{"in_order": parameterOf(true), "other": parameterOf(1)}, {}, {"sequence_id": parameterOf(0)},
	}
	s := r.stream(t.Context())
	const n = 400
	go func() {
		for i := range n {
			q := floats("m", float32(i))
			q.Id, q.Parameters = strconv.Itoa(i), kinds[i%len(kinds)]
			if i%2 == 0 {
				q.ModelName = "n"
			}
			if err := s.Send(q); err != nil {
				t.Error(err)
			}
		}
		_ = s.CloseSend()
	}()
	for i := range n {
		a, err := s.Recv()
		if err != nil || a.ErrorMessage != "" || a.InferResponse.Id != strconv.Itoa(i) {
			t.Fatalf("answer %d: %v %v", i, a, err)
		}
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Error(err)
	}
	sorted := map[bool]int{}
	for key, list := range executed {
		free := key == "m" || key == "n" || key == `m{"sequence_id":0}` || key == `n{"sequence_id":0}`
		if slices.IsSorted(list) {
			sorted[free]++
		} else if !free {
			t.Errorf("the sequence %s was executed in the order %v", key, list)
		}
	}
	if sorted[true] > 1 {
		t.Error("requests without a sequence have an order: the test shows nothing")
	}
	if len(executed) < 6 {
		t.Errorf("sequences %v", executed)
	}
}

// A sequence goes on after a request that failed, and an ended sequence is forgotten.
func TestSequenceGoesOn(t *testing.T) {
	r := newRig(t)
	r.echo("m", tensor.Float32)
	s := r.stream(t.Context())
	for i := range 100 {
		q := floats("m", float32(i))
		if q.Parameters = map[string]*pb.InferParameter{"sequence_id": parameterOf("s")}; i%2 == 0 {
			q.Inputs[0].Datatype = "FP31"
		}
		if err := s.Send(q); err != nil {
			t.Fatal(err)
		}
		if a, err := s.Recv(); err != nil || (a.ErrorMessage == "") != (i%2 == 1) {
			t.Fatalf("%v %v", a, err)
		}
	}
	order := sequences{}
	for i := range 1000 {
		turn := order.take(&request{Request: gate.Request{Model: "m"},
			parameters: parameters{"sequence_id": fmt.Sprint(i)}}, 8)
		turn.wait(t.Context())
		turn.end()
	}
	if len(order) > 33 {
		t.Errorf("%d sequences are remembered", len(order))
	}
}

// A request that is refused at once does not let a frame overtake an older one that waits for its
// turn: the older frame would supersede the newer one.
func TestRefusalBetweenFrames(t *testing.T) { inBubble(t, testRefusalBetweenFrames) }

func testRefusalBetweenFrames(t *testing.T, r *rig) {
	first, camera := r.held("m"), r.held("camera")
	s := r.stream(t.Context())
	send := func(model string, value float32, keys map[string]*pb.InferParameter) {
		q := floats(model, value)
		q.Parameters = keys
		if err := s.Send(q); err != nil {
			t.Fatal(err)
		}
	}
	submitted := func() uint64 {
		m, _ := r.Sched.Model(scheduler.ModelID{Name: "camera", Version: "1"})
		return m.Stats().Submitted
	}
	send("m", 0, map[string]*pb.InferParameter{"in_order": parameterOf(true)})
	send("camera", 1,
		map[string]*pb.InferParameter{"in_order": parameterOf(true), "stream": parameterOf("a"), "seq": parameterOf(1)})
	send("nobody", 2, nil)
	send("camera", 3, map[string]*pb.InferParameter{"stream": parameterOf("a"), "seq": parameterOf(2)})
	synctest.Wait()
	if n, executing := submitted(), len(first.Pending()); n != 0 || executing != 1 {
		t.Fatalf("%d frames are submitted before the turn of the first, and %d first requests execute", n, executing)
	}
	if err := first.Answer(); err != nil {
		t.Fatal(err)
	}
	if synctest.Wait(); submitted() != 2 {
		t.Fatalf("%d frames are submitted after it", submitted())
	}
	for answered := 0; answered < 4; answered++ {
		if answered%2 == 1 {
			synctest.Wait()
			if err := camera.Answer(); err != nil {
				t.Fatal(err)
			}
		}
		a, err := s.Recv()
		if err != nil || (a.ErrorMessage != "") != (answered == 2) {
			t.Fatalf("answer %d: %v %v", answered, a, err)
		}
	}
}
