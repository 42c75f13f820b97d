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

// A bar is a promise with the pieces that check it.
type bar struct {
	name   string
	what   string
	pieces []piece
	faults faults
}

// A piece is a command that fails when the bar does not hold.
type piece struct {
	command []string
	env     string         // an additional variable; "": none
	shows   *regexp.Regexp // matches figures in the output, by its group
}

// run runs the command and returns its output.
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

// figures returns the first figures in the output, with white space folded.
func (p *piece) figures(out []byte) (list []string) {
	for _, found := range p.shows.FindAllSubmatch(out, maxFigures) {
		text := []rune(strings.Join(strings.Fields(string(found[1])), " "))
		list = append(list, string(text[:min(len(text), maxWidth)]))
	}
	return list
}

// Lines of output that are figures: messages of t.Logf and t.Errorf; the ratios of a bench with
// their verdicts, and the reason why it ended; all lines.
var (
	logged = regexp.MustCompile(`(?m)^ +\w+_test\.go:\d+: (.*)$`)
	ratios = regexp.MustCompile(`(?m)^(.* (?:pass|FAIL|reported)|run: .*)$`)
	lines  = regexp.MustCompile(`(?m)^(.+)$`)
)

// test is a piece that runs the tests of some packages that match a regular expression. Flags of
// the tests may follow the packages.
func test(name string, packages ...string) piece {
	return piece{command: append([]string{"go", "test", "-count=1", "-vet=off", "-v", "-run", "^(" + name + ")$"},
		packages...), shows: logged}
}

// fuzz is a piece that runs a fuzz target for a minute.
func fuzz(name, pkg string) piece {
	return piece{command: []string{"go", "test", "-vet=off", "-run", "^" + name + "$", "-fuzz", "^" + name + "$",
		"-fuzztime", "1m", pkg}, shows: regexp.MustCompile(`(?m)^(fuzz: elapsed: 1m.*|.*_test\.go:\d+: .*)$`)}
}

// e2e is a piece that runs a test with real processes.
func e2e(name string) piece {
	return piece{command: []string{"go", "test", "-count=1", "-vet=off", "-tags", "e2e", "-v", "-run",
		"^(" + name + ")$", "./server/e2e"}, shows: logged}
}

// lasting is e2e for a test that keeps up its disturbance for that many seconds.
func lasting(seconds int, name string) piece {
	p := e2e(name)
	p.env = fmt.Sprintf("SHIVA_E2E_SECONDS=%d", seconds)
	return p
}

// part is a piece that runs parts of bench/run.
func part(rounds int, name string) piece {
	return piece{command: []string{"go", "run", "./bench/run", "-rounds", fmt.Sprint(rounds), "-only", "^(" + name + ")$"},
		shows: ratios}
}

// program is a piece that runs another bench.
func program(shows *regexp.Regexp, args ...string) piece {
	return piece{command: append([]string{"go", "run"}, args...), shows: shows}
}
