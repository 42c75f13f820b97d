package main

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/shiva/budgettest"
)

// A terminal is a pseudo-terminal of the kernel, with keyboard and screen.
type terminal struct {
	t      *testing.T
	keys   *os.File // the end of the user
	device *os.File // the end of the program

	mu    sync.Mutex
	shown strings.Builder
}

// openTerminal makes a terminal of a given size, which lasts as long as the test.
func openTerminal(t *testing.T, columns, rows uint16) *terminal {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := keys.SyscallConn() // not Fd, after which Close would wait for Read
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if controlled := conn.Control(func(fd uintptr) {
		if n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
			err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		}
		if err == nil {
			err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
		}
	}); controlled != nil || err != nil {
		t.Fatal(controlled, err)
	}
	device, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := &terminal{t: t, keys: keys, device: device}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := keys.Read(b)
			w.mu.Lock()
			w.shown.Write(b[:n])
			w.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the terminal shows %q", w.text())
		}
		keys.Close() // which hangs up: a reader at the other end gets an error
		<-read
		device.Close()
	})
	return w
}

// text is everything that has been shown so far.
func (w *terminal) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown.String()
}

// waitFor waits until a text has been shown.
func (w *terminal) waitFor(text string) {
	w.t.Helper()
	budgettest.Until(w.t, "the terminal to show "+strconv.Quote(text), func() bool {
		return strings.Contains(w.text(), text)
	})
}

func (w *terminal) press(keys string) {
	w.t.Helper()
	if _, err := w.keys.WriteString(keys); err != nil {
		w.t.Fatal(err)
	}
}
