// Package memory finds out how much memory the process may have.
package memory

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// A Limit is the maximum memory that the process may have, and its source.
type Limit struct {
	Bytes  int64
	Source string // a file of the kernel, or GOMEMLIMIT
}

// OfProcess returns the smallest of all limits: those of the process's cgroups and all above them,
// of either version, of the machine, and of GOMEMLIMIT. A file that cannot be read limits nothing.
// OfProcess reads files, so do not call it for every request.
func OfProcess() Limit {
	l := under("/")
	// The runtime's limit counts only if the variable is set: a program may have derived it from
	// this function's result.
	if n := debug.SetMemoryLimit(-1); os.Getenv("GOMEMLIMIT") != "" && n < l.Bytes {
		l = Limit{n, "GOMEMLIMIT"}
	}
	return l
}

// under returns the limit according to the kernel's files below root.
func under(root string) Limit {
	l := Limit{Bytes: math.MaxInt64}
	l.meminfo(filepath.Join(root, "proc/meminfo"))
	cgroups, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	mounts := mountsOf(filepath.Join(root, "proc/self/mountinfo"))
	for line := range strings.Lines(string(cgroups)) {
		// 4:memory:/path for version 1, 0::/path for version 2
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, m := range mounts {
			switch {
			case f[1] == "" && m.kind == "cgroup2":
				l.walk(root, m, f[2], "memory.max", "memory.high")
			case hasWord(f[1], "memory") && m.kind == "cgroup" && hasWord(m.options, "memory"):
				l.walk(root, m, f[2], "memory.limit_in_bytes")
			}
		}
	}
	return l
}

func hasWord(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }

// A mount shows a hierarchy of cgroups, from its directory root downwards, at a path.
type mount struct{ root, at, kind, options string }

func mountsOf(file string) (list []mount) {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		// 36 35 98:0 ROOT AT OPTIONS [MORE...] - KIND SOURCE OPTIONS
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		b, a := strings.Fields(before), strings.Fields(after)
		if ok && len(b) >= 5 && len(a) >= 3 {
			list = append(list, mount{unescape(b[3]), unescape(b[4]), a[0], a[2]})
		}
	}
	return list
}

// unescape undoes the kernel's escaping of white space and backslashes in paths.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace

// walk reads the limits of a cgroup and of all above it that the mount shows.
func (l *Limit) walk(root string, m mount, path string, files ...string) {
	// In a container the path may be the host's while the mount shows only the container's own
	// cgroup; and within a cgroup namespace, paths of cgroups outside it begin with "..".
	below, err := filepath.Rel(m.root, path)
	if err != nil || below == ".." || strings.HasPrefix(below, "../") {
		below = "."
	}
	for {
		dir := filepath.Join(m.at, below)
		for _, file := range files {
			l.file(root, filepath.Join(dir, file))
		}
		if m.kind == "cgroup" {
			l.hierarchy(root, filepath.Join(dir, "memory.stat"))
		}
		if below == "." {
			return
		}
		below = filepath.Dir(below)
	}
}

// file reads a file that holds a number of bytes, or "max".
func (l *Limit) file(root, path string) {
	text, err := os.ReadFile(filepath.Join(root, path))
	if err == nil {
		l.lower(strings.TrimSpace(string(text)), path)
	}
}

// hierarchy reads the file of version 1 that also has limits of cgroups above those that the mount
// shows.
func (l *Limit) hierarchy(root, path string) {
	text, _ := os.ReadFile(filepath.Join(root, path))
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "hierarchical_memory_limit "); ok {
			l.lower(strings.TrimSpace(n), path)
		}
	}
}

func (l *Limit) meminfo(path string) {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 {
			l.lower(strconv.FormatInt(kib<<10, 10), "MemTotal of /proc/meminfo")
		}
	}
}

// lower makes the limit n bytes if that is less. A text that is not a number is no limit: version 2
// writes "max" for none, version 1 a number above all memory.
func (l *Limit) lower(n, source string) {
	if bytes, err := strconv.ParseInt(n, 10, 64); err == nil && bytes < l.Bytes {
		*l = Limit{bytes, source}
	}
}
