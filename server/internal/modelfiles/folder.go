package modelfiles

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/scheduler/naming"
	"github.com/shivad/shivad/server/config"
)

// A found is a model that a file or a folder has now: what one container serves.
type found struct {
	container string // its name
	model     string
	version   string // "" = they are counted
	path      string // what the package is given: a file, or a folder that is a program
	files     []string
	reading   config.Reading
	process   config.Process
	declared  *declaration
	root      string // the directory where a .venv may be
	executes  bool   // it may execute code: a .venv, a program
	as        Standing
	fault     error    // why it cannot be served as it is
	ignored   []string // keys of its config.pbtxt without a meaning
}

// versions say which directories NAME/VERSION are served.
type versions struct {
	newest int
	all    bool
	named  []string
}

// choose returns the versions that are served, of those that there are, the newest first.
func (v versions) choose(there []string) []string {
	switch {
	case v.all:
		return there
	case v.named != nil:
		return slices.DeleteFunc(there, func(one string) bool { return !slices.Contains(v.named, one) })
	}
	return there[:min(v.newest, len(there))]
}

// fileOf returns the model of a [[model_file]].
func fileOf(m config.ModelFile) found {
	f := found{container: m.ModelName(), model: m.ModelName(), version: m.Version, path: m.Path, reading: m.Reading,
		process: m.Process,
		root:    filepath.Dir(m.Path), executes: true, as: Required}
	i, err := os.Stat(m.Path)
	switch {
	case err != nil:
		f.fault = err
	case i.IsDir():
		f.root = m.Path
		f.files = regular(m.Path)
	default:
		f.files = flatFiles(m.Path)
	}
	return f
}

// mostBeside bounds how many files beside a model are watched for changes.
const mostBeside = 1000

// regular lists the files in a directory.
func regular(dir string) (list []string) {
	all, _ := os.ReadDir(dir) // a directory that is gone has no files
	for _, one := range all {
		path := filepath.Join(dir, one.Name())
		if strings.HasPrefix(one.Name(), ".") || len(list) == mostBeside {
			continue
		}
		if i, err := os.Stat(path); err == nil && i.Mode().IsRegular() {
			list = append(list, path)
		}
	}
	return list
}

// flatFiles lists a model file and what belongs to it: weights of its own name, and names of
// classes.
func flatFiles(path string) []string {
	list, stem := []string{path}, strings.TrimSuffix(path, filepath.Ext(path))
	beside := []string{path + ".data", path + "_data", stem + ".labels.txt", filepath.Join(filepath.Dir(path), "labels.txt")}
	if suffix(path) == ".xml" {
		beside = append(beside, stem+".bin")
	}
	for _, one := range beside {
		if i, err := os.Stat(one); err == nil && i.Mode().IsRegular() {
			list = append(list, one)
		}
	}
	return list
}

// scanFolder returns the models of a folder by name, and the paths of those that only a trusted
// folder has. After an error nothing is known about them.
func (l *listings) scanFolder(m config.ModelFolder) (list []found, untrusted []string, err error) {
	entries, err := l.list(m.Path)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		path := filepath.Join(m.Path, e.name)
		name := strings.TrimSuffix(e.name, filepath.Ext(e.name))
		if e.dir {
			name = e.name
		} else if !isKind(e.name, true) || !l.isModel(path) {
			continue
		} else if !isKind(e.name, m.Trust) {
			untrusted = append(untrusted, path)
			continue
		}
		one := found{container: name, model: name, path: path, reading: m.Reading, process: m.Process, root: m.Path,
			executes: m.Trust, as: Optional}
		if err := naming.CheckModel(name); err != nil {
			one.fault = fmt.Errorf("%s: no model can have its name: %w", path, err)
			list = append(list, one)
			continue
		}
		if !e.dir {
			one.files = flatFiles(path)
			list = append(list, one)
			continue
		}
		models := l.scanModel(one)
		if models == nil && l.isUntrusted(one) {
			untrusted = append(untrusted, path)
		}
		list = append(list, models...)
	}
	return list, untrusted, nil
}

// isUntrusted reports whether a directory that has no model would have one if its folder were
// trusted.
func (l *listings) isUntrusted(base found) bool {
	if base.executes {
		return false
	}
	base.executes = true
	return l.scanModel(base) != nil
}

// scanModel returns the models of a directory: of its own file, or one for each version that is
// served. None: it is no model.
func (l *listings) scanModel(base found) []found {
	dir := base.path
	refused := func(err error) []found {
		base.fault = err
		return []found{base}
	}
	entries, err := l.list(dir)
	if err != nil {
		return refused(err)
	}
	has := func(name string) bool { return slices.Contains(entries, entry{name, false}) }
	file, which, settings := "", versions{newest: 1}, []string{}
	if has(tritonFile) {
		t, err := readTriton(dir)
		if err != nil {
			return refused(err)
		}
		file, which, base.declared, base.ignored = t.file, t.versions, t.declared, t.ignored
		base.adopt(t)
		settings = append(append(settings, filepath.Join(dir, tritonFile)), t.labels...)
	}
	if has(overrideFile) {
		path := filepath.Join(dir, overrideFile)
		settings = append(settings, path)
		over := config.Override{File: file, As: base.reading.As, Batch: base.reading.Batch,
			Device: base.reading.Device, Replicas: base.process.Replicas, CPUs: base.process.CPUs}
		text, err := readSettings(path)
		if err == nil {
			over, err = config.ParseOverride(path, text, over)
		}
		if err != nil {
			return refused(err)
		}
		file = over.File
		base.reading.As, base.reading.Batch, base.reading.Device = over.As, over.Batch, over.Device
		base.process.Replicas, base.process.CPUs = over.Replicas, over.CPUs
		if len(over.Versions) > 0 {
			which = versions{named: over.Versions, all: slices.Equal(over.Versions, []string{"all"})}
		}
	}
	if base.executes && has(programFile) && !has(tritonFile) {
		base.files = regular(dir)
		return []found{base}
	}
	if path, err := l.modelIn(dir, file, base.executes); err != nil {
		return refused(err)
	} else if path != "" {
		base.path, base.files = path, append(regular(dir), settings...)
		return []found{base}
	}
	list, err := l.scanVersions(base, dir, file, which)
	if err == nil && list == nil && len(settings) > 0 {
		err = fmt.Errorf("%s: no version that is served has a model file: expected %s", dir,
			filepath.Join(base.model, "1", cmp.Or(file, "model.onnx")))
		if !base.executes {
			err = fmt.Errorf("%w; without trust = true, pickles and Python programs are ignored", err)
		}
	}
	if err != nil {
		return refused(err)
	}
	for i := range list {
		list[i].files = append(list[i].files, settings...)
	}
	return list
}

// overrideFile is what differs for a model.
const overrideFile = "model.toml"

// scanVersions returns the models of the directories that are versions.
func (l *listings) scanVersions(base found, dir, file string, which versions) (list []found, err error) {
	entries, err := l.list(dir)
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	var there []string
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.name, 10, 64); !e.dir || err != nil || n < 0 ||
			strconv.FormatInt(n, 10) != e.name {
			continue
		}
		path, err := l.modelIn(filepath.Join(dir, e.name), file, base.executes)
		if err != nil {
			return nil, err
		}
		if path != "" {
			paths[e.name], there = path, append(there, e.name)
		}
	}
	slices.SortFunc(there, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(b, a)) })
	chosen := which.choose(there)
	for _, version := range chosen {
		one := base
		one.version, one.path = version, paths[version]
		one.files = regular(filepath.Dir(one.path))
		if len(chosen) > 1 {
			one.container += "@" + version
		}
		list = append(list, one)
	}
	return list, nil
}

// modelIn returns the model file in a directory: the one of that name, or model.onnx and its like,
// or the only one. "": there is none.
func (l *listings) modelIn(dir, file string, trust bool) (string, error) {
	entries, err := l.list(dir)
	if err != nil {
		return "", err
	}
	var fitting []string
	for _, e := range entries {
		path := filepath.Join(dir, e.name)
		switch {
		case e.dir:
		case e.name == file && isKind(file, trust):
			return path, nil
		case file == "" && isKind(e.name, trust) && suffix(e.name) != ".py" && l.isModel(path):
			fitting = append(fitting, path)
		}
	}
	named := slices.DeleteFunc(slices.Clone(fitting), func(path string) bool {
		return !strings.HasPrefix(filepath.Base(path), "model.")
	})
	if len(named) == 1 {
		fitting = named
	}
	switch len(fitting) {
	case 0:
		return "", nil
	case 1:
		return fitting[0], nil
	}
	return "", errors.New(dir + ": it has several model files: name one of them by file in model.toml")
}

// adopt takes over what a config.pbtxt says, where the folder does not say otherwise.
func (f *found) adopt(t tritonModel) {
	if t.batch != "" {
		f.reading.Batch = t.batch
	}
	if f.reading.As == "auto" { // clients know the network as it is
		f.reading.As = "raw"
	}
	if t.replicas > 0 {
		f.process.Replicas = config.Fixed(t.replicas)
	}
	if t.devices != nil && slices.Equal(f.reading.Device, config.Devices{"auto"}) {
		f.reading.Device = t.devices
	}
}
