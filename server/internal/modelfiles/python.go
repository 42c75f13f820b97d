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
		last := bytes.TrimSpace(said)
		last = last[bytes.LastIndexByte(last, '\n')+1:]
		tried = append(tried, fmt.Sprintf("%s: %s", found, last))
		pip = found + " -m pip"
	}
	why := errors.New("there is no Python")
	if tried != nil {
		why = errors.New(strings.Join(tried, "; "))
	}
	extra := kinds[suffix(file)]
	if extra != "" {
		extra = "[" + extra + "]"
	}
	return "", fmt.Errorf("no Python has the package that reads model files (%w): %s install 'shiva-container%s', or name another one by python or --python",
		why, pip, extra)
}

// Check says what is wrong with the files, folders and Pythons that a valid configuration names.
func Check(c config.Config) error {
	var faults []error
	for i, m := range c.ModelFiles {
		_, err := os.Stat(m.Path)
		if err == nil {
			_, err = interpreter(m.Reading, filepath.Dir(m.Path), m.Path, true)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("model_file[%d]: %w", i, err))
		}
	}
	for i, m := range c.ModelFolders {
		info, err := os.Stat(m.Path)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a directory", m.Path)
		}
		if err == nil {
			_, err = interpreter(m.Reading, m.Path, "", m.Trust)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("model_folder[%d]: %w", i, err))
		}
	}
	return errors.Join(faults...)
}
