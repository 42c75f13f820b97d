package container_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestFeedback: a model with a Feedback receives feedback alongside its batches; a failure costs
// only a line of its log.
func TestFeedback(t *testing.T) {
	s := newServer(t)
	defer s.stop(t)
	n := &network{servers: map[string]*server{"10.0.0.1:7000": s}}
	m := model(n, nil)
	var mu sync.Mutex
	var log bytes.Buffer
	m.Log = slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	}), nil))
	told := make(chan string, 100)
	m.Feedback = func(_ context.Context, f *container.Feedback) error {
		told <- f.Application + " " + f.User + " " + fmt.Sprint(f.Inputs[0]) + " " + string(f.Label)
		switch f.User {
		case "fails":
			return errors.New("no teacher")
		case "panics":
			panic("no school")
		}
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- container.Serve(ctx, m, "10.0.0.1:7000") }()
	budgettest.Until(t, "the model serves", func() bool { return s.live() > 0 && !s.Sessions()[0].Registered.IsZero() })
	x := row(1, 2)
	x.Name = m.Inputs[0].Name
	to, _ := s.sched.Model(id)
	for _, user := range []string{"fails", "panics", "anna"} {
		to.Feedback(&scheduler.Feedback{Application: "app", User: user, Rows: 1, Inputs: []tensor.Tensor{x},
			Label: []byte(`[1]`)})
		if got, want := <-told, "app "+user+" "+fmt.Sprint(x)+" [1]"; got != want {
			t.Errorf("told %s, expected %s", got, want)
		}
	}
	out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(1, 2)}})
	if err != nil {
		t.Fatal(err)
	}
	out[0].Release()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"no teacher", "no school"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, &log)
		}
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
