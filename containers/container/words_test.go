package container_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva/tensor"
)

// heard is a log that signals when it has certain words.
type heard struct {
	mu   sync.Mutex
	text bytes.Buffer
	want string
	done func()
}

func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text.Write(b)
	if strings.Contains(h.text.String(), h.want) {
		h.done()
	}
	return len(b), nil
}

// TestWhereNobodyServes: for an absent server and an unknown name the log says what to check.
func TestWhereNobodyServes(t *testing.T) {
	for addr, want := range map[string]string{"127.0.0.1:1": "Is shivad running", "no.such.host.invalid:7000": "is it spelled right"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		log := &heard{want: want, done: cancel}
		x := []tensor.Spec{{Name: "x", DType: tensor.Int8, Shape: tensor.Shape{-1, 2}}}
		_ = container.Serve(ctx,
			container.Model{Name: "m", Version: "1", Inputs: x, Outputs: x,
				Log:     slog.New(slog.NewTextHandler(log, nil)),
				Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil }},
			addr)
		cancel()
		if !strings.Contains(log.text.String(), want) {
			t.Errorf("%s: the log has no %q: %s", addr, want, log.text.String())
		}
	}
}
