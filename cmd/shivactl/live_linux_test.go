package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/budgettest"
)

// hostileName would clear the screen and ring, if a terminal got it.
const hostileName = "evil\x1b[2J\x07\u202e"

// busy is an admin door with two models, a pipeline and streams.
func busy(t *testing.T) (addr string) {
	t.Helper()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s := fakeStatus
		s.Models = []admin.Health{
			{Name: "aa", Version: "1", Load: 0.5, Replicas: 1}, {Name: "zz", Version: "1", Load: 7, Replicas: 1},
			{Name: hostileName, Version: hostileName, Load: 2},
		}
		stages := []admin.StageLoad{{Stage: "read"}, {Stage: hostileName}}
		s.Pipelines = []admin.PipelineLoad{{Name: "plates", Stages: stages}}
		s.Streams = []admin.Seen{{Model: "aa", Name: "cam-1", Client: hostileName}, {Model: "zz", Name: hostileName}}
		_ = json.NewEncoder(w).Encode(s)
	}))
	t.Cleanup(h.Close)
	return h.Listener.Addr().String()
}

// startTop runs top on a terminal, and waits for its first table.
func startTop(t *testing.T, ctx context.Context, columns, rows uint16) (w *terminal, done chan int) {
	t.Helper()
	w, done = openTerminal(t, columns, rows), make(chan int, 1)
	args := []string{"top", "--every", "100ms", "--admin", busy(t)}
	go func() { done <- run(ctx, args, w.device, w.device, w.device) }()
	w.waitFor("zz/1")
	return w, done
}

// last is what the newest picture on the screen shows.
func (w *terminal) last() string {
	pictures := strings.Split(w.text(), "\x1b[H")
	if len(pictures) < 2 {
		return ""
	}
	return pictures[len(pictures)-2] // a whole one
}

func (w *terminal) waitForPicture(what string, right func(picture string) bool) {
	w.t.Helper()
	budgettest.Until(w.t, what, func() bool { return right(w.last()) })
}

func (w *terminal) modes() *unix.Termios {
	w.t.Helper()
	modes, err := unix.IoctlGetTermios(int(w.device.Fd()), unix.TCGETS)
	if err != nil {
		w.t.Fatal(err)
	}
	return modes
}

// Keys sort, filter and change the table at once, and no name reaches the terminal as it is.
func TestLiveKeys(t *testing.T) {
	w, done := startTop(t, t.Context(), 120, 24)
	before := func(a, b string) func(string) bool {
		return func(picture string) bool {
			i, j := strings.Index(picture, a), strings.Index(picture, b)
			return i >= 0 && j > i
		}
	}
	has := func(yes, no string) func(string) bool {
		return func(picture string) bool { return strings.Contains(picture, yes) && !strings.Contains(picture, no) }
	}
	w.press("l")
	w.waitForPicture("zz first, by load", before("zz/1", "aa/1"))
	w.press("n")
	w.waitForPicture("aa first, by name", before("aa/1", "zz/1"))
	w.press("\x1b[C")
	w.waitForPicture("the next column", has("by requests/s", "by model"))
	w.press("\x1b[19~\x1b[1;5D") // F8, which has no meaning, and Ctrl-left
	w.waitForPicture("the column before", has("by model", "by p99"))
	w.press("r")
	w.waitForPicture("requests again", has("by requests/s", "by model"))
	w.press("/z")
	w.waitForPicture("the filter", has("filter: z_", "aa/1"))
	w.press("\x7fq") // a letter while typing
	w.waitForPicture("nothing that has q", has("none", "zz/1"))
	w.press("\x1b")
	w.waitForPicture("all again", has("aa/1", "filter: "))
	w.press("p")
	w.waitForPicture("pipelines", has("plates", "aa/1"))
	w.press("s")
	w.waitForPicture("streams", has("cam-1", "plates"))
	w.press("/EVIL\r")
	w.waitForPicture("the stream of an evil client", has("only EVIL", `by requests/s`))
	w.press("q")
	if code := <-done; code != exitOK {
		t.Errorf("exit %d", code)
	}
	rest := w.text()
	for _, known := range []string{"\x1b[?1049h", "\x1b[?7l", "\x1b[?25l", "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[?25h", "\x1b[?7h",
		"\x1b[?1049l"} {
		rest = strings.ReplaceAll(rest, known, "")
	}
	if strings.ContainsAny(rest, "\x1b\x07\u202e") || !strings.Contains(rest, `evil\u001b[2J`) {
		t.Errorf("the terminal got %q", rest)
	}
}

// The screen follows the size of the terminal: as many lines as there are, and fewer columns.
func TestLiveResize(t *testing.T) {
	w, done := startTop(t, t.Context(), 120, 24)
	w.waitForPicture("all rows", func(p string) bool {
		return strings.Count(p, "\r\n") == 23 && strings.Contains(p, "FRAME AGE")
	})
	if err := unix.IoctlSetWinsize(int(w.device.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 64, Row: 9}); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGWINCH) // as the kernel would, if it were our terminal
	w.waitForPicture("fewer rows", func(p string) bool {
		return strings.Count(p, "\r\n") == 8 && !strings.Contains(p, "FRAME AGE") && strings.Contains(p, "P99")
	})
	w.press("\x03") // Ctrl-C
	if code := <-done; code != exitOK {
		t.Errorf("exit %d", code)
	}
}

// The terminal is as before after q, a signal, a refusal and a panic.
func TestLiveRestores(t *testing.T) {
	const left = "\x1b[?25h\x1b[?7h\x1b[?1049l"
	for name, end := range map[string]func(w *terminal, cancel func()){
		"q":      func(w *terminal, _ func()) { w.press("q") },
		"signal": func(_ *terminal, cancel func()) { cancel() },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		w, done := startTop(t, ctx, 80, 24)
		raw := w.modes()
		end(w, cancel)
		if code := <-done; code != exitOK {
			t.Errorf("%s: exit %d", name, code)
		}
		w.waitFor(left)
		const lines = unix.ECHO | unix.ICANON | unix.ISIG
		if now := w.modes(); raw.Lflag&lines != 0 || now.Lflag&lines != lines {
			t.Errorf("%s: %x, then %x", name, raw.Lflag, now.Lflag)
		}
		cancel()
	}

	w := openTerminal(t, 80, 24)
	sane := *w.modes()
	c := &cli{ctx: t.Context(), stdin: w.device, stdout: printer{w.device}, every: time.Second, timeout: time.Second}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it did not panic")
			}
		}()
		_ = c.live(w.device, &topOptions{}) // without a token: the goroutine that asks panics
	}()
	w.waitFor(left)
	if now := w.modes(); *now != sane {
		t.Errorf("after a panic: %+v, before %+v", now, sane)
	}
}

// Progress is a line that moves on a terminal.
func TestProgressOnATerminal(t *testing.T) {
	w := openTerminal(t, 30, 24)
	c := &cli{stderr: printer{w.device}, timeout: time.Minute}
	stop := c.waiting("loading " + hostileName)
	w.waitFor("\r\x1b[Kloading evil\\u001b[2J")
	stop()
	budgettest.Until(t, "the line to go", func() bool { return strings.HasSuffix(w.text(), "\r\x1b[K") })
}
