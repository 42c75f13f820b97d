package capacity

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// walk calls visit for the process's cgroup of a controller, such as "memory", and for every cgroup
// above it that a mount shows, of both versions. root is "/", or the directory of a test's files.
// dir is relative to root. A file that cannot be read shows nothing.
func walk(root, controller string, visit func(dir string, version int)) {
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
				m.walk(f[2], func(dir string) { visit(dir, 2) })
			case hasWord(f[1], controller) && m.kind == "cgroup" && hasWord(m.options, controller):
				m.walk(f[2], func(dir string) { visit(dir, 1) })
			}
		}
	}
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

// walk visits a cgroup and all above it that the mount shows.
func (m mount) walk(path string, visit func(dir string)) {
	// In a container the path may be the host's while the mount shows only the container's own
	// cgroup; and within a cgroup namespace, paths of cgroups outside it begin with "..".
	below, err := filepath.Rel(m.root, path)
	if err != nil || below == ".." || strings.HasPrefix(below, "../") {
		below = "."
	}
	for {
		visit(filepath.Join(m.at, below))
		if below == "." {
			return
		}
		below = filepath.Dir(below)
	}
}
