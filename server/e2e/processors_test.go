//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// newQuota makes a cgroup whose processes may use one processor, or returns why it cannot.
func newQuota(t *testing.T) (g *cgroup, err error) {
	for _, try := range []struct{ mount, file, text string }{
		{"/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "100000"},
		{"/sys/fs/cgroup", "cpu.max", "100000 100000"},
	} {
		dir := filepath.Join(try.mount, fmt.Sprintf("shivad-e2e-%d", os.Getpid()))
		if err = os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() {
			budgettest.Until(t, "the cgroup to be empty", func() bool { return os.Remove(dir) == nil })
		})
		if err = os.WriteFile(filepath.Join(dir, try.file), []byte(try.text), 0o644); err == nil {
			return &cgroup{dir, filepath.Join(dir, "cgroup.procs")}, nil
		}
	}
	return nil, fmt.Errorf("no cgroup with a quota of processors can be made here: %w", err)
}

// TestE2EProcessorsOfQuota: with a quota of one processor on a larger machine, threads and the
// shares of processes follow the quota.
func TestE2EProcessorsOfQuota(t *testing.T) {
	g, err := newQuota(t)
	if err != nil || runtime.NumCPU() < 2 {
		t.Skipf("not measured: %v, %d processors", err, runtime.NumCPU())
	}
	s := start(t, `
[[container]]
name = "p"
command = ["sh", "-c", "echo $OMP_NUM_THREADS $SHIVA_CPUS; exec sleep 600"]
inherit_env = []
`, g.inside()...)
	// One for the processor, and one for the event loop that waits.
	if n := s.shows("go_sched_gomaxprocs_threads"); n != 2 {
		t.Errorf("%v threads with a quota of one processor of %d, expected 2", n, runtime.NumCPU())
	}
	var list struct {
		Containers []struct{ Processes []struct{ Log []string } }
	}
	budgettest.Until(t, "the process to say its share", func() bool {
		s.get("/v1/containers", &list)
		return len(list.Containers) == 1 && len(list.Containers[0].Processes) == 1 &&
			len(list.Containers[0].Processes[0].Log) > 0
	})
	if log := list.Containers[0].Processes[0].Log; !slices.Equal(log, []string{"1 1"}) {
		t.Errorf("the process has a share of %q, expected 1", log)
	}
}
