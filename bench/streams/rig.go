package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/metrics"
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

// A rig is a shivad and the containers, as processes on free ports.
type rig struct {
	dir     string
	tcp     string
	admin   string
	server  *process.Process
	running []*process.Process
}

// startRig builds and starts the processes, and returns when all models answer.
func startRig(ctx context.Context) (_ *rig, err error) {
	r := &rig{}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.stop())
		}
	}()
	if r.dir, err = os.MkdirTemp("", "streams-"); err != nil {
		return nil, err
	}
	if err := process.Build(ctx, r.dir, "cmd/shivad", "bench/sleeper"); err != nil {
		return nil, err
	}
	var containers string
	if err := process.FreeAddrs(&r.tcp, &r.admin, &containers); err != nil {
		return nil, err
	}
	config := filepath.Join(r.dir, "shivad.toml")
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		return nil, err
	}
	declare := func(model string) string { return fmt.Sprintf("%s:UINT8:%d,%d,%d", model, height, width, colours) }
	for _, args := range [][]string{
		{"shivad", "--config", config, "--tcp", r.tcp, "--rest", "", "--grpc", "", "--admin", r.admin, "--containers", containers},
		{"sleeper", "-servers", containers, "-noise", "0", "-a", slowTime.String(), "-b", "0s", "-max-batch", "1", declare(slow)},
		{"sleeper", "-servers", containers, "-noise", "0", "-a", wideTime.String(), "-b", wideRow.String(), "-max-batch", strconv.Itoa(wideRows), declare(wide)},
		{"sleeper", "-servers", containers, "-noise", "0", "-a", "1h", "-b", "0s", "-max-batch", "1", declare(endless)},
	} {
		p, err := process.Start(r.dir, filepath.Join(r.dir, args[0]), args[1:]...)
		if err != nil {
			return nil, err
		}
		r.running = append(r.running, p)
	}
	r.server = r.running[0]
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		replicas, err := r.metric(ctx, "replicas")
		if err == nil && replicas[slow] > 0 && replicas[wide] > 0 && replicas[endless] > 0 {
			return r, nil
		}
		if err := errors.Join(ctx.Err(), r.server.Alive()); err != nil {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("streams: replicas %v: %w", replicas, err)
		}
	}
}

// stop ends the processes and returns their output. It kills containers, which would otherwise
// finish their sleep first.
func (r *rig) stop() string {
	var text strings.Builder
	for _, p := range slices.Backward(r.running) {
		if p != r.server {
			p.Kill()
		}
		p.Stop()
		text.WriteString(p.Output())
	}
	os.RemoveAll(r.dir)
	return text.String()
}

var sampleOf = regexp.MustCompile(`(?m)^shivad_(\w+?)(?:\{(.*?)\})? (\S+)$`)
var modelOf = regexp.MustCompile(`model="([^"]*)"`)

// metric returns the values of a metric by model, summed over other labels; "" is the value of a
// metric without models.
func (r *rig) metric(ctx context.Context, name string) (map[string]float64, error) {
	all, err := r.metrics(ctx, name)
	return all[name], err
}

// metrics returns metrics of one moment, each as metric does.
func (r *rig) metrics(ctx context.Context, names ...string) (map[string]map[string]float64, error) {
	text, err := metrics.Text(ctx, r.admin)
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[string]float64)
	for _, m := range sampleOf.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(names, m[1]) {
			continue
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return nil, err
		}
		model := ""
		if label := modelOf.FindStringSubmatch(m[2]); label != nil {
			model = label[1]
		}
		if all[m[1]] == nil {
			all[m[1]] = make(map[string]float64)
		}
		all[m[1]][model] += v
	}
	return all, nil
}
