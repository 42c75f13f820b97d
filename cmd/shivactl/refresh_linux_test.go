package main

import (
	"context"
	"strings"
	"testing"
)

// On a terminal each output replaces the previous one on the alternate screen, as far as there are
// rows, and at the end the terminal's content comes back.
func TestWatchOnATerminal(t *testing.T) {
	_, at := fake(t, "tcp")
	w := openTerminal(t, 40, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		done <- run(ctx, []string{"status", "--watch=100ms", "--admin", at}, w.device, w.device, w.device)
	}()
	w.waitFor("\x1b[J\x1b[Hshivad 1.2.3")
	cancel()
	if code := <-done; code != exitOK {
		t.Errorf("exit %d", code)
	}
	w.waitFor("\x1b[?25h\x1b[?7h\x1b[?1049l")
	_, shown, _ := strings.Cut(w.text(), "\x1b[?1049h\x1b[?7l\x1b[?25l\x1b[H")
	page, _, _ := strings.Cut(shown, "\x1b[H")
	lines := strings.Split(page, "\r\n")
	if len(lines) != 10 || !strings.HasSuffix(lines[9], " lines more\x1b[K\x1b[J") {
		t.Errorf("%d lines:\n%q", len(lines), lines)
	}
}
