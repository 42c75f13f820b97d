package modelfiles

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/hosttest"
)

// The first Python that has the package is taken; one that somebody names is the only one.
func TestPython(t *testing.T) {
	dir := t.TempDir()
	net := filepath.Join(dir, "net.onnx")
	with := hosttest.Script(t, filepath.Join(dir, "venv", "bin", "python"), "exit 0")
	without := hosttest.Script(t, filepath.Join(dir, "bin", "python3"), "echo Traceback >&2; echo ModuleNotFoundError: no shiva >&2; exit 1")
	beside := hosttest.Script(t, filepath.Join(dir, ".venv", "bin", "python"), "exit 0")
	t.Setenv("PATH", filepath.Dir(without)+":/bin:/usr/bin")
	t.Setenv("VIRTUAL_ENV", "")
	t.Setenv(PythonEnv, "")
	chosen := func(r config.Reading, executes bool) string {
		found, err := interpreter(r, dir, net, executes)
		if err != nil {
			return err.Error()
		}
		return found
	}
	if got := chosen(config.Reading{}, false); !strings.Contains(got,
		without+": ModuleNotFoundError: no shiva): "+without+" -m pip install 'shiva-container[onnx]'") {
		t.Errorf("without the package: %s", got)
	}
	t.Setenv("VIRTUAL_ENV", filepath.Join(dir, "venv"))
	if got := chosen(config.Reading{}, false); got != with {
		t.Errorf("in a virtual environment: %s", got)
	}
	if got := chosen(config.Reading{}, true); got != beside {
		t.Errorf("with one beside the file: %s", got)
	}
	t.Setenv(PythonEnv, with)
	if got := chosen(config.Reading{}, true); got != with {
		t.Errorf("with $%s: %s", PythonEnv, got)
	}
	if got := chosen(config.Reading{Python: beside}, true); got != beside {
		t.Errorf("with one in the configuration: %s", got)
	}
	if got := chosen(config.Reading{Python: without}, true); !strings.Contains(got, "no shiva") {
		t.Errorf("with one that lacks the package: %s", got)
	}
	if got := chosen(config.Reading{Python: "none"}, true); !strings.Contains(got, "python, --python or $SHIVAD_PYTHON: ") {
		t.Errorf("with one that does not exist: %s", got)
	}
}
