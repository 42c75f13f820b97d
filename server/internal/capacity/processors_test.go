package capacity

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestCount: on a machine of 64 processors, the smallest bandwidth of the cgroup and those above it
// counts, in either version, rounded up.
func TestCount(t *testing.T) {
	old := func(quota, period string) map[string]string {
		return map[string]string{"proc/self/cgroup": "4:memory:/a\n5:cpu,cpuacct:/a/b\n", "proc/self/mountinfo": v1,
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": quota, "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": period,
			"sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "800000\n", "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000\n"}
	}
	unified := func(own, above string) map[string]string {
		return map[string]string{"proc/self/cgroup": "0::/kubepods/pod\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/kubepods/pod/cpu.max": own, "sys/fs/cgroup/kubepods/cpu.max": above}
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  int
	}{
		"nothing to read":             {nil, 64},
		"version 1":                   {old("200000\n", "100000\n"), 2},
		"version 1, its own":          {old("-1\n", "100000\n"), 8},
		"version 1, a part":           {old("50000\n", "100000\n"), 1},
		"version 1, another period":   {old("30000\n", "10000\n"), 3},
		"version 2":                   {unified("400000 100000\n", "max 100000\n"), 4},
		"version 2, that above":       {unified("max 100000\n", "100000 100000\n"), 1},
		"version 2, and a half":       {unified("150000 100000\n", "max 100000\n"), 2},
		"version 2, more than it has": {unified("9900000 100000\n", "max 100000\n"), 64},
		"version 2, none":             {unified("max 100000\n", "max 100000\n"), 64},
		"nonsense":                    {unified("0 0\n", "much\n"), 64},
	} {
		if got := processorsUnder(tree(t, c.files), 64); got != c.want {
			t.Errorf("%s: %d, expected %d", name, got, c.want)
		}
	}
	if n := Processors(); n < 1 || n > runtime.NumCPU() {
		t.Errorf("this process may use %d of %d", n, runtime.NumCPU())
	}
}

// TestNobodyElseCounts: production code asks Processors, not the runtime, which knows no bandwidth.
func TestNobodyElseCounts(t *testing.T) {
	for _, dir := range []string{"../../../server", "../../../cmd", "../../../containers", "../../../scheduler"} {
		err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.HasSuffix(path, "processors.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if strings.Contains(string(text), "runtime.NumCPU()") || strings.Contains(string(text), "GOMAXPROCS(0)") {
				t.Errorf("%s counts processors by itself", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
