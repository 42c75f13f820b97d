package container_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestHealth: an unhealthy model answers its batches, is not a replica meanwhile, and returns; a
// panic counts as an error.
func TestHealth(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		var state atomic.Int32 // 0 well, 1 ill, 2 panics
		m := model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(15 * time.Second)
			return b.Inputs, nil
		})
		m.HealthInterval = 10 * time.Second
		m.Health = func(context.Context) error {
			switch state.Load() {
			case 1:
				return errors.New("the GPU is gone")
			case 2:
				panic("health")
			}
			return nil
		}
		stop := serving(m, nil, "10.0.0.1:7000")
		time.Sleep(time.Second)
		answered := make(chan error, 1)
		for _, ill := range []int32{1, 2} {
			if s.live() != 1 {
				t.Fatalf("%d replicas", s.live())
			}
			state.Store(ill)
			go func() {
				out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(1, 2)}})
				if err == nil {
					out[0].Release()
				}
				answered <- err
			}()
			time.Sleep(10 * time.Second) // Health was called meanwhile, and a batch still computes
			if s.live() != 0 {
				t.Errorf("state %d: it is still a replica", ill)
			}
			if err := <-answered; err != nil {
				t.Errorf("state %d: what it had was not answered: %v", ill, err)
			}
			time.Sleep(30 * time.Second)
			if len(s.Sessions()) != 0 {
				t.Errorf("state %d: still connected", ill)
			}
			state.Store(0)
			time.Sleep(11 * time.Second)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestHealthAtTheEnd: Serve returns while the model is unhealthy.
func TestHealthAtTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		m := model(n, nil)
		m.Health = func(context.Context) error { return errors.New("never well") }
		stop := serving(m, nil, "10.0.0.1:7000")
		time.Sleep(time.Minute)
		if s.live() != 0 {
			t.Error("it serves")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
