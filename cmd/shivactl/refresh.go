package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/plural"
)

// watchFlag is the value of --watch: nothing, or a time.
type watchFlag struct{ c *cli }

const (
	usualRefresh = 2 * time.Second
	leastRefresh = 100 * time.Millisecond
)

func (w watchFlag) String() string { return "" }

// Type makes the help show no name of a value, since it may be left out.
func (w watchFlag) Type() string { return "bool" }

func (w watchFlag) Set(text string) error {
	if on, err := strconv.ParseBool(text); err == nil {
		w.c.every = 0
		if on {
			w.c.every = usualRefresh
		}
		return nil
	}
	d, err := parseRefresh(text)
	if err == nil {
		w.c.every = d
	}
	return err
}

// parseRefresh parses the interval of repeated output.
func parseRefresh(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < leastRefresh {
		return 0, fmt.Errorf("expected a time of at least %v with its unit, such as 10s", leastRefresh)
	}
	return d, nil
}

// errEnough ends a repetition that has nothing more to show.
var errEnough = errors.New("enough")

// repeat calls show at an interval, until it fails or the user interrupts it.
func (c *cli) repeat(show func() error) error {
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	for {
		err := show()
		if c.ctx.Err() != nil || errors.Is(err, errEnough) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-c.ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// passing reports whether a failure may be temporary: the server refuses connections or cannot be
// reached, and may be starting. A refused token may be about to be replaced if it was accepted
// before.
func passing(err error, answered bool) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.code != exitUsage &&
		(answered || f.Type != shiva.Unauthenticated && f.Type != shiva.PermissionDenied)
}

// refresh calls show repeatedly. On a terminal each output replaces the previous one; otherwise
// they follow each other. It reports when the server cannot be reached, and tries again.
func (c *cli) refresh(show func(*cli) error) error {
	screen := newScreen(c.stdout)
	defer screen.close()
	first, answered := true, false
	return c.repeat(func() error {
		var out bytes.Buffer
		round := *c
		round.stdout = printer{&out}
		if screen != nil {
			round.stderr = round.stdout
			round.columns, _ = screen.size()
		}
		err := show(&round)
		answered = answered || err == nil
		if passing(err, answered) && c.ctx.Err() == nil {
			round.report(err)
			err = nil
		}
		switch {
		case out.Len() == 0:
		case screen != nil:
			screen.draw(out.String())
		case first || c.json:
			c.stdout.Write(out.Bytes())
		default:
			fmt.Fprintf(c.stdout, "\n%s", out.Bytes())
		}
		first = false
		return err
	})
}

// follow calls show repeatedly, which prints what is new. It reports once that the server cannot be
// reached.
func (c *cli) follow(show func(*cli) error) error {
	var away string
	answered := false
	return c.repeat(func() error {
		err := show(c)
		answered = answered || err == nil
		var said bytes.Buffer
		if passing(err, answered) && c.ctx.Err() == nil {
			round := *c
			round.stdout, round.stderr = printer{&said}, printer{&said}
			round.report(err)
			err = nil
		}
		if text := said.String(); text != away {
			away = text
			if c.json {
				io.WriteString(c.stdout, text)
			} else {
				io.WriteString(c.stderr, text)
			}
		}
		return err
	})
}

// A screen is a terminal whose contents are replaced; nil: no terminal.
type screen struct{ f *os.File }

// newScreen takes over the terminal w, on the alternate screen, which preserves the user's screen;
// nil if w is not a terminal.
func newScreen(w io.Writer) *screen {
	f, _ := terminalOf(w)
	if f == nil {
		return nil
	}
	f.WriteString("\x1b[?1049h\x1b[?7l\x1b[?25l") // alternate screen, long lines cut, no cursor
	return &screen{f}
}

func (s *screen) close() {
	if s != nil {
		s.f.WriteString("\x1b[?25h\x1b[?7h\x1b[?1049l")
	}
}

// size returns the columns and rows of the terminal; 0 if they are unknown.
func (s *screen) size() (columns, rows int) {
	columns, rows, _ = terminalSize(s.f)
	return columns, rows
}

// draw shows as many lines as fit.
func (s *screen) draw(text string) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if _, rows := s.size(); rows > 0 && len(lines) > rows {
		more := len(lines) - rows + 1
		lines = append(lines[:rows-1], "… "+plural.Of(more, "more line"))
	}
	// Each line overwrites the one before, so that nothing flickers.
	s.f.WriteString("\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J")
}
