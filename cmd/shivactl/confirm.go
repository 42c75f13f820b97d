package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// confirm asks the user whether to delete what, which has a %s for each of args. Without a terminal
// it requires --yes: a script that deletes should do so on purpose.
func (c *cli) confirm(what string, args []string) error {
	if c.yes {
		return nil
	}
	quoted := make([]any, len(args))
	for i, arg := range args {
		quoted[i] = fmt.Sprintf("%q", arg)
	}
	what = fmt.Sprintf(what, quoted...) + " at " + c.admin
	keyboard, err := c.keyboard()
	if err != nil {
		return &failure{"usage", fmt.Sprintf("expected --yes to delete %s, as there is no terminal to ask at", what),
			"--yes does it without asking", exitUsage}
	}
	line, _ := c.question(keyboard, fmt.Sprintf("delete %s? [y/N] ", what))
	if slices.Contains([]string{"y", "yes"}, strings.ToLower(line)) {
		return nil
	}
	return &failure{"canceled", "nothing was deleted", "", exitRefused}
}

// keyboard returns the terminal that standard input is; an error if it is none.
func (c *cli) keyboard() (*os.File, error) {
	file, ok := c.stdin.(*os.File)
	if ok {
		_, _, ok = terminalSize(file)
	}
	if !ok {
		return nil, errors.New("standard input is no terminal")
	}
	return file, nil
}

// question returns the line that the user answers, trimmed; false if there is none, as after Ctrl-D
// and Ctrl-C. A terminal gives a line for each read, so that no later answer is lost.
func (c *cli) question(keyboard *os.File, text string) (line string, ok bool) {
	fmt.Fprint(c.stderr, text)
	answer := make(chan string, 1)
	// When the user interrupts, this goroutine is left behind, reading: the process ends.
	go func() {
		line, _ := bufio.NewReader(keyboard).ReadString('\n')
		answer <- line
	}()
	select {
	case line = <-answer:
	case <-c.ctx.Done():
	}
	if line == "" {
		fmt.Fprintln(c.stderr)
	}
	return strings.TrimSpace(line), line != ""
}
