package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// processes counts the processes of a container that have registered.
func processes(s *Server, container string) (n int) {
	for _, p := range s.processes.List() {
		if p.Name == container && p.Registers {
			n++
		}
	}
	return n
}

// TestScale: under constant load more processes are started, up to max; when a reload allows only
// one, the others answer their batches and end: no client notices. Audit, explain and the list of
// containers give the reason. There are many clients: on a busy machine each needs longer to ask
// again than a process to answer, so two processes would suffice for a few.
func TestScale(t *testing.T) {
	t.Parallel() // it waits
	s, file := loaded(t, new(logged), func(c *config.Config) {
		one := sdk(t, "p", "slow/1", 1)
		one.Replicas.Max = 3
		c.Supervised = []config.Container{one}
	})
	budgettest.Until(t, "the first process", func() bool { return processes(s, "p") == 1 })
	load := keepBusy(t, s, "slow", 32)
	defer load.stop()
	budgettest.Until(t, "three processes", func() bool { return processes(s, "p") == 3 })
	if _, text := requestAdmin(t, s, http.MethodGet, "/v1/containers", "", ""); !strings.Contains(text, `"wanted": 3`) ||
		!strings.Contains(text, "slow/1 needs") {
		t.Errorf("containers: %s", text)
	}
	if _, text := requestAdmin(t, s, http.MethodGet, "/v1/models/slow/explain", "", ""); !strings.Contains(text, `Container \"p\" has 3 of 1 to 3 processes. Their number changed`) {
		t.Errorf("explain: %s", text)
	}
	file.Supervised[0].Replicas = config.Fixed(1)
	had := load.answered.Load()
	if _, err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "one process, and answers of it", func() bool {
		return processes(s, "p") == 1 && stats(s, "slow").Live == 1 && load.answered.Load() > had+50
	})
	if _, text := requestAdmin(t, s, http.MethodGet, "/v1/audit", "", ""); !strings.Contains(text, `"action": "scale"`) ||
		!strings.Contains(text, "max is 1") {
		t.Errorf("audit: %s", text)
	}
}

// TestFirstProcessStays: the process that shows which model it serves stays for a minute without
// requests, and then for down_after, as after any request.
func TestFirstProcessStays(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, func(c *config.Config) {
		one := sdk(t, "p", "cold/1", 1)
		one.Replicas = config.Replicas{Min: 0, Max: 2, DownAfter: time.Second}
		c.Supervised = []config.Container{one}
	})
	if err := s.processes.Start(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2500 * time.Millisecond)
	if list := s.processes.List(); len(list) != 1 || list[0].State != "running" {
		t.Errorf("before anybody could ask it: %+v", list)
	}
}

// TestColdStart: without requests the last process ends, and the model stays ready. The next
// request waits for a process, and gets its answer; if none starts, it is Unavailable by its
// deadline, and the error gives the reason.
func TestColdStart(t *testing.T) {
	t.Parallel() // it waits
	broken := filepath.Join(t.TempDir(), "broken")
	s := unstarted(t, nil, func(c *config.Config) {
		one := sdk(t, "p", "cold/1", 1)
		one.Command = []string{"sh", "-c", `test -e "$0" && echo no weights && exit 3; exec "$1"`, broken,
			one.Command[0]}
		one.Replicas = config.Replicas{Min: 0, Max: 2, DownAfter: time.Second}
		c.Supervised = []config.Container{one}
	})
	s.processes.Idle = 0
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	asleep := func() bool {
		list := s.processes.List()
		m, known := s.sched.Model(scheduler.ModelID{Name: "cold", Version: "1"})
		return known && m.Replicas() == 0 && len(list) == 1 && list[0].State == "asleep"
	}
	budgettest.Until(t, "no process", asleep)
	if ready, why := s.Ready(); !ready {
		t.Errorf("the server is not ready: %s", why)
	}
	if absence := s.report.Status().Models[0].Absence; absence != "starts with the next request" {
		t.Errorf("the status gives the reason %q for the lack of replicas", absence)
	}
	if text := fmt.Sprint(s.report.Explain("cold")); strings.Contains(text, "every request is refused") {
		t.Errorf("explain says that requests are refused: %s", text)
	}
	ask := func(deadline time.Duration) error {
		in := []tensor.Tensor{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{1, 2}, Data: make([]byte, 8)}}
		m, _ := s.sched.Model(scheduler.ModelID{Name: "cold", Version: "1"})
		r := &scheduler.Request{Model: m, Inputs: in, Rows: 1, Deadline: time.Now().Add(deadline)}
		err := s.sched.Infer(context.Background(), r)
		for _, out := range r.Outputs {
			out.Release()
		}
		return err
	}
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "a process that ends", func() bool {
		err := ask(500 * time.Millisecond)
		if !errors.Is(err, scheduler.ErrUnavailable) || !strings.Contains(err.Error(), `by the request's deadline: container "p" starts a process for the model`) {
			t.Fatalf("no process starts: %v", err)
		}
		if strings.Contains(err.Error(), "no weights") {
			t.Fatalf("a client is told what the process printed: %v", err)
		}
		return strings.Contains(err.Error(), "its process has ended") &&
			strings.Contains(s.processes.State("p", "").Detail(), "no weights")
	})
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	if err := ask(time.Minute); err != nil {
		t.Errorf("a process starts: %v", err)
	}
	if err := s.processes.Stop("p"); err != nil {
		t.Fatal(err)
	}
	if err := ask(time.Minute); !errors.Is(err, scheduler.ErrUnavailable) || strings.Contains(err.Error(), "deadline") {
		t.Errorf("the container was stopped: %v", err)
	}
}
