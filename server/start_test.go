package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/operate"
	"github.com/shivad/shivad/shiva/hosttest"
)

// TestLookedAtWhileItStarts: the admin door is open before the others. It answers /livez at once,
// and shows the server's parts when they are ready.
func TestLookedAtWhileItStarts(t *testing.T) {
	redis, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers until it is closed
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	door := hosttest.Addr(t)
	s := unstarted(t, nil, func(c *config.Config) {
		c.State.At, c.State.Required = "redis://"+redis.Addr().String()+"/0", false
		c.Admin.Listen = door
	})
	started := make(chan error, 1)
	go func() { started <- s.Start() }()
	defer func() {
		if err := <-started; err != nil {
			t.Error(err)
		}
		stop(t, s)
	}()
	silent, err := redis.Accept() // so the admin door is open
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) chan int {
		status := make(chan int, 1)
		go func() {
			resp, err := http.Get("http://" + door + path)
			if err != nil {
				status <- 0
				return
			}
			resp.Body.Close()
			status <- resp.StatusCode
		}()
		return status
	}
	shown := get("/v1/status")
	if got := <-get("/livez"); got != http.StatusOK {
		t.Errorf("/livez: %d", got)
	}
	if got := <-get("/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d", got)
	}
	select {
	case <-shown:
		t.Fatal("/v1/status was answered from what is being made")
	case <-time.After(50 * time.Millisecond):
	}
	redis.Close()
	silent.Close()
	if got := <-shown; got != http.StatusOK {
		t.Errorf("/v1/status: %d", got)
	}
}

// Requests for applications or settings while the store is not open, or of a server that failed to
// open it, get an error that says so.
func TestManagementWaitsForTheStore(t *testing.T) {
	s := unstarted(t, nil, func(c *config.Config) { c.State.At = t.TempDir() + "/none/state" })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	told := func(ctx context.Context, when string) {
		t.Helper()
		e, ok := errors.AsType[*operate.Error](s.awaitOpen(ctx))
		if !ok || e.Status != http.StatusServiceUnavailable {
			t.Errorf("%s: %v, want an error with status 503", when, e)
		}
	}
	told(gone, "before the start")
	if err := s.Start(); err == nil {
		t.Fatal("started without the directory of its store")
	}
	told(t.Context(), "after a start that failed")
}

// A server with a TCP door gathers the answers of a batch there.
func TestGathers(t *testing.T) {
	s, _ := loaded(t, new(logged), nil)
	if s.tcp.Load() == nil {
		t.Error("the scheduler does not know of the TCP door")
	}
}
