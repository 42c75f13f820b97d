package container_test

import (
	"bytes"
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestQuick: the goroutine that reads computes a fast model. If it takes long after all, another
// goroutine reads meanwhile: the session lasts, and every batch is answered once.
func TestQuick(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		var pause atomic.Int64
		var byReader atomic.Bool
		stop := serving(model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			byReader.Store(bytes.Contains(debug.Stack(), []byte("session).receive(")))
			time.Sleep(time.Duration(pause.Load()))
			return b.Inputs, nil
		}), nil, "10.0.0.1:7000")
		synctest.Wait()
		ask := func() {
			in := row(1, 2)
			out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{in}})
			if err != nil {
				t.Error(err)
				return
			}
			if !bytes.Equal(out[0].Data, in.Data) {
				t.Errorf("% x", out[0].Data)
			}
			out[0].Release()
		}
		expect := func(want bool, when string) {
			t.Helper()
			if byReader.Load() != want {
				t.Errorf("%s: computed by the reader: %v", when, byReader.Load())
			}
		}
		ask()
		expect(false, "the first batch")
		for range 3 {
			synctest.Wait() // the turn is returned after the answer
			ask()
			expect(true, "after a quick one")
			pause.Store(int64(5 * time.Second))
			var wg sync.WaitGroup
			synctest.Wait()
			wg.Go(ask)
			synctest.Wait()
			expect(true, "the one that takes long")
			wg.Go(ask) // is read while the other one is computed
			time.Sleep(7 * time.Second)
			expect(false, "after one that took long")
			wg.Wait()
			pause.Store(0)
			ask()
			expect(false, "after two that took long")
		}
		if d, sessions := n.dials.Load(), s.Sessions(); d != 1 || len(sessions) != 1 || sessions[0].Batches != 13 ||
			sessions[0].Strays != 0 {
			t.Errorf("%d dials, sessions %+v", d, sessions)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestQuickNoMore: when the server has closed, the ctx of a fast model that suddenly hangs ends
// soon.
func TestQuickNoMore(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		var hang atomic.Bool
		ended := make(chan struct{})
		stop := serving(model(n, func(ctx context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			if hang.Load() {
				<-ctx.Done()
				close(ended)
			}
			return b.Inputs, nil
		}), nil, "10.0.0.1:7000")
		synctest.Wait()
		for range 2 {
			out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(1, 2)}})
			if err != nil {
				t.Fatal(err)
			}
			out[0].Release()
		}
		hang.Store(true)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(1, 2)}}); err == nil {
				t.Error("answered")
			}
		})
		synctest.Wait()
		before := time.Now()
		n.set("10.0.0.1:7000", nil)
		s.Close()
		<-ended
		if took := time.Since(before); took > time.Second {
			t.Errorf("Predict was told after %v", took)
		}
		s.sched.Close()
		wg.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
