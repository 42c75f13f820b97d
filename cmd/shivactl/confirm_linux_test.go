package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

// At a terminal the user is asked before a deletion, and only yes deletes.
func TestConfirm(t *testing.T) {
	_, at := fake(t, "tcp")
	has := func() bool {
		var out bytes.Buffer
		run(t.Context(), []string{"apps", "--admin", at}, nil, &out, &out)
		return strings.Contains(out.String(), "photos")
	}
	var errs bytes.Buffer
	if code := run(t.Context(), []string{"apps", "create", "photos", "--model", "digits", "--admin", at}, nil, &errs,
		&errs); code != exitOK {
		t.Fatal(code, &errs)
	}
	const question = `delete application "photos" and what its policy has learned at `
	for _, c := range []struct {
		keys    string
		code    int
		deleted bool
	}{
		{"\n", exitRefused, false},
		{"n\n", exitRefused, false},
		{"yess\n", exitRefused, false},
		{"\x04", exitRefused, false}, // Ctrl-D
		{"Yes\n", exitOK, true},
	} {
		w := openTerminal(t, 80, 24)
		done := make(chan int)
		go func() {
			done <- run(t.Context(), []string{"apps", "delete", "photos", "--admin", at}, w.device, w.device, w.device)
		}()
		w.waitFor(question + at + "? [y/N] ")
		w.press(c.keys)
		if code := <-done; code != c.code || has() == c.deleted {
			t.Errorf("%q: exit %d, deleted: %t\n%s", c.keys, code, !has(), w.text())
		}
	}

	// Ctrl-C cancels, however long the user thinks: the server's timeout has not begun.
	w := openTerminal(t, 80, 24)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		done <- run(ctx, []string{"cache", "clear", "digits", "--timeout", "1ns", "--admin", at}, w.device, w.device,
			w.device)
	}()
	w.waitFor("? [y/N] ")
	cancel()
	if code := <-done; code != exitRefused {
		t.Errorf("interrupted: exit %d\n%s", code, w.text())
	}
	w.waitFor("nothing was deleted")
}
