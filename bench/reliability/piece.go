package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// A bar is a promise.
type bar struct {
	name   string
	what   string
	pieces []piece
	fault  fault
}

// A piece is a command that fails when the bar does not hold.
type piece struct {
	command []string
	env     string         // one more variable; "": none
	shows   *regexp.Regexp // its group is a figure, in what the command prints
}

// run runs the command, and returns what it has printed.
func (p *piece) run(ctx context.Context, env []string) ([]byte, error) {
	var out bytes.Buffer
	c := exec.CommandContext(ctx, p.command[0], p.command[1:]...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.Stdout, c.Stderr, c.WaitDelay = &out, &out, time.Minute
	if c.Env = env; p.env != "" {
		c.Env = append(c.Env, p.env)
	}
	err := c.Run()
	return out.Bytes(), err
}

// figures are the first of those in what the command has printed, with a space between words.
func (p *piece) figures(out []byte) (list []string) {
	for _, found := range p.shows.FindAllSubmatch(out, maxFigures) {
		text := []rune(strings.Join(strings.Fields(string(found[1])), " "))
		list = append(list, string(text[:min(len(text), maxWidth)]))
	}
	return list
}

// What pieces print, by line: what a test says by t.Logf and t.Errorf; the ratios of a bench with
// their verdicts, and why it ends; everything.
var (
	logged = regexp.MustCompile(`(?m)^ +\w+_test\.go:\d+: (.*)$`)
	ratios = regexp.MustCompile(`(?m)^(.* (?:pass|FAIL|reported)|run: .*)$`)
	lines  = regexp.MustCompile(`(?m)^(.+)$`)
)

// test is a test, or several by a regular expression, of some packages. Flags of the test follow
// these.
func test(name string, packages ...string) piece {
	return piece{command: append([]string{"go", "test", "-count=1", "-vet=off", "-v", "-run", "^(" + name + ")$"}, packages...), shows: logged}
}

// e2e is a test of real processes.
func e2e(name string) piece {
	return piece{command: []string{"go", "test", "-count=1", "-vet=off", "-tags", "e2e", "-v", "-run", "^(" + name + ")$", "./server/e2e"}, shows: logged}
}

// lasting is e2e, with the fault kept up for so many seconds.
func lasting(seconds int, name string) piece {
	p := e2e(name)
	p.env = fmt.Sprintf("SHIVA_E2E_SECONDS=%d", seconds)
	return p
}

// part is a part of the bench of ratios.
func part(rounds int, name string) piece {
	return piece{command: []string{"go", "run", "./bench/run", "-rounds", fmt.Sprint(rounds), "-only", "^(" + name + ")$"}, shows: ratios}
}

// program is another bench.
func program(shows *regexp.Regexp, args ...string) piece {
	return piece{command: append([]string{"go", "run"}, args...), shows: shows}
}
