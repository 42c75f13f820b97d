package container

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

// TestGoexit: a Predict that ends its goroutine ends the process, and the log says why; one that
// panics does not.
func TestGoexit(t *testing.T) {
	defer func(f func(int)) { exit = f }(exit)
	for name, c := range map[string]struct {
		predict func()
		exits   bool
	}{"Goexit": {runtime.Goexit, true}, "panic": {func() { panic("no") }, false}, "neither": {func() {}, false}} {
		code := 0
		exit = func(status int) { code = status }
		var log strings.Builder
		m := &Model{Name: "m", Predict: func(context.Context, *Batch) ([]tensor.Tensor, error) {
			c.predict()
			return nil, nil
		}}
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = m.serve(t.Context(), &Batch{model: m}, slog.New(slog.NewTextHandler(&log, nil)))
		}()
		<-over
		if (code == 1) != c.exits || strings.Contains(log.String(), "runtime.Goexit") != c.exits {
			t.Errorf("%s: exit status %d: %s", name, code, log.String())
		}
	}
}
