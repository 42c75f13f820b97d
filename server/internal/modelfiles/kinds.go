package modelfiles

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
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
