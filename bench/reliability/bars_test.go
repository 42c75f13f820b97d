package main

import (
	"bytes"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/bench/internal/process"
)

// The faults are where they are planted, and leave Go; the names are those of bars, each once.
func TestBars(t *testing.T) {
	if err := process.AtTop(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, b := range bars {
		if slices.Contains(names, b.name) || len(b.pieces) == 0 || !strings.HasPrefix(b.name, "R") {
			t.Errorf("%s: expected a name of its own, and a piece", b.name)
		}
		names = append(names, b.name)
		if b.fault == nil {
			continue
		}
		text, err := b.fault.text()
		if err != nil {
			t.Errorf("%s: %v", b.name, err)
			continue
		}
		if !bytes.Contains(text, []byte(b.fault.is)) {
			t.Errorf("%s: the fault is not there", b.name)
		}
		if _, err := parser.ParseFile(token.NewFileSet(), b.fault.file, text, 0); err != nil {
			t.Errorf("%s: %v", b.name, err)
		}
	}
	if all, err := choose("", false); err != nil || len(all) != len(bars) {
		t.Errorf("%d of %d, %v", len(all), len(bars), err)
	}
	if some, err := choose("R2,R20", true); err != nil || len(some) != 2 {
		t.Errorf("%v, %v", some, err)
	}
	if _, err := choose("R99", false); err == nil {
		t.Error("R99 is one")
	}
}
