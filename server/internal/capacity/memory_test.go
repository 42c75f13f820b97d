package capacity

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree writes files below a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	meminfo = "MemTotal:       24683860 kB\nMemFree:        1 kB\n"
	all     = 24683860 << 10
	none    = "9223372036854771712\n" // of version 1
	v1      = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
	v2      = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
)

func TestMemoryLimits(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string
		bytes  int64
		source string
	}{
		"nothing to read": {map[string]string{}, 1<<63 - 1, ""},
		"the machine":     {map[string]string{}, all, "MemTotal of /proc/meminfo"},
		"version 1": {map[string]string{
			"proc/self/cgroup": "5:cpu:/x\n4:memory:/a/b\n0::/c\n", "proc/self/mountinfo": v1,
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     none,
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "1000000\n",
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "2000000\n",
		}, 1000000, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"},
		"version 1 without a limit": {map[string]string{
			"proc/self/cgroup": "4:cpu,memory:/a\n", "proc/self/mountinfo": strings.ReplaceAll(v1, "rw,memory", "rw,cpu,memory"),
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": none,
		}, all, "MemTotal of /proc/meminfo"},
		"version 1, a limit above what is seen": {map[string]string{
			"proc/self/cgroup": "4:memory:/docker/abc\n", "proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": none,
			"sys/fs/cgroup/memory/memory.stat":           "cache 1\nhierarchical_memory_limit 3000000\n",
		}, 3000000, "/sys/fs/cgroup/memory/memory.stat"},
		"version 1 in a container that sees the host's path": {map[string]string{
			"proc/self/cgroup": "4:memory:/docker/abc\n", "proc/self/mountinfo": "35 31 0:32 /other /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000\n",
		}, 4000000, "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
		"version 2": {map[string]string{
			"proc/self/cgroup": "0::/user.slice/a b/c\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/user.slice/memory.max":       "5000000\n",
			"sys/fs/cgroup/user.slice/a b/memory.max":   "max\n",
			"sys/fs/cgroup/user.slice/a b/c/memory.max": "6000000\n",
		}, 5000000, "/sys/fs/cgroup/user.slice/memory.max"},
		"version 2, throttled before": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/a/memory.max": "6000000\n", "sys/fs/cgroup/a/memory.high": "5500000\n",
		}, 5500000, "/sys/fs/cgroup/a/memory.high"},
		"version 2 without a limit": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.high": "max\n",
		}, all, "MemTotal of /proc/meminfo"},
		"version 2 in a namespace": {map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2, "sys/fs/cgroup/memory.max": "7000000\n",
		}, 7000000, "/sys/fs/cgroup/memory.max"},
		"version 2 outside of the namespace": {map[string]string{
			"proc/self/cgroup": "0::/../other\n", "proc/self/mountinfo": v2, "sys/fs/cgroup/memory.max": "8000000\n",
		}, 8000000, "/sys/fs/cgroup/memory.max"},
		"version 2, seen from the namespace's parent": {map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": strings.ReplaceAll(v2, "0:38 /", "0:38 /../.."),
			"sys/fs/cgroup/memory.max": "8000000\n",
		}, 8000000, "/sys/fs/cgroup/memory.max"},
		"both versions": {map[string]string{
			"proc/self/cgroup": "4:memory:/a\n0::/\n", "proc/self/mountinfo": v1 + "42 31 0:39 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9000000\n",
		}, 9000000, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"},
	} {
		if c.source != "" {
			c.files["proc/meminfo"] = meminfo
		}
		if l := memoryUnder(tree(t, c.files)); l.Bytes != c.bytes || l.Source != c.source {
			t.Errorf("%s: %d, %q; expected %d, %q", name, l.Bytes, l.Source, c.bytes, c.source)
		}
	}
}

// The real files of this machine can be read, whatever they say.
func TestMemory(t *testing.T) {
	if l := Memory(); l.Bytes <= 0 || l.Source == "" {
		t.Errorf("%d bytes, from %q", l.Bytes, l.Source)
	}
}
