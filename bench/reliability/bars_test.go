package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/shivad/shivad/bench/internal/process"
)

// The names are in order, each has its row in the manual, and only faults are taken for faults.
func TestBars(t *testing.T) {
	if err := process.AtTop(); err != nil {
		t.Fatal(err)
	}
	manual, err := os.ReadFile("bench/METHODS.md")
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for _, b := range bars {
		n, err := strconv.Atoi(strings.TrimPrefix(b.name, "R"))
		if err != nil || n <= last || len(b.faults) == 0 {
			t.Errorf("%s: expected a name after R%d, and a fault", b.name, last)
		}
		last = n
		if !bytes.Contains(manual, []byte("\n| "+b.name+" |")) {
			t.Errorf("%s: bench/METHODS.md has no row for it", b.name)
		}
		for _, f := range b.faults {
			if f.piece >= len(b.pieces) || f.seen.MatchString("") {
				t.Errorf("%s: piece %d of %d, and %q as the sign of a fault", b.name, f.piece, len(b.pieces), f.seen)
			}
		}
	}
	if all, err := choose(""); err != nil || len(all) != len(bars) {
		t.Errorf("%d of %d, %v", len(all), len(bars), err)
	}
	if some, err := choose("R20,R2"); err != nil || len(some) != 2 || some[0].name != "R20" {
		t.Errorf("%v, %v", some, err)
	}
	for _, names := range []string{"R99", "R2,", "r2"} {
		if _, err := choose(names); err == nil {
			t.Errorf("%q names bars", names)
		}
	}
}

// A bar holds as long as all its pieces succeed; with its fault it does not hold if the piece that
// must notice the fault fails with its message.
func TestMeasure(t *testing.T) {
	says := func(text string, status int) piece {
		return piece{command: []string{"sh", "-c", fmt.Sprintf("echo '    x_test.go:1: %s'; exit %d", text, status)},
			shows: logged}
	}
	for _, c := range []struct {
		pieces  []piece
		broken  bool
		holds   bool
		figures string
	}{
		{[]piece{says("one", 0), says("two", 0)}, false, true, "one two"},
		{[]piece{says("one", 1), says("two", 0)}, false, false, "one sh -c"},
		{[]piece{says("one", 0), says("two", 1)}, false, false, "one two sh -c"},
		{[]piece{says("one", 1), says("the fault", 1)}, true, false, "the fault sh -c"},
		{[]piece{says("one", 1), says("something else", 1)}, true, true, "something else it fails, and does not say"},
		{[]piece{says("one", 1), says("the fault", 0)}, true, true, "the fault"},
	} {
		b := bar{name: "R0", pieces: c.pieces}
		var planted *fault
		if c.broken {
			planted = &fault{piece: 1, seen: regexp.MustCompile("fault")}
		}
		holds, figures, err := b.judge(t.Context(), t.TempDir(), os.Environ(), planted)
		if text := strings.Join(figures, " "); err != nil || holds != c.holds || !strings.HasPrefix(text, c.figures) {
			t.Errorf("holds: %t, figures %q, %v; expected %t, %q", holds, text, err, c.holds, c.figures)
		}
	}
	b := bar{pieces: []piece{says("the machine has none", 0), says("--- SKIP: TestOne", 0)}}
	if _, figures, err := b.judge(t.Context(), t.TempDir(), nil, nil); !errors.Is(err, errNotMeasured) || figures[0] != "the machine has none" {
		t.Errorf("where a piece cannot be measured: %q, %v", figures, err)
	}
	b = bar{pieces: []piece{says("testing: warning: no tests to run", 0)}}
	if _, _, err := b.judge(t.Context(), t.TempDir(), nil, nil); err == nil {
		t.Error("a piece without a test is one")
	}
}
