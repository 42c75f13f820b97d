package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
)

// stall stops a server for a thirtieth of the time for which "shivactl bench" offers it load, and
// compares the 99.9th percentile that the tool reports with the length of the stall.
func stall(ctx context.Context, b *bench) (f findings, err error) {
	r := ratio.Ratio{What: "p99.9 that shivactl bench shows / the stall of 1 s in 30 s", Bound: ratio.AtLeast,
		Limit: 0.9}
	length := 30 * time.Second
	if b.duration < time.Second { // -short
		length = 3 * time.Second
	}
	s, err := b.start(ctx, inDoor, deep)
	if err != nil {
		return f, err
	}
	defer s.Stop()
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "shivactl"), "bench", deep.model, "--addr", s.TCP, "--admin",
		s.Admin, "--rate", "300", "--for", length.String(), "--json")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Start(); err != nil {
		return f, err
	}
	time.Sleep(length / 3)
	err = s.Group[0].Pause(length / 30)
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return f, fmt.Errorf("stall: %w: %s", err, out.Bytes())
	}
	var report struct {
		Latency struct {
			P999 float64 `json:"p99_9"`
		} `json:"latency_ms"`
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return f, err
	}
	r.Rounds = []float64{report.Latency.P999 / (length.Seconds() * 1e3 / 30)}
	return one(r, nil)
}
