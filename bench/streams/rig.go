package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
)

// The frames of a camera.
const (
	height, width, colours = 480, 640, 3
	frameBytes             = height * width * colours
)

// The models, each in a container of its own that sleeps.
const (
	slow    = "slow"    // 100 ms, one frame at a time
	wide    = "wide"    // 60 ms and 10 ms a frame, up to 8 frames at a time
	endless = "endless" // never finishes a frame
	nobody  = "nobody"  // does not exist
)

const (
	slowTime = 100 * time.Millisecond
	wideTime = 60 * time.Millisecond // plus
	wideRow  = 10 * time.Millisecond // for each frame, of at most wideRows
	wideRows = 8
)

const settings = `
[containers]
expected_within = "0s"

[model.endless]
deadline = "1h"
execution_timeout = "1h"
slots = 1
`

// A rig is a shivad and the containers.
type rig struct{ *process.Server }

// startRig starts the processes, and returns when all models answer. Programs are in dir.
func startRig(ctx context.Context, dir string) (*rig, error) {
	s, err := process.Shivad(dir, process.Options{Config: settings})
	if err != nil {
		return nil, err
	}
	r := &rig{s}
	for _, args := range [][]string{
		{"-a", slowTime.String(), "-b", "0s", "-max-batch", "1", slow},
		{"-a", wideTime.String(), "-b", wideRow.String(), "-max-batch", strconv.Itoa(wideRows), wide},
		{"-a", "1h", "-b", "0s", "-max-batch", "1", endless},
	} {
		args[len(args)-1] += fmt.Sprintf(":UINT8:%d,%d,%d", height, width, colours)
		if err = r.Run(nil, "sleeper", append([]string{"-servers", r.Containers, "-noise", "0"}, args...)...); err !=
			nil {
			break
		}
	}
	if err == nil {
		err = r.Await(ctx, 20*time.Second, func() error { return r.replicas(ctx) })
	}
	if err != nil {
		r.stop()
	}
	return r, err
}

// replicas returns an error until each model has one.
func (r *rig) replicas(ctx context.Context) error {
	m, err := r.Metrics(ctx)
	if err != nil {
		return err
	}
	if n := m.By("shivad_replicas", "model"); n[slow] == 0 || n[wide] == 0 || n[endless] == 0 {
		return fmt.Errorf("streams: replicas are %v", n)
	}
	return nil
}

// stop ends the processes. It kills containers, which would otherwise finish their sleep first.
func (r *rig) stop() {
	for _, container := range r.Group[1:] {
		container.Kill()
	}
	r.Stop()
}
