package modelfiles

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kinds are the suffixes of model files, and the extras of the package that read them.
var kinds = map[string]string{
	".onnx": "onnx", ".xml": "openvino", ".tflite": "tflite", ".skops": "sklearn", ".joblib": "sklearn", ".pkl": "sklearn",
	".pickle": "sklearn", ".ubj": "xgboost", ".json": "xgboost", ".txt": "lightgbm",
}

// signs are what models of suffixes that other files have, too, begin with: in the first bytes, or
// anywhere in the first kilobytes.
var signs = map[string]struct {
	text  string
	first bool
}{
	".txt": {"tree\n", true}, ".json": {`"learner"`, false}, ".xml": {"<net", false},
}

// signWithin is how far into a file its sign may be.
const signWithin = 4 << 10

// suffix returns the suffix of a file's name as kinds has it.
func suffix(name string) string { return strings.ToLower(filepath.Ext(name)) }

// isKind reports whether a file may be a model by its name. Classes' names may lie beside one.
func isKind(name string, trust bool) bool {
	if strings.HasSuffix(name, "labels.txt") {
		return false
	}
	switch end := suffix(name); end {
	case ".joblib", ".pkl", ".pickle", ".py": // reading one executes code
		return trust
	default:
		return kinds[end] != ""
	}
}

// hasSign reports whether a file is what its suffix says.
func hasSign(path string) bool {
	sign, needs := signs[suffix(path)]
	if !needs {
		return true
	}
	f, _, err := openRegular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, signWithin)
	n, _ := io.ReadFull(f, head) // a shorter file is fine
	at := bytes.Index(head[:n], []byte(sign.text))
	return at == 0 || at > 0 && !sign.first
}

// isProgram reports whether a file, or a folder by its model.py, is a Python program with models.
func isProgram(path string) bool {
	if suffix(path) == ".py" {
		return true
	}
	_, err := os.Stat(filepath.Join(path, programFile))
	return err == nil
}

// programFile is what a folder that is a Python program has.
const programFile = "model.py"

// legible says why no process could serve the path of a [[model_file]], whatever its contents: each
// would end as soon as it has started.
func legible(path string, trust bool) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case isProgram(path):
		return nil
	case info.IsDir():
		if path, err = only(path); err != nil {
			return err
		}
	}
	switch name := filepath.Base(path); {
	case !isKind(name, true):
		return fmt.Errorf("%s: expected a Python program (*.py) or a model file (%s)", path, patterns())
	case !isKind(name, trust):
		return fmt.Errorf("%s: reading it executes code: if you know where it comes from, allow that by "+
			"--trust or trust = true", path)
	}
	return nil
}

// only returns the one model file in a folder, as the package chooses it.
func only(dir string) (path string, err error) {
	models := slices.DeleteFunc(regular(dir), func(path string) bool {
		return !isKind(path, true) || suffix(path) == ".py"
	})
	switch len(models) {
	case 0:
		return "", fmt.Errorf("%s: expected %s or a model file (%s) in this folder", dir, programFile, patterns())
	case 1:
		return models[0], nil
	}
	return "", fmt.Errorf("%s: expected one model in this folder, and there are %s; --models or [[model_folder]] serves "+
		"all models of a folder", dir, names(models))
}

// names lists the names of files or folders, at most five.
func names(paths []string) string {
	const most = 5
	var list []string
	for _, one := range paths[:min(len(paths), most)] {
		list = append(list, filepath.Base(one))
	}
	if more := len(paths) - most; more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	return strings.Join(list, ", ")
}

// patterns lists the names of model files.
func patterns() string { return "*" + strings.Join(slices.Sorted(maps.Keys(kinds)), ", *") }
