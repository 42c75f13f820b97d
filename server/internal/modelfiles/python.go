package modelfiles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/server/config"
)

// PythonEnv names the Python of model files that have none in the configuration.
const PythonEnv = "SHIVAD_PYTHON"

// pythonPatience bounds how long a Python may take to import the package.
const pythonPatience = time.Minute

// fit are the Pythons that have shown that they have the package.
var fit sync.Map

// interpreters are the Pythons that may have the package, in the order in which they are tried;
// named: somebody has named the only one. A .venv counts in a directory that may execute code.
func interpreters(r config.Reading, dir string, executes bool) (list []string, named bool) {
	for _, one := range []string{r.Python, os.Getenv(PythonEnv)} {
		if one != "" {
			return []string{one}, true
		}
	}
	if executes {
		list = append(list, filepath.Join(dir, ".venv", "bin", "python"))
	}
	if own := os.Getenv("VIRTUAL_ENV"); own != "" {
		list = append(list, filepath.Join(own, "bin", "python"))
	}
	if own, err := os.Executable(); err == nil { // pip puts the program beside its interpreter
		list = append(list, filepath.Join(filepath.Dir(own), "python3"))
	}
	return append(list, "python3"), false
}

// interpreter returns a Python that has the package, as an absolute path. The error says how to
// install what reads a file of that name.
func interpreter(r config.Reading, dir, file string, executes bool) (string, error) {
	var tried []string
	pip := "python3 -m pip"
	list, named := interpreters(r, dir, executes)
	for _, python := range list {
		found, err := exec.LookPath(python)
		if err == nil {
			found, err = filepath.Abs(found)
		}
		if err != nil {
			if named {
				return "", fmt.Errorf("python, --python or $%s: %w", PythonEnv, err)
			}
			continue
		}
		if _, known := fit.Load(found); known {
			return found, nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), pythonPatience)
		said, err := exec.CommandContext(ctx, found, "-c", "import shiva_container.files").CombinedOutput()
		cancel()
		if err == nil {
			fit.Store(found, true)
			return found, nil
		}
		tried = append(tried, fmt.Sprintf("%s: %s", found, lastLine(said)))
		pip = found + " -m pip"
	}
	why := errors.New("there is no Python")
	if tried != nil {
		why = errors.New(strings.Join(tried, "; "))
	}
	return "", &MissingError{Why: why, Install: pip + " install '" + distribution(file) + "'"}
}

// distribution is what pip installs to read a file of that name.
func distribution(file string) string {
	if extra := kinds[suffix(file)]; extra != "" {
		return "shiva-container[" + extra + "]"
	}
	return "shiva-container"
}

// A MissingError says that a Python lacks what reads a model file.
type MissingError struct {
	Why     error
	Install string // the command that installs it
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("no Python has the package that reads model files (%v): %s, or name another one by python or --python",
		e.Why, e.Install)
}

func (e *MissingError) Unwrap() error { return e.Why }

// A Reader is a file or folder that a valid configuration names, and the Python that is to read it.
type Reader struct {
	Key     string // of its table, as "model_file[0]"
	Path    string
	Reading config.Reading
	Python  string // "" with Err
	Err     error  // why it cannot be read
}

// Readers returns the files and folders that a valid configuration names. It executes the Pythons
// that are to read them.
func Readers(c config.Config) (list []Reader) {
	for i, m := range c.ModelFiles {
		r := Reader{Key: fmt.Sprintf("model_file[%d]", i), Path: m.Path, Reading: m.Reading}
		if r.Err = legible(m.Path, m.Trust); r.Err == nil {
			r.Python, r.Err = interpreter(m.Reading, filepath.Dir(m.Path), m.Path, true)
		}
		list = append(list, r)
	}
	for i, m := range c.ModelFolders {
		r := Reader{Key: fmt.Sprintf("model_folder[%d]", i), Path: m.Path, Reading: m.Reading}
		info, err := os.Stat(m.Path)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a directory", m.Path)
		}
		if r.Err = err; err == nil {
			r.Python, r.Err = interpreter(m.Reading, m.Path, "", m.Trust)
		}
		list = append(list, r)
	}
	return list
}

// Check says what is wrong with the files, folders and Pythons that a valid configuration names.
func Check(c config.Config) error {
	var faults []error
	for _, r := range Readers(c) {
		if r.Err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", r.Key, r.Err))
		}
	}
	return errors.Join(faults...)
}

// readerImports imports what reads a kind of file, and fails unless ONNX Runtime has the device.
const readerImports = `import importlib, sys
kind, device = sys.argv[1:]
reader = importlib.import_module("shiva_container.files." + kind)
if kind == "onnx" and device in ("cuda", "tensorrt"):
    there = reader.onnxruntime.get_available_providers()
    if reader.PROVIDERS[device] not in there:
        raise ImportError("onnxruntime has " + ", ".join(there) + ", and not " + reader.PROVIDERS[device])
`

// Imports reports whether the Python has the packages for the file, and for its devices: a process
// that lacks them would end at once. A folder, and a Python program, import their own.
func (r Reader) Imports(ctx context.Context) error {
	if kinds[suffix(r.Path)] == "" {
		return nil
	}
	for _, device := range r.Reading.Device {
		device, _, _ = strings.Cut(device, ":")
		kind, install := kinds[suffix(r.Path)], distribution(r.Path)
		switch {
		case kind == "onnx" && device == "openvino":
			kind, install = "openvino", "shiva-container[openvino]"
		case kind == "onnx" && device != "auto" && device != "cpu":
			install = "onnxruntime-gpu"
		}
		ctx, cancel := context.WithTimeout(ctx, pythonPatience)
		said, err := exec.CommandContext(ctx, r.Python, "-c", readerImports, kind, device).CombinedOutput()
		cancel()
		if err != nil {
			return &MissingError{Why: fmt.Errorf("%s: %s", r.Python, lastLine(said)),
				Install: r.Python + " -m pip install '" + install + "'"}
		}
	}
	return nil
}

// lastLine is where Python says what is wrong.
func lastLine(said []byte) []byte {
	said = bytes.TrimSpace(said)
	return said[bytes.LastIndexByte(said, '\n')+1:]
}
