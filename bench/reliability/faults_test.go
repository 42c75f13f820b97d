//go:build plants

package main

import (
	"go/parser"
	"go/token"
	"testing"

	"github.com/shivad/shivad/bench/internal/process"
)

// TestFaults: the places of the faults exist, and the files still parse with them. It has a tag
// since it reads the text of other packages.
func TestFaults(t *testing.T) {
	if err := process.AtTop(); err != nil {
		t.Fatal(err)
	}
	for _, b := range bars {
		for _, f := range b.faults {
			if text, err := f.text(); err != nil {
				t.Errorf("%s: %v", b.name, err)
			} else if _, err := parser.ParseFile(token.NewFileSet(), f.file, text, 0); err != nil {
				t.Errorf("%s: %v", b.name, err)
			}
		}
	}
}
