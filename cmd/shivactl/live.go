package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/shivad/shivad/server/admin"
)

// A live is top on a terminal, where keys choose what is shown.
type live struct {
	*cli
	options *topOptions
	screen  *screen
	view    view

	shown    *top // nil: nothing yet
	status   *admin.Status
	trouble  string // why there is nothing newer
	answered bool
}

// A measurement is what a goroutine of measure found.
type measurement struct {
	top    top
	status admin.Status
	err    error
	crash  any
}

// keyboardAndScreen returns the terminal for a live top; false if standard input or output is none.
func (c *cli) keyboardAndScreen() (keyboard *os.File, ok bool) {
	keyboard, err := c.keyboard()
	screen, _ := terminalOf(c.stdout)
	return keyboard, err == nil && screen != nil
}

// live shows top until the user ends it. The terminal is as it was before however it ends: also by
// a signal, which ends ctx, and by a panic, since every goroutine that may panic hands it over.
func (c *cli) live(keyboard *os.File, o *topOptions) error {
	before, err := term.MakeRaw(int(keyboard.Fd()))
	if err != nil {
		return unfit("", "the terminal: %v", err)
	}
	defer func() { _ = term.Restore(int(keyboard.Fd()), before) }()
	l := &live{cli: c, options: o, screen: newScreen(c.stdout), view: view{kind: 'm', order: map[rune]int{}}}
	defer l.screen.close()
	resized, stop := resizes()
	defer stop()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	pressed := read(ctx, keyboard)
	measured := make(chan measurement, 1)
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	measuring := true
	go l.measure(ctx, measured)
	l.draw()
	for {
		select {
		case <-c.ctx.Done():
			return nil
		case keys, ok := <-pressed:
			if !ok || !l.view.press(keys) {
				return nil
			}
		case m := <-measured:
			measuring = false
			if m.crash != nil {
				panic(m.crash)
			}
			if over, err := l.take(m); over || err != nil {
				return err
			}
		case <-tick.C:
			if !measuring {
				measuring = true
				go l.measure(ctx, measured)
			}
			continue
		case <-resized:
		}
		l.draw()
	}
}

// read sends what is typed. It may be left behind, reading: the process ends.
func read(ctx context.Context, keyboard *os.File) <-chan []byte {
	out := make(chan []byte)
	go func() {
		defer close(out)
		for {
			keys := make([]byte, 256)
			n, err := keyboard.Read(keys)
			if err != nil {
				return
			}
			select {
			case out <- keys[:n]:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// measure asks the server, within --timeout. Only one runs at a time.
func (l *live) measure(ctx context.Context, out chan<- measurement) {
	var m measurement
	defer func() {
		m.crash = recover()
		out <- m
	}()
	bounded := *l.cli
	var cancel func()
	bounded.ctx, cancel = context.WithTimeout(ctx, l.timeout)
	defer cancel()
	m.top, m.status, m.err = bounded.measureTop(l.options)
}

// take shows a measurement, and reports whether it is the last.
func (l *live) take(m measurement) (over bool, err error) {
	l.answered = l.answered || m.err == nil
	switch {
	case l.ctx.Err() != nil:
		return true, nil
	case m.err == nil:
		l.shown, l.status, l.trouble = &m.top, &m.status, ""
	case passing(m.err, l.answered):
		l.trouble = m.err.Error()
	default:
		return true, m.err
	}
	l.options.shown++
	return l.options.shown == l.options.count, nil
}

// draw shows what the view chooses, as much as fits below a head and above the line of keys.
func (l *live) draw() {
	columns, rows := l.screen.size()
	var head, body bytes.Buffer
	page := *l.cli
	page.columns = columns
	page.stdout = printer{&head}
	switch {
	case l.trouble != "":
		fmt.Fprintln(page.stdout, l.trouble)
	case l.shown == nil:
		fmt.Fprintf(page.stdout, "asking %s\n", l.admin)
	}
	if l.shown != nil {
		page.printTopHead(l.shown, l.status)
		page.stdout = printer{&body}
		page.printView(&l.view, l.shown)
	}
	top, lines := textLines(head.String()), textLines(body.String())
	room := max(rows-len(top)-1, 1) // for the body; the last line has the keys
	if rows == 0 {
		room = len(lines)
	}
	l.view.from = max(0, min(l.view.from, len(lines)-room))
	if l.view.from > 0 && room > 1 { // the heading stays
		lines = append(lines[:1:1], lines[1+l.view.from:]...)
	}
	lines = lines[:min(len(lines), room)]
	for len(lines) < room && rows > 0 {
		lines = append(lines, "")
	}
	all := append(top, lines...)
	if rows > 0 {
		all = all[:min(len(all), rows-1)]
	}
	l.screen.draw(strings.Join(append(all, cut(l.view.foot(), page.width())), "\n"))
}

func textLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
