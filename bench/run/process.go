package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process is one of those that a system consists of.
type process struct {
	cmd    *exec.Cmd
	log    *os.File
	ended  chan struct{} // closed when it has ended
	result error         // of its end; read after ended
}

// start runs a command whose output goes to a file in dir. It is stopped by stop.
func start(dir, name string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%d.log", filepath.Base(name), time.Now().UnixNano())))
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(name, args...), log: log, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		log.Close()
		return nil, err
	}
	go func() { // stop joins it
		p.result = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stop ends the process: politely, and after five seconds not.
func (p *process) stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		p.cmd.Process.Kill()
		<-p.ended
	}
	p.log.Close()
}

// output is what the process has printed so far.
func (p *process) output() string {
	text, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// cpu is the processor time that the process has used, in user and kernel. Its grain is 10 ms.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The second field is the name in brackets, which may hold anything; utime and stime are 14 and 15.
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int64
	for _, field := range f[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("run: cannot read /proc/PID/stat: %w", err)
		}
		ticks += n
	}
	const perSecond = 100 // USER_HZ is 100 on every Linux that Go runs on
	return time.Duration(ticks) * time.Second / perSecond, nil
}

// freeAddr is a local address that nobody listens on.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// fetchProfile writes the CPU profile of the next seconds, from the pprof handlers at addr.
func fetchProfile(ctx context.Context, addr, file string, seconds int) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", addr, seconds), nil)
	if err != nil {
		return err
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("run: profile of %s: %s", addr, a.Status)
	}
	w, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, a.Body); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}
