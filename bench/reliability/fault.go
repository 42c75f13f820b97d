package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// faults are the faults of a bar, each of which must be noticed.
type faults []fault

// A fault is a change of one place in a file that one of a bar's pieces must notice.
type fault struct {
	file, was, is string
	piece         int            // index of that piece
	args          []string       // added to the piece's command, so that it shows sooner
	seen          *regexp.Regexp // the piece's message then; no other failure has it
}

// breaks returns a fault that the first piece must notice.
func breaks(file, was, is, seen string) faults {
	return faults{}.and(0, file, was, is, seen)
}

// and adds a fault that another piece must notice.
func (fs faults) and(piece int, file, was, is, seen string) faults {
	return append(fs, fault{piece: piece, file: file, was: was, is: is, seen: regexp.MustCompile(seen)})
}

// within limits the run of the last fault's piece to a length.
func (fs faults) within(length string) faults {
	fs[len(fs)-1].args = []string{"-length", length}
	return fs
}

// build builds shivad with the fault into a directory. It returns env extended so that tests use
// this shivad and the go command compiles with the fault.
func (f *fault) build(ctx context.Context, dir string, env []string) ([]string, error) {
	overlay, err := f.plant(dir)
	if err != nil {
		return nil, err
	}
	env = append(env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay), "SHIVA_E2E_BIN="+dir)
	c := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./cmd/shivad")
	c.Env = env
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("with the fault in %s: %w\n%s", f.file, err, out)
	}
	return env, nil
}

// plant writes the file with the fault into a directory, and returns the path of an overlay file
// for go build.
func (f *fault) plant(dir string) (overlay string, err error) {
	text, err := f.text()
	if err != nil {
		return "", err
	}
	original, err := filepath.Abs(f.file)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(f.file))
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, list, 0o600)
}

// text returns the content of the file with the fault.
func (f *fault) text() ([]byte, error) {
	text, err := os.ReadFile(f.file)
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(text, []byte(f.was)); n != 1 {
		return nil, fmt.Errorf("%s: expected this once, where the fault is planted, found it %d times: %s", f.file, n,
			f.was)
	}
	return bytes.Replace(text, []byte(f.was), []byte(f.is), 1), nil
}
