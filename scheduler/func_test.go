package scheduler_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A function gets the rows of all requests of a batch as one tensor, which is its own, for one
// batch at a time. Its error, its panic and outputs that do not fit fail the batch alone.
func TestFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s, err := scheduler.New(scheduler.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var running, most atomic.Int32
		numbers := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1}}}
		f := scheduler.Func(func(ctx context.Context, inputs []tensor.Tensor) ([]tensor.Tensor, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Millisecond)
			values, err := tensor.Values[float32](inputs[0])
			if err != nil || len(values) != scheduler.BatchOf(ctx).Rows || len(inputs) != 1 {
				t.Errorf("got %v of %d rows, %v, %v", values, scheduler.BatchOf(ctx).Rows, inputs, err)
			}
			for i, v := range values {
				switch v {
				case -1:
					return nil, errors.New("too small")
				case -2:
					panic("far too small")
				case -3:
					return nil, nil
				case -4:
					runtime.Goexit()
				}
				values[i] *= 2
			}
			return inputs, nil
		})
		rep, err := s.AddReplica(scheduler.ModelID{Name: "double", Version: "1"},
			scheduler.Spec{Inputs: numbers, Outputs: numbers}, f, scheduler.ReplicaOptions{Concurrency: 4})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(values ...float32) ([]float32, error) {
			in, _ := tensor.FromSlice(tensor.Shape{len(values)}, values)
			r := &scheduler.Request{Model: rep.Model(), Inputs: []tensor.Tensor{in}, Rows: len(values)}
			sent := slices.Clone(values)
			if err := s.Infer(t.Context(), r); err != nil {
				return nil, err
			}
			if !slices.Equal(values, sent) {
				t.Errorf("the request's memory was changed: %v", values)
			}
			defer r.Outputs[0].Release()
			out, err := tensor.Values[float32](r.Outputs[0])
			return slices.Clone(out), err
		}
		for range 8 { // the later ones share batches
			go func() {
				if got, err := ask(1, 2, 3); err != nil || got[0] != 2 || got[2] != 6 {
					t.Errorf("got %v, %v", got, err)
				}
			}()
		}
		for value, says := range map[float32]string{-1: "too small", -2: "panic: far too small", -3: "1 output and",
			-4: "runtime.Goexit"} {
			_, err := ask(value)
			if !errors.Is(err, scheduler.ErrContainerFailed) || !strings.Contains(err.Error(), says) ||
				strings.Contains(err.Error(), ".go:") {
				t.Errorf("%v: %v", value, err)
			}
		}
		synctest.Wait()
		if !strings.Contains(log.String(), "func_test.go:") {
			t.Errorf("the log has no stack of the panic: %s", &log)
		}
		if n := most.Load(); n != 1 {
			t.Errorf("%d batches at once", n)
		}
	})
}
