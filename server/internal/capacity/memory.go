// Package capacity finds out how much memory and how many processors the process may use: those of
// the machine, or what its cgroups leave of them. Everything that is sized by processors, such as
// threads, event loops, concurrent work and the shares of supervised processes, is sized by
// [Processors].
package capacity

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// A Limit is the maximum memory that the process may have, and its source.
type Limit struct {
	Bytes  int64
	Source string // a file of the kernel, or GOMEMLIMIT
}

// Memory returns the smallest of all limits: those of the process's cgroups and all above them,
// of either version, of the machine, and of GOMEMLIMIT. A file that cannot be read limits nothing.
// Memory reads files, so do not call it for every request.
func Memory() Limit {
	l := memoryUnder("/")
	// The runtime's limit counts only if the variable is set: a program may have derived it from
	// this function's result.
	if n := debug.SetMemoryLimit(-1); os.Getenv("GOMEMLIMIT") != "" && n < l.Bytes {
		l = Limit{n, "GOMEMLIMIT"}
	}
	return l
}

// memoryUnder returns the limit according to the kernel's files below root.
func memoryUnder(root string) Limit {
	l := Limit{Bytes: math.MaxInt64}
	l.meminfo(filepath.Join(root, "proc/meminfo"))
	walk(root, "memory", func(dir string, version int) {
		if version == 2 {
			l.file(root, filepath.Join(dir, "memory.max"))
			l.file(root, filepath.Join(dir, "memory.high"))
			return
		}
		l.file(root, filepath.Join(dir, "memory.limit_in_bytes"))
		l.hierarchy(root, filepath.Join(dir, "memory.stat"))
	})
	return l
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
