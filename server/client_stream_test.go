package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestClientInfer: the Go client names inputs in any order, and finds outputs by their names, also
// on a stream.
func TestClientInfer(t *testing.T) {
	s := start(t, nil)
	specs := []tensor.Spec{{Name: "a", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}},
		{Name: "text", DType: tensor.Bytes, Shape: tensor.Shape{-1}},
		{Name: "b", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "three", Version: "1"},
		scheduler.Spec{Inputs: specs, Outputs: specs},
		scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	input := func(name string, x, y int32) tensor.Tensor {
		v, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{x, y})
		if err != nil {
			t.Fatal(err)
		}
		v.Name = name
		return v
	}
	text, err := tensor.FromStrings(tensor.Shape{1}, []string{"caf\u00e9"})
	if err != nil {
		t.Fatal(err)
	}
	text.Name = "text"
	inputs := []tensor.Tensor{input("b", 3, 4), text, input("a", 1, 2)}
	expect := func(m *shiva.Message) {
		t.Helper()
		for name, want := range map[string][]int32{"a": {1, 2}, "b": {3, 4}} {
			x, err := m.Output(name)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := tensor.Values[int32](x); err != nil || !slices.Equal(got, want) ||
				!x.Shape.Equal(tensor.Shape{1, 2}) {
				t.Errorf("output %s: %v %v, %v", name, x.Shape, got, err)
			}
		}
		x, err := m.Output("text")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tensor.Strings(x); err != nil || !slices.Equal(got, []string{"caf\u00e9"}) {
			t.Errorf("output text: %q, %v", got, err)
		}
		if _, err := m.Output("c"); err == nil || !strings.Contains(err.Error(), "there are a, b, text") {
			t.Errorf("an output that is not there: %v", err)
		}
		m.Release()
	}
	m, err := client.Infer(t.Context(), "three", inputs...)
	if err != nil {
		t.Fatal(err)
	}
	expect(m)
	inputs[0].Name = "c"
	_, err = client.Infer(t.Context(), "three/1", inputs...)
	if remote, ok := errors.AsType[*shiva.RemoteError](err); !ok || remote.Type != shiva.InvalidInput ||
		!strings.Contains(remote.Message, `"c"`) {
		t.Errorf("an input that is not there: %v", err)
	}
	inputs[0].Name = "b"

	stream, err := client.Stream(t.Context(), shiva.StreamConfig{Model: "three", Name: "cam-3"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := stream.Push(t.Context(), shiva.Frame{Tensors: inputs}); err != nil {
		t.Fatal(err)
	}
	stream.Finish()
	answers := 0
	for a, err := range stream.Answers(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		answers++
		expect(a.Message)
	}
	if answers != 1 {
		t.Errorf("%d answers", answers)
	}
}

func (m *slowModel) superseded() int {
	return int(m.model.Stats().Outcomes[scheduler.OutcomeSuperseded])
}

// TestClientStream: the Go client's stream with a real server. The frames that wait for the model
// are superseded by the newest.
func TestClientStream(t *testing.T) {
	s := start(t, oneByOne)
	slow := addSlow(t, s)
	pool := tensor.NewPool(0)
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String(), shiva.WithPool(pool))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := client.Stream(t.Context(),
		shiva.StreamConfig{Model: "slow", Name: "cam-3", Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	values, finish := []int32{0, 0}, func() {}
	for seq := range int32(5) {
		values[0] = seq
		x, err := tensor.FromSlice(tensor.Shape{2}, values)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Push(t.Context(),
			shiva.Frame{Tensors: []tensor.Tensor{x}, CapturedAt: time.Now().Add(-time.Minute)}); err != nil {
			t.Fatal(err)
		}
		if seq == 0 {
			_, finish = slow.next()
		}
	}
	stream.Finish()
	budgettest.Until(t, "the frames to be superseded", func() bool {
		return slow.superseded()+stream.Counts().Superseded == 3
	})
	finish()
	want := []shiva.Answer{{Seq: 0}, {Seq: 4, Skipped: 3}}
	for a, err := range stream.Answers(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if len(want) == 0 || a.Seq != want[0].Seq || a.Skipped != want[0].Skipped || a.Age < time.Minute {
			t.Fatalf("frame %d, %d skipped, age %v, want %+v", a.Seq, a.Skipped, a.Age, want)
		}
		if x, err := tensor.Values[int32](a.Tensors[0]); err != nil || int64(x[0]) != a.Seq {
			t.Errorf("frame %d has the answer %v, %v", a.Seq, x, err)
		}
		want = want[1:]
		a.Release()
		if len(want) > 0 {
			_, finish = slow.next()
			finish()
		}
	}
	if n := stream.Counts(); len(want) > 0 || n != (shiva.StreamCounts{Superseded: 3}) {
		t.Errorf("no answers %+v; %+v", want, n)
	}
	stream.Close()
	client.Close()
	if n := pool.InUse(); n != 0 {
		t.Errorf("%d bytes were not released", n)
	}
}

// TestClientStreamRestart: a stream outlives its server.
func TestClientStreamRestart(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, nil)
	addr := s.Addrs().TCP[0].String()
	client, err := shiva.Dial(t.Context(), addr, shiva.WithBackoff(10*time.Millisecond, 10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	stream, err := client.Stream(t.Context(), shiva.StreamConfig{Model: "echo", Name: "cam-3"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	x, err := tensor.FromSlice(tensor.Shape{2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	answered, failed := make(chan int64, 1000), make(chan error, 1000)
	go func() { // ends with the stream
		for a, err := range stream.Answers(context.Background()) {
			if err != nil {
				failed <- err
				continue
			}
			a.Release()
			answered <- a.Seq
		}
	}()
	push := func() int64 {
		seq, err := stream.Push(t.Context(), shiva.Frame{Tensors: []tensor.Tensor{x}})
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	first := push()
	if seq := <-answered; seq != first {
		t.Errorf("frame %d is answered, expected %d", seq, first)
	}
	stop(t, s)
	push()
	if err := <-failed; !errors.As(err, new(*shiva.CallError)) {
		t.Errorf("while no server is there: %v", err)
	}
	start(t, func(c *config.Config) { c.TCP.Listen = config.Addrs{addr} })
	deadline := time.After(10 * time.Second)
	for first = push(); ; push() {
		select {
		case seq := <-answered:
			if seq < first {
				t.Errorf("frame %d is answered, expected %d or later", seq, first)
			}
			return
		case <-deadline:
			t.Fatal("no frame is answered by the server that came back")
		case <-time.After(10 * time.Millisecond):
		}
	}
}
