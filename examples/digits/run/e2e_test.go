//go:build e2e

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/hosttest"
)

// `make run` on other ports: all images are classified, then the program serves until it is told to
// stop.
func TestE2ERun(t *testing.T) {
	t.Chdir("../../..")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out := &watched{stop: cancel, at: "Serving until"}
	if err := run(ctx,
		options{tcp: hosttest.Addr(t), rest: hosttest.Addr(t), grpc: hosttest.Addr(t), containers: hosttest.Addr(t),
			admin: hosttest.Addr(t)}, out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"19 of 20 right (95 %)", "images/19.png    1         1", "infer digits", "status\n", "stopping"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("expected %q in\n%s", want, out.String())
		}
	}
}

// watched cancels when the awaited text has been written to it.
type watched struct {
	bytes.Buffer
	stop func()
	at   string
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.at) {
		w.stop()
	}
	return n, err
}
