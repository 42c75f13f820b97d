package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
)

// A bench builds and starts what is measured.
type bench struct {
	dir    string
	length time.Duration
}

// build builds static binaries.
func (b *bench) build(ctx context.Context) (err error) {
	if b.dir == "" {
		b.dir, err = os.MkdirTemp("", "cores-")
	} else if b.dir, err = filepath.Abs(b.dir); err == nil {
		err = os.MkdirAll(b.dir, 0o700)
	}
	if err == nil {
		err = os.Setenv("CGO_ENABLED", "0")
	}
	if err != nil {
		return err
	}
	return process.Build(ctx, b.dir, "cmd/shivad", "cmd/shivactl", "bench/noop")
}

// A system is a server with its containers, and the processors for clients.
type system struct {
	*process.Server
	limit  limiter
	others []string // command prefix of what is not the server
}

// start runs a server that may use n processors, with as many containers on the others.
func (b *bench) start(ctx context.Context, by limiter, n int, env []string) (*system, error) {
	s := &system{limit: by}
	if has := runtime.NumCPU(); n < has {
		s.others = []string{"taskset", "-c", fmt.Sprintf("%d-%d", n, has-1)}
	}
	prefix, err := by.enter(n)
	if err != nil {
		return nil, err
	}
	s.Server, err = process.Shivad(b.dir,
		process.Options{V2: true, Under: append(append(prefix, "env"), env...), Flags: []string{"--log-level", "warn"}})
	if err != nil {
		by.leave()
		return nil, err
	}
	for range n {
		if err == nil {
			err = s.Run(s.others, "noop", "-servers", s.Containers, "small:FP32:8", "frame:UINT8:1080,1920,3")
		}
	}
	if err == nil {
		err = s.Await(ctx, 20*time.Second, func() error { return s.registered(ctx, n) })
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// registered returns an error until n containers serve.
func (s *system) registered(ctx context.Context, n int) error {
	var text bytes.Buffer
	if err := s.Get(ctx, "/v1/containers", &text); err != nil {
		return err
	}
	var list struct {
		Sessions []struct{ State string } `json:"sessions"`
	}
	err := json.Unmarshal(text.Bytes(), &list)
	if err == nil && len(list.Sessions) != 2*n {
		err = fmt.Errorf("%d models of containers have registered, expected %d", len(list.Sessions), 2*n)
	}
	return err
}

func (s *system) stop() {
	s.Stop()
	s.limit.leave()
}

// offer runs a closed loop and returns the answers per second.
func (s *system) offer(ctx context.Context, l load, length time.Duration) (float64, error) {
	addr := map[string]string{"tcp": s.TCP, "grpc": s.GRPC}[l.door]
	command := append(s.others[:len(s.others):len(s.others)], filepath.Join(s.Dir, "shivactl"), "--admin", s.Admin,
		"--addr", addr, "bench", l.route,
		"--door", l.door, "--for", length.String(), "--conns", "16", "--inflight", fmt.Sprint(l.inFlight), "--json")
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
	var report struct{ Rate float64 }
	if err == nil {
		err = json.Unmarshal(out, &report)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", l.name, err, out)
	}
	return report.Rate, nil
}

// profile stores profiles of locks and a trace of the scheduler while small messages arrive. "go
// tool trace -pprof=sched" shows how long goroutines that could run have waited.
func (s *system) profile(ctx context.Context) error {
	busy, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() { // ends with cancel
		defer close(over)
		_, _ = s.offer(busy, loads[0], time.Minute)
	}()
	defer func() { cancel(); <-over }()
	for name, path := range map[string]string{"mutex.pprof": "mutex?seconds=1", "block.pprof": "block?seconds=1",
		"cpu.pprof": "profile?seconds=1", "scheduler.trace": "trace?seconds=0.2"} {
		var text bytes.Buffer
		err := s.Get(ctx, "/debug/pprof/"+path, &text)
		if err == nil {
			err = os.WriteFile(filepath.Join(s.Dir, name), text.Bytes(), 0o600)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// A limiter gives a process some of the machine's processors.
type limiter interface {
	name() string
	enter(n int) (prefix []string, err error) // of a command that may use n processors
	leave()
}

type affinity struct{}

func (affinity) name() string { return "affinity" }
func (affinity) enter(n int) ([]string, error) {
	return []string{"taskset", "-c", fmt.Sprintf("0-%d", n-1)}, nil
}
func (affinity) leave() {}

// A quota is a cgroup with a bandwidth, of either version.
type quota struct{ dir string }

func (*quota) name() string { return "quota" }

func (q *quota) enter(n int) (prefix []string, err error) {
	const period = 100_000 // µs
	for _, try := range []struct{ mount, file, text string }{
		{"/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", fmt.Sprint(n * period)},
		{"/sys/fs/cgroup", "cpu.max", fmt.Sprint(n*period, " ", period)},
	} {
		dir := filepath.Join(try.mount, fmt.Sprintf("shivad-cores-%d", os.Getpid()))
		if err = os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		if err = os.WriteFile(filepath.Join(dir, try.file), []byte(try.text), 0o644); err == nil {
			q.dir = dir
			return []string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(dir, "cgroup.procs")}, nil
		}
		os.Remove(dir)
	}
	return nil, fmt.Errorf("no cgroup with a quota can be made here: %w", err)
}

func (q *quota) leave() {
	for range 100 { // until the kernel has taken its processes out
		if os.Remove(q.dir) == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// machineName returns the name of the processor.
func machineName() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return runtime.GOARCH
}
