package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shivad/shivad/bench/internal/hostile"
)

// Every hostile peer must have its line in the log, and no connection the same line
// twice.
func TestNamed(t *testing.T) {
	var log strings.Builder
	for i, p := range hostile.Peers() {
		fmt.Fprintf(&log, "level=WARN session=%d remote=1.2.3.4:5 reason=%q\n", i, strings.Join(p.Words, " "))
	}
	if err := named(log.String()); err != nil {
		t.Errorf("all are named: %v", err)
	}
	if err := named(""); err == nil || strings.Count(err.Error(), "is not named") != len(hostile.Peers()) {
		t.Errorf("none is named: %v", err)
	}
	first, _, _ := strings.Cut(log.String(), "\n")
	if err := named(log.String() + first + "\n"); err == nil || !strings.Contains(err.Error(), "named twice") {
		t.Errorf("one is named twice: %v", err)
	}
	if err := named(log.String() + strings.Replace(first, "session=0", "session=99", 1) + "\n"); err != nil {
		t.Errorf("another connection of the same kind: %v", err)
	}
}
