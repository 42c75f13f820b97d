package server_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/tensor"
)

// A program embeds the whole server: models are its own functions, an application chooses between
// them and learns, answers are cached, and nothing listens. Doors and containers can be added by
// their addresses in the configuration.
func Example() {
	cfg := config.Default()
	cfg.TCP.Listen, cfg.REST.Listen, cfg.GRPC.Listen, cfg.Admin.Listen, cfg.Containers.Listen = nil, nil, nil, "", nil
	m := cfg.Model("careful")
	m.Cache = 1 << 20
	cfg.Models["careful"] = m

	s, err := server.New(cfg, nil)
	if err != nil {
		log.Fatal(err)
	}
	var executed atomic.Int64
	serve(s, "careful", func(x float32) int64 { executed.Add(1); return int64(x + 0.5) })
	serve(s, "hasty", func(x float32) int64 { return int64(x) })
	if err := s.Start(); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer s.Shutdown(ctx)

	if err := s.SetApplication(ctx, server.Application{
		Name: "round", Models: []string{"careful", "hasty"}, Policy: "exp4",
		SLO: time.Second, Default: map[string]any{"whole": -1},
	}); err != nil {
		log.Fatal(err)
	}
	x, err := tensor.FromSlice(tensor.Shape{}, []float32{1.7}) // one row
	if err != nil {
		log.Fatal(err)
	}
	for i := range 20 {
		id := fmt.Sprint("question-", i)
		a, err := s.Infer(ctx, &server.Request{Name: "round", ID: id, Inputs: []tensor.Tensor{x}})
		if err != nil {
			log.Fatal(err)
		}
		a.Release()
		if _, _, err := s.Learn(ctx, &server.Feedback{Application: "round", ID: id, Label: 2}); err != nil {
			log.Fatal(err)
		}
	}
	a, err := s.Infer(ctx, &server.Request{Name: "round", Inputs: []tensor.Tensor{x}})
	if err != nil {
		log.Fatal(err)
	}
	defer a.Release() // its outputs are the server's memory
	whole, err := tensor.Values[int64](a.Outputs[0])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(whole[0], "by", a.Model, "version", a.Version)
	fmt.Println("executions of careful for 21 equal questions:", executed.Load())
	// Output:
	// 2 by careful version 1
	// executions of careful for 21 equal questions: 1
}

// serve adds a function as a model of one number in and one out.
func serve(s *server.Server, name string, predict func(float32) int64) {
	spec := scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1}}},
		Outputs: []tensor.Spec{{Name: "whole", DType: tensor.Int64, Shape: tensor.Shape{-1}}},
	}
	f := func(_ context.Context, inputs []tensor.Tensor) ([]tensor.Tensor, error) {
		values, err := tensor.Values[float32](inputs[0])
		if err != nil {
			return nil, err
		}
		out := make([]int64, len(values))
		for i, v := range values {
			out[i] = predict(v)
		}
		t, err := tensor.FromSlice(tensor.Shape{len(out)}, out)
		return []tensor.Tensor{t}, err
	}
	id := scheduler.ModelID{Name: name, Version: "1"}
	if _, err := s.Scheduler().AddReplica(id, spec, scheduler.Func(f), scheduler.ReplicaOptions{}); err != nil {
		log.Fatal(err)
	}
}
