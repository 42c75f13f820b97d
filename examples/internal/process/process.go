// Package process runs the built programs for the examples: the server and its containers.
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const patience = 30 * time.Second

// A Process is a running program.
type Process struct {
	path string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; set before done is closed
}

// Start starts a program of bin/ with the given arguments, and with env ("NAME=value") added to the
// environment. Its output goes to standard error. It has a process group of its own, so that Ctrl-C
// reaches only this process, which stops programs in order.
func Start(path string, env []string, args ...string) (*Process, error) {
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w (make build puts it there)", path, err)
	}
	p := &Process{path: path, cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process; Stop waits for it
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended waits until the program has ended by itself, and returns an error that tells how.
func (p *Process) Ended() error {
	<-p.done
	return fmt.Errorf("%s has ended by itself: %v", p.path, p.err)
}

// Stop tells the program to stop and waits until it has ended. It kills the program if that takes
// too long.
func (p *Process) Stop() error {
	select {
	case <-p.done:
		return nil // reported by Ended
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", p.path, err)
	}
	limit := time.NewTimer(patience + 5*time.Second)
	defer limit.Stop()
	select {
	case <-p.done:
	case <-limit.C:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	if p.err != nil {
		return fmt.Errorf("%s ended badly: %w", p.path, p.err)
	}
	return nil
}

// WaitReady returns once this program, a server, reports ready at its admin door. It compares the
// process id, since another server may have that address and be ready at once.
func (p *Process) WaitReady(ctx context.Context, admin string) error {
	return p.Wait(ctx, "the server to be ready", func(ctx context.Context) (bool, string, error) {
		ok, text, err := Get(ctx, "http://"+admin+"/v1/status")
		if err != nil || !ok {
			return false, text, err
		}
		var status struct {
			PID       int
			Readiness struct {
				Ready  bool
				Reason string
			}
		}
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			return false, text, err
		}
		if own := p.cmd.Process.Pid; status.PID != own {
			return false, fmt.Sprintf("process %d serves on %s instead of process %d, which was started here: stop that one, or choose other addresses",
				status.PID, admin, own), nil
		}
		return status.Readiness.Ready, status.Readiness.Reason, nil
	})
}

// Wait calls holds until it returns true, for half a minute at most. If the program ends or the
// time is over, it fails with the last text of holds.
func (p *Process) Wait(ctx context.Context, what string,
	holds func(context.Context) (ok bool, progress string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	last := "no answer yet"
	for {
		select {
		case <-p.done:
			return p.Ended()
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %s", what, last)
		case <-pause.C:
		}
		ok, progress, err := holds(ctx)
		switch {
		case ok:
			return nil
		case err != nil:
			last = err.Error()
		default:
			last = progress
		}
	}
}

// Get reads a page. ok reports status 200.
func Get(ctx context.Context, url string) (ok bool, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode == http.StatusOK, strings.TrimSpace(string(body)), err
}
