package container_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestStuck: Serve returns even if a function of the model ignores its context. (A process that
// is told to stop must not hang in a library that has lost its GPU.)
func TestStuck(t *testing.T) {
	for name, c := range map[string]struct {
		hang func(m *container.Model, never <-chan struct{})
		take time.Duration // at most
		want error
	}{
		"Predict": {func(m *container.Model, never <-chan struct{}) {
			m.Predict = func(context.Context, *container.Batch) ([]tensor.Tensor, error) { <-never; return nil, nil }
		}, 6 * time.Second, context.DeadlineExceeded},
		"Health": {func(m *container.Model, never <-chan struct{}) {
			m.Health = func(context.Context) error { <-never; return nil }
		}, time.Second, nil},
		"WarmUp": {func(m *container.Model, never <-chan struct{}) {
			m.WarmUp = func(context.Context) error { <-never; return nil }
		}, 6 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network, s *server) {
				never := make(chan struct{})
				m := model(n, nil)
				m.DrainTimeout = 3 * time.Second
				c.hang(&m, never)
				stop := serving(m, nil, "10.0.0.1:7000")
				time.Sleep(10 * time.Second)
				var wg sync.WaitGroup
				if name == "Predict" {
					wg.Go(func() { _, _ = s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(1, 2)}}) })
					synctest.Wait()
				}
				began := time.Now()
				giveUp := time.AfterFunc(time.Hour, func() {
					t.Error("Serve does not return")
					close(never)
				})
				err := stop()
				if took := time.Since(began); !errors.Is(err, c.want) || took > c.take {
					t.Errorf("Serve returned %v after %v, want %v after %v at most", err, took, c.want, c.take)
				}
				if giveUp.Stop() {
					close(never)
				}
				wg.Wait()
			})
		})
	}
}

// TestStuckHealth: a dismissed container stops although its Health hangs.
func TestStuckHealth(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		never := make(chan struct{})
		m := model(n, nil)
		m.Health = func(context.Context) error { <-never; return nil }
		done := make(chan error, 1)
		go func() { done <- container.Serve(context.Background(), m, "10.0.0.1:7000") }()
		time.Sleep(10 * time.Second)
		s.Retire(id, "replaced")
		time.Sleep(time.Second)
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			close(never)
		default:
			t.Error("Serve has not returned")
			close(never)
			<-done
		}
	})
}

// TestWarmUpPanics: a panic of WarmUp is an error.
func TestWarmUpPanics(t *testing.T) {
	m := model(&network{}, nil)
	m.WarmUp = func(context.Context) error { panic("no weights") }
	if err := container.Check(t.Context(), m, 1, 1); err == nil || !strings.Contains(err.Error(), "no weights") {
		t.Errorf("Check: %v", err)
	}
	if err := container.Serve(t.Context(), m, "10.0.0.1:7000"); err == nil || !strings.Contains(err.Error(), "no weights") {
		t.Errorf("Serve: %v", err)
	}
}
