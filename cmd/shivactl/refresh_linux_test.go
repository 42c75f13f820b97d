package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shivad/shivad/server/admin/admintest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/token"
)

// flaky is an admin door that is unreachable while down is set.
func flaky(t *testing.T, h func() http.Handler) (addr string, down func(bool)) {
	t.Helper()
	var mu sync.Mutex
	away := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if away {
			panic(http.ErrAbortHandler)
		}
		h().ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), func(is bool) {
		mu.Lock()
		defer mu.Unlock()
		away = is
	}
}

// Without a terminal, each output follows the previous one. While the server is unreachable, an
// error is shown, until it is back.
func TestWatch(t *testing.T) {
	h := admintest.Handler(admintest.New(fakeList, fakeStatus).Sources())
	at, down := flaky(t, func() http.Handler { return h })
	out, errs, interrupt := running(t, "versions", "digits", "--watch=100ms", "--timeout", "20s", "--admin", at)
	times := func(text string) func() bool {
		before := strings.Count(out.String()+errs.String(), text)
		return func() bool { return strings.Count(out.String()+errs.String(), text) >= before+2 }
	}
	budgettest.Until(t, "two lists", times("MODEL "))
	down(true)
	budgettest.Until(t, "the server to be missed twice", times("closed the connection"))
	down(false)
	budgettest.Until(t, "two lists", times("MODEL "))
	if code := interrupt(); code != exitOK || !strings.Contains(out.String(), "\n\nMODEL ") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}

	out, _, interrupt = running(t, "versions", "digits", "--watch=100ms", "--json", "--admin", at)
	budgettest.Until(t, "two documents", func() bool { return strings.Count(out.String(), "\n") >= 2 })
	if code := interrupt(); code != exitOK || strings.Contains(out.String(), "\n\n") {
		t.Errorf("exit %d\n%s", code, out)
	}
}

// A mistake of the user ends the repetition at once.
func TestWatchOfNothing(t *testing.T) {
	_, at := fake(t, "tcp")
	var out bytes.Buffer
	if code := run(t.Context(), []string{"streams", "--watch", "--admin", at}, nil, &out, &out); code != exitUsage {
		t.Errorf("exit %d: %s", code, &out)
	}
}

// A refused token ends the repetition, unless it was accepted before: then it may be about to be
// replaced.
func TestWatchWithoutRight(t *testing.T) {
	var refused atomic.Bool
	h := admintest.Handler(admintest.New(fakeList, fakeStatus).Sources())
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refused.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":"unauthenticated"}`)
			return
		}
		h.ServeHTTP(w, r)
	}))
	defer s.Close()
	for _, command := range [][]string{{"versions", "digits", "--watch=100ms"}, {"logs", "--follow"}} {
		args := append(command, "--timeout", "20s", "--admin", s.Listener.Addr().String())
		refused.Store(true)
		var out bytes.Buffer
		if code := run(t.Context(), args, nil, &out, &out); code != exitRefused || strings.Count(out.String(), "unauthenticated") != 1 {
			t.Errorf("%v: exit %d: %s", command, code, &out)
		}
		refused.Store(false)
		shown, errs, interrupt := running(t, args...)
		budgettest.Until(t, "an answer", func() bool { return shown.String() != "" })
		refused.Store(true)
		budgettest.Until(t, "the refusal", func() bool { return strings.Contains(errs.String(), "unauthenticated") })
		refused.Store(false)
		if code := interrupt(); code != exitOK {
			t.Errorf("%v: exit %d: %s", command, code, errs)
		}
	}
}

// Each new entry is shown once, also after a restart of the server, and an unreachable server is
// reported once.
func TestFollowLogs(t *testing.T) {
	h := admintest.Handler(admintest.New(fakeList, fakeStatus).Sources())
	at, down := flaky(t, func() http.Handler { return h })
	c := &cli{ctx: t.Context(), stdout: new(record), stderr: new(record), admin: at, token: token.Fixed(""),
		timeout: 20e9}
	out, errs := c.stdout.(*record), c.stderr.(*record)
	ctx, cancel := context.WithCancel(t.Context())
	c.ctx = ctx
	c.every = leastRefresh
	o := &logOptions{limit: 1, level: "info"}
	done := make(chan error, 1)
	go func() { done <- c.follow(func(c *cli) error { return c.showLogs(o) }) }()
	budgettest.Until(t, "the last line", func() bool { return strings.Contains(out.String(), "a process ended") })
	down(true)
	budgettest.Until(t, "the server to be missed", func() bool { return strings.Contains(errs.String(), "closed the connection") })
	h = admintest.Handler(admintest.New(fakeList, fakeStatus).Sources()) // the door is unused now
	down(false)
	budgettest.Until(t, "the lines of the next server", func() bool { return strings.Count(out.String(), "\n") >= 3 })
	cancel()
	if err := <-done; err != nil || strings.Count(errs.String(), "closed") != 1 || strings.Count(out.String(), "\n") != 3 {
		t.Errorf("%v\n%s%s", err, out, errs)
	}
}

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
	if len(lines) != 10 || !strings.HasSuffix(lines[9], " more lines\x1b[K\x1b[J") {
		t.Errorf("%d lines:\n%q", len(lines), lines)
	}
}
