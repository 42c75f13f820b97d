package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/predict"
)

// supervised starts a server with one [[container]] of model "m" that runs the shell command.
func supervised(t *testing.T, command string) *Server {
	t.Helper()
	return start(t, func(c *config.Config) {
		c.Supervised = []config.Container{{Name: "p", Model: "m", Command: []string{"sh", "-c", command},
			Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 10 * time.Second}}}
	})
}

func TestLoadOfBrokenProcess(t *testing.T) {
	s := supervised(t, "echo no weights >&2; exit 3")
	err := s.predict.Load(t.Context(), predict.Caller{}, "m", nil)
	if !errors.Is(err, scheduler.ErrUnavailable) || !strings.Contains(err.Error(), "exit status 3: no weights") {
		t.Errorf("got %v, expected how the process ended, and what it said last", err)
	}
	if at := s.processes.State("m", ""); at.State != predict.Unavailable || !strings.Contains(at.Detail(), "exit status 3") {
		t.Errorf("state %+v", at)
	}
}

// TestUnload: an unloaded model stays so until it is loaded.
func TestUnload(t *testing.T) {
	s := supervised(t, "exec sleep 600")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.predict.Load(ctx, predict.Caller{}, "m", nil); !errors.Is(err, scheduler.ErrDeadlineExceeded) ||
		!strings.Contains(err.Error(), "not registered yet") {
		t.Errorf("load of a process that never registers: %v", err)
	}
	if at := s.processes.State("m", ""); at.State != predict.Loading {
		t.Errorf("state %+v, expected %s", at, predict.Loading)
	}
	if err := s.predict.Unload(predict.Caller{}, "m"); err != nil {
		t.Fatal(err)
	}
	if at := s.processes.State("m", ""); at.State != predict.Unavailable || at.Detail() != "unloaded" {
		t.Errorf("state %+v", at)
	}
	if list := s.processes.List(); len(list) != 1 || list[0].State != "unloaded" || list[0].PID != 0 {
		t.Errorf("status shows %+v", list)
	}
	begin(t, s, "p")
	if at := s.processes.State("m", ""); at.State != predict.Loading {
		t.Errorf("state %+v, expected %s", at, predict.Loading)
	}
}

// begin starts the processes of a container and waits for nothing.
func begin(t *testing.T, s *Server, container string) {
	t.Helper()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.processes.Start(ended, container); !errors.Is(err, scheduler.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
}

// TestLoadWhileStopping: no process starts any more, and waiting callers get an error.
func TestLoadWhileStopping(t *testing.T) {
	s := supervised(t, "exec sleep 600")
	done := make(chan error)
	go func() { done <- s.predict.Load(t.Context(), predict.Caller{}, "m", nil) }()
	stop(t, s)
	if err := <-done; !errors.Is(err, scheduler.ErrDraining) {
		t.Errorf("got %v, expected draining", err)
	}
	if err := s.predict.Load(t.Context(), predict.Caller{}, "m", nil); !errors.Is(err, scheduler.ErrDraining) {
		t.Errorf("got %v, expected draining", err)
	}
}
