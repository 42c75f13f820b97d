package config

import (
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/shivad/shivad/scheduler/naming"
	"github.com/shivad/shivad/scheduler/setting"
)

// A ModelFile is a file that is a model: a process of the server's reads it with the Python package
// shiva-container. When the file changes, processes with the new one take over.
type ModelFile struct {
	// Path is a network, a Python program with models, or a folder with one of them; relative to
	// the file.
	Path string `toml:"path"`
	// Name is the model's name; "" = that of the file, without its suffix.
	Name string `toml:"name"`
	// Version is the model's version; "" = 1, and the next number each time the file changes.
	Version string `toml:"version"`
	Reading
	Process
}

// ModelName returns the name of the model.
func (m ModelFile) ModelName() string {
	if m.Name != "" {
		return m.Name
	}
	return strings.TrimSuffix(filepath.Base(m.Path), filepath.Ext(m.Path))
}

// A ModelFolder is a directory whose files are models, as NAME.onnx, NAME/VERSION/model.onnx with
// Triton's config.pbtxt, or NAME/model.toml. It is watched: files that are added are served, those
// that are removed are not.
type ModelFolder struct {
	Path string `toml:"path"` // relative to the file
	Reading
	Process
}

// Reading says how model files are read.
type Reading struct {
	// Python is the program of a Python that has the package; "" = see package modelfiles.
	Python string `toml:"python"`
	// As is what the network is for: auto (what the file says), raw, or a task: detect, segment,
	// pose, obb, classify.
	As string `toml:"as" default:"auto"`
	// Batch says whether rows share batches: auto (what a proof shows), off, force (without a
	// proof), or the most rows that may.
	Batch Batching `toml:"batch" default:"auto"`
	// Device is a device, as "cpu", "cuda:0" or "openvino:GPU", or a list of them, through which
	// the processes go; auto = the best that works.
	Device Devices `toml:"device" default:"auto"`
	// Trust allows files that execute code while they are read, such as pickles, and, in a folder,
	// Python programs.
	Trust bool `toml:"trust"`
}

// paths returns where the paths are, besides those of writable directories. A program without a
// slash is found in $PATH.
func (r *Reading) paths(writable []string) []*string {
	paths := each(writable)
	if strings.Contains(r.Python, "/") {
		paths = append(paths, &r.Python)
	}
	return paths
}

// Batching is a word or a number of rows: see Reading.
type Batching string

// put takes a word or a number.
func (b *Batching) put(fs *faults, key string, value any) {
	switch v := value.(type) {
	case int64:
		*b = Batching(strconv.FormatInt(v, 10))
	case string:
		*b = Batching(v)
	default:
		fs.Add(key, `expected "auto", "off", "force" or a number of rows, got %s`, describe(value))
	}
}

// Devices is a list of devices; the file may give a single string.
type Devices []string

// NewModelFile returns a model file with the defaults.
func NewModelFile(path string) (m ModelFile) {
	setDefaults(reflect.ValueOf(&m).Elem())
	m.Path = path
	return m
}

// NewModelFolder returns a folder with the defaults.
func NewModelFolder(path string) (m ModelFolder) {
	setDefaults(reflect.ValueOf(&m).Elem())
	m.Path = path
	return m
}

// validateModelFiles checks the tables of model files and folders.
func (c Config) validateModelFiles(fs *faults) {
	names := map[string]string{}
	for _, p := range c.Supervised {
		names[p.Name] = "a [[container]]"
	}
	for i, m := range c.ModelFiles {
		key := indexKey("model_file", i)
		var own setting.Faults
		if m.Path == "" {
			own.Add("path", `missing: the file, as "yolo11n.onnx"`)
		} else if err := naming.CheckModel(m.ModelName()); err != nil {
			why := "%v"
			if m.Name == "" {
				why += "; it is that of the file unless name is set"
			}
			own.Add("name", why, err)
		} else if other, taken := names[m.ModelName()]; taken {
			own.Add("name", "%q is already the name of %s", m.ModelName(), other)
		} else {
			names[m.ModelName()] = key
		}
		if m.Version != "" {
			own.Check("version", naming.CheckVersion(m.Version))
		}
		fs.of(key, append(own, readingFaults(m.Reading, m.Process)...))
	}
	paths := map[string]int{}
	for i, m := range c.ModelFolders {
		key := indexKey("model_folder", i)
		var own setting.Faults
		if first, taken := paths[filepath.Clean(m.Path)]; m.Path == "" {
			own.Add("path", `missing: the directory, as "models"`)
		} else if taken {
			own.Add("path", "%q is already the path of model_folder[%d]", m.Path, first)
		}
		paths[filepath.Clean(m.Path)] = i
		fs.of(key, append(own, readingFaults(m.Reading, m.Process)...))
	}
	if n := len(c.ModelFiles) + len(c.ModelFolders); n > 0 && len(c.Containers.Listen) == 0 {
		fs.Add("containers.listen", "empty, but the processes of model files have to connect: give it an address, such as 127.0.0.1:0")
	}
}

// readingFaults returns the faults of what files and folders have in common.
func readingFaults(r Reading, p Process) (fs setting.Faults) {
	fs.OneOf("as", r.As, "auto", "raw", "detect", "segment", "pose", "obb", "classify")
	n, err := strconv.Atoi(string(r.Batch))
	if (err != nil || n < 1) && r.Batch != "auto" && r.Batch != "off" && r.Batch != "force" {
		fs.Add("batch", `expected "auto", "off", "force" or a number of rows, got %q`, r.Batch)
	}
	for i, device := range r.Device {
		if device == "" || strings.ContainsAny(device, ", ") {
			fs.Add(indexKey("device", i), `%q: expected a device, as "cpu", "cuda:0" or "openvino:GPU"`, device)
		}
	}
	if len(r.Device) == 0 {
		fs.Add("device", `empty: expected a device or "auto"`)
	}
	return append(fs, p.faults()...)
}

// An Override is the model.toml of a model in a folder: what differs from the folder. Whoever may
// write into a folder decides neither which programs run, nor as whom.
type Override struct {
	// File is the name of the model's file, where there are several.
	File string `toml:"file"`
	// Versions are the ones of NAME/VERSION that are served: names, or "all"; none = the newest.
	Versions []string `toml:"versions" default:""`
	As       string   `toml:"as"`
	Batch    Batching `toml:"batch"`
	Device   Devices  `toml:"device"`
	Replicas Replicas `toml:"replicas"`
	CPUs     int      `toml:"cpus" min:"0" max:"4096"`
}

// ParseOverride reads the text of a model.toml over the settings of its folder, and of what else is
// said of the model. Errors name the path.
func ParseOverride(path string, text []byte, over Override) (Override, error) {
	var tree map[string]any
	if err := toml.Unmarshal(text, &tree); err != nil {
		return over, &Error{Faults: []Fault{syntaxFault(path, err)}}
	}
	fs := &faults{origins: places(path, text)}
	put(fs, reflect.ValueOf(&over).Elem(), "", tree)
	if err := fs.err(); err != nil {
		return over, err
	}
	if over.File != "" && over.File != filepath.Base(over.File) {
		fs.Add("file", "%q is not the name of a file", over.File)
	}
	process := NewModelFolder("").Process
	process.Replicas, process.CPUs = over.Replicas, over.CPUs
	reading := Reading{As: over.As, Batch: over.Batch, Device: over.Device}
	fs.Faults = append(fs.Faults, readingFaults(reading, process)...)
	return over, fs.err()
}

// hide replaces the values of environment variables.
func hide(env map[string]string) {
	for name := range env {
		env[name] = "(hidden)"
	}
}
