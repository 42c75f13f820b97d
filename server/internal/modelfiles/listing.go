package modelfiles

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A listing is what a directory has.
type listing struct {
	identity string // of the directory, when it was read
	read     time.Time
	names    []entry
}

// An entry is a file or directory by its name. Links are followed.
type entry struct {
	name string
	dir  bool
}

// listings remembers what directories have, and which files are models by what they begin with. A
// directory is read again only if it has changed, and files of other kinds are never looked at.
type listings struct {
	now   func() time.Time
	dirs  map[string]listing
	signs map[string]string // path -> stamp of a file with its sign; "no " before it: without
	seen  map[string]bool   // the directories of this look
}

// coarse is how far a directory's time may be behind a change of it.
const coarse = 3 * time.Second

// matters reports whether a file may be a model or say something about one.
func matters(name string) bool {
	return isKind(name, true) || name == tritonFile || name == overrideFile
}

// list returns what a directory has, by name: directories, and files that matter.
func (l *listings) list(dir string) ([]entry, error) {
	l.seen[dir] = true
	i, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	old, ok := l.dirs[dir]
	if now := identity(i); ok && old.identity == now && old.read.Sub(i.ModTime()) > coarse {
		return old.names, nil
	}
	fresh := listing{identity: identity(i), read: l.now()}
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		name := one.Name()
		if strings.HasPrefix(name, ".") || !one.IsDir() && !matters(name) &&
			(one.Type()&fs.ModeSymlink == 0 || filepath.Ext(name) != "") {
			continue
		}
		e := entry{name, one.IsDir()}
		if one.Type()&fs.ModeSymlink != 0 {
			to, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				fresh.identity = "" // it may appear without a change of this directory
				continue
			}
			e.dir = to.IsDir()
		}
		if e.dir || matters(name) {
			fresh.names = append(fresh.names, e)
		}
	}
	slices.SortFunc(fresh.names, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	l.dirs[dir] = fresh
	return fresh.names, nil
}

// isModel reports whether a file, whose suffix fits, is a model.
func (l *listings) isModel(path string) bool {
	if _, needs := signs[suffix(path)]; !needs {
		return true
	}
	stamp := stampOf([]string{path})
	switch l.signs[path] {
	case stamp:
		return true
	case "no " + stamp:
		return false
	}
	has := hasSign(path)
	if l.signs[path] = stamp; !has {
		l.signs[path] = "no " + stamp
	}
	return has
}

// begin begins a look at all directories.
func (l *listings) begin() { l.seen = map[string]bool{} }

// end ends a look, and forgets the directories that it has not seen.
func (l *listings) end() {
	for dir := range l.dirs {
		if !l.seen[dir] {
			delete(l.dirs, dir)
		}
	}
	for path := range l.signs {
		if !l.seen[filepath.Dir(path)] {
			delete(l.signs, path)
		}
	}
}
